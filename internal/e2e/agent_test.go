package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
)

// agent is one connection to the daemon's socket, kept open: what it sends goes to the process that accepted it, whoever has the
// socket's path meanwhile.
type agent struct {
	w    *world
	conn net.Conn
	in   *bufio.Reader
}

func (w *world) agent() *agent {
	w.t.Helper()
	conn, err := net.Dial("unix", filepath.Join(w.dir, "run", "approvald", "default.sock"))
	w.must(err)
	w.t.Cleanup(func() { conn.Close() })
	return &agent{w: w, conn: conn, in: bufio.NewReader(conn)}
}

func (a *agent) send(method, path, body string) {
	a.w.t.Helper()
	_, err := fmt.Fprintf(a.conn, "%s %s HTTP/1.1\r\nHost: approvald\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
	a.w.must(err)
}

// answer reads what the daemon says: nothing when it closed the connection.
func (a *agent) answer() (status int, body string) {
	r, err := http.ReadResponse(a.in, nil)
	if err != nil {
		return 0, ""
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, ""
	}
	return r.StatusCode, string(text)
}

func (a *agent) do(method, path, body string) (int, string) {
	a.w.t.Helper()
	a.send(method, path, body)
	return a.answer()
}

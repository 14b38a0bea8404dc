package transport

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// shortDir is a folder whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hook-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestWebhookUnixSocket(t *testing.T) {
	path := filepath.Join(shortDir(t), "hook.sock")
	w := newTestWebhook(t, newTestClient(t, ""), func(o *WebhookOptions) { o.Listen = "unix:" + path })
	first, err := w.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := w.open(t.Context()); err == nil || !strings.Contains(err.Error(), "another process listens on "+path) {
		t.Errorf("a socket in use: %v", err)
	}
	// What a killed process leaves behind.
	_ = first.(*unixSocket).UnixListener.Close()
	second, err := w.open(t.Context())
	if err != nil {
		t.Fatalf("a stale socket: %v", err)
	}
	// One whose file was taken away finds its successor's at its end and leaves it alone.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	third, err := w.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = second.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the successor's socket: %v", err)
	}
	_ = conn.Close()
	_ = third.Close()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("left behind: %v", err)
	}
}

func TestWebhookUnixSocketRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(path string) error
		want    string
	}{
		"a plain file":       {func(p string) error { return os.WriteFile(p, []byte("precious"), 0o600) }, "not a socket"},
		"a directory":        {func(p string) error { return os.Mkdir(p, 0o700) }, "not a socket"},
		"a link":             {func(p string) error { return os.Symlink("/dev/null", p) }, "not a socket"},
		"a dangling link":    {func(p string) error { return os.Symlink("/nonexistent/x", p) }, "not a socket"},
		"anybody's folder":   {func(p string) error { return os.Chmod(filepath.Dir(p), 0o777) }, "everybody may write"},
		"no folder":          {func(p string) error { return os.Remove(filepath.Dir(p)) }, "has to be there"},
		"a stopped listener": {fullSocket(t), "not known"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(shortDir(t), "hook.sock")
			if err := tc.prepare(path); err != nil {
				t.Fatal(err)
			}
			before, beforeErr := os.Lstat(path)
			_, err := listenUnix(t.Context(), path)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), filepath.Dir(path)) {
				t.Errorf("%v", err)
			}
			after, afterErr := os.Lstat(path)
			if (beforeErr == nil) != (afterErr == nil) || beforeErr == nil && !os.SameFile(before, after) {
				t.Errorf("touched: %v, %v", afterErr, after)
			}
		})
	}
	if _, err := listenUnix(t.Context(), "/"+strings.Repeat("x", 107)); err == nil || !strings.Contains(err.Error(), "108 bytes") {
		t.Errorf("a long path: %v", err)
	}
}

// fullSocket makes the socket of a process that lives and accepts nothing, its backlog full.
func fullSocket(t *testing.T) func(path string) error {
	return func(path string) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			return err
		}
		if err := unix.Listen(fd, 0); err != nil {
			return err
		}
		conn, err := net.Dial("unix", path)
		if err == nil {
			t.Cleanup(func() { conn.Close() })
		}
		return err
	}
}

func TestWebhookUnixSocketOfManyStartersOneServes(t *testing.T) {
	for range 50 {
		manyStarters(t)
	}
}

func manyStarters(t *testing.T) {
	path := filepath.Join(shortDir(t), "hook.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	got := make(chan net.Listener, 10)
	var starters sync.WaitGroup
	begin := make(chan struct{})
	for range cap(got) {
		starters.Go(func() {
			<-begin
			if l, err := listenUnix(t.Context(), path); err == nil {
				got <- l
			} else if !strings.Contains(err.Error(), "another process listens") {
				t.Error(err)
			}
		})
	}
	close(begin)
	starters.Wait()
	if len(got) != 1 {
		t.Fatalf("%d of ten starters got the socket", len(got))
	}
	winner := <-got
	defer winner.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the winner's socket does not work: %v", err)
	}
	_ = conn.Close()
}

// serveOn runs a webhook's server and returns its address.
func serveOn(t *testing.T, w *Webhook, handle Handler, change ...func(*http.Server)) string {
	t.Helper()
	server := w.server(t.Context(), handle)
	for _, f := range change {
		f(server)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close(); <-served })
	return listener.Addr().String()
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func request(secret, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: h\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s", hookPath, secretHeader, secret, len(body), body)
}

func TestWebhookSlowSenderIsDropped(t *testing.T) {
	w := newTestWebhook(t, newTestClient(t, ""))
	server := w.server(t.Context(), ignore)
	if server.ReadHeaderTimeout != 10*time.Second || server.ReadTimeout != 10*time.Second || server.IdleTimeout == 0 || server.MaxHeaderBytes != 16<<10 {
		t.Errorf("limits %s, %s, %s", server.ReadHeaderTimeout, server.ReadTimeout, server.IdleTimeout)
	}
	address := serveOn(t, w, ignore, func(s *http.Server) { s.ReadTimeout = 50 * time.Millisecond })
	conn := dial(t, address)
	if _, err := io.WriteString(conn, strings.TrimSuffix(request(hookSecret, tapJSON(1, 2)), "}")); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 408") {
		t.Errorf("%q, %v", answer, err)
	}
}

func TestWebhookHeaderIsBounded(t *testing.T) {
	address := serveOn(t, newTestWebhook(t, newTestClient(t, "")), ignore)
	for name, header := range map[string]string{
		"one long line": "X: " + strings.Repeat("x", 64<<10),
		"many lines":    strings.Repeat("X: y\r\n", 16<<10),
	} {
		conn := dial(t, address)
		go func() { _, _ = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: h\r\n%s\r\n\r\n", hookPath, header) }()
		answer, _ := io.ReadAll(conn) // the rest of what was sent may reset it
		if len(answer) > 0 && !strings.HasPrefix(string(answer), "HTTP/1.1 431") {
			t.Errorf("%s: %q", name, answer)
		}
	}
	conn := dial(t, address)
	if _, err := io.WriteString(conn, "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 404") {
		t.Errorf("OPTIONS *: %q, %v", line, err)
	}
}

// Connections that send slowly or nothing make room for new ones, those with an
// update in hand do not.
func TestWebhookConnectionsAreBounded(t *testing.T) {
	w := newTestWebhook(t, newTestClient(t, ""))
	w.conns = newConnTable(8)
	entered, finish := make(chan struct{}), make(chan struct{})
	address := serveOn(t, w, func(_ context.Context, u Update) error {
		if u.ID == 1 {
			close(entered)
			<-finish
		}
		return nil
	})
	busy := dial(t, address)
	if _, err := io.WriteString(busy, request(hookSecret, tapJSON(1, 2))); err != nil {
		t.Fatal(err)
	}
	<-entered
	slow := make([]net.Conn, 100)
	for i := range slow {
		slow[i] = dial(t, address)
		if _, err := io.WriteString(slow[i], "POST "); err != nil {
			continue // already dropped
		}
	}
	for i, c := range slow[:90] {
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			t.Fatalf("connection %d was kept: %v", i, err)
		}
	}
	// A tap's own connection is served although all places are taken.
	tap := dial(t, address)
	reader := bufio.NewReader(tap)
	for i := range 3 {
		if _, err := io.WriteString(tap, request(hookSecret, tapJSON(int64(2+i), 2))); err != nil {
			t.Fatal(err)
		}
		if response, err := http.ReadResponse(reader, nil); err != nil || response.StatusCode != 200 {
			t.Fatalf("tap %d: %+v, %v", i, response, err)
		}
	}
	close(finish)
	if response, err := http.ReadResponse(bufio.NewReader(busy), nil); err != nil || response.StatusCode != 200 {
		t.Errorf("the one in hand: %+v, %v", response, err)
	}
	w.conns.mu.Lock()
	defer w.conns.mu.Unlock()
	if len(w.conns.open) > 8 {
		t.Errorf("%d connections open", len(w.conns.open))
	}
}

// A refused post keeps its connection when skipping its body costs nothing, so that
// a reverse proxy need not make a new one for each.
func TestWebhookRefusedPostsShareAConnection(t *testing.T) {
	address := serveOn(t, newTestWebhook(t, newTestClient(t, "")), ignore)
	conn := dial(t, address)
	reader := bufio.NewReader(conn)
	for i := range 50 {
		secret, want := "stranger", 401
		if i%10 == 9 {
			secret, want = hookSecret, 200
		}
		if _, err := io.WriteString(conn, request(secret, tapJSON(1, 2))); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(reader, nil)
		if err != nil || response.StatusCode != want || response.Close {
			t.Fatalf("post %d: %+v, %v", i, response, err)
		}
	}
	if _, err := io.WriteString(conn, request("stranger", strings.Repeat(" ", maxSkip+1))); err != nil {
		t.Fatal(err)
	}
	if response, err := http.ReadResponse(reader, nil); err != nil || response.StatusCode != 401 || !response.Close {
		t.Errorf("a longer one: %+v, %v", response, err)
	}
}

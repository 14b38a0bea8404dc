package main

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

const config = "config/approvald/default.toml"

// finding is one line of doctor --json.
type finding struct{ Check, Status, What, Repair string }

// doctor runs the verb and wants its exit code.
func (w *world) doctor(want int) []finding {
	w.t.Helper()
	p := w.run(w.env, want, "doctor", "--json")
	var list []finding
	if err := json.Unmarshal([]byte(p.out.String()), &list); err != nil {
		w.t.Fatalf("%v: %s", err, p.out)
	}
	if len(list) != 16 {
		w.t.Errorf("%d checks: %s", len(list), p.out)
	}
	for _, f := range list {
		if f.What == "" || (f.Repair != "") != (f.Status == "failed") {
			w.t.Errorf("%+v: every check says what it found, and those that failed what repairs it", f)
		}
	}
	w.isPublic(p.out.String())
	return list
}

// isPublic fails when the text holds what must not be pasted anywhere.
func (w *world) isPublic(text string) {
	w.t.Helper()
	_, secret, _ := strings.Cut(w.bot.Token(), ":")
	for _, private := range []string{secret, hookSecret, groupID, "example.com", w.dir} {
		if private != "" && strings.Contains(text, private) {
			w.t.Errorf("%q is shown: %s", private, text)
		}
	}
}

func firstFailed(list []finding) finding {
	if i := slices.IndexFunc(list, func(f finding) bool { return f.Status == "failed" }); i >= 0 {
		return list[i]
	}
	return finding{}
}

const (
	hookSecret = "s3cret-s3cret-s3cret"
	groupID    = "-1001234567890"
)

// inGroup moves the gate into a group in which the bot has that status.
func (w *world) inGroup(status telegramtest.MemberStatus) {
	id, err := strconv.ParseInt(groupID, 10, 64)
	if err != nil {
		w.t.Fatal(err)
	}
	w.bot.AddChat(telegramtest.Chat{ID: id, Type: telegramtest.Supergroup, Members: telegramtest.Members(alice)})
	w.bot.SetBotStatus(id, status)
	w.write(config, strings.Replace(w.read(config), "\nchat_id = 111", "\nchat_id = "+groupID, 1))
}

// behindProxy puts the gate into webhook mode behind a proxy of its own.
func (w *world) behindProxy(change func(*http.Request)) {
	socket := "unix:" + filepath.Join(w.dir, "run", "hook.sock")
	front := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: "gate"})
			change(r.Out)
		},
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(socket, "unix:"))
			},
			DisableKeepAlives: true,
		},
	}
	server := httptest.NewTLSServer(front)
	w.t.Cleanup(server.Close)
	w.write("proxy.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	// The name leads there as it would to a machine in the Internet.
	internet := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		there, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			return
		}
		defer there.Close()
		here, buffered, err := rw.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer here.Close()
		_, _ = here.Write([]byte("HTTP/1.1 200 OK\r\n\r\n"))
		go io.Copy(there, buffered)
		io.Copy(here, there)
	}))
	w.t.Cleanup(internet.Close)
	w.env = append(w.env, "SSL_CERT_FILE="+filepath.Join(w.dir, "proxy.pem"), "HTTPS_PROXY="+internet.URL)
	w.write("hook.secret", hookSecret+"\n")
	w.write(config, w.read(config)+fmt.Sprintf("[transport]\nmode = \"webhook\"\n[transport.webhook]\nurl = %q\nlisten = %q\nsecret_file = %q\n",
		"https://example.com/telegram/default", socket, filepath.Join(w.dir, "hook.secret")))
}

// ahead is a clock that is ten minutes ahead of the machine's.
type ahead struct{ telegramtest.RealClock }

func (ahead) Now() time.Time { return time.Now().Add(10 * time.Minute) }

// sh runs a repair as a person who pastes it, with that on its stdin.
func (w *world) sh(repair, stdin string) {
	w.t.Helper()
	w.shellRun(append(w.env[1:len(w.env):len(w.env)], "PATH="+os.Getenv("PATH")), "printf '%s\\n' '"+stdin+"' | "+repair)
}

// shellCall makes a call to Telegram that is not the gate's.
func (w *world) shellCall(method string, args url.Values) {
	w.t.Helper()
	answer, err := http.PostForm(w.bot.URL()+"/bot"+w.bot.Token()+"/"+method, args)
	if err != nil {
		w.t.Fatal(err)
	}
	answer.Body.Close()
}

// until runs a command until its stdout has the text.
func (w *world) until(text string, args ...string) {
	w.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		p := w.start(w.env, args...)
		p.ended()
		if strings.Contains(p.out.String(), text) {
			return
		}
	}
	w.t.Fatalf("approvald %s never printed %s", strings.Join(args, " "), text)
}

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An agent that may read neither configuration nor files has the socket, and it
// is enough.
func TestSocketAloneIsEnough(t *testing.T) {
	w := newWorld(t)
	agent := w.stranger()
	w.run(agent, 2, "request", "k", "--class", "a.b", "--summary", "s") // no daemon, no configuration
	daemon := w.up()
	p := w.start(agent, "request", "k", "--class", "a.b", "--summary", "s", "--wait")
	p.sees(p.errOut, "asked")

	// The daemon dies hard and comes back; the agent waits on.
	daemon.signal(syscall.SIGKILL)
	daemon.ended()
	p.sees(p.errOut, "waiting for the gate to come back")
	w.run(agent, 12, "request", "l", "--class", "a.b", "--summary", "s")
	w.up()
	w.tap("Approve")
	if ws := p.ended(); ws.ExitStatus() != 0 {
		t.Errorf("exit code %d, want 0", ws.ExitStatus())
	}
	w.run(agent, 0, "wait", "k")
	w.run(agent, 0, "status")
	w.run(agent, 0, "queue")
	w.run(agent, 2, "log", "verify") // the files stay out of reach
}

// A daemon that stands still is not waited for: its client says that nobody was
// asked, or goes by the files.
func TestStoppedDaemon(t *testing.T) {
	w := newWorld(t)
	daemon := w.up()
	daemon.signal(syscall.SIGSTOP)
	defer daemon.signal(syscall.SIGCONT)
	began := time.Now()
	p := w.run(w.stranger(), 12, "request", "k", "--class", "a.b", "--summary", "s")
	if !strings.Contains(p.errOut.String(), "nobody was asked") {
		t.Errorf("stderr %q does not say that nobody was asked", p.errOut)
	}
	if took := time.Since(began); took > patience/4 {
		t.Errorf("it took %v to notice", took)
	}
	w.run(w.env, 0, "request", "k", "--class", "a.b", "--summary", "s")
	daemon.signal(syscall.SIGCONT)
	w.tap("Approve")
	w.run(w.env, 0, "wait", "k")
}

// A request that cannot be shown to anybody is told to who waits for it.
func TestUndeliverableIsTold(t *testing.T) {
	w := newWorld(t)
	const config = "config/approvald/default.toml"
	w.write(config, strings.Replace(w.read(config), "chat_id = 111", "chat_id = 999", 1))
	w.up()
	p := w.start(w.stranger(), "request", "k", "--class", "a.b", "--summary", "s", "--wait")
	p.sees(p.errOut, "k: not delivered yet")
	if !strings.Contains(p.errOut.String(), "chat not found") {
		t.Errorf("stderr %q does not say why", p.errOut)
	}
	if text := w.run(w.env, 0, "status").out.String(); !strings.Contains(text, "undelivered 1") || !strings.Contains(text, "chat not found") {
		t.Errorf("status does not tell:\n%s", text)
	}
}

// A daemon that runs and cannot be asked is not said to be none: the reason is named.
func TestWhyTheDaemonWasNotAsked(t *testing.T) {
	w := newWorld(t)
	w.up()
	dir := filepath.Join(w.dir, "run", "approvald")
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	p := w.run(w.env, 0, "request", "k", "--class", "a.b", "--summary", "s")
	if text := p.errOut.String(); strings.Contains(text, "no daemon answers") || !strings.Contains(text, "mode 0777") {
		t.Errorf("stderr %q, want the directory's mode as the reason", text)
	}
	if text := w.run(w.env, 0, "status").out.String(); !strings.Contains(text, "mode 0777") || strings.Contains(text, "none runs") {
		t.Errorf("status does not name the reason:\n%s", text)
	}
	w.tap("Approve")
	w.run(w.env, 0, "wait", "k")
}

// What is not UTF-8 has no form in a request, whichever way it takes: two such keys must not become one.
func TestBytesThatAreNoTextAreRefused(t *testing.T) {
	w := newWorld(t)
	refused := func(env []string) {
		t.Helper()
		for _, args := range [][]string{
			{"request", "drop-\xff", "--class", "a.b", "--summary", "s"},
			{"request", "k", "--class", "a.b", "--summary", "s\xff"},
			{"request", "k", "--class", "a.b\xff", "--summary", "s"},
			{"request", "k", "--class", "a.b", "--summary", "s", "--as", "ci\xff"},
			{"request", "k", "--class", "a.b", "--summary", "s", "--task", "t\xff"},
			{"request", "k", "--class", "a.b", "--summary", "s", "--exclusive", "e\xff"},
			{"request", "k", "--class", "a.b", "--summary", "s", "--on-behalf-of", "human:a\xff"},
			{"show", "drop-\xff"},
			{"wait", "drop-\xff"},
			{"withdraw", "drop-\xff", "--reason", "timeout"},
			{"withdraw", "k", "--reason", "timeout", "--as", "ci\xff"},
		} {
			p := w.start(env, append(args, "--json")...)
			if ws := p.ended(); ws.ExitStatus() != 2 || !strings.Contains(p.out.String(), `"code":"invalid-request"`) {
				t.Errorf("%q: exit code %d, want 2: %s", args, ws.ExitStatus(), p.out)
			}
		}
		w.run(env, 112, "run", "drop-\xff", "--class", "a.b", "--", "true")
	}
	w.run(w.env, 0, "request", "k2", "--class", "a.b", "--summary", "s")
	refused(w.env)
	w.up()
	refused(w.env)
	refused(w.stranger())
	if text := w.run(w.env, 0, "queue", "--json").out.String(); strings.Count(text, `"key"`) != 1 {
		t.Errorf("something was filed: %s", text)
	}
}

// Every time in JSON has one form, whoever made it and whichever way it came.
func TestTimesInJSON(t *testing.T) {
	w := newWorld(t)
	look := func() {
		t.Helper()
		for _, args := range [][]string{{"queue"}, {"show", "k"}, {"wait", "k", "--timeout", "1ms"}, {"status"}, {"lease"}, {"log", "tail"}} {
			p := w.start(w.env, append(args, "--json")...)
			p.ended()
			for _, text := range regexp.MustCompile(`"20\d\d-[^"]*"`).FindAllString(p.out.String(), -1) {
				if !regexp.MustCompile(`^"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"$`).MatchString(text) {
					t.Errorf("%v prints the time %s", args, text)
				}
			}
		}
	}
	w.run(w.env, 0, "request", "k", "--class", "a.b", "--summary", "s")
	look()
	w.up()
	w.tap("Approve")
	w.run(w.env, 0, "wait", "k")
	look()
}

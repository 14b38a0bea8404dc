package main

import (
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

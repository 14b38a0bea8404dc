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

package main

import (
	"strings"
	"syscall"
	"testing"
)

// The daemon serves on what it read before a fault, and who only looks is shown that.
func TestAFaultInTheConfigurationHidesNoDaemonFromThoseWhoLook(t *testing.T) {
	w := newWorld(t)
	daemon := w.up()
	w.run(w.env, 0, "request", "k", "--class", "a.b", "--summary", "s")
	w.write(config, w.read(config)+"colour = \"red\"\n")
	for _, args := range [][]string{{"status"}, {"queue"}, {"show", "k"}, {"wait", "k", "--timeout", "100ms"}} {
		want := 0
		if args[0] == "wait" {
			want = 6
		}
		p := w.run(w.env, want, args...)
		if out, text := p.out.String(), p.errOut.String(); out == "" || strings.Count(text, "the configuration is at fault") != 1 || !strings.Contains(text, "colour") {
			t.Errorf("%v: stdout %q, stderr %q", args, out, text)
		}
	}
	if p := w.run(w.env, 2, "request", "l", "--class", "a.b", "--summary", "s"); !strings.Contains(p.errOut.String(), "colour") {
		t.Errorf("request: %s", p.errOut)
	}
	daemon.signal(syscall.SIGKILL)
	daemon.ended()
	if p := w.run(w.env, 2, "status"); !strings.Contains(p.errOut.String(), "colour") {
		t.Errorf("status without a daemon: %s", p.errOut)
	}
}

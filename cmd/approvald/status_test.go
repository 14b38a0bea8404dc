package main

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
)

// A watched status follows what happens, on the screen without clearing it, and ends with Ctrl-C as a watch is meant to end.
func TestStatusIsWatched(t *testing.T) {
	w := newWorld(t)
	x := w.terminalWith(append(w.env, "TERM=xterm"), "status", "--watch")
	x.sees("daemon      none runs")
	x.sees("limits      24h to decide, 1 approver, 200 pending")
	x.sees("of one asker: 100 pending, 120 an hour")
	x.sees("pending     0")
	w.run(w.env, 0, "request", "k", "--class", "a.b", "--summary", "s", "--ttl", "1h")
	x.sees("pending     1")
	x.sees("  k: asked ")
	d := w.up()
	x.sees("daemon      pid ")
	w.tap("Approve")
	d.signal(syscall.SIGTERM)
	d.ended()
	x.types("\x03")
	if ws := x.ended(); ws.ExitStatus() != 0 {
		t.Errorf("Ctrl-C: %v", ws)
	}
	screen := x.seen.String()
	if !strings.Contains(screen, "\x1b[") || strings.Contains(screen, "\x1b[2J") || strings.Contains(screen, "\x1b[?1049") {
		t.Errorf("it is drawn over itself, without clearing the screen: %q", screen)
	}
}

// With --json each change is one value, into a pipe too; without, a pipe is refused, since nothing can be redrawn there.
func TestStatusIsWatchedByAProgram(t *testing.T) {
	w := newWorld(t)
	p := w.start(w.env, "status", "--watch", "--json")
	p.sees(p.out, `"pending":0`)
	w.run(w.env, 0, "request", "k", "--class", "a.b", "--summary", "s")
	p.sees(p.out, `"pending":1`)
	d := w.up()
	p.sees(p.out, `"healthy":true`)
	w.tap("Approve")
	p.sees(p.out, `"healthy":true,`)
	d.signal(syscall.SIGTERM)
	d.ended()
	p.signal(syscall.SIGINT)
	if ws := p.ended(); ws.ExitStatus() != 0 {
		t.Errorf("SIGINT: %v", ws)
	}
	last := ""
	for line := range strings.Lines(p.out.String()) {
		var st struct {
			Transport map[string]any
			Limits    struct{ TTL string }
		}
		if err := json.Unmarshal([]byte(line), &st); err != nil || st.Limits.TTL != "24h" {
			t.Errorf("%v: %s", err, line)
		}
		if line == last {
			t.Errorf("twice, and nothing changed: %s", line)
		}
		last = line
	}
	p = w.run(w.env, 2, "status", "--watch")
	if !strings.Contains(p.errOut.String(), "Try: approvald status --watch --json") {
		t.Errorf("into a pipe: %s", p.errOut)
	}
}

// A word says what a mark says, and marks are for terminals alone, and for those who want them.
func TestMarksAreForTerminals(t *testing.T) {
	w := newWorld(t)
	w.write("token", "no token\n")
	for _, verb := range []string{"status", "doctor"} {
		plain := w.start(w.env, verb)
		plain.ended()
		for name, tc := range map[string]struct {
			env    []string
			marked bool
		}{
			"a terminal":     {[]string{"TERM=xterm"}, true},
			"NO_COLOR":       {[]string{"TERM=xterm", "NO_COLOR=1"}, false},
			"a dumb one":     {[]string{"TERM=dumb"}, false},
			"empty NO_COLOR": {[]string{"TERM=xterm", "NO_COLOR="}, true},
		} {
			x := w.terminalWith(append(w.env[:len(w.env):len(w.env)], tc.env...), verb)
			x.ended()
			screen := x.seen.String()
			if strings.Contains(screen, "\x1b[") != tc.marked {
				t.Errorf("%s on %s: %q", verb, name, screen)
			}
			text := strings.NewReplacer("\x1b[1m", "", "\x1b[0m", "", "\r\n", "\n").Replace(screen)
			if text != plain.out.String() {
				t.Errorf("%s on %s says\n%sand into a pipe\n%s", verb, name, text, plain.out)
			}
		}
		if strings.Contains(plain.out.String(), "\x1b") {
			t.Errorf("%s into a pipe: %q", verb, plain.out)
		}
	}
}

package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// limits puts the table of requests at the end of the configuration.
func limits(lines string) func(*world, string) string {
	return func(_ *world, config string) string { return config + "\n[requests]\n" + lines + "\n" }
}

// rotate asks n times under a new name each and wants an exit code; it returns what was answered last.
func (w *world) rotate(want int, prefix string, n int) (answer string) {
	w.t.Helper()
	for i := range n {
		key := fmt.Sprint(prefix, i)
		answer = w.run(want, "request", key, "--json", "--as", "name-"+key, "--class", "deploy.production", "--summary", "s").stdout.String()
	}
	return answer
}

// TestNewNamesGainNoRoom: a program that takes another name with --as each time has one share of the gate all the same, over
// the socket and by the files.
func TestNewNamesGainNoRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t, limits("max_pending = 8\nper_requester_per_hour = 7"))
	daemon := w.up()
	w.rotate(0, "socket:", 2)
	daemon.signal(syscall.SIGTERM)
	daemon.code()
	w.rotate(0, "files:", 2)
	wantRefused := func(text, code, hint string) {
		t.Helper()
		if !strings.Contains(text, `"code":"`+code+`"`) || !strings.Contains(text, hint) || !strings.Contains(text, "under whatever name") {
			t.Errorf("the refusal is %q, want %s and what to do: %s", text, code, hint)
		}
	}
	wantRefused(w.rotate(1, "more:", 2), "queue-full", "wait until some of them are decided")
	daemon = w.up()
	wantRefused(w.rotate(1, "more:", 2), "queue-full", "wait until some of them are decided")
	// A retry is none: it is answered.
	w.rotate(0, "files:", 2)
	// What is withdrawn makes room, but not in the hour.
	for _, key := range []string{"socket:0", "socket:1", "files:0", "files:1"} {
		w.run(0, "withdraw", key, "--as", "name-"+key, "--reason", "cancelled")
	}
	w.rotate(0, "again:", 3)
	wantRefused(w.rotate(1, "more:", 1), "rate-limited", "ask less often")
	daemon.signal(syscall.SIGTERM)
	daemon.code()
	wantRefused(w.rotate(1, "more:", 1), "rate-limited", "ask less often")
}

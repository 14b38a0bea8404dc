package e2e

import (
	"os"
	"strings"
	"testing"
)

// TestTheLogIsMovedUnderTheDaemon: what logrotate and its like do to a file is noticed before anything is decided on it. The daemon
// ends with 8, a new chain is never begun, and with the log in its place again the tap still counts.
func TestTheLogIsMovedUnderTheDaemon(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rotate func(w *world)
		reason string
	}{
		"renamed": {func(w *world) { w.must(os.Rename(w.logFile(), w.logFile()+".1")) }, "log-missing"},
		"renamed and touched": {func(w *world) {
			w.must(os.Rename(w.logFile(), w.logFile()+".1"))
			w.must(os.WriteFile(w.logFile(), nil, 0o600))
		}, "log-replaced"},
		"copied and truncated": {func(w *world) {
			w.copyFile(w.logFile(), w.logFile()+".1")
			w.must(os.Truncate(w.logFile(), 0))
		}, "log-truncated"},
		"removed": {func(w *world) {
			w.copyFile(w.logFile(), w.logFile()+".1")
			w.must(os.Remove(w.logFile()))
		}, "log-missing"},
		"an older copy in its place": {func(w *world) {
			text, err := os.ReadFile(w.logFile())
			w.must(err)
			w.must(os.Rename(w.logFile(), w.logFile()+".1"))
			w.must(os.WriteFile(w.logFile(), []byte(strings.SplitAfter(string(text), "\n")[0]), 0o600))
		}, "log-replaced"},
		"a bit flipped in its middle, and all of it written anew": {func(w *world) {
			text, err := os.ReadFile(w.logFile())
			w.must(err)
			w.must(os.Rename(w.logFile(), w.logFile()+".1"))
			text[len(text)/2] ^= 1
			w.must(os.WriteFile(w.logFile(), text, 0o600))
		}, "log-replaced"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			daemon := w.up()
			w.wantServes(daemon, "deploy:api#41")
			waiter, card := w.request(daemon, "deploy:api#42")
			c.rotate(w)
			left, err := os.ReadFile(w.logFile())
			there := err == nil
			w.tap(card, "Approve") // the daemon may have noticed before
			if code := daemon.code(); code != 8 {
				t.Errorf("exit code %d", code)
			}
			// It may have looked between the two steps that some of these take.
			if last := daemon.lastLine(); !strings.Contains(last, w.logFile()) || !strings.Contains(last, c.reason) && !strings.Contains(last, "log-missing") {
				t.Errorf("the last line: %q", last)
			}
			if shown, _ := w.telegram.Message(alice, card.ID); len(shown.Buttons) == 0 {
				t.Error("the card was settled")
			}
			for _, args := range [][]string{{"up"}, {"request", "another", "--class", "a.b", "--summary", "s"}, {"log", "verify"}} {
				w.run(8, args...)
			}
			if now, err := os.ReadFile(w.logFile()); (err == nil) != there || string(now) != string(left) {
				t.Errorf("what stands in the log's place was written: %q, now %q, %v", left, now, err)
			}

			w.must(os.Rename(w.logFile()+".1", w.logFile()))
			daemon = w.up()
			w.settled(daemon, card)
			w.wantEvents("deploy:api#42", "approval.requested", "approval.granted")
			if code := waiter.code(); code != 0 && code != 8 { // one that looked at the wrong moment has been told of the damage
				t.Errorf("the waiting program ended with %d", code)
			}
			w.run(0, "wait", "deploy:api#42")
			w.run(0, "log", "verify", "--semantic")
		})
	}
}

func (w *world) copyFile(from, to string) {
	w.t.Helper()
	text, err := os.ReadFile(from)
	w.must(err)
	w.must(os.WriteFile(to, text, 0o600))
}

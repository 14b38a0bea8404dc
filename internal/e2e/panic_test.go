package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/approvald/approvald/internal/telegramtest"
)

// TestAPanicInAnyPart injects a panic into each actor and each goroutine beside them while the daemon is at work. It ends with code 1,
// names the part and shows the stack; the log verifies, everything is let go of, and the next daemon goes on.
func TestAPanicInAnyPart(t *testing.T) {
	const ends, aborts = 1, 128 + 6
	for _, c := range []struct {
		point string
		armed bool // while at work; else at the start
		code  int
	}{
		{"signals", false, ends}, {"lease", false, ends}, {"log", false, ends}, {"metrics", false, ends}, {"socket", false, ends},
		{"dispatch", false, ends}, {"transport", false, ends}, {"trouble", false, ends}, {"service manager", false, ends},
		{"lease watch", false, ends}, {"lease notifier", false, ends}, {"on_trouble", false, ends}, {"transport ready", false, ends},
		{"chat check", false, ends}, {"metrics listener", false, ends}, {"socket listener", false, ends}, {"probe of log", false, ends},
		{"socket answer", true, ends}, {"metrics answer", true, ends}, {"update", true, ends}, {"dispatch effect", true, ends},
		{"dispatch call", true, ends}, {"dispatch answer", true, ends}, {"note contact", false, ends},
		{"journal snapshot", false, ends},
		{"log watch", false, aborts},
	} {
		t.Run(c.point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, watched)
			// Something is in the log, and a card on the phone, before.
			first := w.up()
			_, card := w.request(first, "deploy:api#41")
			w.stopInTime(first)
			daemon, arm := w.hooked("panic", c.point, c.armed)
			if c.armed {
				w.await(daemon, "the daemon to ask for updates", func(s telegramtest.State) bool { return len(s.Calls("getUpdates")) > 2 })
				w.until("the daemon to be ready", func() bool { return strings.Contains(daemon.stderr.String(), `"ready"`) })
			}
			if c.armed {
				arm()
				w.look("/healthz")
				w.start("request", "deploy:api#42", "--class", "deploy.production", "--summary", "s")
				w.tap(card, "Approve")
			}
			if code := daemon.code(); code != c.code {
				t.Errorf("exit code %d, want %d: %s", code, c.code, daemon.stderr.String())
			}
			text := daemon.stderr.String()
			if !strings.Contains(text, "out of luck at "+c.point) || !strings.Contains(text, "hook_test.go") {
				t.Errorf("part and stack are not shown:\n%s", text)
			}
			w.run(0, "log", "verify")
			if c.code == ends {
				if _, err := os.Lstat(filepath.Join(w.dir, "run", "approvald", "default.sock")); err == nil {
					t.Error("the socket is left behind")
				}
				if report := w.lease(); report.Held {
					t.Errorf("the lease: %+v", report)
				}
			}
			next := w.up()
			if !c.armed {
				w.tap(card, "Approve")
			}
			w.until("the tap's decision", func() bool { return len(w.events("deploy:api#41")) == 2 })
			w.settled(next, card)
			w.wantEvents("deploy:api#41", "approval.requested", "approval.granted")
			w.wantServes(next, fmt.Sprintf("deploy:after#%d", len(c.point)))
		})
	}
}

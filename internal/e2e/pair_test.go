package e2e

import (
	"regexp"
	"strings"
	"testing"

	"github.com/approvald/approvald/internal/telegramtest"
)

// TestPairingThroughAWebhook: whichever way the updates come, the daemon hears the code, also after it was killed and started again
// while the terminal waited, and a tap made meanwhile decides.
func TestPairingThroughAWebhook(t *testing.T) {
	w := newWebhookWorld(t)
	w.telegram.AddUser(telegramtest.User{ID: carol, FirstName: "Carol"})
	daemon := w.upHook()
	pair := w.start("pair", "carol", "--yes", "--timeout", "5m")
	var code []string
	w.until("a code", func() bool {
		code = regexp.MustCompile(`\?start=([A-Z2-7]{16})\n`).FindStringSubmatch(pair.stderr.String())
		return code != nil
	})
	daemon.kill()
	waiter := w.start("request", "k", "--class", "a.b", "--summary", "a test", "--wait")
	w.upHook()
	ctx := t.Context()
	if _, err := w.telegram.Phone(alice).WaitTap(ctx, "Approve"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.telegram.Phone(carol).Text("/start " + code[1]); err != nil {
		t.Fatal(err)
	}
	if n := waiter.code(); n != 0 {
		t.Errorf("the request: exit code %d", n)
	}
	if n := pair.code(); n != 0 || !strings.Contains(pair.stderr.String(), "the running daemon goes by it") {
		t.Errorf("the pairing: exit code %d: %s", n, pair.stderr.String())
	}
}

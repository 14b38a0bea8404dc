//go:build all

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/approvald/approvald/internal/telegramtest"
)

// TestOneUserCannotBuryAnother: a user floods the gate under a new name each time. Another user's request is taken, and its card
// goes out at the next turn, at the pace that Telegram allows.
func TestOneUserCannotBuryAnother(t *testing.T) {
	w := newWorldWith(t, telegramtest.Options{Limits: telegramtest.TelegramLimits()}, limits("max_pending = 24"))
	daemon := w.up()
	// The other user reaches the socket and no file but the configuration.
	for path, mode := range map[string]os.FileMode{
		w.dir: 0o755, filepath.Join(w.dir, "run"): 0o755, filepath.Join(w.dir, "run", "approvald"): 0o755, filepath.Join(w.dir, "run", "approvald", "default.sock"): 0o666,
		filepath.Join(w.dir, "config"): 0o755, filepath.Join(w.dir, "config", "approvald"): 0o755, filepath.Join(w.dir, "config", "approvald", "default.toml"): 0o644,
	} {
		w.must(os.Chmod(path, mode))
	}
	// Nothing goes out before all have asked, however slow the machine is.
	w.telegram.Offline()
	for i := range 12 {
		w.run(0, "request", fmt.Sprint("flood:", i), "--as", fmt.Sprint("n", i), "--class", "deploy.production", "--summary", "s", "--irreversible")
	}
	refused := w.run(1, "request", "flood:12", "--json", "--as", "n12", "--class", "deploy.production", "--summary", "s")
	if text := refused.stdout.String(); !strings.Contains(text, "queue-full") {
		t.Errorf("the flood ends with %q", text)
	}
	quiet := w.startAs(65534, "request", "quiet:1", "--class", "deploy.production", "--summary", "s", "--wait")
	w.until("the other user's request to be taken", func() bool { return strings.Contains(quiet.stderr.String(), "asked") })
	w.must(w.telegram.Online())
	card := w.card(daemon, "quiet:1")
	before := 0
	for _, m := range w.telegram.Messages(alice) {
		if strings.Contains(m.Body(), "flood:") && m.ID < card.ID {
			before++
		}
	}
	if before > 3 { // one was tried already, one may have gone out at the same time, one may be its copy
		t.Errorf("%d requests of the flood were shown before the other user's", before)
	}
	if !strings.Contains(card.Body(), "uid 65534") {
		t.Errorf("the card does not say who asks: %s", card.Body())
	}
	w.tap(card, "Approve")
	if code := quiet.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, quiet.stderr.String())
	}
}

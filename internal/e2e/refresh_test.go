package e2e

import (
	"strings"
	"testing"

	"github.com/approvald/approvald/internal/telegramtest"
)

// TestCardsFollowTheConfiguration: bob is taken out, and later put in again, while a request waits. The card says who decides: by an
// edit while the daemon runs, by one fresh card after a restart, and by none when a restart finds nothing changed. A tap on the
// old card, on a phone that missed the edit, decides.
func TestCardsFollowTheConfiguration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	waiter, card := w.request(daemon, "deploy:api#41")
	other, _ := w.request(daemon, "deploy:api#42")
	says := func(id int64, text string) func(telegramtest.State) bool {
		return func(s telegramtest.State) bool {
			m, ok := s.Message(alice, id)
			return ok && strings.Contains(m.Body(), text)
		}
	}
	if !strings.Contains(card.Body(), "needs 1 of: alice, bob") {
		t.Fatalf("the card: %s", card.Body())
	}
	bob := "\n[[approvers]]\nid = \"bob\"\ntelegram_user_id = 222\n"
	w.rewrite(func(text string) string { return strings.Replace(text, bob, "", 1) })
	w.hangUp(daemon, "the configuration")
	w.await(daemon, "the card to be edited", says(card.ID, "needs 1: alice"))
	w.until("the edits to be recorded", func() bool { return w.journalEvents("delivery.refreshed") == 2 })
	if now, _ := w.telegram.Message(alice, card.ID); len(now.Buttons) == 0 {
		t.Fatalf("the edit took the buttons off: %+v", now)
	}
	sent := w.journalEvents("delivery.sent")
	for range 2 {
		daemon.kill()
		daemon = w.up()
	}
	if n := w.journalEvents("delivery.sent"); n != sent {
		t.Errorf("%d messages after restarts that changed nothing", n-sent)
	}

	daemon.kill()
	w.rewrite(func(text string) string { return text + bob })
	daemon = w.up()
	var fresh telegramtest.Message
	w.await(daemon, "a fresh card", func(s telegramtest.State) bool {
		for _, m := range s.Messages(alice) {
			if m.ReplyTo == card.ID && strings.Contains(m.Body(), "needs 1 of: alice, bob") && len(m.Buttons) > 0 {
				fresh = m
				return true
			}
		}
		return false
	})
	w.await(daemon, "the old card to say so", says(card.ID, "replaced"))
	w.until("both to be settled", func() bool { return w.journalEvents("delivery.settled") == 2 })
	if n := w.journalEvents("delivery.sent"); n != sent+2 {
		t.Errorf("%d messages for two cards", n-sent)
	}
	if _, err := w.telegram.Phone(alice).TapStale(card, "Approve"); err != nil {
		t.Fatal(err)
	}
	if code := waiter.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, waiter.stderr.String())
	}
	w.await(daemon, "both cards to show the end", func(s telegramtest.State) bool {
		return says(card.ID, "granted")(s) && says(fresh.ID, "granted")(s)
	})
	w.wantEvents("deploy:api#41", "approval.requested", "approval.granted")
	w.wantEvents("deploy:api#42", "approval.requested")
	other.kill()
}

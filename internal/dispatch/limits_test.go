package dispatch

import (
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

// TestLimitsOfEveryMethodAreObeyed: whichever call is told to wait, nothing is sent to the chat before it is over, by this process or the
// next; decisions and what they are answered with go on.
func TestLimitsOfEveryMethodAreObeyed(t *testing.T) {
	for _, c := range []struct {
		method string
		meet   func(h *house, card telegramtest.Message)
	}{
		{"sendMessage", func(h *house, _ telegramtest.Message) { // a command's answer
			if _, err := h.server.Phone(111).TextIn(testChat, "/pending"); err != nil {
				h.t.Fatal(err)
			}
		}},
		{"editMessageReplyMarkup", func(h *house, card telegramtest.Message) { h.tap(alice, card, "Reject because…") }},
		{"editMessageText", func(h *house, card telegramtest.Message) { h.tap(alice, card, "Approve") }},
	} {
		t.Run(c.method, func(t *testing.T) {
			h := newHouse(t)
			h.rules.byClass["two"] = Rule{Quorum: 2, Approvers: []Approver{alice, bob}, RejectReasons: []string{"not now"}}
			d := h.start()
			h.ask(d.files, "k", "two", text("x"))
			card := h.card("k", withButtons)
			h.stats(d, func(s Stats) bool { return s.Undelivered == 0 })
			h.server.Fault(telegramtest.Fault{Method: c.method, Count: 1, Do: telegramtest.Limited(time.Hour)})
			c.meet(h, card)
			muted := func(s Stats) bool { return s.MutedUntil.After(time.Now().Add(50 * time.Minute)) }
			h.stats(d, muted)
			calls := len(h.server.Calls("sendMessage"))
			h.ask(d.files, "later", "one", text("y"))
			h.stats(d, func(s Stats) bool { return s.Undelivered == 1 })
			if a := h.tap(bob, card, "Reject"); a.Text != "Rejected." {
				t.Errorf("bob is told %q", a.Text)
			}
			d.stop()
			d = h.start()
			h.stats(d, func(s Stats) bool { return muted(s) && s.Undelivered == 1 && len(s.Failing) == 1 })
			if n := len(h.server.Calls("sendMessage")); n != calls {
				t.Errorf("%d messages were sent during the limit", n-calls)
			}
		})
	}
}

// TestAnswersToTapsObeyTheirLimit: while Telegram takes no answers none is given, and what was tapped is decided all the same.
func TestAnswersToTapsObeyTheirLimit(t *testing.T) {
	h := newHouse(t)
	d := h.start()
	h.ask(d.files, "k", "one", text("x"))
	card := h.card("k", withButtons)
	h.server.Fault(telegramtest.Fault{Method: "answerCallbackQuery", Count: 1, Do: telegramtest.Limited(time.Hour)})
	for try := range 3 {
		if err := d.loop.answerTap(t.Context(), Answer{CallbackID: "1", Text: "Granted."}); err == nil {
			t.Errorf("answer %d was taken", try+1)
		}
	}
	if _, err := h.server.Phone(111).TapMessage(card, "Reject"); err != nil {
		t.Fatal(err)
	}
	h.card("k", settled)
	if n := len(h.server.Calls("answerCallbackQuery")); n != 1 {
		t.Errorf("%d answers were tried during the limit", n)
	}
}

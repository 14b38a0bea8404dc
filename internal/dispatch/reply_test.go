package dispatch

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/telegramtest"
	"github.com/approvald/approvald/internal/transport"
)

func TestReadReply(t *testing.T) {
	for _, c := range []struct {
		text    string
		verdict Verdict
		reason  string
		refused bool
	}{
		{"wrong environment", Reject, "wrong environment", false},
		{" two\n lines ", Reject, "two lines", false},
		{"no", Reject, "no", false},
		{"ok, but not now", Reject, "ok, but not now", false},
		{"revoke", Revoke, "", false},
		{"Revoke: wrong window", Revoke, "wrong window", false},
		{"revoked by mistake", Reject, "revoked by mistake", false},
		{"OK!", 0, "", true},
		{"looks good", 0, "", true},
		{"👍", 0, "", true},
		{strings.Repeat("x", maxReason), Reject, strings.Repeat("x", maxReason), false},
		{strings.Repeat("x", maxReason+1), 0, "", true},
	} {
		got, refusal := readReply(c.text)
		if got.verdict != c.verdict || got.reason != c.reason || (refusal != "") != c.refused {
			t.Errorf("%.40q: %c %q, refused %q", c.text, got.verdict, got.reason, refusal)
		}
	}
}

func TestTakeBack(t *testing.T) {
	for _, c := range []struct {
		state   approvallog.State
		want    Outcome
		records string
	}{
		{approvallog.StateGranted, OutcomeRevoked, approvallog.EventRevoked},
		{approvallog.StateStarted, OutcomeUsed, ""},
		{approvallog.StateCompleted, OutcomeUsed, ""},
		{approvallog.StatePending, OutcomeNotGranted, ""},
		{approvallog.StateRejected, OutcomeNotGranted, ""},
		{approvallog.StateRevoked, OutcomeNotGranted, ""},
	} {
		tc := goodTap(Revoke)
		tc.tap.Words = "wrong window"
		tc.ev.Request.State, tc.ev.Now = c.state, noon.Add(2*time.Hour) // the deadline is for deciding, not for taking back
		r := Judge(tc.tap, Button{Verdict: Revoke}, tc.ev, tc.rules)
		got := ""
		if r.Record != nil {
			got = r.Record.Event
			if p := r.Record.Payload.(revokedPayload); p.Note != "wrong window" {
				t.Errorf("%s: note %q", c.state, p.Note)
			}
		}
		if r.Outcome != c.want || got != c.records || r.Text == "" {
			t.Errorf("%s: %s records %q, says %q", c.state, r.Outcome, got, r.Text)
		}
	}
	if _, ok := ParseButton(Button{Verdict: Revoke, Nonce: testNonce(1)}.Data()); ok {
		t.Error("there is a button that revokes")
	}
}

// TestReplies: an answer to a card rejects with a reason, or takes a grant back; nothing an approver writes grants.
func TestReplies(t *testing.T) {
	h := newHouse(t)
	d := h.start()
	h.ask(d.files, "deploy-1", "one", text("x"))
	h.ask(d.files, "deploy-2", "one", text("y"))
	first, second := h.card("deploy-1", withButtons), h.card("deploy-2", withButtons)

	h.reply(444, first, "no") // a stranger
	h.reply(111, first, "looks good")
	h.told(111, "a reply cannot approve")
	if got := h.state(d.files, "deploy-1").State; got != approvallog.StatePending {
		t.Fatalf("the request is %s", got)
	}
	h.reply(111, first, "wrong <environment>")
	if m := h.card("deploy-1", settled); !strings.HasPrefix(m.Text, "❌ rejected · alice") || !strings.Contains(m.Text, "wrong <environment>") {
		t.Errorf("settled to\n%s", m.Text)
	}
	req := h.state(d.files, "deploy-1")
	if req.State != approvallog.StateRejected || req.Decision.By != "human:alice" || req.Decision.Note != "wrong <environment>" || req.Decision.Channel != ChannelTelegram {
		t.Errorf("the log says %s %+v", req.State, req.Decision)
	}

	h.tap(bob, second, "Approve")
	m := h.card("deploy-2", settled)
	if !strings.Contains(m.Text, "reply with the word revoke") {
		t.Errorf("the card does not say how to take the grant back:\n%s", m.Text)
	}
	h.reply(111, m, "no, wait")
	h.told(111, "Already decided: granted by bob")
	h.reply(111, m, "revoke: wrong window")
	if m = h.card("deploy-2", func(m telegramtest.Message) bool { return strings.HasPrefix(m.Text, "⛔ revoked · alice") }); withButtons(m) {
		t.Error("the revoked card has buttons")
	}
	if req := h.state(d.files, "deploy-2"); req.State != approvallog.StateRevoked || req.Ending.Reason != "wrong window" {
		t.Errorf("the log says %s %+v", req.State, req.Ending)
	}
	h.reply(111, m, "revoke")
	h.told(111, "no grant to take back")
}

// TestForwardedWordsDecideNothing: what an approver passes on is not what the approver says.
func TestForwardedWordsDecideNothing(t *testing.T) {
	h := newHouse(t)
	d := h.start()
	h.ask(d.files, "deploy-1", "one", text("x"))
	card := h.card("deploy-1", withButtons)
	forward := func(text string, to *transport.MessageRef) {
		t.Helper()
		err := d.loop.HandleUpdate(t.Context(), transport.Update{ID: 1 << 40, Received: time.Now(), Message: &transport.Message{
			ID: 7000, Chat: transport.Chat{ID: testChat}, From: &transport.User{ID: 111}, Text: text, ReplyTo: to, Forwarded: true,
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	h.tap(alice, card, "Approve")
	h.card("deploy-1", settled)
	before := d.log.Head()
	forward("revoke", &transport.MessageRef{ChatID: testChat, ID: card.ID})
	h.waitFor("an answer that says so", func(s telegramtest.State) bool {
		return slices.ContainsFunc(s.Messages(testChat), func(m telegramtest.Message) bool { return strings.Contains(m.Text, "somebody else's words") })
	})
	sends := h.sends()
	forward("/pending", nil)
	h.reply(111, card, "looks good") // answered after whatever came before it
	h.told(111, "a reply cannot approve")
	if n := h.sends(); n != sends+1 {
		t.Errorf("a forwarded command was answered: %d messages", n-sends)
	}
	if after := d.log.Head(); after != before {
		t.Errorf("the log grew from record %d to %d", before.Seq, after.Seq)
	}
}

func (h *house) reply(who int64, m telegramtest.Message, words string) {
	h.t.Helper()
	if _, err := h.server.Phone(who).Reply(m, words); err != nil {
		h.t.Fatal(err)
	}
}

// told waits until the bot has answered the last message of somebody with these words.
func (h *house) told(who int64, words string) {
	h.t.Helper()
	h.waitFor("an answer with "+words, func(s telegramtest.State) bool {
		all := s.Messages(testChat)
		return slices.ContainsFunc(all, func(m telegramtest.Message) bool {
			asked := slices.IndexFunc(all, func(a telegramtest.Message) bool { return a.ID == m.ReplyTo })
			return asked >= 0 && all[asked].From.ID == who && strings.Contains(m.Text, words)
		})
	})
}

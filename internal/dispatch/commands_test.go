package dispatch

import (
	"slices"
	"strings"
	"testing"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/telegramtest"
)

func TestCommands(t *testing.T) {
	h := newHouse(t)
	h.server.AddChat(telegramtest.Chat{ID: -77, Type: "group", Members: telegramtest.Members(111)})
	d := h.start()
	h.ask(d.files, "k<1>", "one", text("x"))
	card := h.card("k<1>", withButtons)
	h.stats(d, func(s Stats) bool { return s.Undelivered == 0 })
	if got := h.server.Calls("setMyCommands"); len(got) > 1 {
		t.Errorf("the menu was set %d times", len(got))
	}
	write := func(id, chat int64, text string) {
		t.Helper()
		if _, err := h.server.Phone(id).TextIn(chat, text); err != nil {
			t.Fatal(err)
		}
	}
	write(444, testChat, "/status") // a stranger gets no reply
	write(111, -77, "/pending")     // neither does anybody in another group
	for _, c := range []struct{ command, want string }{
		{"/pending", "one k<1> until "},
		{"/status@somebot", "1 waiting, 0 of them not shown yet"},
		{"/help", "Approve needs the button"},
		{"/show", "Say which"},
		{"/show no such", "No request has the key no such"},
		{"/show k<1>", "Its card is the message that this one answers"},
		{"/approve k<1>", "No command decides"},
		{"approve", ""},
	} {
		write(111, testChat, c.command)
		h.waitFor("the reply to "+c.command, func(s telegramtest.State) bool {
			return slices.ContainsFunc(s.Messages(testChat), func(m telegramtest.Message) bool { return m.ReplyTo != 0 && strings.Contains(m.Text, c.want) })
		})
	}
	h.waitFor("the pointer to the card", func(s telegramtest.State) bool {
		return slices.ContainsFunc(s.Messages(testChat), func(m telegramtest.Message) bool { return m.ReplyTo == card.ID })
	})
	if got := h.state(d.files, "k<1>").State; got != approvallog.StatePending {
		t.Errorf("a command made it %s", got)
	}
	if n := h.sends(); n != 8 {
		t.Errorf("%d messages were sent, want the card and seven replies", n)
	}
	h.tap(bob, card, "Reject")
	h.card("k<1>", settled)
	if _, err := h.server.Phone(111).Text("/show k<1>"); err != nil { // in private, about a request that has ended
		t.Fatal(err)
	}
	h.waitFor("the end in private", func(s telegramtest.State) bool {
		return slices.ContainsFunc(s.Messages(111), func(m telegramtest.Message) bool { return strings.Contains(m.Text, "❌ rejected · bob") })
	})
	h.waitFor("the menu", func(s telegramtest.State) bool { return s.Count("setMyCommands") == 1 })
}

// TestStrangersFlood: taps of strangers change no file beyond a handful of records, and hold up nobody.
func TestStrangersFlood(t *testing.T) {
	h := newHouse(t)
	d := h.start()
	h.ask(d.files, "k", "one", text("x"))
	m := h.card("k", withButtons)
	before := d.log.Head()
	for range 300 {
		if _, err := h.server.Phone(444).TapDataOn(m, m.Buttons[0][0].Data); err != nil {
			t.Fatal(err)
		}
	}
	if a := h.tap(alice, m, "Approve"); a.Text != "Granted." {
		t.Errorf("alice was told %+v", a)
	}
	h.stats(d, func(s Stats) bool { return s.RefusedTaps == 300 })
	if after := d.log.Head(); after.Seq != before.Seq+1 {
		t.Errorf("the log grew from record %d to %d", before.Seq, after.Seq)
	}
	refused := 0
	r := d.journal.NewReader(0)
	for {
		rec, err := r.Next()
		if err != nil {
			break
		}
		if rec.Event == EventTapRefused {
			refused++
		}
	}
	if refused > refusedPerHour*2 {
		t.Errorf("%d refused taps are in the journal", refused)
	}
}

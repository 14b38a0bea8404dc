package dispatch

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/telegramtest"
)

// TestAskersByTurns: a request goes out at the next turn, however many of another asker wait.
func TestAskersByTurns(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	ask := func(key, asker string, seq int64) {
		r.step(RequestChanged{Request: approvallog.Request{
			Key: key, Seq: seq, Requester: asker, Class: "c", State: approvallog.StatePending, PayloadHash: "h", Quorum: 1, ExpiresAt: noon.Add(24 * time.Hour),
		}})
	}
	for seq := int64(1); seq <= 6; seq++ {
		ask("flood"+string(rune('0'+seq)), "agent:flood", seq)
	}
	ask("a", "agent:a", 7)
	ask("b", "agent:b", 8)
	ask("a2", "agent:a", 9)
	r.step(ShowWanted{Key: "flood6"})
	var got []string
	for len(r.calls) > 0 {
		got = append(got, r.reply(Result{Kind: ResultDone, MessageID: int64(len(got) + 1)}).What.(SendCard).Request.Key)
	}
	if want := "flood1 flood6 a b flood2 a2 flood3 flood4 flood5"; strings.Join(got, " ") != want {
		t.Errorf("sent %v, want %s", got, want)
	}
}

// TestTopicIsTriedAgain: without its topic a card goes to the chat; after a while the topic is tried again.
func TestTopicIsTriedAgain(t *testing.T) {
	r := newRig(t, Chat{ID: 1, ThreadID: 7})
	thread := func(c Call) int64 { return c.What.(SendCard).ThreadID }
	r.ask("a", 1)
	if c := r.reply(Result{Kind: ResultThread}); thread(c) != 7 {
		t.Errorf("the topic is not tried: %+v", c)
	}
	if c := r.reply(Result{Kind: ResultDone, MessageID: 5}); thread(c) != 0 {
		t.Errorf("the dead topic is tried again at once: %+v", c)
	}
	if r.core.Stats().Degraded == "" {
		t.Error("the status does not say so")
	}
	r.ask("b", 2)
	if c := r.reply(Result{Kind: ResultDone, MessageID: 6}); thread(c) != 0 {
		t.Errorf("the dead topic is tried again: %+v", c)
	}
	r.pass(topicRetry)
	r.ask("c", 3)
	if c := r.reply(Result{Kind: ResultDone, MessageID: 7}); thread(c) != 7 {
		t.Errorf("the topic is never tried again: %+v", c)
	}
	if s := r.core.Stats(); s.Degraded != "" {
		t.Errorf("the status still says %q", s.Degraded)
	}
}

// TestDeletedCardIsSentOnceMore: and not a third time.
func TestDeletedCardIsSentOnceMore(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	req := r.ask("k", 1)
	r.reply(Result{Kind: ResultDone, MessageID: 5})
	cards := slices.Collect(r.core.deliveries.Of(CycleID{"k", 1}))
	r.step(CardGone{Delivery: cards[0].ID})
	if len(r.calls) != 1 {
		t.Fatalf("calls %+v", r.calls)
	}
	r.step(CardGone{Delivery: cards[0].ID}) // told twice
	r.reply(Result{Kind: ResultDone, MessageID: 6})
	cards = slices.Collect(r.core.deliveries.Of(CycleID{"k", 1}))
	r.step(CardGone{Delivery: cards[1].ID})
	if len(r.calls) != 0 {
		t.Fatalf("a card that was deleted twice is sent again: %+v", r.calls)
	}
	req.State = approvallog.StateGranted
	r.step(RequestChanged{Request: req})
	if s := r.core.Stats(); len(r.calls) != 0 || s.Unsettled != 0 {
		t.Errorf("deleted cards are owed something: %+v, %+v", r.calls, s)
	}
}

// TestRefusedTokenOwesEdits: while the token is refused, nothing counts as settled.
func TestRefusedTokenOwesEdits(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	req := r.ask("k", 1)
	r.reply(Result{Kind: ResultDone, MessageID: 5})
	req.State = approvallog.StateGranted
	r.step(RequestChanged{Request: req})
	r.reply(Result{Kind: ResultToken, Reason: "Unauthorized"})
	if s := r.core.Stats(); s.Unsettled != 1 {
		t.Errorf("%+v", s)
	}
	r.pass(pauseClosed.first)
	r.reply(Result{Kind: ResultDone})
	if s := r.core.Stats(); s.Unsettled != 0 {
		t.Errorf("%+v", s)
	}
}

// TestSupergroup: when the group becomes a supergroup, open cards are sent again there, and a restart with the old id
// goes on there without asking.
func TestSupergroup(t *testing.T) {
	h := newHouse(t)
	const group = -55
	h.server.AddChat(telegramtest.Chat{ID: group, Type: telegramtest.Group, Members: telegramtest.Members(111, 222)})
	h.chat = Chat{ID: group, FollowMigration: true}
	d := h.start()
	h.ask(d.files, "open", "one", text("x"))
	h.waitFor("the card in the group", func(s telegramtest.State) bool { return len(s.Messages(group)) == 1 })
	h.stats(d, func(s Stats) bool { return s.Undelivered == 0 })
	d.stop()
	super := h.server.MigrateGroup(group)
	d = h.start()
	h.ask(d.files, "new", "one", text("y"))
	cards := func(s telegramtest.State) (n int) {
		for _, m := range s.Messages(super) {
			if withButtons(m) {
				n++
			}
		}
		return n
	}
	h.waitFor("both cards in the supergroup", func(s telegramtest.State) bool { return cards(s) == 2 })
	h.stats(d, func(s Stats) bool { return s.Undelivered == 0 && strings.Contains(s.Degraded, "became the supergroup") })
	d.stop()
	d = h.start()
	h.stats(d, func(s Stats) bool { return s.Pending == 2 && s.Undelivered == 0 })
	all := h.server.Messages(super)
	m := all[slices.IndexFunc(all, func(m telegramtest.Message) bool { return strings.Contains(m.Text, "open") && withButtons(m) })]
	if a := h.tap(alice, m, "Approve"); a.Text != "Granted." {
		t.Errorf("alice was told %+v", a)
	}
	h.stats(d, func(s Stats) bool { return s.Unsettled == 0 })
	if got := h.state(d.files, "open").State; got != approvallog.StateGranted {
		t.Errorf("the log says %s", got)
	}
}

// TestBlockedAndBack: requests wait while the bot is blocked, the status says so, and they come when it is let in again.
func TestBlockedAndBack(t *testing.T) {
	h := newHouse(t)
	h.chat = Chat{ID: alice.TelegramID}
	phone := h.server.Phone(alice.TelegramID)
	if _, err := phone.Text("/start"); err != nil {
		t.Fatal(err)
	}
	d := h.start()
	phone.Block()
	h.ask(d.files, "k", "one", text("x"))
	h.stats(d, func(s Stats) bool { return s.Undelivered == 1 && s.ChatProblem != "" && len(s.Failing) == 1 })
	if got := h.state(d.files, "k").State; got != approvallog.StatePending {
		t.Errorf("the request is %s", got)
	}
	phone.Unblock()
	h.waitFor("the card", func(s telegramtest.State) bool { return slices.ContainsFunc(s.Messages(alice.TelegramID), withButtons) })
	h.stats(d, func(s Stats) bool { return s.Undelivered == 0 && s.ChatProblem == "" })
}

// TestRemovedFromGroup is the same for a group, told by Telegram before anything is sent.
func TestRemovedFromGroup(t *testing.T) {
	h := newHouse(t)
	d := h.start()
	h.ask(d.files, "before", "one", text("x"))
	h.card("before", withButtons)
	// A send that is answered after the bot was removed opens the chat again until the next one fails.
	h.stats(d, func(s Stats) bool { return s.Undelivered == 0 })
	h.server.SetBotStatus(testChat, telegramtest.Kicked)
	h.stats(d, func(s Stats) bool { return s.ChatProblem != "" })
	h.ask(d.files, "after", "one", text("y"))
	h.stats(d, func(s Stats) bool { return s.Undelivered == 1 })
	h.server.SetBotStatus(testChat, telegramtest.Ordinary)
	h.card("after", withButtons)
}

// TestClosedTopic: cards go to the chat itself while the topic is closed.
func TestClosedTopic(t *testing.T) {
	h := newHouse(t)
	const forum = -1009
	h.server.AddChat(telegramtest.Chat{ID: forum, Type: telegramtest.Supergroup, IsForum: true, Members: telegramtest.Members(111, 222)})
	topic := h.server.CreateTopic(forum, "approvals")
	h.chat = Chat{ID: forum, ThreadID: topic}
	d := h.start()
	sent := func(key string, thread int64) {
		t.Helper()
		h.ask(d.files, key, "one", text(key))
		h.waitFor(key, func(s telegramtest.State) bool {
			return slices.ContainsFunc(s.Messages(forum), func(m telegramtest.Message) bool { return strings.Contains(m.Text, key) && m.ThreadID == thread })
		})
	}
	sent("open", topic)
	h.server.CloseTopic(forum, topic)
	sent("closed", 0)
	h.server.DeleteTopic(forum, topic)
	sent("deleted", 0)
	h.stats(d, func(s Stats) bool { return s.Undelivered == 0 && s.Degraded != "" })
}

// TestDeletedCard: a card whose deletion shows is sent once more while its request waits, and counts.
func TestDeletedCard(t *testing.T) {
	h := newHouse(t)
	d := h.start()
	h.ask(d.files, "k", "two", text("x"))
	m := h.card("k", withButtons)
	h.stats(d, func(s Stats) bool { return s.Undelivered == 0 })
	h.server.Phone(alice.TelegramID).Delete(m)
	if _, err := h.server.Phone(alice.TelegramID).TextIn(testChat, "/show k"); err != nil {
		t.Fatal(err)
	}
	again := h.card("k", func(n telegramtest.Message) bool { return withButtons(n) && n.ID != m.ID })
	h.tap(alice, again, "Approve")
	if a := h.tap(bob, again, "Approve"); a.Text != "Granted." {
		t.Errorf("bob was told %+v", a)
	}
	h.stats(d, func(s Stats) bool { return s.Unsettled == 0 })
}

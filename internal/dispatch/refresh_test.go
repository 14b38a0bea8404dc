package dispatch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/telegramtest"
)

func rulesFor(quorum int, who ...Approver) testRules {
	return testRules{rule: Rule{Quorum: quorum, Approvers: who}}
}

// renumbered is alice with another account.
var renumbered = Approver{ID: "alice", TelegramID: 9111}

// note records an approval by an approver's account.
func (r *rig) note(req approvallog.Request, who Approver) {
	rec := approvallog.Record{Seq: int64(len(r.journal) + 1), TS: r.now, Event: EventApprovalNoted, ActionKey: req.Key, Payload: mustJSON(r.t, notedPayload{
		Cycle: req.Seq, Approver: who.ID, PayloadHash: req.PayloadHash, Channel: ChannelTelegram, SenderID: who.TelegramID,
	})}
	r.journal = append(r.journal, rec)
	r.step(Journaled{Record: rec})
}

// restartWith is a restart under other rules.
func (r *rig) restartWith(rules Rules, requests ...approvallog.Request) {
	r.core.o.Rules = rules
	r.restart(time.Time{}, requests...)
}

// TestCardIsReplacedWhenItsWordsHoldNoLonger: what a card says of who decides is compared with what holds, at each start.
func TestCardIsReplacedWhenItsWordsHoldNoLonger(t *testing.T) {
	two := rulesFor(2, alice, bob)
	for _, tt := range []struct {
		name       string
		before     testRules
		noted      []Approver
		after      testRules
		wantsFresh bool
		approved   []string // that the fresh card names
	}{
		{"nothing changed", two, []Approver{alice}, two, false, nil},
		{"an approver was removed", two, nil, rulesFor(2, alice, carol), true, nil},
		{"one was added", two, nil, rulesFor(2, alice, bob, carol), true, nil},
		{"the quorum grew", rulesFor(1, alice, bob), nil, two, true, nil},
		{"the request asks for more than either", rulesFor(1, alice), nil, rulesFor(1, alice), false, nil},
		{"four eyes came", two, nil, testRules{rule: Rule{Quorum: 2, Approvers: []Approver{alice, bob}, FourEyes: true}}, true, nil},
		{"one who agreed was removed", two, []Approver{alice}, rulesFor(2, bob, carol), true, nil},
		{"one who agreed has another account", two, []Approver{alice}, rulesFor(2, renumbered, bob), true, nil},
		{"one of two who agreed has another account", rulesFor(3, alice, bob, carol), []Approver{alice, bob}, rulesFor(3, renumbered, bob, carol), true, []string{"bob"}},
		{"one who did not agree has another account", two, []Approver{bob}, rulesFor(2, renumbered, bob), false, nil},
		{"reasons to choose from", two, nil, testRules{rule: Rule{Quorum: 2, Approvers: []Approver{alice, bob}, RejectReasons: []string{"no"}}}, false, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, Chat{ID: 1})
			r.core.o.Rules = tt.before
			req := r.ask("k", 1)
			old := r.reply(Result{Kind: ResultDone, MessageID: 7}).What.(SendCard)
			for i, who := range tt.noted {
				r.note(req, who)
				if edit, ok := r.reply(Result{Kind: ResultDone}).What.(EditProgress); !ok || len(edit.Approved) != i+1 {
					t.Fatalf("progress %+v", edit)
				}
			}
			r.restartWith(tt.after, req)
			if !tt.wantsFresh {
				if len(r.calls) != 0 {
					t.Fatalf("calls %+v", r.calls)
				}
				return
			}
			if s := r.core.Stats(); s.Undelivered != 0 {
				t.Errorf("a card is in the chat, and yet: %+v", s)
			}
			calls := r.settleAll()
			if len(calls) != 2 {
				t.Fatalf("calls %+v", calls)
			}
			fresh, ok := calls[0].What.(SendCard)
			if !ok || fresh.ReplyTo != 7 || fresh.Nonce == old.Nonce || fmt.Sprint(fresh.Approved) != fmt.Sprint(tt.approved) {
				t.Errorf("the fresh card is %+v", calls[0].What)
			}
			if gone, ok := calls[1].What.(EditRenewed); !ok || gone.MessageID != 7 {
				t.Errorf("then %+v", calls[1].What)
			}
			// Once is enough, and a change that is taken back brings the other words once more.
			r.restartWith(tt.after, req)
			if len(r.calls) != 0 {
				t.Fatalf("sent again: %+v", r.calls)
			}
			// Both are settled in the end.
			req.State = approvallog.StateExpired
			r.step(RequestChanged{Request: req})
			if calls := r.settleAll(); len(calls) != 2 {
				t.Errorf("settled by %+v", calls)
			}
		})
	}
}

// TestOldNonceStaysGood: a person whose phone does not know yet that the card was replaced decides by it. It stands for the
// same bytes, and is judged by the rules of now.
func TestOldNonceStaysGood(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	r.core.o.Rules = rulesFor(1, alice, bob)
	req := r.ask("k", 1)
	old := r.reply(Result{Kind: ResultDone, MessageID: 7}).What.(SendCard)
	after := rulesFor(1, bob, carol)
	r.restartWith(after, req)
	r.settleAll()
	d, found := r.core.deliveries.ByNonce(old.Nonce.Sum())
	if !found || !d.Replaced || d.Settled != stateRenewed {
		t.Fatalf("the old card is %+v, %t", d, found)
	}
	for who, want := range map[Approver]Outcome{bob: OutcomeGranted, carol: OutcomeGranted, alice: OutcomeNotForClass} {
		b := Button{Verdict: Approve, Nonce: old.Nonce}
		tap := Tap{SenderID: who.TelegramID, ChatID: 1, MessageID: 7, Data: b.Data()}
		if got := Judge(tap, b, Evidence{Delivery: d, Found: found, Request: req, Now: r.now}, after); got.Outcome != want {
			t.Errorf("%s is told %s, want %s", who.ID, got.Outcome, want)
		}
	}
}

// TestReloadEditsInPlace: the process that sent a card knows its nonce, and needs no second message.
func TestReloadEditsInPlace(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	req := r.ask("k", 1)
	sent := r.reply(Result{Kind: ResultDone, MessageID: 7}).What.(SendCard)
	after := rulesFor(2, alice, bob, carol)
	r.step(Configured{Policy: Policy{Rules: after}})
	r.reply(Result{Kind: ResultTransient, Reason: "no route"})
	r.pass(time.Second)
	if edit, ok := r.reply(Result{Kind: ResultDone}).What.(EditProgress); !ok || edit.MessageID != 7 || edit.Nonce != sent.Nonce {
		t.Fatalf("edit %+v", edit)
	}
	if len(r.calls) != 0 {
		t.Fatalf("calls %+v", r.calls)
	}
	// Nor does the next process, which finds recorded what the card says by now.
	r.restartWith(after, req)
	if len(r.calls) != 0 {
		t.Fatalf("calls %+v", r.calls)
	}
	r.restartWith(rulesFor(1, alice, bob), req)
	if calls := r.settleAll(); len(calls) != 2 || calls[0].What.(SendCard).ReplyTo != 7 {
		t.Errorf("calls %+v", calls)
	}
}

// TestReloadWithoutEdits: what cannot be edited is replaced.
func TestReloadWithoutEdits(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	r.ask("k", 1)
	r.reply(Result{Kind: ResultDone, MessageID: 7})
	r.step(Configured{Policy: Policy{Rules: rulesFor(2, alice, bob)}})
	r.reply(Result{Kind: ResultRefused, Reason: "Bad Request: message can't be edited"})
	if calls := r.settleAll(); len(calls) != 2 || calls[0].What.(SendCard).ReplyTo != 7 || calls[1].What.(EditRenewed).MessageID != 7 {
		t.Errorf("calls %+v", calls)
	}
}

// TestRefreshesWaitForFirstCards: what nobody was shown yet goes before what is only to say it better.
func TestRefreshesWaitForFirstCards(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	var all []approvallog.Request
	for seq := range int64(5) {
		all = append(all, r.from(1000, "ci", fmt.Sprint("old", seq), 1+seq, false))
	}
	r.settleAll()
	r.core.o.Rules = rulesFor(2, alice, bob)
	for seq := range int64(3) {
		all = append(all, approvallog.Request{
			Key: fmt.Sprint("new", seq), Seq: 10 + seq, Requester: "agent:ci", Peer: &approvallog.Peer{UID: 1000}, Class: "c", State: approvallog.StatePending,
			PayloadHash: "h", Quorum: 1, RequestedAt: r.now, ExpiresAt: r.now.Add(time.Hour),
		})
	}
	r.restartWith(rulesFor(2, alice, bob), all...)
	got := fmt.Sprint(cardsOf(r.settleAll()))
	// The first of the old ones may be on its way before the others are looked at.
	if want := "[new0 new1 new2 old0 old1 old2 old3 old4]"; got != want && got != "[old0 new0 new1 new2 old1 old2 old3 old4]" {
		t.Errorf("order %s, want %s", got, want)
	}
}

// TestRefreshedCardOnThePhone: bob leaves while a request waits. After the next start the chat has a card that says so as a
// reply to the old one, which has no buttons, and one tap decides.
func TestRefreshedCardOnThePhone(t *testing.T) {
	h := newHouse(t)
	d := h.start()
	h.ask(d.files, "k", "two", command("/srv", "make"))
	old := h.card("k", withButtons)
	h.tap(alice, old, "Approve")
	h.card("k", func(m telegramtest.Message) bool { return withButtons(m) && strings.Contains(m.Text, "1 of 2: alice") })
	h.stats(d, func(s Stats) bool { return s.Undelivered == 0 })
	d.stop()
	h.rules.byClass = map[string]Rule{"two": {Quorum: 2, Approvers: []Approver{bob, carol}}}
	h.server.AddUser(telegramtest.User{ID: carol.TelegramID, FirstName: "carol"})
	h.server.SetMember(testChat, telegramtest.Member{User: carol.TelegramID, Status: telegramtest.Ordinary})
	h.start()
	fresh := h.card("k", func(m telegramtest.Message) bool { return m.ID != old.ID && withButtons(m) })
	if fresh.ReplyTo != old.ID || !strings.Contains(fresh.Text, "needs 2: bob, carol") || strings.Contains(fresh.Text, "alice") {
		t.Errorf("the fresh card: %+v", fresh)
	}
	h.waitFor("the old card to be settled", func(s telegramtest.State) bool {
		m, _ := s.Message(testChat, old.ID)
		return settled(m) && strings.Contains(m.Text, "replaced")
	})
	if answer := h.tap(bob, fresh, "Approve"); !strings.Contains(answer.Text, "1 of 2") {
		t.Errorf("bob is told %v", answer)
	}
	h.tap(carol, fresh, "Approve")
	h.waitFor("both to show the end", func(s telegramtest.State) bool {
		a, _ := s.Message(testChat, old.ID)
		b, _ := s.Message(testChat, fresh.ID)
		return strings.Contains(a.Text, "granted") && strings.Contains(b.Text, "granted") && settled(a) && settled(b)
	})
}

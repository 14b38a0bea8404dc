package dispatch

import (
	"context"
	"fmt"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// telegram does what is asked, or not, and says what the daemon hears of it.
func (s *sim) telegram(e Call) Result {
	if s.now.Before(s.muted) && s.mutedIn != s.epoch {
		s.mutedIn = s.epoch // this daemon has not been told yet
		return Result{Kind: ResultLimited, RetryAfter: s.muted.Sub(s.now)}
	}
	if s.now.Before(s.muted) {
		s.failf("%T sent %v before the 429 was over", e.What, s.muted.Sub(s.now))
	}
	lost := false
	if s.faults {
		switch n := s.rng.IntN(100); {
		case n < 8:
			d := time.Duration(1+s.rng.IntN(90)) * time.Second
			s.muted, s.mutedIn = s.now.Add(d), s.epoch
			return Result{Kind: ResultLimited, RetryAfter: d}
		case n < 14:
			return Result{Kind: ResultTransient, Reason: "connection refused"}
		case n < 16:
			return Result{Kind: ResultClosed, Reason: "bot was kicked", Class: "forbidden"}
		case n < 19:
			return Result{Kind: ResultRefused, Reason: "Bad Request", Class: "bad-request"}
		case n < 24:
			lost = true
		}
	}
	switch a := e.What.(type) {
	case SendCard:
		id := CycleID{a.Request.Key, a.Request.Seq}
		d, ok := s.deliveries.ByNonce(a.Nonce.Sum())
		if !ok || d.Cycle != id || d.Kind != KindCard {
			s.failf("card for %v sent without a recorded intent", id)
		}
		return s.deliver(simMessage{cycle: id, kind: KindCard, nonce: a.Nonce, buttons: true, hash: a.Request.PayloadHash}, lost)
	case SendDocument:
		return s.deliver(simMessage{cycle: CycleID{a.Request.Key, a.Request.Seq}, kind: KindDocument}, lost)
	case EditSettled:
		return s.edit(a.MessageID, lost, func(m *simMessage) { m.buttons, m.state = false, settledState(a.Request) })
	case StripButtons:
		return s.edit(a.MessageID, lost, func(m *simMessage) { m.buttons = false; m.state = "stripped" })
	case SendDigest:
		d, ok := s.deliveries.ByNonce(a.Nonce.Sum())
		if !ok || d.Kind != KindDigest || a.Count < 1 || len(a.Listed) == 0 {
			s.failf("digest %+v sent without a recorded intent, or of nothing", a)
		}
		return s.deliver(simMessage{cycle: d.Cycle, kind: KindDigest, nonce: a.Nonce, buttons: true}, lost)
	case EditDigest:
		return s.edit(a.MessageID, lost, func(m *simMessage) {
			if m.buttons = a.Count > 0; m.buttons && m.nonce != a.Nonce {
				s.failf("an edit gave digest %d the buttons of another", m.id)
			}
		})
	case EditProgress:
		if m := s.messages[a.MessageID]; m != nil && m.deleted && !m.missed {
			// A card whose deletion shows while its request waits is sent once more.
			m.missed = true
			s.excused[m.cycle]++
		}
		return s.edit(a.MessageID, lost, func(m *simMessage) {
			if m.nonce != a.Nonce {
				s.failf("an edit gave message %d the buttons of another", m.id)
			}
		})
	default:
		s.failf("unknown action %T", a)
		return Result{}
	}
}

func (s *sim) deliver(m simMessage, lost bool) Result {
	if m.kind == KindCard {
		docs := 0
		for _, other := range s.messages {
			if other.cycle == m.cycle && other.kind == KindDocument {
				docs++
			}
		}
		if docs < int(m.cycle.Seq%3) {
			s.failf("card of %v sent after %d of %d documents", m.cycle, docs, m.cycle.Seq%3)
		}
	}
	if lost {
		s.excused[m.cycle]++
		if s.chance(50) {
			return Result{Kind: ResultUnknown, Reason: "timeout"}
		}
	}
	s.lastID++
	m.id = s.lastID
	s.messages[m.id] = &m
	if lost {
		return Result{Kind: ResultUnknown, Reason: "timeout"}
	}
	return Result{Kind: ResultDone, MessageID: m.id}
}

func (s *sim) edit(id int64, lost bool, change func(*simMessage)) Result {
	m := s.messages[id]
	if m == nil || m.deleted {
		return Result{Kind: ResultGone, Reason: "message to edit not found"}
	}
	change(m)
	if lost {
		return Result{Kind: ResultTransient, Reason: "timeout"}
	}
	return Result{Kind: ResultDone}
}

// ask makes a request, sometimes the same key again.
func (s *sim) ask() {
	key := fmt.Sprintf("k%d", s.keys)
	if s.keys > 0 && s.chance(20) {
		key = fmt.Sprintf("k%d", s.rng.IntN(s.keys))
	} else {
		s.keys++
	}
	class := "one"
	if s.chance(30) {
		class = "two"
	}
	_, err := s.log.Update(context.Background(), func(tx Tx) error {
		if r, ok := s.requests.Get(key); ok && !r.StateAt(tx.Now()).Final() {
			return nil
		}
		ttl := time.Duration(1+s.rng.IntN(3600)) * time.Second
		_, err := tx.Append(approvallog.Draft{Event: approvallog.EventRequested, Actor: "agent:ci", Task: key, ActionKey: key, Payload: map[string]any{
			"class": class, "summary": "s", "payload_hash": fmt.Sprintf("hash-%s-%d", key, s.step), "reversible": true,
			"approvald": map[string]any{"quorum": 1, "expires_at": tx.Now().Add(ttl).Format(time.RFC3339Nano)},
		}})
		return err
	})
	if err != nil {
		s.failf("ask: %v", err)
	}
}

func (s *sim) anyRequest() (approvallog.Request, bool) {
	if s.keys == 0 {
		return approvallog.Request{}, false
	}
	return s.requests.Get(fmt.Sprintf("k%d", s.rng.IntN(s.keys)))
}

func (s *sim) withdraw() {
	req, ok := s.anyRequest()
	if !ok || req.StateAt(s.now) != approvallog.StatePending {
		return
	}
	_, _ = s.log.Update(context.Background(), func(tx Tx) error {
		_, err := tx.Append(approvallog.Draft{Event: approvallog.EventWithdrawn, Actor: req.Requester, Task: req.Task, ActionKey: req.Key,
			Payload: map[string]any{"action_key": req.Key, "reason": "cancelled"}})
		return err
	})
}

func (s *sim) decideAtTerminal() {
	req, ok := s.anyRequest()
	if !ok {
		return
	}
	who := []Approver{alice, bob}[s.rng.IntN(2)]
	verdict := []Verdict{Approve, Reject}[s.rng.IntN(2)]
	pending := req.StateAt(s.now) == approvallog.StatePending
	d := Desk{Log: s.log, Journal: s.journal, Requests: s.requests, Deliveries: s.deliveries, Rules: s.rules, Person: who.ID}
	if pending {
		s.made[voice(CycleID{req.Key, req.Seq}, who.ID, verdict)] = true
	}
	_, _ = DecideAtTerminal(context.Background(), d, req.Key, verdict, "")
}

func voice(id CycleID, who string, v Verdict) string {
	return fmt.Sprintf("%s/%d/%s/%c", id.Key, id.Seq, who, v)
}

// person taps a button: of a card that shows buttons, or of one that did, or a forged one; or a tap is repeated.
func (s *sim) person() {
	if len(s.taps) > 0 && s.chance(25) {
		t := s.taps[s.rng.IntN(len(s.taps))]
		if s.chance(50) {
			s.lastTap++
			t.callback = fmt.Sprint("c", s.lastTap) // the client repeats it under a new id
		}
		s.handle(t)
		return
	}
	if s.chance(30) && s.openFromDigest() {
		return
	}
	var cards []*simMessage
	for id := int64(1); id <= s.lastID; id++ {
		if m := s.messages[id]; m.kind == KindCard && !m.deleted {
			cards = append(cards, m)
		}
	}
	if len(cards) == 0 {
		return
	}
	m := cards[s.rng.IntN(len(cards))]
	who := []int64{111, 222, 333, 444, 1087968824}[s.rng.IntN(5)]
	b := Button{Verdict: []Verdict{Approve, Approve, Reject, Because}[s.rng.IntN(4)], Nonce: m.nonce}
	t := simTap{cycle: m.cycle, tap: Tap{SenderID: who, ChatID: simChat, MessageID: m.id, Data: b.Data()}}
	switch s.rng.IntN(20) {
	case 0:
		t.tap.ChatID = 5
	case 1:
		t.tap.MessageID += 1000
	case 2:
		t.tap.Data = Button{Verdict: Approve}.Data()
	case 3:
		t.tap.Data = "1a:" // nothing
	case 4:
		t.tap.ChatID, t.tap.MessageID = 0, 0 // inline
	}
	s.lastTap++
	t.callback = fmt.Sprint("c", s.lastTap)
	s.taps = append(s.taps, t)
	s.handle(t)
}

// openFromDigest taps a button of a digest.
func (s *sim) openFromDigest() bool {
	req, ok := s.anyRequest()
	for id := int64(1); ok && id <= s.lastID; id++ {
		if m := s.messages[id]; m.kind == KindDigest && m.buttons && !m.deleted && s.chance(50) {
			b := Button{Verdict: Open, Reason: requestTag(CycleID{req.Key, req.Seq}), Nonce: m.nonce}
			s.lastTap++
			s.handle(simTap{callback: fmt.Sprint("c", s.lastTap), cycle: m.cycle, tap: Tap{SenderID: 111, ChatID: simChat, MessageID: m.id, Data: b.Data()}})
			return true
		}
	}
	return false
}

// handle brings an update to the daemon. It is told to be done only after the judgement is on disk.
func (s *sim) handle(t simTap) {
	if s.core == nil {
		return
	}
	b, ruling, ok := Screen(t.tap, s.rules)
	if ok {
		before := s.stateOf(t.cycle)
		for _, a := range []Approver{alice, bob, carol} {
			_, allowed := s.rules.Rule(s.classOf(t.cycle)).named(a.ID)
			if a.TelegramID == t.tap.SenderID && allowed && before == approvallog.StatePending && (t.tap.ChatID == simChat || t.tap.ChatID == 0) {
				s.made[voice(t.cycle, a.ID, b.Verdict)] = true
			}
		}
		var err error
		if ruling, err = s.loop.rule(context.Background(), t.tap, b); err != nil {
			s.failf("rule: %v", err)
		}
		after := s.stateOf(t.cycle)
		if (ruling.Outcome == OutcomeGranted || ruling.Outcome == OutcomeRejected) && string(after) != string(ruling.Outcome) {
			s.failf("the tap was told %s and the log says %s", ruling.Outcome, after)
		}
		if ruling.Outcome.refused() && before != after && after != approvallog.StateExpired {
			s.failf("a refused tap changed %v from %s to %s", t.cycle, before, after)
		}
	}
	s.inbox = append(s.inbox, TapRuled{CallbackID: t.callback, Tap: t.tap, Ruling: ruling})
}

func (s *sim) stateOf(id CycleID) approvallog.State {
	req, ok := s.requests.Get(id.Key)
	if !ok || req.Seq != id.Seq {
		return "superseded"
	}
	return req.StateAt(s.now)
}

func (s *sim) classOf(id CycleID) string {
	req, _ := s.requests.Get(id.Key)
	return req.Class
}

func (s *sim) deleteMessage() {
	if s.lastID > 0 && s.chance(30) {
		s.messages[1+s.rng.Int64N(s.lastID)].deleted = true
	}
}

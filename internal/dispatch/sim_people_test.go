package dispatch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// simPeople is what people have done.
type simPeople struct {
	keys    int
	taps    []simTap        // all that were ever made
	updates []simTap        // those that wait at Telegram
	made    map[string]bool // verdicts that counted when they were given: asking/person/verdict
	lastTap int
}

type simTap struct {
	callback string
	tap      Tap
	place    place
	made     time.Time
}

// voice names a verdict of a person.
func voice(id CycleID, who string, v Verdict) string {
	return fmt.Sprintf("%s/%d/%s/%c", id.Key, id.Seq, who, v)
}

// tap is a press of a button: of a card that shows buttons, or of one that did, or a forged one.
func (s *sim) tap() {
	cards := s.cards()
	if len(cards) == 0 {
		return
	}
	m := cards[s.rng.IntN(len(cards))]
	who := []int64{111, 222, 333, 444, 1087968824}[s.rng.IntN(5)]
	b := Button{Verdict: []Verdict{Approve, Approve, Reject, Because}[s.rng.IntN(4)], Nonce: m.nonce}
	t := simTap{place: m.place, made: s.now, tap: Tap{SenderID: who, ChatID: m.place.chat, MessageID: m.id, Data: b.Data()}}
	switch s.rng.IntN(20) {
	case 0:
		t.tap.ChatID = 5
	case 1:
		t.tap.MessageID += forgery
		m.forged = true // a daemon that does not know the message's id may believe it
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
	s.updates = append(s.updates, t)
}

// open is a tap on a digest, for the card of any request.
func (s *sim) open() {
	req, ok := s.anyRequest()
	for id := int64(1); ok && id <= s.lastID; id++ {
		m := s.messages[id]
		if m.kind != KindDigest || !m.buttons || m.deleted || !s.chance(50) {
			continue
		}
		b := Button{Verdict: Open, Reason: requestTag(CycleID{req.Key, req.Seq}), Nonce: m.nonce}
		s.lastTap++
		s.updates = append(s.updates, simTap{
			callback: fmt.Sprint("c", s.lastTap), place: m.place, made: s.now,
			tap: Tap{SenderID: 111, ChatID: m.place.chat, MessageID: m.id, Data: b.Data()},
		})
		return
	}
}

// repeatUpdate has Telegram bring an update again, or a client repeat its tap under a new id.
func (s *sim) repeatUpdate() {
	if len(s.taps) == 0 {
		return
	}
	t := s.taps[s.rng.IntN(len(s.taps))]
	t.made = s.now
	if s.chance(50) {
		s.lastTap++
		t.callback = fmt.Sprint("c", s.lastTap)
	}
	s.updates = append(s.updates, t)
}

// bringUpdate brings an update to a daemon, in any order. It stays with Telegram until it was taken.
func (s *sim) bringUpdate() {
	s.dropLost()
	d := s.anyDaemon()
	if d == nil || s.offline || len(s.updates) == 0 {
		return
	}
	i := s.rng.IntN(len(s.updates))
	if s.handle(d, s.updates[i]) {
		s.updates = slices.Delete(s.updates, i, i+1)
	}
}

// handle has a daemon deal with a tap. It reports whether the tap was taken: its outcome is on disk.
func (s *sim) handle(d *simDaemon, t simTap) bool {
	b, ruling, ok := Screen(t.tap, d.rules)
	if ok {
		before := s.stateOf(t.place.cycle)
		person := s.personOf(d, t)
		pending := before == approvallog.StatePending
		if person != "" && pending && (t.tap.ChatID == 0 || t.tap.ChatID == t.place.chat) {
			s.made[voice(t.place.cycle, person, b.Verdict)] = true
		}
		var err error
		ruling, err = d.loop.rule(context.Background(), t.tap, b)
		if !s.survives(d, "rule", err) {
			return false
		}
		after := s.stateOf(t.place.cycle)
		if (ruling.Outcome == OutcomeGranted || ruling.Outcome == OutcomeRejected) && string(after) != string(ruling.Outcome) {
			s.failf("the tap was told %s and the log says %s", ruling.Outcome, after)
		}
		if ruling.Outcome.refused() && before != after && after != approvallog.StateExpired {
			s.failf("a refused tap changed %v from %s to %s", t.place, before, after)
		}
		if person != "" && pending && s.genuine(t, b) && ruling.Outcome.refused() {
			s.failf("%s is allowed to say %c of %v and was told %s", person, b.Verdict, t.place, ruling.Outcome)
		}
	}
	d.inbox = append(d.inbox, TapRuled{CallbackID: t.callback, Tap: t.tap, Ruling: ruling})
	return true
}

// genuine reports whether a tap is what a button of the card makes.
func (s *sim) genuine(t simTap, b Button) bool {
	card := s.messages[t.tap.MessageID]
	return card != nil && t.tap.ChatID == t.place.chat && card.nonce == b.Nonce && !card.forged
}

// personOf is who taps, when this person may decide by what a daemon knows of the configuration.
func (s *sim) personOf(d *simDaemon, t simTap) string {
	a, _ := d.rules.Rule(s.classOf(t.place.cycle)).approver(t.tap.SenderID)
	return a.ID
}

func (s *sim) decideAtTerminal() {
	req, ok := s.anyRequest()
	if !ok {
		return
	}
	who := []Approver{alice, bob}[s.rng.IntN(2)]
	verdict := []Verdict{Approve, Reject}[s.rng.IntN(2)]
	d := Desk{Log: s.log, Journal: s.journal, Requests: s.requests, Deliveries: s.deliveries, Rules: s.rules, Person: who.ID}
	if req.StateAt(s.now) == approvallog.StatePending {
		s.made[voice(CycleID{req.Key, req.Seq}, who.ID, verdict)] = true
	}
	// A refusal is what the person is told; what was recorded is checked like everything.
	_, _ = DecideAtTerminal(context.Background(), d, req.Key, verdict, "")
}

package dispatch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// forgery is added to a message's id by somebody who forges a tap.
const forgery = 1 << 20

// place is an asking in a chat.
type place struct {
	cycle CycleID
	chat  int64
}

// simTelegram is what Telegram knows, and what it does to its callers.
type simTelegram struct {
	messages map[int64]*simMessage
	lastID   int64
	muted    map[int64]time.Time
	told     map[place]bool // epochs (as a cycle's number) that were told of a mute
	blocked  map[int64]bool
	offline  bool
	// excused counts the cards that may be there beside the first: their sender could not know of it.
	excused map[place]int
}

func newSimTelegram() simTelegram {
	return simTelegram{
		messages: map[int64]*simMessage{}, muted: map[int64]time.Time{}, told: map[place]bool{}, blocked: map[int64]bool{}, excused: map[place]int{},
	}
}

type simMessage struct {
	id      int64
	place   place
	kind    Kind
	nonce   Nonce
	buttons bool
	state   approvallog.State
	deleted bool
	missed  bool // its deletion has shown
	forged  bool // somebody tapped it under another message's id
	hash    string
	absence absence
	count   int    // of a digest: how many requests it speaks of
	says    string // of a card: who has to decide, and who has agreed
}

// telegram does what is asked, or not, and says what the daemon hears of it.
func (s *sim) telegram(d *simDaemon, e Call) Result {
	if s.offline {
		return Result{Kind: ResultTransient, Reason: "no route"}
	}
	if until := s.muted[e.ChatID]; s.now.Before(until) {
		key := place{CycleID{Seq: d.epoch}, e.ChatID}
		if s.told[key] {
			s.failf("%T sent %v before the 429 was over", e.What, until.Sub(s.now))
		}
		s.told[key] = true
		return Result{Kind: ResultLimited, RetryAfter: until.Sub(s.now)}
	}
	lost := false
	if s.faults {
		if s.blocked[e.ChatID] {
			return Result{Kind: ResultClosed, Reason: "bot was blocked", Class: "forbidden"}
		}
		storm := 100
		if s.o.seed%3 > 0 {
			storm = 300 // most histories are calmer, so that more comes to pass in them
		}
		switch n := s.rng.IntN(storm); {
		case n < 8:
			after := time.Duration(1+s.rng.IntN(90)) * time.Second
			s.muted[e.ChatID] = s.now.Add(after)
			for k := range s.told {
				if k.chat == e.ChatID {
					delete(s.told, k)
				}
			}
			s.told[place{CycleID{Seq: d.epoch}, e.ChatID}] = true
			return Result{Kind: ResultLimited, RetryAfter: after}
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
	return s.perform(d, e, lost)
}

// perform does what is asked; lost makes the answer to it be lost.
func (s *sim) perform(daemon *simDaemon, e Call, lost bool) Result {
	s.sync()
	at := func(r approvallog.Request) place { return place{CycleID{r.Key, r.Seq}, e.ChatID} }
	switch a := e.What.(type) {
	case SendCard:
		to := at(a.Request)
		d, ok := s.deliveries.ByNonce(a.Nonce.Sum())
		if !ok || d.Cycle != to.cycle || d.Kind != KindCard || d.ChatID != e.ChatID {
			s.failf("card for %v sent without a recorded intent", to)
		}
		m := simMessage{place: to, kind: KindCard, nonce: a.Nonce, buttons: true, hash: a.Request.PayloadHash, says: s.says(daemon, a.Request, a.Approved)}
		if a.ReplyTo != 0 {
			s.claimRefresh(m, a.ReplyTo, a.Approved)
		}
		return s.deliver(m, lost)
	case SendDocument:
		return s.deliver(simMessage{place: at(a.Request), kind: KindDocument}, lost)
	case SendReminder:
		m := s.messages[a.ReplyTo]
		forged := a.ReplyTo > forgery
		if !forged && (m == nil || m.kind != KindCard || m.place != at(a.Request)) {
			s.failf("a reminder of %v replies to %+v", at(a.Request), m)
		}
		return s.deliver(simMessage{place: at(a.Request), kind: KindReminder}, lost)
	case SendAbsence:
		if a.Waiting < 1 {
			s.failf("an absence is told although nothing waits")
		}
		return s.deliver(simMessage{place: place{chat: e.ChatID}, kind: KindAbsence, absence: absence{from: a.From, until: a.Until}}, lost)
	case EditSettled:
		return s.edit(a.MessageID, lost, func(m *simMessage) { m.buttons, m.state = false, settledState(a.Request) })
	case EditRenewed:
		return s.edit(a.MessageID, lost, func(m *simMessage) { m.buttons, m.state = false, stateRenewed })
	case EditReminder:
		return s.edit(a.MessageID, lost, func(m *simMessage) { m.state = settledState(a.Request) })
	case StripButtons:
		return s.edit(a.MessageID, lost, func(m *simMessage) { m.buttons = false; m.state = "stripped" })
	case SendDigest:
		d, ok := s.deliveries.ByNonce(a.Nonce.Sum())
		if !ok || d.Kind != KindDigest || d.ChatID != e.ChatID || a.Count < 1 || len(a.Listed) == 0 {
			s.failf("digest %+v sent without a recorded intent, or of nothing", a)
		}
		return s.deliver(simMessage{place: place{d.Cycle, e.ChatID}, kind: KindDigest, nonce: a.Nonce, buttons: true, count: a.Count}, lost)
	case RemindDigest:
		m := s.messages[a.ReplyTo]
		if m == nil || m.kind != KindDigest {
			s.failf("the reminder %+v replies to no digest", a)
		}
		return s.deliver(simMessage{place: m.place, kind: KindReminder}, lost)
	case EditDigest:
		return s.edit(a.MessageID, lost, func(m *simMessage) {
			m.count = a.Count
			if m.buttons = a.Count > 0; m.buttons && m.nonce != a.Nonce {
				s.failf("an edit gave digest %d the buttons of another", m.id)
			}
		})
	case EditProgress:
		if m := s.messages[a.MessageID]; m != nil && m.deleted && !m.missed {
			// A card whose deletion shows while its request waits is sent once more.
			m.missed = true
			s.excused[m.place]++
		}
		return s.edit(a.MessageID, lost, func(m *simMessage) {
			if m.nonce != a.Nonce {
				s.failf("an edit gave message %d the buttons of another", m.id)
			}
			m.says = s.says(daemon, a.Request, a.Approved)
		})
	default:
		s.failf("unknown action %T", a)
		return Result{}
	}
}

// says is what a card of a daemon tells of who decides.
func (s *sim) says(d *simDaemon, req approvallog.Request, approved []string) string {
	return Card{Request: req, Rule: d.rules.Rule(req.Class), Approved: approved}.needs()
}

// claimRefresh holds that a card which takes another's place says something else, or that nobody can tell whether it does, and excuses it.
func (s *sim) claimRefresh(m simMessage, old int64, approved []string) {
	s.excused[m.place]++
	before := s.messages[old]
	if old > forgery || before == nil {
		return
	}
	if before.place != m.place || before.kind != KindCard {
		s.failf("a card of %v takes the place of %+v", m.place, before)
	}
	// A card may be sent while the configuration changes under the daemon.
	if before.says == m.says && !s.reloaded && !s.mayName(before, approved) {
		s.failf("%v was sent again, and says the same as message %d: %s", m.place, old, m.says)
	}
}

// mayName reports whether the journal leaves open that a card names somebody who is not, or no longer, among those who have approved: showing an
// approval on a card is an edit that no record tells of.
func (s *sim) mayName(card *simMessage, approved []string) bool {
	for d := range s.deliveries.Of(card.place.cycle) {
		if d.MessageID != card.id || d.ChatID != card.place.chat {
			continue
		}
		for _, n := range s.deliveries.Notes(card.place.cycle) {
			if n.Seq > d.Said.seq && !slices.Contains(approved, n.Approver) {
				return true
			}
		}
	}
	return false
}

// reconfigure lets another approver in, or out again, or gives one another account.
func (s *sim) reconfigure() {
	two := Rule{Quorum: 2, Approvers: []Approver{alice, bob}}
	switch s.rng.IntN(4) {
	case 0:
		two.Approvers = []Approver{alice, bob, carol}
	case 1:
		two.Approvers = []Approver{bob, carol}
	case 2:
		two.Approvers = []Approver{{ID: alice.ID, TelegramID: 444}, bob}
	}
	s.rules.byClass = map[string]Rule{"two": two}
}

// configure changes the configuration under the rightful daemon, which is told.
func (s *sim) configure() {
	if len(s.daemons) == 0 || !s.faults {
		return
	}
	s.reconfigure()
	s.reloaded = true
	d := s.daemons[len(s.daemons)-1]
	d.rules = s.rules
	p := *d.loop.policy()
	p.Rules = s.rules
	d.loop.current.Store(&p)
	s.stepCore(d, Configured{Policy: Policy{Rules: s.rules, Reminder: 0.5, Deputy: Chat{ID: simDeputy}}})
}

func (s *sim) deliver(m simMessage, lost bool) Result {
	if m.kind == KindCard {
		docs := 0
		for _, other := range s.messages {
			if other.place == m.place && other.kind == KindDocument {
				docs++
			}
		}
		if docs < documentsOf(m.place.cycle.Seq) {
			s.failf("card of %v sent after %d of %d documents", m.place, docs, documentsOf(m.place.cycle.Seq))
		}
	}
	if lost {
		s.excused[m.place]++
		if s.chance(50) {
			return Result{Kind: ResultUnknown, Reason: "timeout"}
		}
	}
	s.lastID++
	m.id = s.lastID
	s.messages[m.id] = &m
	s.claimMessage(&m)
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

func (s *sim) deleteMessage() {
	if s.lastID > 0 && s.chance(30) {
		s.messages[1+s.rng.Int64N(s.lastID)].deleted = true
	}
}

// block closes a chat to the bot, or opens it again. Word of it reaches some daemon, or none.
func (s *sim) block() {
	chat := []int64{simChat, simDeputy}[s.rng.IntN(2)]
	s.blocked[chat] = !s.blocked[chat]
	d := s.anyDaemon()
	switch {
	case d == nil || s.chance(30):
	case s.blocked[chat]:
		s.stepCore(d, ChatClosed{ChatID: chat, Reason: "blocked"})
	default:
		s.stepCore(d, ChatOpened{ChatID: chat})
	}
}

// ask makes a request, sometimes the same key again.
func (s *sim) ask() {
	key := fmt.Sprintf("k%d", s.keys)
	if s.keys > 0 && (s.chance(20) || s.o.requests > 0 && s.keys >= s.o.requests) {
		key = fmt.Sprintf("k%d", s.rng.IntN(s.keys))
	} else {
		s.keys++
	}
	class, asker := "one", "agent:ci"
	if s.chance(30) {
		class, asker = "two", "agent:other"
	}
	followUp := []string{"", "plan-1", "plan-2", "plan-2"}[s.rng.IntN(4)]
	_, err := s.log.Update(context.Background(), func(tx Tx) error {
		if r, ok := s.requests.Get(key); ok && (!r.StateAt(tx.Now()).Final() || r.State == approvallog.StateStarted) {
			return nil
		}
		ttl := time.Duration(1+s.rng.IntN(2400)) * time.Second
		own := map[string]any{"quorum": 1, "expires_at": tx.Now().Add(ttl).Format(time.RFC3339Nano), "follow_up": followUp}
		if s.o.seed%4 > 1 {
			own["uid"] = 1000 + s.rng.IntN(2) // who takes one of a few names
			asker = fmt.Sprintf("agent:%d", s.rng.IntN(4))
		}
		_, err := tx.Append(approvallog.Draft{Event: approvallog.EventRequested, Actor: asker, Task: key, ActionKey: key, Payload: map[string]any{
			"class": class, "summary": "s", "payload_hash": fmt.Sprintf("hash-%s-%d", key, s.step), "reversible": true,
			"approvald": own,
		}})
		return err
	})
	if err != nil {
		s.failf("ask: %v", err)
	}
}

func (s *sim) anyRequest() (approvallog.Request, bool) {
	keys := s.allKeys()
	if len(keys) == 0 {
		return approvallog.Request{}, false
	}
	s.sync()
	return s.requests.Get(keys[s.rng.IntN(len(keys))])
}

func (s *sim) withdraw() {
	req, ok := s.anyRequest()
	if !ok || req.StateAt(s.now) != approvallog.StatePending {
		return
	}
	_, err := s.log.Update(context.Background(), func(tx Tx) error {
		_, err := tx.Append(approvallog.Draft{Event: approvallog.EventWithdrawn, Actor: req.Requester, Task: req.Task, ActionKey: req.Key,
			Payload: map[string]any{"action_key": req.Key, "reason": "cancelled"}})
		return err
	})
	if err != nil {
		s.failf("withdraw: %v", err)
	}
}

// revoke takes a grant back.
func (s *sim) revoke() {
	req, ok := s.anyRequest()
	if !ok || req.State != approvallog.StateGranted {
		return
	}
	_, err := s.log.Update(context.Background(), func(tx Tx) error {
		_, err := tx.Append(approvallog.Draft{Event: approvallog.EventRevoked, Actor: "human:alice", Task: req.Task, ActionKey: req.Key})
		return err
	})
	if err != nil {
		s.failf("revoke: %v", err)
	}
}

// cutJournal archives the journal.
func (s *sim) cutJournal() {
	s.sync()
	at := len(s.journal.records)
	_, err := s.journal.Update(context.Background(), func(tx Tx) error {
		drafts, err := s.deliveries.CarryOver(s.log.Last())
		for _, draft := range drafts {
			if err == nil {
				_, err = tx.Append(draft)
			}
		}
		return err
	})
	if err != nil {
		s.failf("cut: %v", err)
	}
	s.journal.cuts = append(s.journal.cuts, at)
}

func (s *sim) cards() []*simMessage {
	var cards []*simMessage
	for id := int64(1); id <= s.lastID; id++ {
		if m := s.messages[id]; m.kind == KindCard && !m.deleted {
			cards = append(cards, m)
		}
	}
	return cards
}

func (s *sim) stateOf(id CycleID) approvallog.State {
	s.sync()
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

// dropLost takes away the updates that Telegram keeps no longer.
func (s *sim) dropLost() {
	s.updates = slices.DeleteFunc(s.updates, func(t simTap) bool { return s.now.Sub(t.made) > tapLife })
}

package dispatch

import (
	"slices"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// simClaims is what was checked so far.
type simClaims struct {
	seen, seenJournal int             // records
	sentOnce          map[string]bool // deliveries recorded as sent
	reminders         map[CycleID]int
	cardsAt           map[place]int
	absences          []absence // that were told
}

func newSimClaims() simClaims {
	return simClaims{sentOnce: map[string]bool{}, reminders: map[CycleID]int{}, cardsAt: map[place]int{}}
}

// claimMessage holds what must be true of a message at the moment when it comes into a chat.
func (s *sim) claimMessage(m *simMessage) {
	switch m.kind {
	case KindCard:
		s.cardsAt[m.place]++
		if n := s.cardsAt[m.place]; n > 1+s.excused[m.place] {
			s.failf("%v was sent %d times, %d answers were lost", m.place, n, s.excused[m.place])
		}
		if req, ok := s.requests.Get(m.place.cycle.Key); m.place.chat == simDeputy && ok && req.Seq == m.place.cycle.Seq {
			if at := partOf(req.RequestedAt, heldUntil(req), 0.75); s.now.Before(at) {
				s.failf("the deputy was asked %v too early for %v", at.Sub(s.now), m.place)
			}
		}
	case KindReminder:
		if s.reminders[m.place.cycle]++; s.reminders[m.place.cycle] > 1 {
			s.failf("%v was reminded of twice", m.place)
		}
	case KindAbsence:
		if m.absence.until.Sub(m.absence.from) <= tapLife {
			s.failf("no tap was lost from %v to %v", m.absence.from, m.absence.until)
		}
		for _, told := range s.absences {
			if m.absence.from.Before(told.until) && told.from.Before(m.absence.until) {
				s.failf("the absence %v to %v was told before as %v to %v", m.absence.from, m.absence.until, told.from, told.until)
			}
		}
		s.absences = append(s.absences, m.absence)
	}
}

// check holds what must be true at every moment.
func (s *sim) check() {
	s.sync()
	for ; s.seenJournal < len(s.journal.records); s.seenJournal++ {
		rec := s.journal.records[s.seenJournal]
		if rec.Event != EventDeliverySent {
			continue
		}
		p, err := decode[sentPayload](rec)
		if err != nil || s.sentOnce[p.Delivery] {
			s.failf("delivery %s was recorded as sent twice, or %v", p.Delivery, err)
		}
		s.sentOnce[p.Delivery] = true
	}
	for ; s.seen < len(s.log.records); s.seen++ {
		s.checkRecord(s.log.records[s.seen])
	}
	if s.o.also != nil {
		if text := s.o.also(s); text != "" {
			s.failf("%s", text)
		}
	}
}

// checkRecord holds that a decision was made by people who may make it.
func (s *sim) checkRecord(rec approvallog.Record) {
	if rec.Event == approvallog.EventRequested {
		s.claimFollowUp(rec)
	}
	if rec.Event != approvallog.EventGranted && rec.Event != approvallog.EventRejected {
		return
	}
	req, _ := s.requests.Get(rec.ActionKey)
	if req.Decision == nil || req.Decision.Seq != rec.Seq {
		s.failf("record %d decides nothing", rec.Seq)
	}
	id := CycleID{req.Key, req.Seq}
	verdict, need := Reject, 1
	by := []string{req.Decision.By}
	if rec.Event == approvallog.EventGranted {
		verdict, need, by = Approve, map[string]int{"one": 1, "two": 2}[req.Class], nil
		for _, a := range req.Approvals {
			by = append(by, a.By)
		}
	}
	slices.Sort(by)
	if len(slices.Compact(by)) < need {
		s.failf("record %d: %v, needs %d", rec.Seq, by, need)
	}
	for _, who := range by {
		if !s.made[voice(id, person(who), verdict)] {
			s.failf("record %d: %s never said %c of %v", rec.Seq, who, verdict, id)
		}
	}
}

// checkEnd holds what must have come true once the world was kind for long enough.
func (s *sim) checkEnd(d *simDaemon) {
	s.sync()
	s.checkChains()
	for _, key := range s.allKeys() {
		if req, ok := s.requests.Get(key); ok && req.State == approvallog.StatePending {
			s.checkPending(d, req)
		}
	}
	for _, p := range s.deliveries.byID {
		m := s.messages[p.MessageID]
		if m == nil || m.deleted {
			continue
		}
		switch state := s.stateOf(p.Cycle); {
		case p.Kind == KindCard && state == approvallog.StatePending && !m.buttons && p.Settled == stateRenewed:
		case p.Kind == KindCard && state == approvallog.StatePending && !m.buttons:
			s.failf("%v is pending and message %d has no buttons", p.Cycle, m.id)
		case p.Kind == KindCard && state != approvallog.StatePending && m.buttons && p.Settled == "":
			s.failf("%v is %s and message %d still has buttons (%+v)", p.Cycle, state, m.id, p)
		case p.Kind == KindCard && !p.Gone && state == "superseded" && !done(p.Settled):
			s.failf("%v is over and message %d shows %s (%+v)", p.Cycle, m.id, p.Settled, p)
		case p.Kind == KindCard && !p.Gone && state != "superseded" && p.Settled != settledState(approvallog.Request{State: state}):
			s.failf("%v is %s and message %d shows %s (%+v)", p.Cycle, state, m.id, p.Settled, p)
		case p.Kind == KindDigest && m.buttons && p.Settled == "" && !stands(d.core, p.Cycle):
			s.failf("the digest %d stands for nothing and still has buttons (%+v)", m.id, p)
		case p.Kind == KindReminder && p.Cycle.Key != "" && state != approvallog.StatePending && m.state == "" && p.Settled == "":
			s.failf("%v is %s and message %d still says that it waits (%+v)", p.Cycle, state, m.id, p)
		}
	}
	for id, o := range d.core.ops {
		if !o.pending() {
			s.failf("%v is %s and still in mind", id, o.req.State)
		}
	}
	for id := range d.core.deliveries.cycles {
		if d.core.ops[id] == nil && id != (CycleID{}) {
			s.failf("%v is still remembered", id)
		}
	}
	for _, dg := range d.core.digests {
		p, _ := s.deliveries.ByID(dg.delivery)
		if m := s.messages[p.MessageID]; m != nil && !m.deleted && m.count < len(dg.held) {
			s.failf("digest %d speaks of %d requests and stands for %d", m.id, m.count, len(dg.held))
		}
	}
	s.checkUnshown(d)
	if st := d.core.Stats(); st.Unsettled != 0 {
		s.failf("%d messages are unsettled in the end", st.Unsettled)
	}
	for _, l := range d.core.lanes {
		if len(l.notices) > 0 {
			s.failf("%d notices are owed to chat %d in the end", len(l.notices), l.chatID)
		}
	}
}

// checkUnshown holds that who has only the files says the same of what was shown as the daemon; of what a digest was made to
// speak of by an edit the files know nothing.
func (s *sim) checkUnshown(d *simDaemon) {
	offline := map[string]bool{}
	for _, f := range s.deliveries.Unshown(s.requests.Pending()) {
		offline[f.Key] = true
	}
	st := d.core.Stats()
	online := map[string]bool{}
	for _, f := range slices.Concat(st.Failing, st.Waiting) {
		online[f.Key] = true
		if !offline[f.Key] {
			s.failf("%s was shown by the files and not by the daemon: %+v", f.Key, f)
		}
	}
	if len(online) != st.Undelivered {
		s.failf("%d requests are undelivered, and %v are named", st.Undelivered, online)
	}
	if digests := d.core.maxSingles < maxSingles; !digests && len(offline) != len(online) {
		s.failf("by the files %v were shown to nobody, by the daemon %v", offline, online)
	}
}

// checkPending holds that a request which still waits was shown where it had to be, and brought up again in time.
func (s *sim) checkPending(d *simDaemon, req approvallog.Request) {
	id := CycleID{req.Key, req.Seq}
	switch {
	case req.PastDeadline(s.now):
		s.failf("%v is past its deadline and not recorded as expired", id)
	case !d.core.shownIn(id, simChat) && !held(d.core, id, simChat):
		s.failf("%v is pending and nobody was shown it; the core: %+v", id, d.core.Stats())
	case !s.now.Before(partOf(req.RequestedAt, heldUntil(req), 0.75)) && !d.core.shownIn(id, simDeputy) && !held(d.core, id, simDeputy):
		s.failf("%v is pending and the deputy was not asked", id)
	}
	card, _ := d.core.cardAt(id, simChat)
	if at := partOf(card.SentAt, heldUntil(req), 0.5); at.IsZero() || s.now.Before(at.Add(time.Second)) {
		return
	}
	if card.Gone {
		return // it was deleted twice: somebody wants it so
	}
	reminded := false
	for p := range s.deliveries.Of(id) {
		reminded = reminded || p.Kind == KindReminder && (p.Phase == PhaseSent || p.Phase == PhaseUnknown)
	}
	if !reminded {
		s.failf("%v is pending and was never reminded of", id)
	}
}

// held reports whether a digest that is in the chat names or counts a request.
func held(c *Core, id CycleID, chatID int64) bool {
	o := c.ops[id]
	return o != nil && o.held[c.slot(chatID)] != nil && o.held[c.slot(chatID)].speaksOf(o)
}

// stands reports whether the digest of which this message is a copy stands for any request.
func stands(c *Core, id CycleID) bool {
	o := c.ops[id]
	return o != nil && o.digest != nil && len(o.digest.held) > 0
}

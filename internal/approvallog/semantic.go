package approvallog

import "time"

// semantic looks for records that contradict each other although the chain is sound. It remembers
// one short entry for each action key.
type semantic struct {
	find func(Finding)
	keys map[string]*keyHistory
}

type keyHistory struct {
	deadline time.Time // of the present cycle; zero is none
	decided  bool      // granted, rejected, expired or withdrawn in it
	granted  bool      // in any cycle, and not revoked
}

func newSemantic(find func(Finding)) *semantic {
	return &semantic{find: find, keys: make(map[string]*keyHistory)}
}

// record looks at the next record.
func (s *semantic) record(r Record, line, offset int64) {
	report := func(code, message string) {
		s.find(Finding{Code: code, Seq: r.Seq, Line: line, Offset: offset, Message: message})
	}
	key := s.keys[r.ActionKey]
	switch r.Event {
	case EventRequested:
		if key == nil {
			key = &keyHistory{}
			s.keys[r.ActionKey] = key
		}
		key.decided, key.deadline = false, deadlineOf(r)
	case EventGranted, EventRejected, EventExpired, EventWithdrawn:
		if key == nil {
			report(FindingDecisionWithoutRequest, r.Event+" of an action key that nobody asked for")
			return
		}
		if key.decided {
			report(FindingSecondDecision, r.Event+" of a request that has ended; it counts for nothing")
			return
		}
		s.decision(r, key, report)
	case EventRevoked:
		if key == nil || !key.granted {
			report(FindingDecisionWithoutRequest, "a revocation of what was not granted")
			return
		}
		key.granted = false
	case EventExecutionStarted:
		if key == nil || !key.granted {
			report(FindingExecutionWithoutGrant, "an execution of what was not granted")
		}
	}
}

func (s *semantic) decision(r Record, key *keyHistory, report func(code, message string)) {
	person := humanActor(r.Actor)
	if !person && (r.Event == EventGranted || r.Event == EventRejected) {
		report(FindingDecisionWithoutApprover, r.Event+" by an actor who is no person; it counts for nothing")
		return
	}
	if r.Event == EventGranted && !key.deadline.IsZero() && !r.TS.Before(key.deadline) {
		report(FindingGrantAfterDeadline, "a grant past the request's deadline; it counts for nothing")
		return
	}
	key.decided = true
	if r.Event == EventGranted {
		key.granted = true
	}
}

// deadlineOf reads when the request of a record expires, zero when it says nothing of it.
func deadlineOf(r Record) time.Time {
	payload := membersOf(r.Payload)
	if at := payload.own.expiresAt.time(); !at.IsZero() {
		return at
	}
	return payload.waitUntil.time()
}

package approvallog

import (
	"strings"
	"time"
)

// semantic looks for records that contradict each other although the chain is sound. What it says counts
// for nothing is what [Requests] passes over: it walks each key's records by the same rules, and
// remembers one short entry for each action key.
type semantic struct {
	find func(Finding)
	keys map[string]*keyHistory
	base int64 // how many records the segments before this one hold
	last int64 // number of the last record in its segment
}

// keyHistory is one action key, as far as its records have been read.
type keyHistory struct {
	cycle       int64     // number of the record that opened the present one, over all segments; 0 when nobody asked
	state       State     // of the present cycle
	deadline    time.Time // of the present cycle; zero is none
	payloadHash string    // that was asked for in it
	running     bool      // the execution of an earlier cycle has not ended
	followUp    bool      // the present cycle has one
	requester   string    // of the present cycle, where it has a follow-up
}

func newSemantic(find func(Finding)) *semantic {
	return &semantic{find: find, keys: make(map[string]*keyHistory)}
}

// record looks at the next record.
func (s *semantic) record(r Record, line, offset int64) {
	if r.Seq <= s.last {
		s.base += s.last // another segment
	}
	s.last = r.Seq
	if !aboutRequests(r.Event) {
		return
	}
	key := s.keys[r.ActionKey]
	if key == nil {
		key = &keyHistory{}
		if r.Event == EventRequested {
			s.keys[r.ActionKey] = key
		}
	}
	numbered := r
	numbered.Seq += s.base
	p := membersOf(r.Payload)
	numbered.Seq = originalSeq(&numbered, p)
	repeats := numbered.Seq <= s.base // a record of the archive, which was looked at there
	code, message := key.walk(numbered, p)
	if r.Event == EventRequested {
		code, message = s.followUp(r)
	}
	if code != "" && !repeats {
		s.find(Finding{Code: code, Seq: r.Seq, Line: line, Offset: offset, Message: message})
	}
}

// followUp holds a request under the key of a follow-up against what it follows, as far as that is known. Who reads the request goes by it
// all the same.
func (s *semantic) followUp(r Record) (code, message string) {
	parent, cycle, ok := ParseFollowUpKey(r.ActionKey)
	after := s.keys[parent]
	switch {
	case !ok || after == nil || after.cycle != cycle || !after.followUp:
		return "", ""
	case after.state != StateCompleted:
		return FindingFollowUpTooEarly, "the follow-up of a request that was not granted and executed; it waits for a decision all the same"
	case after.requester != r.Actor:
		return FindingFollowUpOfAnother, "the follow-up of another's request; it waits for a decision all the same"
	default:
		return "", ""
	}
}

// walk takes the key over one more record. It returns what is odd about it, "" for nothing.
func (k *keyHistory) walk(r Record, p *members) (code, message string) {
	switch r.Event {
	case EventRequested:
		k.open(r, p)
	case EventGranted, EventRejected, EventExpired, EventWithdrawn:
		return k.end(r, p)
	case EventRevoked:
		if k.state != StateGranted {
			return FindingDecisionWithoutRequest, "a revocation of what was not granted, or used already; it counts for nothing"
		}
		k.state = StateRevoked
	case EventExecutionStarted:
		if k.running || k.state != StateGranted {
			return FindingExecutionWithoutGrant, "an execution of what was not granted, or used already"
		}
		k.state = StateStarted
	case EventExecutionCompleted, EventExecutionFailed:
		switch {
		case k.running:
			k.running = false
		case k.state == StateStarted || k.state == StateGranted:
			k.state = StateCompleted
			if r.Event == EventExecutionFailed {
				k.state = StateFailed
			}
		default:
			return FindingExecutionWithoutGrant, "the end of an execution of what was not granted, or used already"
		}
	}
	return "", ""
}

func (k *keyHistory) open(r Record, p *members) {
	if r.Seq == k.cycle {
		return // carried over into another segment: the cycle goes on
	}
	k.running = k.running || k.state == StateStarted
	k.cycle, k.state, k.payloadHash, k.deadline = r.Seq, StatePending, strings.Clone(p.payloadHash.string()), p.own.expiresAt.time()
	if k.deadline.IsZero() {
		k.deadline = p.waitUntil.time()
	}
	k.followUp, k.requester = p.own.followUp.string() != "", ""
	if k.followUp {
		k.requester = strings.Clone(r.Actor)
	}
}

// end is a record that ends a pending request.
func (k *keyHistory) end(r Record, p *members) (code, message string) {
	switch {
	case k.cycle == 0:
		return FindingDecisionWithoutRequest, r.Event + " of an action key that nobody asked for"
	case k.state != StatePending:
		return FindingSecondDecision, r.Event + " of a request that has ended; it counts for nothing"
	case r.Event == EventExpired:
		k.state = StateExpired
		return "", ""
	case !k.deadline.IsZero() && !r.TS.Before(k.deadline):
		if r.Event == EventGranted {
			return FindingGrantAfterDeadline, "a grant past the request's deadline; it counts for nothing"
		}
		return FindingEndAfterDeadline, r.Event + " past the request's deadline; it counts for nothing"
	case r.Event == EventGranted && !humanActor(r.Actor):
		return FindingDecisionWithoutApprover, r.Event + " by an actor who is no person; it counts for nothing"
	case r.Event == EventGranted && p.payloadHash.contradicts(k.payloadHash):
		return FindingOtherPayload, "a grant of another payload than was asked for; it counts for nothing"
	}
	switch r.Event {
	case EventGranted:
		k.state = StateGranted
	case EventRejected:
		k.state = StateRejected
		if !humanActor(r.Actor) {
			return FindingDecisionWithoutApprover, r.Event + " by an actor who is no person; the request has ended all the same"
		}
	default:
		k.state = StateWithdrawn
	}
	return "", ""
}

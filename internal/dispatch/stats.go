package dispatch

import (
	"iter"
	"time"
)

// Failing is a request that is pending and shown to nobody yet, and why.
type Failing struct {
	Key    string    `json:"key"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since,omitzero"`
	Next   time.Time `json:"next,omitzero"` // when it is tried again
	// MaybeSeen: a message of it may be on a phone all the same. What became of a send is not known, or its card was
	// there and is gone.
	MaybeSeen bool `json:"maybe_seen,omitempty"`
}

// Stats is how dispatch is doing.
type Stats struct {
	Pending     int // requests that wait for a person
	Undelivered int // of these, those that are shown to nobody yet
	Unsettled   int // messages that do not show their request's end yet
	RefusedTaps int // taps by people or with buttons that could decide nothing, since the start
	// Failing are undelivered requests whose delivery went wrong, oldest first, at most maxFailing.
	Failing []Failing
	// Waiting are the other undelivered requests, which nothing keeps from people but those before them; with Failing at most
	// maxFailing.
	Waiting []Failing
	// MutedUntil is when Telegram's own limit on the chat ends, zero for none.
	MutedUntil time.Time
	// ChatProblem is why nothing can be sent to a chat, empty while nothing is wrong. ChatClosed tells one that lasts
	// until a person changes something from a failure that passes.
	ChatProblem string
	ChatClosed  bool
	// StorageProblem is why the delivery journal cannot be written at the moment, empty while it can. Nothing is sent
	// until then.
	StorageProblem string
	// Degraded says what is left out because it does not work, empty for nothing.
	Degraded string
}

const maxFailing = 200

// Stats describes the core's state as of now.
func (c *Core) Stats() Stats {
	s := Stats{RefusedTaps: c.refusals.total}
	switch {
	case c.movedFrom != 0:
		s.Degraded = c.movedText()
	case c.topicOff():
		s.Degraded = "the forum topic is closed or gone: cards go to the chat without it"
	}
	a := c.Alarm()
	s.ChatProblem, s.ChatClosed, s.Failing = a.ChatProblem, a.ChatClosed, a.Failing
	for _, l := range c.lanes {
		if l.muted && l.next.After(c.now) && l.next.After(s.MutedUntil) {
			s.MutedUntil = l.next
		}
	}
	for _, o := range c.ops {
		switch {
		case !o.pending():
			s.Unsettled += c.unsettled(o)
		case o.digest != nil:
		case c.seen(o):
			s.Pending++
		default:
			s.Pending++
			s.Undelivered++
		}
	}
	if s.Undelivered > len(s.Failing) {
		s.Waiting = c.waitingOnes(s.Failing)
	}
	return s
}

func (c *Core) unsettled(o *op) int {
	n := 0
	for d := range c.deliveries.Of(o.id) {
		if d.MessageID != 0 && mayOwe(d) && owes(d, settledState(o.req)) {
			n++
		}
	}
	return n
}

// recent remembers the last callback ids, each of which can be answered once.
type recent struct {
	seen map[string]bool
	ring []string
	next int
}

const maxRecent = 4096

func newRecent() *recent { return &recent{seen: make(map[string]bool)} }

// add remembers an id and reports whether it is new.
func (r *recent) add(id string) bool {
	if id == "" || r.seen[id] {
		return false
	}
	if len(r.ring) < maxRecent {
		r.ring = append(r.ring, id)
	} else {
		delete(r.seen, r.ring[r.next])
		r.ring[r.next] = id
		r.next = (r.next + 1) % maxRecent
	}
	r.seen[id] = true
	return true
}

// refusals counts refused taps and admits a few of each hour to the journal.
type refusals struct {
	total    int
	hour     time.Time
	admitted int
}

const refusedPerHour = 20

func (r *refusals) admit(now time.Time) bool {
	r.total++
	if hour := now.Truncate(time.Hour); !hour.Equal(r.hour) {
		r.hour, r.admitted = hour, 0
	}
	r.admitted++
	return r.admitted <= refusedPerHour
}

// Unsettled yields the cards that still show their buttons, in no particular order.
func (d *Deliveries) Unsettled() iter.Seq[Delivery] {
	return func(yield func(Delivery) bool) {
		for _, p := range d.byID {
			if p.Kind == KindCard && p.Phase == PhaseSent && p.Settled == "" && !yield(*p) {
				return
			}
		}
	}
}

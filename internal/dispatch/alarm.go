package dispatch

import "slices"

// Alarm is what keeps requests from people at the moment. It costs little to find while nothing does, however many
// requests wait.
type Alarm struct {
	// ChatProblem, ChatClosed, StorageProblem and Failing are those of [Stats].
	ChatProblem    string
	ChatClosed     bool
	StorageProblem string
	Failing        []Failing
}

// Alarm describes the core's state as of now.
func (c *Core) Alarm() Alarm {
	var a Alarm
	for _, id := range c.laneIDs() {
		l := c.lanes[id]
		// A failure that passes is forgotten with what failed; a chat that is closed stays so until it is seen open.
		if l.reason == "" || l.muted || !l.closed && !l.next.After(c.now) && len(l.cards) == 0 && l.busy == nil {
			continue
		}
		if a.ChatProblem == "" || l.closed && !a.ChatClosed {
			a.ChatProblem, a.ChatClosed = l.reason, l.closed
		}
	}
	a.Failing = append(c.failing(), c.failingFollowUps()...)
	return a
}

// maybeSeen reports whether something of this asking was in a chat at some time, or may have been.
func (c *Core) maybeSeen(id CycleID) bool {
	for d := range c.deliveries.Of(id) {
		if d.Phase == PhaseUnknown || d.Phase == PhaseSent {
			return true
		}
	}
	return false
}

// failing are the requests of Stats.Failing. What is not shown is queued, so only the queues are looked at.
func (c *Core) failing() []Failing {
	var queued []*op
	add := func(o *op) {
		if o != nil && o.pending() && !c.seen(o) && !slices.Contains(queued, o) {
			queued = append(queued, o)
		}
	}
	for _, id := range c.laneIDs() {
		l := c.lanes[id]
		if t := l.busy; t != nil && t.edit == nil && t.notice == nil {
			add(t.op)
		}
		for _, id := range l.cards {
			if len(queued) == maxFailing {
				break
			}
			if o := c.ops[id]; o != nil && (o.reason != "" || l.reason != "") {
				add(o)
			}
		}
	}
	for _, dg := range c.digests {
		for _, m := range dg.held {
			if len(queued) == maxFailing {
				break
			}
			if !dg.there || !m.spoken {
				add(m.op)
			}
		}
	}
	slices.SortFunc(queued, func(a, b *op) int { return compareCycles(a.id, b.id) })
	home := c.lane(c.chat.ID)
	var list []Failing
	for _, o := range queued {
		f := Failing{Key: o.id.Key, Reason: o.reason, Since: o.since, Next: o.next, MaybeSeen: c.maybeSeen(o.id)}
		if f.Reason == "" && home.next.After(c.now) {
			f.Reason, f.Since = home.reason, home.since
		}
		if home.next.After(f.Next) {
			f.Next = home.next
		}
		if f.Reason != "" && len(list) < maxFailing {
			list = append(list, f)
		}
	}
	return list
}

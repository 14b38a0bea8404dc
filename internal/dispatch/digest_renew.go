package dispatch

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// digestFresh is how long those that come later join a digest without a sound. After that they bring a new message, at
// most one in that time.
const digestFresh = 5 * time.Minute

// stateReplaced is what a digest is settled to when a newer message stands for its requests.
const stateReplaced = "replaced"

// told is the newest request that a digest's message spoke of when it came, so that a restart knows as much. Its cycle is
// named after that one, unless the message before it was.
func told(d Delivery) int64 { return cmp.Or(d.Newest, max(d.Cycle.Seq, -d.Cycle.Seq)) }

// speaksOf reports whether the message that people see names or counts a request.
func (dg *digest) speaksOf(o *op) bool {
	m := dg.held[o.id]
	return dg.there && m != nil && m.spoken
}

// speaksOfAll reports whether the message speaks of all that it stands for.
func (dg *digest) speaksOfAll() bool {
	for _, m := range dg.held {
		if !m.spoken {
			return false
		}
	}
	return true
}

// edited notes that the message in the chat speaks now of all that the edit did.
func (dg *digest) edited() {
	for _, m := range dg.held {
		m.spoken = m.spoken || m.showing
	}
}

// came notes that the message came to the chat.
func (dg *digest) came() {
	dg.edited()
	dg.untold = 0
	for _, m := range dg.held {
		if m.told = m.spoken; !m.told {
			dg.untold++
		}
	}
}

// newestHeld is the newest of the requests that a digest stands for, 0 for none.
func (dg *digest) newestHeld() int64 {
	newest := int64(0)
	for id := range dg.held {
		newest = max(newest, id.Seq)
	}
	return newest
}

// renewDigests replaces each digest that has to be: a silent edit is not enough for those that came when it was old, and
// after a restart there is no edit at all, because its buttons cannot be made again.
func (c *Core) renewDigests() {
	all := slices.SortedFunc(maps.Values(c.digests), func(a, b *digest) int { return compareCycles(a.op.id, b.op.id) })
	for _, dg := range all {
		if c.renewable(dg) {
			c.replaceDigest(dg)
		}
	}
}

func (c *Core) renewable(dg *digest) bool {
	if !dg.there || dg.untold == 0 {
		return false
	}
	d, _ := c.deliveries.ByID(dg.delivery)
	at := d.SentAt.Add(digestFresh)
	if _, known := c.nonces[dg.delivery]; !known || !at.After(c.now) {
		return true
	}
	if !dg.renewAt.Equal(at) {
		dg.renewAt = at
		c.wakeAt(at, dg.op)
	}
	return false
}

// freeName is a cycle for a digest that is to take the place of another: the number of one of its requests, the newest that
// no digest was named after, else the newest after which none is that is not settled yet: a message in the chat of which
// nobody knows is then settled with the new one.
func (c *Core) freeName(dg *digest) (cycle int64, ok bool) {
	fresh := false
	for id := range dg.held {
		seq := id.Seq
		if dg.deputy {
			seq = -seq
		}
		if c.ops[CycleID{Seq: seq}] != nil {
			continue
		}
		_, used := c.deliveries.first(CycleID{Seq: seq})
		if !ok || !used && !fresh || used != fresh && max(seq, -seq) > max(cycle, -cycle) {
			cycle, ok, fresh = seq, true, !used
		}
	}
	return cycle, ok
}

// replaceDigest lets a new message stand for the requests. Until it is there, they count as undelivered.
func (c *Core) replaceDigest(dg *digest) {
	cycle, ok := c.freeName(dg)
	if !ok {
		return // each of them has given its number to a message that is not settled yet
	}
	fresh := c.openDigest(dg.group, dg.chatID, cycle)
	for _, m := range dg.held {
		m.op.held[c.slot(dg.chatID)] = fresh
		c.join(fresh, m.op)
	}
	clear(dg.held)
	dg.untold = 0
	l := c.lane(dg.chatID)
	l.notices = append(l.notices, &notice{kind: KindDigest, op: fresh.op, digest: fresh})
	dg.there = false
	dg.op.req.State = stateReplaced
	c.evaluate(dg.op)
}

// remindDigest makes sure that people are reminded once of what a digest stands for, when the first of its requests
// would be.
func (c *Core) remindDigest(dg *digest) {
	if c.o.Reminder <= 0 || dg.deputy || !dg.there || c.reminded(dg.op) {
		return
	}
	first := time.Time{}
	for _, m := range dg.held {
		if at := c.digestReminder(dg, m.op); !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	switch {
	case first.IsZero():
	case !first.After(c.now):
		l := c.lane(dg.chatID)
		l.notices = append(l.notices, &notice{kind: KindReminder, op: dg.op})
	case !dg.op.remindAt.Equal(first):
		dg.op.remindAt = first
		c.wakeAt(first, dg.op)
	}
}

// remindOf looks at a digest again in time for one more request.
func (c *Core) remindOf(dg *digest, o *op) {
	at := c.digestReminder(dg, o)
	if c.o.Reminder > 0 && dg.there && !at.IsZero() && (dg.op.remindAt.IsZero() || at.Before(dg.op.remindAt)) {
		dg.op.remindAt = at
		c.wakeAt(at, dg.op)
	}
}

func (c *Core) digestReminder(dg *digest, o *op) time.Time {
	d, _ := c.deliveries.ByID(dg.delivery)
	return partOf(later(d.SentAt, o.req.RequestedAt), heldUntil(o.req), c.o.Reminder)
}

package dispatch

import (
	"maps"
	"slices"
	"time"
)

// digestFresh is how long those that come later join a digest without a sound. After that they bring a new message, at
// most one in that time.
const digestFresh = 5 * time.Minute

// stateReplaced is what a digest is settled to when a newer message stands for its requests.
const stateReplaced = "replaced"

// told is the newest request that the message of a digest's cycle spoke of when it came. The cycle is named after it, so
// that a restart knows as much.
func told(id CycleID) int64 { return max(id.Seq, -id.Seq) }

// speaksOf reports whether the message that people see names or counts a request.
func (dg *digest) speaksOf(o *op) bool { return dg.there && o.id.Seq <= dg.spoken }

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
	if !dg.there || dg.newest <= dg.told {
		return false
	}
	if dg.newest = dg.newestHeld(); dg.newest <= dg.told {
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

// replaceDigest lets a new message stand for the requests. Until it is there, they count as undelivered.
func (c *Core) replaceDigest(dg *digest) {
	cycle := dg.newest
	if dg.deputy {
		cycle = -cycle
	}
	fresh := c.openDigest(dg.group, dg.chatID, cycle)
	fresh.newest = dg.newest
	for id, o := range dg.held {
		o.held[c.slot(dg.chatID)] = fresh
		fresh.held[id] = o
	}
	clear(dg.held)
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
	for _, o := range dg.held {
		if at := c.digestReminder(dg, o); !at.IsZero() && (first.IsZero() || at.Before(first)) {
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

package dispatch

import "github.com/approvald/approvald/internal/approvallog"

// begin takes up the work on an asking.
func (c *Core) begin(id CycleID, req approvallog.Request) *op {
	c.current[req.Key] = id
	o := newOp(id, req)
	o.ended = c.follows.seq + 1
	c.ops[id] = o
	c.wakeAt(req.ExpiresAt, o)
	c.wakeAt(c.deputyAt(o), o)
	return o
}

// retake takes up again what was let go of.
func (c *Core) retake(cycles []Cycle) {
	for _, cycle := range cycles {
		if e := cycle.log; e != nil && c.ops[e.id] == nil {
			c.deliveries.hold(e.clone())
		}
	}
}

// lacks reports whether the core has let go of an asking, or never heard of it.
func (c *Core) lacks(id CycleID) bool {
	return c.ops[id] == nil && (c.recovered || c.deliveries.cycles[id] == nil)
}

// forgetIfDone lets go of an asking of which nothing is owed at the moment: a grant that nobody uses must not be kept for
// ever. When more comes of it, so does what the journal says about it.
func (c *Core) forgetIfDone(o *op) {
	if o.pending() || c.owesAnything(o.id, o.req) || c.busyWith(o.id) {
		return
	}
	for d := range c.deliveries.Of(o.id) {
		if c.recording[d.ID] {
			return
		}
	}
	for d := range c.deliveries.Of(o.id) {
		delete(c.nonces, d.ID)
		delete(c.progressShown, d.ID)
	}
	c.deliveries.forget(o.id)
	delete(c.ops, o.id)
	if c.current[o.id.Key] == o.id {
		delete(c.current, o.id.Key)
	}
}

// owesAnything reports whether a message of this asking is known that is to be rewritten. One that nobody knows to exist
// is taken up when a tap tells of it.
func (c *Core) owesAnything(id CycleID, req approvallog.Request) bool {
	for d := range c.deliveries.Of(id) {
		if d.MessageID != 0 && mayOwe(d) && owes(d, settledState(req)) {
			return true
		}
	}
	return false
}

package dispatch

import "time"

// Policy is what the configuration says and may say otherwise while a Loop runs.
type Policy struct {
	Rules      Rules
	ConfigHash string // of the configuration that says so; decisions record it
	// Deputy is the chat that is asked too when nobody answers, its ID 0 for none.
	Deputy Chat
	// Reminder is the part of a request's time after which its people are reminded, 0 for never.
	Reminder float64
	// ThreadID is the forum topic of the gate's chat, 0 for none.
	ThreadID int64
}

// Configure puts another policy in force. When it returns, every decision that is made is made by it, and every decision by the
// one before is on disk; what is shown follows. It waits for a decision that is being written.
func (l *Loop) Configure(p Policy) {
	l.deciding.Lock()
	l.current.Store(&p)
	l.deciding.Unlock()
	l.mailbox.put(Configured{Policy: p})
}

// policy is the one in force.
func (l *Loop) policy() *Policy { return l.current.Load() }

// Configured: the configuration says this from now on.
type Configured struct{ Policy Policy }

func (Configured) isEvent() {}

// configured goes on by another policy: what waits is looked at again, since who has to be shown it, and when, may be another.
func (c *Core) configured(ev Configured) {
	if c.o.Deputy.ID != ev.Policy.Deputy.ID {
		c.leaveDeputy()
	}
	if c.chat.ThreadID != ev.Policy.ThreadID {
		c.topicBack = time.Time{} // what was found out was about the other topic
	}
	c.o.Rules, c.o.Reminder, c.o.Deputy, c.chat.ThreadID = ev.Policy.Rules, ev.Policy.Reminder, ev.Policy.Deputy, ev.Policy.ThreadID
	for _, o := range c.sorted() {
		if !o.pending() {
			continue
		}
		o.remindAt, o.terms = time.Time{}, ""
		c.wakeAt(c.deputyAt(o), o)
		if c.recovered {
			c.evaluate(o)
		}
	}
}

// leaveDeputy takes back what was still to be sent to the deputy's chat. The cards that are there stay good, as long as their
// people may decide, and are settled like any other.
func (c *Core) leaveDeputy() {
	id := c.o.Deputy.ID
	if !c.isDeputy(id) {
		return
	}
	all := c.sorted()
	for _, o := range all {
		if dg := o.digest; dg != nil && dg.chatID == id && o.pending() {
			c.dropDigest(dg)
		}
	}
	for _, o := range all {
		c.release(o, id)
		if l := c.lanes[id]; l != nil {
			c.stopSending(o, l)
		}
	}
}

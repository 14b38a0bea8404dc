package dispatch

import (
	"cmp"
	"slices"
	"time"
)

// fairCards is how many cards go out in a row while something else waits in the same chat: a flood of requests must not
// keep the outcome of others, or a reminder, from being shown.
const fairCards = 4

// pump starts the next thing in a chat when nothing is under way there.
func (c *Core) pump(l *lane) {
	for l.busy == nil && !l.next.After(c.now) {
		if l.inRow >= fairCards && c.startOther(l) {
			continue
		}
		if c.startCard(l) {
			l.inRow++
			continue
		}
		if !c.startNotice(l) && !c.startEdit(l, false) {
			return
		}
	}
}

// startOther gives an edit or a notice its turn before the cards that wait, one and the other by turns.
func (c *Core) startOther(l *lane) bool {
	l.inRow, l.noticeTurn = 0, !l.noticeTurn
	if l.noticeTurn {
		return c.startNotice(l) || c.startEdit(l, true)
	}
	return c.startEdit(l, true) || c.startNotice(l)
}

// chatsFor are the chats in which a pending asking has to be shown by now.
func (c *Core) chatsFor(o *op) []int64 {
	chats := []int64{c.chat.ID}
	if at := c.deputyAt(o); !at.IsZero() && !at.After(c.now) {
		chats = append(chats, c.o.Deputy.ID)
	}
	return chats
}

// isDeputy reports whether a chat is the deputy's and not the gate's own.
func (c *Core) isDeputy(chatID int64) bool {
	return chatID != 0 && chatID == c.o.Deputy.ID && chatID != c.chat.ID
}

// deputyAt is when the deputy's chat is asked too: half-way between the reminder, or the asking where there is none, and
// the deadline. It is zero when there is no deputy, or no deadline to measure by.
func (c *Core) deputyAt(o *op) time.Time {
	if !c.isDeputy(c.o.Deputy.ID) {
		return time.Time{}
	}
	return partOf(o.req.RequestedAt, heldUntil(o.req), (1+c.o.Reminder)/2)
}

// partOf is when a part of the time from begin to end is over, zero when one of them is not known.
func partOf(begin, end time.Time, part float64) time.Time {
	if begin.IsZero() || end.IsZero() || !end.After(begin) {
		return time.Time{}
	}
	return begin.Add(time.Duration(part * float64(end.Sub(begin))))
}

// deliver makes sure that a pending asking is in every chat where it has to be by now, and that its people are reminded.
func (c *Core) deliver(o *op) {
	missing, renewing, stale := false, false, false
	for _, chatID := range c.chatsFor(o) {
		if c.shownIn(o.id, chatID) {
			c.release(o, chatID)
			_, stale = c.stale(o, chatID)
			if o.renewing[c.slot(chatID)] = stale; !stale {
				c.stopSending(o, c.lane(chatID))
			} else if !c.waiting(o) {
				c.enqueue(o, chatID)
			}
			renewing = renewing || stale
			continue
		}
		o.renewing[c.slot(chatID)] = false
		if c.hold(o, chatID) {
			c.stopSending(o, c.lane(chatID))
			continue
		}
		missing = true
		if !c.waiting(o) {
			c.enqueue(o, chatID)
		}
	}
	if !missing && !renewing {
		o.reason, o.attempts = "", 0
	}
	if c.shown(o.id) {
		c.showProgress(o)
		c.refresh(o)
		c.remind(o)
	}
}

// shown reports whether a card of this asking is known to be in a chat.
func (c *Core) shown(id CycleID) bool {
	return c.shownIn(id, c.chat.ID) || c.shownIn(id, c.o.Deputy.ID)
}

// shownIn reports whether a card is known to be in a chat. One that was deleted is sent once more; when that was deleted
// too, somebody wants it so.
func (c *Core) shownIn(id CycleID, chatID int64) bool {
	gone := 0
	for d := range c.deliveries.Of(id) {
		switch {
		case d.Kind != KindCard || d.Phase != PhaseSent || d.ChatID != chatID || d.Replaced:
		case d.Gone:
			gone++
		default:
			return true
		}
	}
	return gone > 1
}

// waiting reports whether an intent of a dead process is still to be recorded as unknown, before anything new is made.
func (c *Core) waiting(o *op) bool {
	for d := range c.deliveries.Of(o.id) {
		if d.Phase == PhaseIntended && (d.Kind == KindCard || d.Kind == KindDocument) && d.ID != o.retry[d.ChatID] && !c.underway(d.ID) {
			return true
		}
	}
	return false
}

func (c *Core) enqueue(o *op, chatID int64) {
	l := c.lane(chatID)
	if t := l.busy; t != nil && t.op == o && t.edit == nil && t.notice == nil {
		return
	}
	if at, there := slices.BinarySearchFunc(l.cards, o.id, compareCycles); !there {
		l.cards = slices.Insert(l.cards, at, o.id)
	}
}

func compareCycles(a, b CycleID) int {
	return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Key, b.Key))
}

// stopDelivering takes back all that is not on its way yet.
func (c *Core) stopDelivering(o *op) {
	c.release(o, c.chat.ID)
	c.release(o, c.o.Deputy.ID)
	for _, id := range c.laneIDs() {
		l := c.lanes[id]
		c.stopSending(o, l)
		if t := l.busy; t != nil && t.op == o && t.notice != nil {
			c.cancelTask(t)
		}
	}
	o.reason, o.attempts = "", 0
}

// stopSending takes back a card, or a document before it, that is not on its way to this chat yet.
func (c *Core) stopSending(o *op, l *lane) {
	c.dequeue(l, o)
	if t := l.busy; t != nil && t.op == o && t.edit == nil && t.notice == nil {
		c.cancelTask(t)
	}
	if retry := o.retry[l.chatID]; retry != "" && !c.underway(retry) {
		c.journal(EventDeliveryFailed, o.id.Key, failedPayload{Delivery: retry, Class: string(ResultCancelled), Reason: "no longer needed"})
		delete(o.retry, l.chatID)
	}
}

// dequeue takes an asking out of the line for a card.
func (c *Core) dequeue(l *lane, o *op) {
	if at, there := slices.BinarySearchFunc(l.cards, o.id, compareCycles); there {
		l.cards = slices.Delete(l.cards, at, at+1)
	}
}

func (c *Core) cancelTask(t *task) {
	if t.stage == stageCalling && !t.cancel {
		t.cancel = true
		c.emit(Cancel{Call: t.call})
	}
}

// busyWith reports whether a lane is doing something for this asking.
func (c *Core) busyWith(id CycleID) bool {
	for _, l := range c.lanes {
		if l.busy != nil && l.busy.op.id == id {
			return true
		}
	}
	return false
}

// underway reports whether a lane is sending this delivery.
func (c *Core) underway(delivery string) bool {
	for _, l := range c.lanes {
		if l.busy != nil && l.busy.delivery == delivery && l.busy.edit == nil {
			return true
		}
	}
	return false
}

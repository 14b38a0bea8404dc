package dispatch

import (
	"fmt"
	"maps"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// topicRetry is how long cards go to the chat without its topic before the topic is tried again: somebody may have
// opened it again, and Telegram does not say so.
const topicRetry = 15 * time.Minute

// topicOff reports whether the forum topic was found closed or gone a short while ago.
func (c *Core) topicOff() bool { return c.now.Before(c.topicBack) }

// loseTopic falls back to the chat without its topic. It reports whether that is news, and so worth a try.
func (c *Core) loseTopic(l *lane, key string) bool {
	if c.isDeputy(l.chatID) || c.chat.ThreadID == 0 || c.topicOff() {
		return false
	}
	c.topicBack = c.now.Add(topicRetry)
	c.emit(Complain{Key: key, Text: "the forum topic is closed or gone; sending to the chat without it, and trying the topic again in a while"})
	return true
}

// chatClosed notes that the bot was blocked or removed. What waits stays, and is tried again now and then: Telegram does
// not promise to tell when the way is open again.
func (c *Core) chatClosed(ev ChatClosed) {
	if l := c.lanes[ev.ChatID]; l != nil {
		c.pauseLane(l, pauseClosed, ev.Reason)
		c.emit(Complain{Text: ev.Reason})
	}
}

// moved goes on in the supergroup that the gate's group became. Open cards are sent again there: in the group that is no
// more, their buttons reach nobody. Who may decide does not depend on the chat, so nobody gains anything by it.
func (c *Core) moved(from, to int64) bool {
	if !c.chat.FollowMigration || c.chat.ID != from || to == 0 {
		return false
	}
	c.chat.ID, c.movedFrom = to, from
	c.emit(Complain{Text: c.movedText()})
	if l := c.lanes[from]; l != nil && l.busy == nil {
		c.rehome(l)
	}
	for _, o := range c.sorted() {
		if dg := o.digest; dg != nil && dg.chatID == from && o.pending() {
			c.dropDigest(dg)
		}
	}
	for _, o := range c.sorted() {
		c.evaluate(o)
	}
	return true
}

func (c *Core) movedText() string {
	return fmt.Sprintf("the group became the supergroup %d: cards go there; set telegram.chat_id to it", c.chat.ID)
}

// cardGone notes that the message of a pending request's card was deleted, so that it is sent once more.
func (c *Core) cardGone(ev CardGone) {
	d, ok := c.deliveries.ByID(ev.Delivery)
	if o := c.ops[d.Cycle]; ok && !d.Gone && d.Kind == KindCard && o != nil && o.pending() {
		c.journal(EventDeliverySettled, d.Cycle.Key, settledPayload{Delivery: d.ID, State: approvallog.StatePending, How: HowGone, Reason: "deleted"})
	}
}

// showWanted lets a request's card go out next, where it is not in the chat yet.
func (c *Core) showWanted(ev ShowWanted) {
	if o := c.ops[c.current[ev.Key]]; o != nil && o.pending() {
		o.first = true
		c.evaluate(o)
	}
}

// next is the place in the lane of the card that is to go out next, -1 for none: one that somebody asked to see; else,
// before those that are only to take another card's place, one of the asker who was served longest ago, and of that asker's names the one that was, the oldest under that name. So a
// request goes out at the next turn, however many of another asker wait, and however many names that one takes.
func (c *Core) next(l *lane) int {
	best := -1
	var first, renewing bool
	var turn, nameTurn int64
	for i, id := range l.cards {
		o := c.ops[id]
		if o == nil || o.next.After(c.now) {
			continue
		}
		if best >= 0 && first && !o.first {
			continue
		}
		renews := o.renewing[c.slot(l.chatID)]
		if best >= 0 && o.first == first && renews && !renewing {
			continue
		}
		served, named := l.served[seat{asker: o.asker}], l.served[seat{o.asker, o.req.Requester}]
		if best < 0 || o.first && !first || renewing && !renews || served < turn || served == turn && named < nameTurn {
			best, first, renewing, turn, nameTurn = i, o.first, renews, served, named
		}
	}
	return best
}

// keptTurns is how many turns of a lane are remembered at least, so that memory does not grow with the number of askers.
const keptTurns = 1024

// seat is an asker in the order of turns, or one of an asker's names.
type seat struct{ asker, name string }

// serve counts a turn of a request's asker.
func (l *lane) serve(o *op) {
	if l.served == nil {
		l.served = make(map[seat]int64)
	}
	l.turn++
	l.served[seat{asker: o.asker}], l.served[seat{o.asker, o.req.Requester}] = l.turn, l.turn
	if len(l.served) > 2*keptTurns {
		maps.DeleteFunc(l.served, func(_ seat, turn int64) bool { return turn <= l.turn-keptTurns })
	}
}

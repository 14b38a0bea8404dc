package dispatch

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/approvald/approvald/internal/approvallog"
)

// Shown to somebody is a request when a card of it is in a chat, or when a digest in a chat names or counts it. A card that was
// deleted does not count, but once two were, somebody wants it so. What the journal knows only as sent perhaps does not count
// either, and is told as such.

// seen reports whether a request is shown to somebody.
func (c *Core) seen(o *op) bool { return c.shown(o.id) || o.heldByMessage() }

// waitingOnes are the undelivered requests that only wait for their turn, oldest first, as many as there is room for beside
// those that fail.
func (c *Core) waitingOnes(failing []Failing) []Failing {
	var list []*op
	for _, o := range c.ops {
		if o.pending() && o.digest == nil && !c.seen(o) && !slices.ContainsFunc(failing, func(f Failing) bool { return f.Key == o.id.Key }) {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b *op) int { return compareCycles(a.id, b.id) })
	waiting := make([]Failing, 0, min(len(list), maxFailing))
	for _, o := range list[:min(len(list), max(0, maxFailing-len(failing)))] {
		waiting = append(waiting, Failing{
			Key: o.id.Key, Reason: c.whyWaiting(o), Since: o.req.RequestedAt, Next: c.lane(c.chat.ID).next, MaybeSeen: c.maybeSeen(o.id),
		})
	}
	return waiting
}

// whyWaiting says what a request waits for that nothing keeps from people but others before it.
func (c *Core) whyWaiting(o *op) string {
	l := c.lane(c.chat.ID)
	switch {
	case l.busy != nil && l.busy.op == o && l.busy.notice == nil:
		return "its card is on its way"
	case o.held[0] != nil:
		return "a message that stands for it and others is on its way"
	case len(l.cards) > 1:
		return fmt.Sprintf("its turn has not come: it is one of %d that wait for the chat", len(l.cards))
	default:
		return "its turn has not come"
	}
}

// Unshown are those of some pending requests that the journal knows of as shown to nobody, in their order, and what came of
// the last try, empty for none. It is what can be said while no daemon is at work on them.
func (d *Deliveries) Unshown(pending []approvallog.Request) (list []Failing) {
	digests := d.open(KindDigest, PhaseSent)
	for _, r := range pending {
		if f, unshown := d.unshown(newOp(CycleID{Key: r.Key, Seq: r.Seq}, r), digests); unshown {
			list = append(list, f)
		}
	}
	return list
}

func (d *Deliveries) unshown(o *op, digests []Delivery) (f Failing, unshown bool) {
	f = Failing{Key: o.id.Key, Since: o.req.RequestedAt}
	gone := 0
	tried := make(map[int64]int64) // by chat: the last record that a card's sending began with
	for p := range d.Of(o.id) {
		switch {
		case p.Kind != KindCard && p.Kind != KindDocument:
			continue
		case p.Kind == KindCard && p.Phase == PhaseSent && !p.Replaced && !p.Gone:
			return f, false
		case p.Kind == KindCard && p.Phase == PhaseSent && !p.Replaced:
			gone++
			f.Reason, f.MaybeSeen = "its card was deleted", true
		case p.Phase == PhaseFailed && p.Reason != "":
			f.Reason = "not sent: " + p.Reason
		case p.Phase == PhaseUnknown:
			f.Reason, f.MaybeSeen = "not known whether it was sent: "+cmp.Or(p.Reason, "the answer was lost"), true
		case p.Phase == PhaseIntended && p.Kind == KindCard:
			f.Reason, f.MaybeSeen = "not known whether it was sent: the daemon stopped meanwhile", true
		}
		if p.Kind == KindCard {
			tried[p.ChatID] = p.Seq
		}
	}
	counted := slices.ContainsFunc(digests, func(dg Delivery) bool {
		return dg.Group.covers(o) && o.req.Reversible && o.id.Seq <= told(dg) && tried[dg.ChatID] <= dg.Seq
	})
	return f, gone < 2 && !counted
}

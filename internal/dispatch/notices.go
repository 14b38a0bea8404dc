package dispatch

import (
	"slices"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// notice is a message that decides nothing and is owed to a chat: a reminder, word of an absence, or a digest.
//
// It is sent at most once. Each try is recorded before it is made; one that certainly failed is recorded as such and
// tried again, also by the next daemon; one of which nobody knows what became of it is not, since a notice that comes
// twice costs trust, and the card that it speaks of is there in any case.
type notice struct {
	kind     Kind
	op       *op     // a reminder's; for an absence one that stands for no request
	absence  absence // of an absence
	digest   *digest // of a digest, whose op stands for no request either
	next     time.Time
	failures int
}

// remind makes sure that the people of a request that is shown and still waits are reminded once, in the gate's own
// chat. The time counts from when the card appeared: one that came late is not followed by a reminder at once.
func (c *Core) remind(o *op) {
	card, ok := c.cardAt(o.id, c.chat.ID)
	if c.o.Reminder <= 0 || !ok || c.reminded(o) {
		return
	}
	at := partOf(card.SentAt, heldUntil(o.req), c.o.Reminder)
	switch {
	case at.IsZero():
	case at.After(c.now):
		if !o.remindAt.Equal(at) {
			o.remindAt = at
			c.wakeAt(at, o)
		}
	default:
		l := c.lane(card.ChatID)
		l.notices = append(l.notices, &notice{kind: KindReminder, op: o})
	}
}

// reminded reports whether a reminder was sent, may have been, or is on its way.
func (c *Core) reminded(o *op) bool {
	for d := range c.deliveries.Of(o.id) {
		if d.Kind == KindReminder && d.Phase != PhaseFailed {
			return true
		}
	}
	for _, l := range c.lanes {
		if l.busy != nil && l.busy.op == o && l.busy.notice != nil || slices.ContainsFunc(l.notices, func(n *notice) bool { return n.op == o }) {
			return true
		}
	}
	return false
}

// cardAt is the newest card of an asking that is known to be in a chat, or in one that this chat took the place of.
func (c *Core) cardAt(id CycleID, chatID int64) (card Delivery, ok bool) {
	for d := range c.deliveries.Of(id) {
		if d.Kind == KindCard && d.Phase == PhaseSent && c.isDeputy(d.ChatID) == c.isDeputy(chatID) {
			card, ok = d, true
		}
	}
	return card, ok
}

// heldUntil is until when somebody waits for the decision: the deadline, or the asker's own end when that is sooner.
func heldUntil(req approvallog.Request) time.Time {
	if w := req.WaitUntil; !w.IsZero() && (req.ExpiresAt.IsZero() || w.Before(req.ExpiresAt)) {
		return w
	}
	return req.ExpiresAt
}

// startNotice starts the first notice whose time has come, and drops those that are wanted no more.
func (c *Core) startNotice(l *lane) bool {
	for i := 0; i < len(l.notices); i++ {
		n := l.notices[i]
		wanted := c.noticeWanted(n)
		if wanted && (n.next.After(c.now) || n.kind == KindAbsence && c.contact.recording != "") {
			continue // an absence is recorded as owed before it is told
		}
		l.notices = slices.Delete(l.notices, i, i+1)
		i--
		if wanted {
			c.intendNotice(l, n)
			return true
		}
	}
	return false
}

func (c *Core) noticeWanted(n *notice) bool {
	if n.kind == KindAbsence {
		return c.waitingSince(n.absence.until) > 0
	}
	return n.op.pending() && !n.op.req.PastDeadline(c.now)
}

func (c *Core) intendNotice(l *lane, n *notice) {
	p := c.noticeIntent(l, n)
	l.busy = &task{op: n.op, notice: n, kind: n.kind, delivery: p.Delivery, stage: stageIntending}
	if dg := n.digest; dg != nil {
		dg.delivery = p.Delivery
	}
	c.journal(EventDeliveryIntended, n.op.id.Key, p)
}

func (c *Core) noticeIntent(l *lane, n *notice) intendedPayload {
	nonce := c.o.Nonce() // only to name the delivery, but for a digest, which has buttons
	p := intendedPayload{
		Delivery: nonce.Sum()[:16], Kind: n.kind, Cycle: n.op.id.Seq, Epoch: c.o.Epoch, PayloadHash: n.op.req.PayloadHash, Record: n.op.req.RecordHash,
		ChatID: l.chatID, ThreadID: c.thread(l), From: n.absence.from, Until: n.absence.until,
	}
	if n.digest != nil {
		p.NonceSHA256, p.Origin, p.Asker, p.Class = nonce.Sum(), n.digest.asker, n.digest.name, n.digest.class
		if newest := n.digest.newestHeld(); newest != max(p.Cycle, -p.Cycle) {
			p.Newest = newest
		}
		c.nonces[p.Delivery] = nonce
	}
	return p
}

// sendNotice asks for the call of a notice whose intent is on disk.
func (c *Core) sendNotice(l *lane) {
	n := l.busy.notice
	if !c.noticeWanted(n) {
		c.record(l, EventDeliveryFailed, failedPayload{Delivery: l.busy.delivery, Class: string(ResultCancelled), Reason: "no longer needed"})
		return
	}
	if n.kind == KindAbsence {
		c.call(l, SendAbsence{ThreadID: c.thread(l), From: n.absence.from, Until: n.absence.until, Waiting: c.waitingSince(n.absence.until)})
		return
	}
	if dg := n.digest; dg != nil {
		listed := dg.oldest()
		c.digestShows(dg, listed)
		c.call(l, SendDigest{Asker: dg.who(), Class: dg.class, Count: len(dg.held), Listed: listed, ThreadID: c.thread(l), Nonce: c.nonces[dg.delivery]})
		return
	}
	if dg := n.op.digest; dg != nil {
		d, _ := c.deliveries.ByID(dg.delivery)
		remind := RemindDigest{Asker: dg.who(), Class: dg.class, Count: len(dg.held), ThreadID: c.thread(l)}
		if d.ChatID == l.chatID {
			remind.ReplyTo = d.MessageID
		}
		c.call(l, remind)
		return
	}
	card, _ := c.cardAt(n.op.id, c.chat.ID)
	reply := card.MessageID
	if card.ChatID != l.chatID {
		reply = 0 // the card stayed in the chat that this one took the place of
	}
	c.call(l, SendReminder{Request: n.op.req, ThreadID: c.thread(l), ReplyTo: reply, Approved: c.approved(n.op)})
}

// noticeSent deals with the outcome of a notice's send.
func (c *Core) noticeSent(l *lane, r Result) {
	t := l.busy
	n := t.notice
	if d, ok := c.deliveries.ByID(t.delivery); ok && d.MessageID != 0 {
		l.busy = nil // a tap on a digest has told its id before the answer came
		return
	}
	if c.recording[t.delivery] {
		t.stage, t.result = stageRecording, EventDeliverySent
		return
	}
	if n.digest != nil && r.Kind != ResultDone {
		n.digest.shown, n.digest.first = 0, CycleID{}
		if r.Kind == ResultUnknown || r.Kind == ResultRefused {
			c.noDigest[n.digest.group] = c.now.Add(digestRetry)
		}
	}
	switch r.Kind {
	case ResultDone:
		c.recordSent(n.op.id.Key, sentPayload{Delivery: t.delivery, ChatID: l.chatID, MessageID: r.MessageID, ThreadID: r.ThreadID})
		t.stage, t.result = stageRecording, EventDeliverySent
		return
	case ResultUnknown:
		c.record(l, EventDeliveryUnknown, unknownPayload{Delivery: t.delivery, Reason: r.Reason})
		return
	case ResultLimited:
		l.notices = append(l.notices, n)
		c.limited(l, r)
		return
	case ResultClosed, ResultToken:
		c.pauseLane(l, pauseClosed, r.Reason)
	case ResultThread:
		if c.loseTopic(l, n.op.id.Key) {
			c.sendNotice(l)
			return
		}
		c.putOff(n)
	case ResultCancelled:
	case ResultRefused:
		if n.digest != nil {
			c.record(l, EventDeliveryFailed, failedPayload{Delivery: t.delivery, Class: r.Class, Reason: r.Reason})
			c.dropDigest(n.digest)
			return
		}
		c.putOff(n)
	default:
		c.putOff(n)
	}
	l.notices = append(l.notices, n)
	c.record(l, EventDeliveryFailed, failedPayload{Delivery: t.delivery, Class: orElse(r.Class, string(r.Kind)), Reason: r.Reason})
}

func (c *Core) putOff(n *notice) {
	n.failures++
	n.next = c.now.Add(pauseNotice.after(n.failures))
}

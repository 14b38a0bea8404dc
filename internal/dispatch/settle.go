package dispatch

import (
	"fmt"
	"slices"

	"github.com/approvald/approvald/internal/approvallog"
)

// mayOwe reports whether a message may be in a chat, known or not, that has to show its request's end.
func mayOwe(d Delivery) bool {
	return (d.Kind == KindCard || d.Kind == KindReminder || d.Kind == KindDigest) && d.Phase != PhaseFailed && !d.Gone
}

// owes reports whether a message is still to be rewritten when its request has come to this state. A reminder is
// rewritten once: what follows on the first end stands on the card.
func owes(d Delivery, want approvallog.State) bool {
	switch d.Kind {
	case KindCard:
		return d.Settled != want && !d.Gone
	case KindDigest:
		return d.Settled == "" && d.MessageID != 0 && !d.Gone
	case KindReminder:
		// One whose id never became known cannot be rewritten; it has no buttons either. That of a digest stays: the
		// message that it replies to says more.
		return d.Cycle.Key != "" && d.Settled == "" && d.MessageID != 0
	default:
		return false
	}
}

// settle makes sure that every message of an ended asking is owed its outcome.
func (c *Core) settle(o *op) {
	want := settledState(o.req)
	if want == "" {
		return
	}
	for d := range c.deliveries.Of(o.id) {
		if d.MessageID != 0 && owes(d, want) {
			c.owe(d)
		}
	}
}

// showProgress makes sure that the cards of a pending asking show who has approved so far, as far as their buttons are
// known: an edit has to repeat the buttons, and a nonce is not kept anywhere but in this process and on the phone.
func (c *Core) showProgress(o *op) {
	n := len(c.approved(o))
	if n == 0 {
		return
	}
	for d := range c.deliveries.Of(o.id) {
		if _, known := c.nonces[d.ID]; known && d.live() && c.progressShown[d.ID] != n {
			c.owe(d)
		}
	}
}

func (c *Core) owe(d Delivery) {
	l := c.lane(d.ChatID)
	if !slices.ContainsFunc(l.edits, func(e *edit) bool { return e.delivery == d.ID }) {
		l.edits = append(l.edits, &edit{delivery: d.ID})
	}
}

// startEdit starts the first edit whose time has come, and drops those that are owed no more. A fair one does not yield
// to cards.
func (c *Core) startEdit(l *lane, fair bool) bool {
	for i := 0; i < len(l.edits); i++ {
		e := l.edits[i]
		if e.next.After(c.now) {
			continue
		}
		what, o := c.due(e)
		if what == nil {
			l.edits = slices.Delete(l.edits, i, i+1)
			i--
			continue
		}
		d, _ := c.deliveries.ByID(e.delivery)
		l.busy = &task{op: o, delivery: e.delivery, kind: d.Kind, edit: e, state: settledState(o.req), fair: fair}
		switch {
		case l.busy.state != "" || o.digest != nil:
		case d.owesRenewed():
			l.busy.state = stateRenewed
		case c.outdated(o, d):
			l.busy.renews = &refreshedPayload{Delivery: d.ID, Terms: c.termsOf(o), Approved: c.approved(o)}
		}
		c.call(l, what)
		return true
	}
	return false
}

// due is what a card is owed now, nil for nothing.
func (c *Core) due(e *edit) (Action, *op) {
	d, ok := c.deliveries.ByID(e.delivery)
	o := c.ops[d.Cycle]
	if !ok || o == nil || d.MessageID == 0 {
		return nil, nil
	}
	if want := settledState(o.req); want != "" {
		switch {
		case !owes(d, want):
			return nil, nil
		case d.Kind == KindDigest:
			return EditDigest{MessageID: d.MessageID, Asker: d.Group.who(), Class: d.Group.class, Replaced: want == stateReplaced}, o
		case d.Kind == KindReminder:
			return EditReminder{Request: o.req, MessageID: d.MessageID}, o
		case e.strip != "":
			return StripButtons{MessageID: d.MessageID}, o
		default:
			return EditSettled{Request: o.req, MessageID: d.MessageID, Plain: e.plain != ""}, o
		}
	}
	if o.digest != nil {
		return c.digestDue(d, o.digest), o
	}
	if what := c.refreshDue(e, o, d); what != nil {
		return what, o
	}
	by := c.approved(o)
	nonce, known := c.nonces[d.ID]
	if !known || !d.live() || len(by) == 0 || c.progressShown[d.ID] == len(by) || o.req.PastDeadline(c.now) {
		return nil, nil
	}
	// Whatever comes of it is counted as shown unless Telegram says when to try again: the card keeps its buttons, and
	// the next tap is told the state in any case.
	c.progressShown[d.ID] = len(by)
	return EditProgress{Request: o.req, MessageID: d.MessageID, Nonce: nonce, Approved: by}, o
}

// edited deals with the outcome of an edit. The edit stays owed until due finds nothing left to do.
func (c *Core) edited(l *lane, r Result) {
	t := l.busy
	e := t.edit
	if c.refreshed(l, r) {
		return
	}
	switch r.Kind {
	case ResultDone:
		e.failures = 0
		if dg := t.op.digest; dg != nil && t.state == "" {
			dg.edited()
		}
		if e.strip != "" {
			c.settled(l, HowButtons, e.strip)
		} else {
			c.settled(l, HowEdited, e.plain)
		}
	case ResultGone:
		if t.state == "" {
			// The card of a request that still waits was deleted, or a digest; it is sent once more.
			c.record(l, EventDeliverySettled, settledPayload{Delivery: t.delivery, State: approvallog.StatePending, How: HowGone, Reason: r.Reason})
			return
		}
		c.settled(l, HowGone, r.Reason)
	case ResultToken:
		e.failures++
		e.next = c.now.Add(pauseClosed.after(e.failures))
		c.notShown(l)
	case ResultClosed, ResultMigrated, ResultThread:
		c.settled(l, HowGone, r.Reason)
	case ResultRefused, ResultUnparsed:
		whole := e.strip == "" && t.state != "" && t.kind == KindCard
		if whole && e.plain == "" && r.Kind == ResultUnparsed {
			e.plain = r.Reason
			l.busy = nil
			return
		}
		if whole {
			e.strip = r.Reason
			l.busy = nil
			return
		}
		c.settled(l, HowGone, r.Reason)
	case ResultLimited:
		if t.state == "" {
			delete(c.progressShown, t.delivery)
		}
		c.limited(l, r)
	default:
		e.failures++
		e.next = c.now.Add(pauseTransient.after(e.failures))
		c.notShown(l)
	}
}

// settled records that a card was settled. Progress is not recorded: it can be worked out and is shown again.
func (c *Core) settled(l *lane, how How, reason string) {
	t := l.busy
	if t.state == "" {
		l.busy = nil
		return
	}
	c.record(l, EventDeliverySettled, settledPayload{Delivery: t.delivery, State: t.state, How: how, Reason: reason})
}

// notShown ends an edit that was not made and is owed still.
func (c *Core) notShown(l *lane) {
	if l.busy.state == "" {
		delete(c.progressShown, l.busy.delivery)
		if dg := l.busy.op.digest; dg != nil {
			dg.first = CycleID{}
		}
	}
	l.busy = nil
}

// tapRuled answers a tap and follows up on what it taught: the id of a message that nobody knew to exist, a nonce.
func (c *Core) tapRuled(ev TapRuled) {
	r := ev.Ruling
	if c.answered.add(ev.CallbackID) {
		c.emit(Answer{CallbackID: ev.CallbackID, Text: clip(r.Text, maxAnswer), Alert: r.Alert})
	}
	if r.Outcome.refused() {
		c.refuse(ev)
		return
	}
	d := r.Delivery
	if _, known := c.deliveries.ByID(d.ID); !known && !c.takeTapped(ev) {
		return
	}
	c.nonces[d.ID] = r.Button.Nonce
	if known, _ := c.deliveries.ByID(d.ID); known.MessageID == 0 && ev.Tap.MessageID != 0 {
		c.recordSent(d.Cycle.Key, sentPayload{
			Delivery: d.ID, ChatID: ev.Tap.ChatID, MessageID: ev.Tap.MessageID, ThreadID: d.ThreadID, Adopted: true,
		})
	}
	if r.Outcome == OutcomeOpened {
		c.digestTapped(d, r.Button.Reason)
	}
	if r.Outcome == OutcomeReasons || r.Outcome == OutcomeBack {
		if id := orInt(ev.Tap.MessageID, d.MessageID); id != 0 {
			c.emit(Menu{ChatID: d.ChatID, MessageID: id, Delivery: d.ID, Request: r.Request, Nonce: r.Button.Nonce, Reasons: r.Outcome == OutcomeReasons})
		}
	}
	if o := c.ops[d.Cycle]; o != nil {
		c.evaluate(o)
	}
}

// takeTapped takes up again an asking that was let go of, since a tap told that a message of it exists. It reports whether
// it did.
func (c *Core) takeTapped(ev TapRuled) bool {
	e := ev.Cycle.log
	if e == nil || ev.Tap.MessageID == 0 || c.ops[e.id] != nil {
		return false
	}
	c.retake([]Cycle{ev.Cycle})
	if d, ok := c.deliveries.ByID(ev.Ruling.Delivery.ID); !ok || d.MessageID != 0 {
		c.deliveries.forget(e.id)
		return false
	}
	switch {
	case e.id.Key == "": // a digest is taken up when its id is on disk
	case ev.Request.Seq == e.id.Seq:
		c.begin(e.id, ev.Request)
	default:
		c.adoptOrphan(e.id, ev.Request)
	}
	return true
}

func orInt(a, b int64) int64 {
	if a != 0 {
		return a
	}
	return b
}

// refuse counts a refused tap, and records and logs the first of each hour: a flood must not grow any file.
func (c *Core) refuse(ev TapRuled) {
	if !c.refusals.admit(c.now) {
		return
	}
	c.emit(Complain{Key: ev.Ruling.Request.Key, Text: fmt.Sprintf("a tap by the user id %d was refused: %s", ev.Tap.SenderID, ev.Ruling.Outcome)})
	c.emit(AppendJournal{Drafts: []approvallog.Draft{journalDraft(EventTapRefused, ev.Ruling.Request.Key, refusedPayload{
		Reason: string(ev.Ruling.Outcome), SenderID: ev.Tap.SenderID, ChatID: ev.Tap.ChatID, Delivery: ev.Ruling.Delivery.ID,
	})}})
}

package dispatch

import (
	"slices"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// Pauses between tries. Each doubles from the first to the last.
var (
	pauseTransient = pause{200 * time.Millisecond, 15 * time.Second} // nothing was sent
	pauseUnknown   = pause{2 * time.Second, 10 * time.Minute}        // a copy may have been sent
	pauseRefused   = pause{time.Minute, 15 * time.Minute}            // this message is refused
	pauseClosed    = pause{30 * time.Second, 15 * time.Minute}       // the chat is closed to the bot
	pauseNotice    = pause{10 * time.Second, 15 * time.Minute}       // a reminder was certainly not sent
)

type pause struct{ first, last time.Duration }

// after is the pause after the n-th failure in a row, counted from 1.
func (p pause) after(n int) time.Duration {
	d := p.first
	for range n - 1 {
		if d *= 2; d >= p.last {
			return p.last
		}
	}
	return d
}

// lane is one chat: what is to be done there, and the one thing that is being done. New cards go first, the askers by
// turns and the oldest asking of each before the others, then notices, then edits; but of a flood of cards no more than fairCards in a row.
type lane struct {
	chatID  int64
	cards   []CycleID
	served  map[seat]int64 // the turn when a card of theirs went out, while others wait
	turn    int64
	singles map[group][]time.Time // when cards of a group went out, of late
	notices []*notice
	edits   []*edit
	inRow   int // cards since something else had its turn
	// noticeTurn tells whose turn it was then: a notice's, or an edit's.
	noticeTurn bool
	busy       *task
	next       time.Time // nothing is tried before
	failures   int
	reason     string // why the lane pauses
	since      time.Time
	muted      bool // it pauses because Telegram said for how long
	closed     bool // it pauses until a person changes something
}

// edit is owed to one card.
type edit struct {
	delivery string
	next     time.Time
	failures int
	plain    string // why the markup was refused, so that the text goes without; empty for with it
	strip    string // why the text was refused, so that only the buttons are taken off; empty for the whole edit
}

// stage is how far a task has come.
type stage int

const (
	stagePreparing stage = iota
	stageIntending       // waits for delivery.intended to be on disk
	stageCalling         // waits for Telegram
	stageRecording       // waits for the outcome to be on disk
)

// task is what a lane is doing.
type task struct {
	op       *op
	stage    stage
	delivery string
	kind     Kind
	nonce    Nonce
	index    int // of the document
	call     int64
	fair     bool              // an edit whose turn has come before the cards that wait
	edit     *edit             // nil for a send
	notice   *notice           // nil for a card, its documents, or an edit
	result   string            // name of the event that ends the task once it is on disk
	state    approvallog.State // what an edit settles the card to, empty for a send or for progress
	cancel   bool              // the call was asked to be cancelled
	renews   *refreshedPayload // what is to be recorded of an edit that brings a card up to date, nil for any other task
}

// open ends whatever keeps the lane still, except Telegram's own limit before its time is over.
func (l *lane) open(now time.Time) {
	if l.muted && l.next.After(now) {
		l.failures, l.closed = 0, false
		return
	}
	l.next, l.failures, l.reason, l.since, l.muted, l.closed = time.Time{}, 0, "", time.Time{}, false, false
}

func (c *Core) lane(chatID int64) *lane {
	l := c.lanes[chatID]
	if l == nil {
		l = &lane{chatID: chatID}
		c.lanes[chatID] = l
	}
	return l
}

func (c *Core) startCard(l *lane) bool {
	i := c.next(l)
	if i < 0 {
		return false
	}
	o := c.ops[l.cards[i]]
	if !o.renewing[c.slot(l.chatID)] {
		l.serve(o)
		if c.crowd(l, o) {
			return true
		}
		l.countSingle(c.groupsOf(o, l.chatID), c.now)
	}
	l.cards = slices.Delete(l.cards, i, i+1)
	l.busy = &task{op: o}
	if o.documents < 0 {
		l.busy.stage = stagePreparing
		c.emit(Prepare{Request: o.req})
		return true
	}
	c.intend(l)
	return true
}

func (c *Core) prepared(ev Prepared) {
	for _, id := range c.laneIDs() {
		l := c.lanes[id]
		t := l.busy
		if t == nil || t.stage != stagePreparing || t.op.id != ev.Cycle {
			continue
		}
		switch {
		case ev.Err != "":
			l.busy = nil
			pause := pauseRefused
			if ev.Passing {
				pause = pauseTransient
			}
			c.backOff(t.op, pause, ev.Err)
			c.evaluate(t.op)
		case !c.wanted(t.op, l.chatID):
			l.busy = nil
			c.evaluate(t.op)
		default:
			t.op.documents = ev.Documents
			c.intend(l)
		}
		return
	}
}

// wanted reports whether a card should still go out to this chat.
func (c *Core) wanted(o *op, chatID int64) bool {
	if !o.pending() || o.req.PastDeadline(c.now) {
		return false
	}
	_, stale := c.stale(o, chatID)
	return stale || !c.shownIn(o.id, chatID)
}

// backOff keeps one operation from being tried for a while; the others go on.
func (c *Core) backOff(o *op, p pause, reason string) {
	o.attempts++
	o.next = c.now.Add(p.after(o.attempts))
	c.wakeAt(o.next, o)
	c.complain(o, reason)
}

// intend records the next delivery of the lane's operation: a document that is still missing, or the card. A delivery
// that was recorded and then certainly not sent is sent as it is.
func (c *Core) intend(l *lane) {
	t := l.busy
	sent := 0
	for d := range c.deliveries.Of(t.op.id) {
		if d.Kind == KindDocument && d.Phase == PhaseSent && d.ChatID == l.chatID {
			sent++
		}
	}
	t.kind, t.index = KindCard, 0
	if sent < t.op.documents {
		t.kind, t.index = KindDocument, sent
	}
	_, stale := c.stale(t.op, l.chatID)
	renews := stale && t.kind == KindCard
	if d, ok := c.deliveries.ByID(t.op.retry[l.chatID]); ok && d.Phase == PhaseIntended {
		if d.Kind == t.kind && d.Renews == renews {
			t.delivery, t.nonce = d.ID, c.nonces[d.ID]
			c.send(l)
			return
		}
		c.journal(EventDeliveryFailed, t.op.id.Key, failedPayload{Delivery: d.ID, Class: string(ResultCancelled), Reason: "another message is needed"})
	}
	t.nonce = c.o.Nonce()
	p := intendedPayload{
		Kind: t.kind, Cycle: t.op.id.Seq, Epoch: c.o.Epoch, PayloadHash: t.op.req.PayloadHash, Record: t.op.req.RecordHash, ChatID: l.chatID, ThreadID: c.thread(l),
	}
	// The id is made of the nonce's hash, so that it is as unique and gives nothing away.
	sum := t.nonce.Sum()
	p.Delivery = sum[:16]
	if t.kind == KindCard {
		p.NonceSHA256, p.Terms, p.Approved, p.Renews = sum, c.termsOf(t.op), c.approved(t.op), renews
		c.nonces[p.Delivery] = t.nonce
	}
	t.delivery, t.stage = p.Delivery, stageIntending
	t.op.retry[l.chatID] = t.delivery
	c.journal(EventDeliveryIntended, t.op.id.Key, p)
}

// thread is the topic to send to in this chat.
func (c *Core) thread(l *lane) int64 {
	switch {
	case c.isDeputy(l.chatID):
		return c.o.Deputy.ThreadID
	case c.topicOff():
		return 0
	default:
		return c.chat.ThreadID
	}
}

// recorded moves the task on that waited for this record about its delivery.
func (c *Core) recorded(event string, d Delivery) {
	for _, l := range c.lanes {
		t := l.busy
		if t == nil || t.delivery != d.ID {
			continue
		}
		switch {
		case t.stage == stageIntending && event == EventDeliveryIntended:
			switch {
			case t.notice != nil:
				c.sendNotice(l)
			case !c.wanted(t.op, l.chatID):
				l.busy = nil // stopDelivering records that it was not sent
			default:
				c.send(l)
			}
		case t.stage == stageRecording && event == t.result:
			l.busy = nil
			if t.edit == nil && t.notice == nil {
				delete(t.op.retry, l.chatID)
			}
			c.rehome(l)
		}
		return
	}
}

// rehome moves what waits for a chat which is no longer the one it goes to.
func (c *Core) rehome(l *lane) {
	if l.chatID == c.chat.ID || c.isDeputy(l.chatID) {
		return
	}
	home := c.lane(c.chat.ID)
	home.notices = append(home.notices, l.notices...)
	waiting := l.cards
	l.cards, l.notices = nil, nil
	for _, id := range waiting {
		if o := c.ops[id]; o != nil {
			c.enqueue(o, home.chatID)
		}
	}
}

// send asks for the call of the lane's task.
func (c *Core) send(l *lane) {
	t := l.busy
	o := t.op
	if t.kind == KindDocument {
		c.call(l, SendDocument{Request: o.req, ThreadID: c.thread(l), Index: t.index})
		return
	}
	old, _ := c.stale(o, l.chatID)
	approved := c.approved(o)
	c.progressShown[t.delivery] = len(approved)
	c.call(l, SendCard{Request: o.req, ThreadID: c.thread(l), ReplyTo: old.MessageID, Nonce: t.nonce, Approved: approved})
}

func (c *Core) call(l *lane, what Action) {
	c.lastCall++
	l.busy.stage, l.busy.call, l.busy.cancel = stageCalling, c.lastCall, false
	c.calls[c.lastCall] = l
	c.emit(Call{ID: c.lastCall, ChatID: l.chatID, What: what, Fair: l.busy.fair})
}

// approved are the approvers whose noted approvals count.
func (c *Core) approved(o *op) []string {
	return approversOf(countable(c.deliveries.Notes(o.id), o.req, c.o.Rules.Rule(o.req.Class)))
}

func (c *Core) callDone(ev CallDone) {
	l := c.calls[ev.Call]
	if l == nil || l.busy == nil || l.busy.call != ev.Call {
		return
	}
	delete(c.calls, ev.Call)
	if ev.Result.Kind == ResultDone {
		l.open(c.now)
	}
	switch {
	case l.busy.edit != nil:
		c.edited(l, ev.Result)
	case l.busy.notice != nil:
		c.noticeSent(l, ev.Result)
	default:
		c.sent(l, ev.Result)
	}
}

// record writes the outcome of the lane's task, which ends when that is on disk.
func (c *Core) record(l *lane, event string, payload any) {
	l.busy.stage, l.busy.result = stageRecording, event
	c.journal(event, l.busy.op.id.Key, payload)
}

// recordSent records that a message exists, once: a tap and the answer to the send may tell it at the same time.
func (c *Core) recordSent(key string, p sentPayload) {
	if c.recording[p.Delivery] {
		return
	}
	c.recording[p.Delivery] = true
	c.journal(EventDeliverySent, key, p)
}

// sent deals with the outcome of a send.
func (c *Core) sent(l *lane, r Result) {
	t := l.busy
	o := t.op
	if d, ok := c.deliveries.ByID(t.delivery); ok && d.MessageID != 0 {
		// A tap has told the message's id before the answer came.
		l.busy = nil
		delete(o.retry, l.chatID)
		c.evaluate(o)
		return
	}
	if c.recording[t.delivery] {
		// Such a tap's record is on its way to the disk: whatever came of the call, the message is there.
		t.stage, t.result = stageRecording, EventDeliverySent
		return
	}
	switch r.Kind {
	case ResultDone:
		o.attempts, o.reason = 0, ""
		c.recordSent(o.id.Key, sentPayload{Delivery: t.delivery, ChatID: l.chatID, MessageID: r.MessageID, ThreadID: r.ThreadID})
		t.stage, t.result = stageRecording, EventDeliverySent
	case ResultUnknown:
		c.backOff(o, pauseUnknown, "not known whether it was sent: "+r.Reason)
		c.record(l, EventDeliveryUnknown, unknownPayload{Delivery: t.delivery, Reason: r.Reason})
	case ResultThread:
		if c.loseTopic(l, o.id.Key) {
			c.send(l)
			return
		}
		c.refused(l, r)
	case ResultRefused, ResultUnparsed:
		c.refused(l, r)
	case ResultLocal:
		c.backOff(o, pauseTransient, r.Reason)
		c.again(l)
	case ResultClosed, ResultToken:
		c.pauseLane(l, pauseClosed, r.Reason)
		c.complain(o, r.Reason)
		c.record(l, EventDeliveryFailed, failedPayload{Delivery: t.delivery, Class: r.Class, Reason: r.Reason})
	case ResultMigrated:
		c.migrated(l, r)
	case ResultLimited:
		c.limited(l, r)
	case ResultCancelled:
		c.again(l)
	default:
		c.pauseLane(l, pauseTransient, r.Reason)
		c.complain(o, r.Reason)
		c.again(l)
	}
}

// again puts a send that was certainly not made back to its place.
func (c *Core) again(l *lane) {
	o := l.busy.op
	l.busy = nil
	c.evaluate(o)
}

func (c *Core) refused(l *lane, r Result) {
	c.backOff(l.busy.op, pauseRefused, r.Reason)
	c.record(l, EventDeliveryFailed, failedPayload{Delivery: l.busy.delivery, Class: r.Class, Reason: r.Reason})
}

// migrated deals with a send to a group that became a supergroup.
func (c *Core) migrated(l *lane, r Result) {
	t := l.busy
	failed := failedPayload{Delivery: t.delivery, Class: r.Class, Reason: r.Reason, MigrateTo: r.MigrateTo}
	// rehome takes along what waits, once the outcome is on disk.
	if c.chat.ID == l.chatID && !c.moved(l.chatID, r.MigrateTo) {
		c.pauseLane(l, pauseClosed, r.Reason)
		c.complain(t.op, r.Reason)
	}
	c.record(l, EventDeliveryFailed, failed)
}

func (c *Core) pauseLane(l *lane, p pause, reason string) {
	l.failures++
	l.close(c.now, c.now.Add(p.after(l.failures)), reason, false)
	l.closed = p == pauseClosed
}

// mute keeps the lane still for as long as Telegram asked for, and returns until when.
func (c *Core) mute(l *lane, r Result) time.Time {
	until := c.now.Add(max(r.RetryAfter, time.Second))
	l.close(c.now, until, r.Reason, true)
	return until
}

// limited ends a call that Telegram refused until later. When that is goes on disk: it binds the chat also after a
// restart. A send is made anew then; an edit stays owed.
func (c *Core) limited(l *lane, r Result) {
	until := c.mute(l, r)
	c.record(l, EventDeliveryFailed, failedPayload{
		Delivery: l.busy.delivery, Class: orElse(r.Class, string(r.Kind)), Reason: r.Reason, ChatID: l.chatID, RetryAt: until,
	})
}

// close keeps the lane still. What Telegram asked for is not shortened by anything else.
func (l *lane) close(now, until time.Time, reason string, muted bool) {
	if l.since.IsZero() {
		l.since = now
	}
	if l.muted && l.next.After(until) {
		until, muted = l.next, true
	}
	l.next, l.reason, l.muted, l.closed = until, reason, muted, false
}

// nextTurn is when an idle lane has something to do, zero for never.
func (l *lane) nextTurn(c *Core) time.Time {
	if l.busy != nil || len(l.cards)+len(l.notices)+len(l.edits) == 0 {
		return time.Time{}
	}
	var soonest time.Time
	found := false
	consider := func(t time.Time) {
		if !found || t.Before(soonest) {
			soonest, found = t, true
		}
	}
	ready := func() bool { return found && !soonest.After(l.next) }
	for i := 0; i < len(l.cards) && !ready(); i++ {
		if o := c.ops[l.cards[i]]; o != nil {
			consider(o.next)
		}
	}
	for i := 0; i < len(l.notices) && !ready(); i++ {
		consider(l.notices[i].next)
	}
	for i := 0; i < len(l.edits) && !ready(); i++ {
		consider(l.edits[i].next)
	}
	switch {
	case !found:
		return time.Time{}
	case soonest.Before(l.next):
		soonest = l.next
	}
	if soonest.Before(c.now) {
		return c.now
	}
	return soonest
}

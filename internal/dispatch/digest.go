package dispatch

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

const (
	// maxSingles is how many cards of one asker and class a chat gets within singlesWindow while more wait. What goes
	// beyond is shown as one digest.
	maxSingles    = 20
	singlesWindow = time.Minute
	// minDigest is how many must wait at the same time: a busy asker whose cards go out at once is no flood.
	minDigest = 10
	// digestListed is how many requests a digest names with a button each.
	digestListed = 6
	// digestPause lies between two rewritings of a digest.
	digestPause = 10 * time.Second
	// digestRetry is how long a group gets single cards after its digest could not be sent.
	digestRetry = time.Minute
)

// group is what one digest stands for: requests of one asker and class that can be undone, in one chat. Who asks is told
// by the user id where it is known ([approvallog.Request.Asker]); a name is the asker's own choice.
type group struct {
	deputy bool
	asker  string
	name   string // the requester; empty for whatever names the asker takes
	class  string
}

// covers reports whether a request is one of the group, as far as its asker and class go.
func (g group) covers(o *op) bool {
	return g.class == o.req.Class && g.asker == o.asker && (g.name == "" || g.name == o.req.Requester)
}

// who names the asker for people.
func (g group) who() string {
	if uid, isUID := strings.CutPrefix(g.asker, "uid:"); isUID && g.name == "" {
		return "uid " + uid + " under several names"
	}
	return orElse(g.name, g.asker)
}

// digest is a message that stands for the requests of a group which have no card of their own. It decides nothing: each
// request is opened as a card, which shows its payload to the last byte, and decided there. What it stands for is not
// recorded; it is whatever of its group has no card, so that a restart finds the same.
type digest struct {
	group
	chatID   int64
	op       *op // stands for no request; pending while the digest stands for any
	delivery string
	there    bool // the message is known to be in the chat
	held     map[CycleID]*member
	// shown is how many requests the message speaks of, and first the oldest of them.
	shown int
	first CycleID
	// untold is how many of the held ones no message has spoken of when it came: with a sound.
	untold int
	// newest is the newest request that the message spoke of when it came, and made the number of the record that its sending
	// began with; both of a message that was in the chat when this process began, else 0.
	newest, made int64
	// renewAt is when it is looked at for those that came later.
	renewAt time.Time
	// next is when it may be rewritten.
	next time.Time
}

// member is a request that a digest stands for. A message names it or counts it.
type member struct {
	*op
	showing bool // the message that is on its way to the chat speaks of it
	spoken  bool // the message that is in the chat does
	told    bool // that message did when it came
}

// stateEnded is what a digest is settled to when it stands for nothing any more.
const stateEnded approvallog.State = "ended"

// slot is where an op keeps the digest that stands for it in this chat.
func (c *Core) slot(chatID int64) int {
	if c.isDeputy(chatID) {
		return 1
	}
	return 0
}

// groupsOf are the groups of a request, the narrow one first: its asker's under this name, and under any. The second is
// there for those who take a new name each time; the first keeps a quiet name out of the flood of another one that has the
// same user id, as all programs of a workstation do.
func (c *Core) groupsOf(o *op, chatID int64) []group {
	named := group{deputy: c.isDeputy(chatID), asker: o.asker, name: o.req.Requester, class: o.req.Class}
	if o.asker == o.req.Requester {
		return []group{named}
	}
	any := named
	any.name = ""
	return []group{named, any}
}

// groupable reports whether a digest may stand for a request: never for what cannot be undone, nor once somebody has
// opened it or a card of it was tried.
func (c *Core) groupable(o *op, chatID int64) bool {
	if !o.req.Reversible || o.first || !o.pending() || o.id.Key == "" {
		return false
	}
	for d := range c.deliveries.Of(o.id) {
		if d.ChatID == chatID && d.Phase != PhaseFailed {
			return false
		}
	}
	return true
}

// hold lets the open digest of its group stand for a request, if there is one.
func (c *Core) hold(o *op, chatID int64) bool {
	if !c.groupable(o, chatID) {
		c.release(o, chatID)
		return false
	}
	if dg := o.held[c.slot(chatID)]; dg != nil && c.digests[dg.group] == dg {
		return true
	}
	for _, g := range c.groupsOf(o, chatID) {
		if dg := c.digests[g]; dg != nil {
			o.held[c.slot(chatID)] = dg
			c.join(dg, o)
			c.oweDigest(dg)
			c.remindOf(dg, o)
			return true
		}
	}
	c.release(o, chatID)
	return false
}

// join lets a digest stand for one more request.
func (c *Core) join(dg *digest, o *op) {
	m := &member{op: o}
	if dg.there && o.id.Seq <= dg.newest && !c.triedSince(dg.made, o.id, dg.chatID) {
		m.spoken, m.told = true, true // it waited already when the message was made
	}
	if !m.told {
		dg.untold++
	}
	dg.held[o.id] = m
}

// triedSince reports whether a card of this asking was to go out to a chat after a record of the journal.
func (c *Core) triedSince(seq int64, id CycleID, chatID int64) bool {
	for d := range c.deliveries.Of(id) {
		if d.ChatID == chatID && d.Kind == KindCard && d.Seq > seq {
			return true
		}
	}
	return false
}

// release ends that a digest stands for a request. A digest that stands for nothing is settled.
func (c *Core) release(o *op, chatID int64) {
	dg := o.held[c.slot(chatID)]
	if dg == nil {
		return
	}
	o.held[c.slot(chatID)] = nil
	if m := dg.held[o.id]; m != nil && !m.told {
		dg.untold--
	}
	delete(dg.held, o.id)
	if len(dg.held) > 0 {
		c.oweDigest(dg)
		return
	}
	c.endDigest(dg)
}

// heldByMessage reports whether a digest that people see names or counts a request.
func (o *op) heldByMessage() bool {
	return slices.ContainsFunc(o.held[:], func(dg *digest) bool { return dg != nil && dg.speaksOf(o) })
}

// crowd gathers what waits of a card's group in a lane into a digest, when the group has had its share of single cards.
// It reports whether it did.
func (c *Core) crowd(l *lane, o *op) bool {
	return c.groupable(o, l.chatID) && slices.ContainsFunc(c.groupsOf(o, l.chatID), func(g group) bool { return c.gather(l, g) })
}

// gather is crowd for one group.
func (c *Core) gather(l *lane, g group) bool {
	if c.now.Before(c.noDigest[g]) {
		return false
	}
	waiting := c.waitingOf(l, g)
	if !c.floods(l, g, len(waiting)) {
		return false
	}
	// Named after its newest request; the deputy's after the negative number, since it may end with the same one.
	cycle := waiting[len(waiting)-1].id.Seq
	if g.deputy {
		cycle = -cycle
	}
	dg := c.openDigest(g, l.chatID, cycle)
	for _, o := range waiting {
		if c.hold(o, l.chatID) {
			c.dequeue(l, o)
		}
	}
	c.intendNotice(l, &notice{kind: KindDigest, op: dg.op, digest: dg})
	return true
}

// floods reports whether so many that wait of a group are to become a digest.
func (c *Core) floods(l *lane, g group, waiting int) bool {
	return waiting >= c.minDigest && waiting+l.recent(g, c.now) > c.maxSingles
}

// waitingOf are the requests of a group that a digest may stand for, the oldest first. Those of a name that floods by itself
// are left out of the group of all names.
func (c *Core) waitingOf(l *lane, g group) (waiting []*op) {
	ofName := make(map[string]int)
	for _, id := range l.cards {
		if o := c.ops[id]; o != nil && g.covers(o) && c.groupable(o, l.chatID) {
			waiting = append(waiting, o)
			ofName[o.req.Requester]++
		}
	}
	if g.name != "" {
		return waiting
	}
	return slices.DeleteFunc(waiting, func(o *op) bool {
		named := g
		named.name = o.req.Requester
		return c.digests[named] != nil || c.floods(l, named, ofName[o.req.Requester])
	})
}

func (c *Core) openDigest(g group, chatID, cycle int64) *digest {
	dg := &digest{group: g, chatID: chatID, held: make(map[CycleID]*member)}
	dg.op = newOp(CycleID{Seq: cycle}, approvallog.Request{State: approvallog.StatePending})
	dg.op.digest = dg
	c.ops[dg.op.id] = dg.op
	c.digests[g] = dg
	return dg
}

// endDigest lets a digest that stands for nothing say so.
func (c *Core) endDigest(dg *digest) {
	if c.digests[dg.group] == dg {
		delete(c.digests, dg.group)
	}
	dg.op.req.State = stateEnded
	if c.recovered {
		c.evaluate(dg.op)
	}
}

// dropDigest gives up a digest whose message is not there; its requests are delivered in another way.
func (c *Core) dropDigest(dg *digest) {
	dg.there = false
	held := make([]*op, 0, len(dg.held))
	for _, m := range dg.held {
		held = append(held, m.op)
		m.op.held[c.slot(dg.chatID)] = nil
	}
	clear(dg.held)
	dg.untold = 0
	c.endDigest(dg)
	slices.SortFunc(held, func(a, b *op) int { return compareCycles(a.id, b.id) })
	for _, o := range held {
		c.evaluate(o)
	}
}

// digestRecorded follows what the journal says of a digest's message.
func (c *Core) digestRecorded(d Delivery) {
	if d.Kind != KindDigest {
		return
	}
	o := c.ops[d.Cycle]
	if o == nil {
		if d.Phase != PhaseSent || d.Settled != "" || d.Group == nil {
			return
		}
		// A copy of which only a tap told that it exists: another digest has taken its place.
		dg := c.openDigest(group{}, d.ChatID, d.Cycle.Seq)
		c.endDigest(dg)
		return
	}
	dg := o.digest
	if dg == nil || dg.delivery != d.ID {
		return
	}
	switch {
	case d.Gone && d.Settled != stateEnded, d.Phase == PhaseUnknown:
		c.dropDigest(dg)
	case d.Phase == PhaseSent && o.pending():
		if !dg.there {
			dg.there = true
			dg.came()
		}
		c.oweDigest(dg)
	}
}

// recoverDigests takes up the digests that are in the chats. What they stand for is found when the requests are looked
// at; one that stands for nothing is settled after that.
func (c *Core) recoverDigests() {
	for _, d := range c.deliveries.open(KindDigest, PhaseIntended) {
		c.journal(EventDeliveryUnknown, "", unknownPayload{Delivery: d.ID, Reason: "the daemon stopped before the answer came"})
	}
	open := c.deliveries.open(KindDigest, PhaseSent)
	slices.SortStableFunc(open, func(a, b Delivery) int { return cmp.Compare(told(a), told(b)) })
	for _, d := range open {
		g := *d.Group
		g.deputy = c.isDeputy(d.ChatID)
		dg := c.digests[g]
		if dg == nil || dg.op.id != d.Cycle {
			if c.ops[d.Cycle] != nil {
				continue // another copy, settled with the first
			}
			before := c.digests[g]
			dg = c.openDigest(g, d.ChatID, d.Cycle.Seq)
			if before != nil {
				before.op.req.State = stateReplaced
			}
		}
		dg.delivery, dg.there, dg.newest, dg.made = d.ID, true, told(d), d.Seq
		if !g.deputy && d.ChatID != c.chat.ID {
			c.endDigest(dg)
		}
	}
}

// endEmptyDigests settles the digests that nothing was found for.
func (c *Core) endEmptyDigests() {
	for _, o := range c.sorted() {
		if dg := o.digest; dg != nil && o.pending() && len(dg.held) == 0 {
			c.endDigest(dg)
		}
	}
}

// oweDigest makes sure that the message will tell of the requests as they are, not too often.
func (c *Core) oweDigest(dg *digest) {
	d, ok := c.deliveries.ByID(dg.delivery)
	if !ok || d.MessageID == 0 {
		return
	}
	c.owe(d)
	l := c.lane(d.ChatID)
	for _, e := range l.edits {
		if e.delivery == d.ID && e.next.Before(dg.next) {
			e.next = dg.next
		}
	}
}

// digestDue is what an open digest's message is owed now, nil for nothing. After a restart its buttons cannot be made
// again, so that it stays as it is until somebody uses one of them, or something comes that it does not speak of.
func (c *Core) digestDue(d Delivery, dg *digest) Action {
	nonce, known := c.nonces[d.ID]
	listed := dg.oldest()
	if !known || len(listed) == 0 || dg.shown == len(dg.held) && dg.first == (CycleID{listed[0].Key, listed[0].Seq}) && dg.speaksOfAll() {
		return nil
	}
	c.digestShows(dg, listed)
	return EditDigest{MessageID: d.MessageID, Asker: dg.who(), Class: dg.class, Count: len(dg.held), Listed: listed, Nonce: nonce}
}

func (c *Core) digestShows(dg *digest, listed []approvallog.Request) {
	dg.shown, dg.first, dg.next = len(dg.held), CycleID{listed[0].Key, listed[0].Seq}, c.now.Add(digestPause)
	for _, m := range dg.held {
		m.showing = true
	}
}

// oldest are the first of the requests that a digest stands for.
func (dg *digest) oldest() []approvallog.Request {
	var list []approvallog.Request
	for _, o := range dg.held {
		at, _ := slices.BinarySearchFunc(list, o.req.Seq, func(r approvallog.Request, seq int64) int { return int(r.Seq - seq) })
		if at < digestListed {
			list = slices.Insert(list, at, o.req)
			list = list[:min(len(list), digestListed)]
		}
	}
	return list
}

// digestTapped lets the card of a request go out that was opened from a digest.
func (c *Core) digestTapped(d Delivery, tag string) {
	for id, o := range c.ops {
		if o.digest == nil && o.pending() && d.Group.covers(o) && requestTag(id) == tag {
			o.first = true
			c.evaluate(o)
			break
		}
	}
	if o := c.ops[d.Cycle]; o != nil && o.digest != nil {
		c.oweDigest(o.digest)
	}
}

// recent is how many cards of a group went out within singlesWindow.
func (l *lane) recent(g group, now time.Time) int {
	n := 0
	for _, at := range l.singles[g] {
		if now.Sub(at) < singlesWindow {
			n++
		}
	}
	return n
}

// countSingle notes that a card of a group goes out, and forgets what is long ago.
func (l *lane) countSingle(groups []group, now time.Time) {
	for _, g := range groups {
		l.countSingleOf(g, now)
	}
}

func (l *lane) countSingleOf(g group, now time.Time) {
	if l.singles == nil {
		l.singles = make(map[group][]time.Time)
	}
	old := func(at time.Time) bool { return now.Sub(at) >= singlesWindow }
	if !slices.ContainsFunc(l.singles[g], func(at time.Time) bool { return !old(at) }) {
		for other, times := range l.singles {
			if old(times[len(times)-1]) {
				delete(l.singles, other)
			}
		}
	}
	l.singles[g] = append(slices.DeleteFunc(l.singles[g], old), now)
}

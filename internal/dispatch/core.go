package dispatch

import (
	"cmp"
	"container/heap"
	"encoding/json"
	"slices"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// Chat is where the cards go.
type Chat struct {
	ID       int64
	ThreadID int64 // forum topic, 0 for none
	// FollowMigration lets the core go on in the supergroup that the chat became, until the configuration names it.
	FollowMigration bool
}

// CoreOptions configure a Core.
type CoreOptions struct {
	Chat Chat
	// Deputy is the chat that is asked too when nobody has answered for a while, its ID 0 for none.
	Deputy Chat
	// Reminder is the part of a request's time, below 1, after which its people are reminded; 0 for never.
	Reminder float64
	Rules    Rules
	Epoch    int64
	// Nonce makes a fresh nonce: random, or in a test reproducible.
	Nonce func() Nonce
}

// Core decides what has to be sent, edited and recorded. It is a state machine: it has no clock, does no I/O and
// starts no goroutine, so that with the same events it gives the same effects. Its owner calls it from one goroutine.
//
// It keeps, with operations that may be cut off after any effect: intent is recorded before a send; a message whose
// id is known is never sent again; a finished request's messages stay owed until they are settled; one request that
// cannot be delivered holds up no other.
type Core struct {
	o          CoreOptions
	chat       Chat
	deliveries *Deliveries
	ops        map[CycleID]*op
	current    map[string]CycleID
	lanes      map[int64]*lane
	nonces     map[string]Nonce // delivery -> nonce, as far as this process knows it
	// recording are deliveries whose delivery.sent is on its way to the disk.
	recording map[string]bool
	// progressShown is how many approvals a card shows.
	progressShown map[string]int
	timers        timers
	timersMax     int // how many there may be before those of operations that are over are dropped
	calls         map[int64]*lane
	lastCall      int64
	recovered     bool
	// owing are the keys with messages that were not settled when the core was started.
	owing   map[string]bool
	digests map[group]*digest
	// noDigest is until when a group gets single cards only.
	noDigest              map[group]time.Time
	maxSingles, minDigest int
	// topicBack is until when the forum topic is not tried.
	topicBack time.Time
	movedFrom int64 // the group that became the chat, 0 for none
	answered  *recent
	refusals  refusals
	chains    map[string]*chain // follow-ups that are to be asked for, by their keys
	contact   contact
	follows   follows
	now       time.Time
	out       []Effect
}

// op is the work on one asking of a request.
type op struct {
	id        CycleID
	req       approvallog.Request
	asker     string    // who really asks
	terms     string    // what its card has to say of who decides, empty while not worked out
	renewing  [2]bool   // the card that waits to go out, to the gate's chat and to the deputy's, is to take the place of another
	documents int       // needed before the card, -1 while unknown
	next      time.Time // not to be tried before
	attempts  int
	reason    string // why it is not delivered, empty while nothing is wrong
	since     time.Time
	// retry is, for each chat, the delivery that was intended and certainly not sent, to be sent as it is.
	retry    map[int64]string
	remindAt time.Time  // when this asking is looked at for a reminder
	first    bool       // somebody asked to see its card
	held     [2]*digest // what stands for it, in the gate's chat and in the deputy's
	digest   *digest    // that this op is, for one that stands for no request
	ended    int64      // a record of the approval log: it was pending before
	expiring bool
	// expireAgain is when an expiry that could not be recorded is tried again.
	expireAgain time.Time
}

func newOp(id CycleID, req approvallog.Request) *op {
	return &op{id: id, req: req, asker: req.Asker(), documents: -1, retry: make(map[int64]string)}
}

const expiryRetry = time.Second

func (o *op) pending() bool { return o.req.State == approvallog.StatePending }

// NewCore returns a core that knows nothing yet.
func NewCore(o CoreOptions) *Core {
	return &Core{
		o: o, chat: o.Chat, deliveries: NewDeliveries(), ops: make(map[CycleID]*op), current: make(map[string]CycleID),
		lanes: make(map[int64]*lane), nonces: make(map[string]Nonce), progressShown: make(map[string]int), recording: make(map[string]bool), calls: make(map[int64]*lane), answered: newRecent(),
		digests: make(map[group]*digest), noDigest: make(map[group]time.Time), maxSingles: maxSingles, minDigest: minDigest,
		follows: follows{every: followEvery},
	}
}

// Step tells the core one event and returns what has to be done now. now must not go back by more than the clock did.
func (c *Core) Step(now time.Time, ev Event) []Effect {
	c.now = now
	switch ev := ev.(type) {
	case Loaded:
		c.deliveries = ev.Deliveries
		if to := ev.Deliveries.movedTo[c.chat.ID]; to != 0 && c.chat.FollowMigration {
			c.movedFrom, c.chat.ID = c.chat.ID, to
		}
		for chatID, m := range ev.Deliveries.muted {
			if left := m.left(now); left > 0 {
				c.lane(chatID).close(now, now.Add(left), m.reason, true)
			}
		}
		c.owing = ev.Deliveries.unsettledKeys()
		c.contact.last = ev.LastContact
		c.follows.noted, c.follows.seq = ev.Deliveries.followed, ev.Deliveries.followed
	case RequestChanged:
		c.requestChanged(ev)
	case LogRead:
		c.logRead(ev.Seq)
	case Journaled:
		c.journaled(ev.Record)
	case Recovered:
		c.recover()
	case Prepared:
		c.prepared(ev)
	case CallDone:
		c.callDone(ev)
	case Expired:
		c.expired(ev)
	case TapRuled:
		c.tapRuled(ev)
	case ChatClosed:
		c.chatClosed(ev)
	case FollowUpsDue:
		c.followUpsDue(ev.Parents)
	case FollowUpOpened:
		c.followUpOpened(ev)
	case ChatMigrated:
		c.moved(ev.From, ev.To)
	case CardGone:
		c.cardGone(ev)
	case ShowWanted:
		c.showWanted(ev)
	case ChatOpened:
		if l := c.lanes[ev.ChatID]; l != nil {
			l.open(c.now)
		}
	case ChatLimited:
		c.chatLimited(ev)
	case Contacted:
		c.contacted(ev.At)
	case Configured:
		c.configured(ev)
	case Ticked:
	}
	c.tick()
	out := c.out
	c.out = nil
	return out
}

func (c *Core) emit(e Effect) { c.out = append(c.out, e) }

func (c *Core) journal(event, key string, payload any) {
	c.emit(AppendJournal{Drafts: []approvallog.Draft{journalDraft(event, key, payload)}})
}

// tick looks again at everything whose time has come, and lets every idle lane go on.
func (c *Core) tick() {
	if !c.recovered {
		return
	}
	for len(c.timers) > 0 && !c.timers[0].at.After(c.now) {
		t := heap.Pop(&c.timers).(timer)
		if o := c.ops[t.op]; o != nil {
			c.evaluate(o)
		}
	}
	c.renewDigests()
	c.openFollowUps()
	for _, id := range c.laneIDs() {
		c.pump(c.lanes[id])
	}
}

// laneIDs are the chats in a fixed order.
func (c *Core) laneIDs() []int64 {
	ids := make([]int64, 0, len(c.lanes))
	for id := range c.lanes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Next is when the core wants to be told that time has passed.
func (c *Core) Next() (time.Time, bool) {
	var next time.Time
	if len(c.timers) > 0 {
		next = c.timers[0].at
	}
	if at := c.nextFollowUp(); !at.IsZero() && (next.IsZero() || at.Before(next)) {
		next = at
	}
	for _, l := range c.lanes {
		if at := l.nextTurn(c); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next, !next.IsZero()
}

func (c *Core) wakeAt(at time.Time, o *op) {
	if at.IsZero() {
		return
	}
	heap.Push(&c.timers, timer{at: at, op: o.id})
	if len(c.timers) > c.timersMax {
		c.timers = slices.DeleteFunc(c.timers, func(t timer) bool { return c.ops[t.op] == nil })
		heap.Init(&c.timers)
		c.timersMax = 2*len(c.timers) + 1024
	}
}

func (c *Core) requestChanged(ev RequestChanged) {
	req := ev.Request
	id := CycleID{Key: req.Key, Seq: req.Seq}
	if old, ok := c.current[req.Key]; ok && old != id {
		if old.Seq > id.Seq {
			return
		}
		c.supersede(old, req)
	}
	c.retake(ev.Cycles)
	for _, before := range ev.Cycles {
		if before.log != nil && before.log.id != id && c.adoptOrphan(before.log.id, req) && c.recovered {
			c.evaluate(c.ops[before.log.id])
		}
	}
	o := c.ops[id]
	if o == nil {
		if req.State != approvallog.StatePending && !c.owing[req.Key] && !c.owesAnything(id, req) {
			c.deliveries.forget(id)
			return
		}
		o = c.begin(id, req)
	}
	if o.pending() {
		o.ended = ev.LogSeq
		if ev.LogSeq == 0 {
			o.ended = c.follows.seq + 1
		}
	}
	o.req = req
	if c.recovered {
		c.evaluate(o)
	}
}

// supersede ends an earlier asking whose own end was not seen.
func (c *Core) supersede(old CycleID, by approvallog.Request) {
	o := c.ops[old]
	if o == nil || done(o.req.State) {
		return
	}
	o.end(by)
	if c.recovered {
		c.evaluate(o)
	}
}

// end ends an asking of which no more is known than that another one took its place.
func (o *op) end(by approvallog.Request) {
	o.req.State = endedBefore(by)
	o.req.Decision, o.req.Ending, o.req.Execution, o.req.Approvals = nil, nil, nil, nil
}

// stateSuperseded is shown for an asking of which only is known that another one took its place.
const stateSuperseded approvallog.State = "superseded"

// endedBefore is how the asking before this one ended.
func endedBefore(by approvallog.Request) approvallog.State {
	if by.Previous == "" || by.Previous == approvallog.StatePending {
		return stateSuperseded
	}
	return by.Previous
}

func (c *Core) journaled(rec approvallog.Record) {
	if err := c.deliveries.Apply(rec); err != nil {
		c.emit(Complain{Key: rec.ActionKey, Text: err.Error()})
		return
	}
	if !c.recovered {
		return
	}
	var ref struct {
		Delivery string `json:"delivery"`
		Cycle    int64  `json:"cycle"`
	}
	if json.Unmarshal(rec.Payload, &ref) != nil {
		return
	}
	id := CycleID{Key: rec.ActionKey, Seq: ref.Cycle}
	if rec.Event == EventDeliverySent {
		delete(c.recording, ref.Delivery)
	}
	if d, ok := c.deliveries.ByID(ref.Delivery); ok {
		id = d.Cycle
		c.absenceRecorded(rec.Event, d)
		c.digestRecorded(d)
		c.recorded(rec.Event, d)
	}
	if o := c.ops[id]; o != nil {
		c.evaluate(o)
	}
}

// recover acts on what the dead process left, in the order of its age: unfinished requests first.
func (c *Core) recover() {
	c.recovered, c.owing = true, nil
	c.recoverAbsence()
	c.recoverDigests()
	for _, id := range slices.Collect(c.deliveries.cyclesKnown()) {
		if c.ops[id] != nil {
			continue
		}
		if by := c.ops[c.current[id.Key]]; by == nil || !c.adoptOrphan(id, by.req) {
			c.deliveries.forget(id)
		}
	}
	all := c.sorted()
	for _, o := range all {
		if !o.pending() || o.req.PastDeadline(c.now) {
			continue
		}
		for d := range c.deliveries.Of(o.id) {
			if d.Phase == PhaseIntended {
				c.journal(EventDeliveryUnknown, o.id.Key, unknownPayload{Delivery: d.ID, Reason: "the daemon stopped before the answer came"})
			}
		}
	}
	for _, o := range all {
		c.evaluate(o)
	}
	c.endEmptyDigests()
}

// adoptOrphan takes on the messages of an earlier asking, of which the log's fold tells no more than that it ended. It
// reports whether it did.
func (c *Core) adoptOrphan(id CycleID, by approvallog.Request) bool {
	if c.ops[id] != nil || id.Key != by.Key || id.Seq >= by.Seq {
		return false
	}
	o := newOp(id, by)
	o.req.Seq = id.Seq
	o.end(by)
	o.ended = c.follows.seq + 1
	for d := range c.deliveries.Of(id) {
		o.req.PayloadHash, o.req.RecordHash = d.PayloadHash, d.Record
	}
	c.ops[id] = o
	return true
}

// sorted are all operations, the oldest asking first.
func (c *Core) sorted() []*op {
	all := make([]*op, 0, len(c.ops))
	for _, o := range c.ops {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b *op) int {
		return cmp.Or(cmp.Compare(a.id.Seq, b.id.Seq), cmp.Compare(a.id.Key, b.id.Key))
	})
	return all
}

// evaluate works out what an operation needs now. It may be called at any time and any number of times.
func (c *Core) evaluate(o *op) {
	switch {
	case o.digest != nil && o.pending():
		c.remindDigest(o.digest)
	case o.pending() && o.req.PastDeadline(c.now):
		c.stopDelivering(o)
		if !o.expiring && !c.now.Before(o.expireAgain) {
			o.expiring = true
			c.emit(Expire{Request: o.req})
		}
	case o.pending():
		c.deliver(o)
	default:
		c.stopDelivering(o)
		c.settle(o)
		c.forgetIfDone(o)
	}
}

func (c *Core) expired(ev Expired) {
	o := c.ops[ev.Cycle]
	if o == nil {
		return
	}
	o.expiring = false
	if ev.Err != "" {
		c.complain(o, "the expiry could not be recorded: "+ev.Err)
		o.expireAgain = c.now.Add(expiryRetry)
		c.wakeAt(o.expireAgain, o)
		return
	}
	c.requestChanged(RequestChanged{Request: ev.Request})
}

func (c *Core) complain(o *op, text string) {
	if o.reason != text {
		c.emit(Complain{Key: o.id.Key, Text: text})
	}
	if o.reason == "" {
		o.since = c.now
	}
	o.reason = text
}

// done reports whether no later record can change what a card settled to this state says. Not settled is not done.
func done(s approvallog.State) bool {
	switch s {
	case "", approvallog.StatePending, approvallog.StateGranted, approvallog.StateStarted, stateRenewed:
		return false
	default:
		return true
	}
}

// settledState is what a card of this request says once it is settled, empty while there is nothing to settle. The
// start of an execution is no news worth an edit; its end is.
func settledState(req approvallog.Request) approvallog.State {
	switch req.State {
	case approvallog.StatePending:
		return ""
	case approvallog.StateStarted:
		return approvallog.StateGranted
	default:
		return req.State
	}
}

package dispatch

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// CycleID names one asking of a request: the action key, and the sequence number of the record that asked.
type CycleID struct {
	Key string `json:"key"`
	Seq int64  `json:"seq"`
}

// Phase is how far a delivery has come.
type Phase string

// The phases of a delivery. Intended: the send may be under way. Failed: surely not sent, may be tried again.
const (
	PhaseIntended Phase = "intended"
	PhaseFailed   Phase = "failed"
	PhaseUnknown  Phase = "unknown"
	PhaseSent     Phase = "sent"
)

// Delivery is one message for one request in one chat.
type Delivery struct {
	ID          string
	Kind        Kind
	Cycle       CycleID
	Epoch       int64
	Seq         int64 // of the record that its sending began with
	NonceSHA256 string
	PayloadHash string
	Record      string  // hash of the record that asked, empty when nothing says
	Said        said    // of a card
	Renews      bool    // a card that takes the place of those of its asking before it, in its chat
	Replaced    bool    // such a card is in the chat
	Group       *group  // of a digest
	Newest      int64   // of a digest, see told
	Absence     absence // of word of one
	ChatID      int64
	ThreadID    int64
	MessageID   int64     // 0 while unknown
	SentAt      time.Time // when that became known
	Phase       Phase
	Settled     approvallog.State // what the message was settled to, empty for not at all
	Gone        bool              // the message was deleted, or its chat is closed for good
	Reason      string            // why it failed or is unknown
}

// maxResting is how many askings of which no message is owed anything stay in memory: most of what is still to come
// for them comes soon after.
const maxResting = 1024

// Deliveries folds the delivery journal.
//
// What it holds only grows: a delivery that was once recorded is never dropped or taken back by a later record, a
// message id that is known stays known, and a record that contradicts an earlier one counts for nothing. That is what
// keeps a nonce good that a person may hold in their hands, whatever happened to the process that made it.
//
// Fed by an [approvallog.Log] it is [approvallog.Indexed]: in memory are the askings with a message that still has to be
// rewritten, some that were dealt with of late, and the counters. The others are found in the journal when they are asked
// for. By itself it keeps them all.
//
// A Deliveries has no lock of its own. Read it inside View or Update of the journal that feeds it.
type Deliveries struct {
	epoch   int64
	opened  EpochInfo
	closed  bool
	byID    map[string]*Delivery
	byNonce map[string]*Delivery
	cycles  map[CycleID]*cycleLog
	last    int64 // sequence number of the last record applied
	// movedTo are the supergroups that groups became.
	movedTo map[int64]int64
	// absentUntil is the end of the last absence of which word is recorded.
	absentUntil time.Time
	muted       map[int64]muted // the last limit that Telegram set, for each chat
	// followed is a record of the approval log: what a card that shows a grant has to show since is due to later ones only.
	followed int64

	finder  finder
	resting []*cycleLog // in cycles and not needed, those that rest longest first
	room    int         // how many may rest
	fresh   int64       // the record by which a key was asked for anew and owed nothing from before
}

// finder finds records of the journal again: an [approvallog.Finder].
type finder interface {
	Find(key string, mine func(approvallog.Record) bool) []approvallog.Record
}

// muted is a limit that Telegram set.
type muted struct {
	at, until time.Time
	reason    string
}

// left is how much of the limit is left. It is never more than there was at first, however the clock was set meanwhile.
func (m muted) left(now time.Time) time.Duration {
	return max(0, min(m.until.Sub(now), m.until.Sub(m.at)))
}

// cycleLog is what the journal says about one asking. The one of no asking has the absences of which no word is known to
// have come.
type cycleLog struct {
	id         CycleID
	deliveries []*Delivery
	notes      []Note
	resting    bool
	upTo       int64 // in a core's copy: the journal's records up to this one are in it
}

// needed reports whether it has to stay in memory: a message of it is to be rewritten, or will be.
func (e *cycleLog) needed() bool {
	return e.id == CycleID{} || slices.ContainsFunc(e.deliveries, func(p *Delivery) bool {
		if p.Kind == KindDigest && p.Phase == PhaseIntended {
			return true
		}
		return p.MessageID != 0 && mayOwe(*p) && owes(*p, "x") && (p.Settled == "" || p.Settled == stateRenewed)
	})
}

// unfinal reports whether a card of it may yet have to show another end than it does.
func (e *cycleLog) unfinal() bool {
	return slices.ContainsFunc(e.deliveries, func(p *Delivery) bool {
		return p.Kind == KindCard && p.MessageID != 0 && !p.Gone && !done(p.Settled)
	})
}

func (e *cycleLog) clone() *cycleLog {
	copied := &cycleLog{id: e.id, notes: slices.Clip(e.notes), upTo: e.upTo}
	for _, p := range e.deliveries {
		made := *p
		copied.deliveries = append(copied.deliveries, &made)
	}
	return copied
}

// Cycle is what the journal says about one asking, for a core that has let go of it.
type Cycle struct{ log *cycleLog }

// NewDeliveries returns the fold of an empty journal.
func NewDeliveries() *Deliveries {
	d := &Deliveries{room: maxResting}
	d.reset()
	return d
}

func (d *Deliveries) reset() {
	*d = Deliveries{
		finder:  d.finder,
		room:    d.room,
		byID:    make(map[string]*Delivery),
		byNonce: make(map[string]*Delivery),
		cycles:  make(map[CycleID]*cycleLog),
		movedTo: make(map[int64]int64),
		muted:   make(map[int64]muted),
	}
}

// Epoch is the last epoch that was opened, 0 for none.
func (d *Deliveries) Epoch() int64 { return d.epoch }

// LastEpoch tells who opened the last epoch, and whether it was closed in order.
func (d *Deliveries) LastEpoch() (info EpochInfo, closed bool) { return d.opened, d.closed }

// ByNonce finds the delivery whose buttons carry the nonce of this SHA-256 (hex).
func (d *Deliveries) ByNonce(sum string) (Delivery, bool) {
	if p := d.byNonce[sum]; p != nil || d.finder == nil {
		return deref(p)
	}
	return d.findNonce(sum)
}

// ByID finds a delivery.
func (d *Deliveries) ByID(id string) (Delivery, bool) {
	if p := d.byID[id]; p != nil || d.finder == nil {
		return deref(p)
	}
	return d.findID(id)
}

// open are the deliveries with buttons that are of a kind, have come so far and are not settled, oldest request first.
func (d *Deliveries) open(kind Kind, phase Phase) []Delivery {
	var list []Delivery
	for _, p := range d.byNonce {
		if p.Kind == kind && p.Phase == phase && p.Settled == "" {
			list = append(list, *p)
		}
	}
	slices.SortFunc(list, func(a, b Delivery) int {
		return cmp.Or(compareCycles(a.Cycle, b.Cycle), cmp.Compare(a.MessageID, b.MessageID))
	})
	return list
}

// cardAt finds the card that is this message. It looks at every card in memory, which is cheap enough for what a person
// does by hand.
func (d *Deliveries) cardAt(chatID, messageID int64) (Delivery, bool) {
	is := func(p Delivery) bool {
		return p.MessageID == messageID && p.ChatID == chatID && p.Kind == KindCard && messageID != 0
	}
	for _, p := range d.byNonce {
		if is(*p) {
			return *p, true
		}
	}
	if d.finder != nil {
		for _, id := range d.findMessage(chatID, messageID) {
			if p, ok := d.ByID(id); ok && is(p) {
				return p, true
			}
		}
	}
	return Delivery{}, false
}

func deref(p *Delivery) (Delivery, bool) {
	if p == nil {
		return Delivery{}, false
	}
	return *p, true
}

// cycle is what the journal says about one asking, nil for nothing.
func (d *Deliveries) cycle(c CycleID) *cycleLog {
	if e := d.cycles[c]; e != nil || d.finder == nil || c == (CycleID{}) {
		return e
	}
	return d.findCycle(c)
}

// Of yields the deliveries of one asking, oldest first.
func (d *Deliveries) Of(c CycleID) iter.Seq[Delivery] {
	return func(yield func(Delivery) bool) {
		if e := d.cycle(c); e != nil {
			for _, p := range e.deliveries {
				if !yield(*p) {
					return
				}
			}
		}
	}
}

// first is the oldest delivery of one asking.
func (d *Deliveries) first(c CycleID) (Delivery, bool) {
	for p := range d.Of(c) {
		return p, true
	}
	return Delivery{}, false
}

// Notes are the approvals noted for one asking, oldest first: at most one for each account by which an
// approver spoke, since the configuration may come to trust another one.
func (d *Deliveries) Notes(c CycleID) []Note {
	if e := d.cycle(c); e != nil {
		return e.notes
	}
	return nil
}

// Cycle is what the journal says about one asking, for a core.
func (d *Deliveries) Cycle(c CycleID) Cycle {
	e := d.cycle(c)
	if e == nil || c == (CycleID{}) {
		return Cycle{}
	}
	e = e.clone()
	e.upTo = d.last
	return Cycle{e}
}

// unfinalBefore are the askings of a key before this one with a card that may not show its end.
func (d *Deliveries) unfinalBefore(c CycleID) []Cycle {
	var list []Cycle
	for _, id := range d.askings(c.Key) {
		if id.Seq < c.Seq {
			if e := d.Cycle(id); e.log != nil && e.log.unfinal() {
				list = append(list, e)
			}
		}
	}
	return list
}

// cyclesKnown yields the askings of which the journal knows anything, in no particular order.
func (d *Deliveries) cyclesKnown() iter.Seq[CycleID] { return maps.Keys(d.cycles) }

// unsettledKeys are the keys with a message that may not show a final end, as far as they are in memory.
func (d *Deliveries) unsettledKeys() map[string]bool {
	keys := make(map[string]bool)
	for _, p := range d.byID {
		if mayOwe(*p) && !done(p.Settled) && (p.Kind == KindCard || owes(*p, "")) {
			keys[p.Cycle.Key] = true
		}
	}
	return keys
}

// clone is a copy of what is in memory that shares nothing that changes, and finds nothing.
func (d *Deliveries) clone() *Deliveries {
	c := NewDeliveries()
	c.epoch, c.opened, c.closed, c.last, c.absentUntil, c.followed = d.epoch, d.opened, d.closed, d.last, d.absentUntil, d.followed
	maps.Copy(c.movedTo, d.movedTo)
	maps.Copy(c.muted, d.muted)
	for _, e := range d.cycles {
		c.hold(e.clone())
	}
	return c
}

// hold takes an asking into memory, in place of what was there of it.
func (d *Deliveries) hold(e *cycleLog) {
	d.forget(e.id)
	d.cycles[e.id] = e
	for _, p := range e.deliveries {
		d.byID[p.ID] = p
		if p.NonceSHA256 != "" {
			d.byNonce[p.NonceSHA256] = p
		}
	}
}

// forget drops an asking from memory. In a core's own copy that needs no more work; the copy that taps are judged by
// finds it again.
func (d *Deliveries) forget(c CycleID) {
	e := d.cycles[c]
	if e == nil {
		return
	}
	for _, p := range e.deliveries {
		d.drop(p)
	}
	delete(d.cycles, c)
}

func (d *Deliveries) drop(p *Delivery) {
	delete(d.byID, p.ID)
	if p.NonceSHA256 != "" {
		delete(d.byNonce, p.NonceSHA256)
	}
}

// rest lets go of an asking once others have come to rest after it, if it can be found again.
func (d *Deliveries) rest(e *cycleLog) {
	if d.finder == nil || e.resting || e.needed() || d.cycles[e.id] != e {
		return
	}
	e.resting = true
	d.resting = append(d.resting, e)
	for len(d.resting) > d.room {
		oldest := d.resting[0]
		d.resting[0] = nil
		d.resting = d.resting[1:]
		oldest.resting = false
		if !oldest.needed() && d.cycles[oldest.id] == oldest {
			d.forget(oldest.id)
		}
	}
}

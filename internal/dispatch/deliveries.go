package dispatch

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// CycleID names one asking of a request: the action key, and the sequence number of the record that asked.
type CycleID struct {
	Key string
	Seq int64
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

// Deliveries folds the delivery journal. It implements [approvallog.Folder].
//
// What it holds only grows: a delivery that was once recorded is never dropped or taken back by a later record, a
// message id that is known stays known, and a record that contradicts an earlier one counts for nothing. That is what
// keeps a nonce good that a person may hold in their hands, whatever happened to the process that made it.
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

// cycleLog is what the journal says about one asking.
type cycleLog struct {
	deliveries []*Delivery
	notes      []Note
}

// NewDeliveries returns the fold of an empty journal.
func NewDeliveries() *Deliveries {
	return &Deliveries{
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
func (d *Deliveries) ByNonce(sum string) (Delivery, bool) { return deref(d.byNonce[sum]) }

// ByID finds a delivery.
func (d *Deliveries) ByID(id string) (Delivery, bool) { return deref(d.byID[id]) }

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

// cardAt finds the card that is this message. It looks at every card, which is cheap enough for what a person does by
// hand.
func (d *Deliveries) cardAt(chatID, messageID int64) (Delivery, bool) {
	for _, p := range d.byNonce {
		if p.MessageID == messageID && p.ChatID == chatID && p.Kind == KindCard && messageID != 0 {
			return *p, true
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

// Of yields the deliveries of one asking, oldest first.
func (d *Deliveries) Of(c CycleID) iter.Seq[Delivery] {
	return func(yield func(Delivery) bool) {
		if log := d.cycles[c]; log != nil {
			for _, p := range log.deliveries {
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
	if log := d.cycles[c]; log != nil {
		return log.notes
	}
	return nil
}

// cyclesKnown yields the askings of which the journal knows anything, in no particular order.
func (d *Deliveries) cyclesKnown() iter.Seq[CycleID] { return maps.Keys(d.cycles) }

// unsettledKeys are the keys with a message that may not show a final end.
func (d *Deliveries) unsettledKeys() map[string]bool {
	keys := make(map[string]bool)
	for _, p := range d.byID {
		if mayOwe(*p) && !done(p.Settled) && (p.Kind == KindCard || owes(*p, "")) {
			keys[p.Cycle.Key] = true
		}
	}
	return keys
}

// clone is a copy that shares nothing that changes.
func (d *Deliveries) clone() *Deliveries {
	c := NewDeliveries()
	c.epoch, c.opened, c.closed, c.last, c.absentUntil = d.epoch, d.opened, d.closed, d.last, d.absentUntil
	maps.Copy(c.movedTo, d.movedTo)
	maps.Copy(c.muted, d.muted)
	for id, log := range d.cycles {
		copied := &cycleLog{notes: slices.Clip(log.notes)}
		for _, p := range log.deliveries {
			made := *p
			copied.deliveries = append(copied.deliveries, &made)
			c.byID[made.ID] = &made
			if made.NonceSHA256 != "" {
				c.byNonce[made.NonceSHA256] = &made
			}
		}
		c.cycles[id] = copied
	}
	return c
}

// forget drops an asking that needs no more work. Only the core's own copy may do this; the copy that taps are judged
// by keeps every nonce.
func (d *Deliveries) forget(c CycleID) {
	log := d.cycles[c]
	if log == nil {
		return
	}
	for _, p := range log.deliveries {
		delete(d.byID, p.ID)
		delete(d.byNonce, p.NonceSHA256)
	}
	delete(d.cycles, c)
}

// Apply folds one more record, which must be the next of the journal. A payload that cannot be read is an error: the
// journal is approvald's own, so that is damage and not another writer's dialect.
func (d *Deliveries) Apply(rec approvallog.Record) error {
	d.last = rec.Seq
	switch rec.Event {
	case EventEpochOpened:
		return fold(rec, d.openEpoch)
	case EventEpochClosed:
		return fold(rec, func(p epochPayload) {
			if p.Epoch == d.epoch {
				d.closed = true
			}
		})
	case EventWebhookNoted:
		return fold(rec, func(p epochPayload) {
			if p.Epoch == d.epoch {
				d.opened.WebhookURL = p.WebhookURL
			}
		})
	case EventDeliveryIntended:
		return fold(rec, func(p intendedPayload) { d.intend(rec, p) })
	case EventDeliverySent:
		return fold(rec, func(p sentPayload) { d.sent(rec.TS, p) })
	case EventDeliveryFailed:
		return fold(rec, func(p failedPayload) {
			d.stall(p.Delivery, PhaseFailed, p.Reason)
			if p.RetryAt.After(d.muted[p.ChatID].until) {
				d.muted[p.ChatID] = muted{at: rec.TS, until: p.RetryAt, reason: p.Reason}
			}
			if known := d.byID[p.Delivery]; known != nil && p.MigrateTo != 0 {
				d.movedTo[known.ChatID] = p.MigrateTo
			}
		})
	case EventDeliveryUnknown:
		return fold(rec, func(p unknownPayload) { d.stall(p.Delivery, PhaseUnknown, p.Reason) })
	case EventDeliverySettled:
		return fold(rec, func(p settledPayload) {
			if known := d.byID[p.Delivery]; known != nil {
				known.Settled, known.Gone = p.State, p.How == HowGone
			}
		})
	case EventDeliveryRefreshed:
		return fold(rec, func(p refreshedPayload) {
			if known := d.byID[p.Delivery]; known != nil {
				known.Said = said{terms: p.Terms, approved: strings.Join(p.Approved, " "), seq: rec.Seq}
			}
		})
	case EventApprovalNoted:
		return fold(rec, func(p notedPayload) { d.note(rec, p) })
	}
	return nil
}

func fold[T any](rec approvallog.Record, apply func(T)) error {
	p, err := decode[T](rec)
	if err == nil {
		apply(p)
	}
	return err
}

func (d *Deliveries) openEpoch(p epochPayload) {
	if p.Epoch > d.epoch {
		d.epoch, d.opened, d.closed = p.Epoch, p.EpochInfo, false
	}
}

func (d *Deliveries) cycle(c CycleID) *cycleLog {
	log := d.cycles[c]
	if log == nil {
		log = &cycleLog{}
		d.cycles[c] = log
	}
	return log
}

func (d *Deliveries) intend(rec approvallog.Record, p intendedPayload) {
	if p.Delivery == "" || d.byID[p.Delivery] != nil || d.byNonce[p.NonceSHA256] != nil {
		return
	}
	made := &Delivery{
		ID: p.Delivery, Kind: p.Kind, Cycle: CycleID{Key: rec.ActionKey, Seq: p.Cycle}, Epoch: p.Epoch, Seq: rec.Seq, NonceSHA256: p.NonceSHA256,
		PayloadHash: p.PayloadHash, ChatID: p.ChatID, ThreadID: p.ThreadID, Phase: PhaseIntended,
	}
	if p.Kind == KindCard {
		made.Renews = p.Renews
		made.Said = said{terms: p.Terms, approved: strings.Join(p.Approved, " "), seq: rec.Seq}
	}
	if p.Kind == KindDigest {
		made.Newest = p.Newest
		made.Group = &group{asker: orElse(p.Origin, p.Asker), name: p.Asker, class: p.Class}
	}
	d.byID[made.ID] = made
	if made.NonceSHA256 != "" {
		d.byNonce[made.NonceSHA256] = made
	}
	log := d.cycle(made.Cycle)
	log.deliveries = append(log.deliveries, made)
	if p.Kind == KindAbsence {
		made.Absence = absence{from: p.From, until: p.Until}
		d.absentUntil = later(d.absentUntil, p.Until)
	}
}

func (d *Deliveries) sent(at time.Time, p sentPayload) {
	known := d.byID[p.Delivery]
	if known == nil || known.MessageID != 0 {
		return
	}
	known.Phase, known.Reason, known.SentAt = PhaseSent, "", at
	known.ChatID, known.MessageID, known.ThreadID = p.ChatID, p.MessageID, p.ThreadID
	d.cycle(known.Cycle).replaceBefore()
}

func (d *Deliveries) stall(id string, phase Phase, reason string) {
	if known := d.byID[id]; known != nil && known.MessageID == 0 {
		known.Phase, known.Reason = phase, reason
	}
}

func (d *Deliveries) note(rec approvallog.Record, p notedPayload) {
	log := d.cycle(CycleID{Key: rec.ActionKey, Seq: p.Cycle})
	if slices.ContainsFunc(log.notes, func(n Note) bool {
		return n.Approver == p.Approver && n.Channel == p.Channel && n.SenderID == p.SenderID
	}) {
		return
	}
	log.notes = append(log.notes, Note{
		Approver: p.Approver, At: rec.TS, PayloadHash: p.PayloadHash, Channel: p.Channel, SenderID: p.SenderID,
		Delivery: p.Delivery, NonceSHA256: p.NonceSHA256, Seq: rec.Seq,
	})
}

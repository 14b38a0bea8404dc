package dispatch

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// The keys under which records of the journal are found again:
//
//	d ID         what is said of a delivery. Its id is the beginning of its nonce's sum, so its nonce finds it too.
//	c SEQ KEY    an asking's deliveries, by their first record, and the approvals noted for it
//	k KEY        the askings of an action key that had a card, by the first record of their cards
//	m CHAT ID    the record that names a message
func deliveryKey(id string) string { return "d " + id }
func nonceKey(sum string) string   { return deliveryKey(sum[:min(len(sum), idLen)]) }
func cycleKey(c CycleID) string    { return "c " + strconv.FormatInt(c.Seq, 10) + " " + c.Key }
func askingsKey(key string) string { return "k " + key }
func messageKey(chat, id int64) string {
	return "m " + strconv.FormatInt(chat, 10) + " " + strconv.FormatInt(id, 10)
}

// idLen is how many characters of a nonce's sum name its delivery.
const idLen = 16

// reference is what a record of the journal is found by.
type reference struct {
	Delivery    string `json:"delivery"`
	Kind        Kind   `json:"kind"`
	Cycle       int64  `json:"cycle"`
	NonceSHA256 string `json:"nonce_sha256"`
	ChatID      int64  `json:"chat_id"`
	MessageID   int64  `json:"message_id"`
}

// referenceOf reads no more than that of a record; of one that has none it is empty.
func referenceOf(rec approvallog.Record) (r reference) {
	switch rec.Event {
	case EventDeliveryIntended, EventDeliverySent, EventDeliveryFailed, EventDeliveryUnknown, EventDeliverySettled, EventDeliveryRefreshed, EventApprovalNoted:
		if json.Unmarshal(rec.Payload, &r) != nil {
			return reference{} // Apply has told
		}
	}
	return r
}

// Attach makes the log that feeds d the place where what is not in memory is found.
func (d *Deliveries) Attach(f *approvallog.Finder) { d.attach(f) }

func (d *Deliveries) attach(f finder) {
	d.finder = f
	d.reset()
}

// BeginSegment makes d the fold of a journal that goes on from archived segments. Of what else they held, the first
// records tell ([Deliveries.CarryOver]).
func (d *Deliveries) BeginSegment(_ map[string][]time.Time, epoch int64) {
	d.epoch = max(d.epoch, epoch)
}

// Index names what the record is found by.
func (d *Deliveries) Index(rec approvallog.Record, add func(key string, fresh bool)) {
	r := referenceOf(rec)
	switch rec.Event {
	case EventApprovalNoted:
		add(cycleKey(CycleID{rec.ActionKey, r.Cycle}), false)
		return
	case EventDeliverySent:
		add(messageKey(r.ChatID, r.MessageID), false)
	case EventDeliveryIntended:
		if r.Kind != KindAbsence {
			add(cycleKey(CycleID{rec.ActionKey, r.Cycle}), false)
		}
		if r.Kind == KindCard {
			add(askingsKey(rec.ActionKey), d.fresh == rec.Seq)
		}
		if r.NonceSHA256 != "" && nonceKey(r.NonceSHA256) != deliveryKey(r.Delivery) {
			add(nonceKey(r.NonceSHA256), false)
		}
	}
	if r.Delivery != "" {
		add(deliveryKey(r.Delivery), false)
	}
}

// findRecords gives the records under a key that are about what mine says.
func (d *Deliveries) findRecords(key string, mine func(event, actionKey string, r reference) bool) []approvallog.Record {
	return d.finder.Find(key, func(rec approvallog.Record) bool { return mine(rec.Event, rec.ActionKey, referenceOf(rec)) })
}

// about gives the records about a delivery, from the one that intended it on; nil when none did.
func (d *Deliveries) about(id string) []approvallog.Record {
	records := d.findRecords(deliveryKey(id), func(event, _ string, r reference) bool {
		return r.Delivery == id && event != EventApprovalNoted
	})
	first := slices.IndexFunc(records, func(rec approvallog.Record) bool { return rec.Event == EventDeliveryIntended })
	if first < 0 {
		return nil
	}
	return records[first:]
}

// refold folds records that were found.
func refold(records []approvallog.Record) *Deliveries {
	part := NewDeliveries()
	for _, rec := range records {
		_ = part.Apply(rec) // it could be read when it was folded first
	}
	return part
}

func (d *Deliveries) findID(id string) (Delivery, bool) {
	if id == "" {
		return Delivery{}, false
	}
	part := refold(d.about(id))
	p, ok := part.ByID(id)
	if !ok || p.Cycle == (CycleID{}) {
		return p, ok
	}
	// What became of the others of its asking may say more about it.
	for p := range d.Of(p.Cycle) {
		if p.ID == id {
			return p, true
		}
	}
	return Delivery{}, false
}

// cycleOf is the asking that a delivery is of.
func (d *Deliveries) cycleOf(id string) (CycleID, bool) {
	if id == "" {
		return CycleID{}, false
	}
	about := d.about(id)
	if about == nil {
		return CycleID{}, false
	}
	return CycleID{about[0].ActionKey, referenceOf(about[0]).Cycle}, true
}

func (d *Deliveries) findNonce(sum string) (Delivery, bool) {
	rec, ok := d.nonceIntent(sum)
	if !ok {
		return Delivery{}, false
	}
	p, ok := d.ByID(referenceOf(rec).Delivery)
	return p, ok && p.NonceSHA256 == sum
}

// nonceIntent is the first record that intended a delivery with the nonce of this sum.
func (d *Deliveries) nonceIntent(sum string) (approvallog.Record, bool) {
	if sum == "" {
		return approvallog.Record{}, false
	}
	records := d.findRecords(nonceKey(sum), func(event, _ string, r reference) bool {
		return event == EventDeliveryIntended && r.NonceSHA256 == sum
	})
	if len(records) == 0 {
		return approvallog.Record{}, false
	}
	return records[0], true
}

// used reports whether a delivery has the id, or the nonce, already.
func (d *Deliveries) used(id, sum string) bool {
	switch {
	case d.byID[id] != nil || sum != "" && d.byNonce[sum] != nil:
		return true
	case d.finder == nil:
		return false
	case d.about(id) != nil:
		return true
	case sum == "":
		return false
	}
	_, taken := d.nonceIntent(sum)
	return taken
}

// findMessage gives the deliveries that were said to be this message.
func (d *Deliveries) findMessage(chatID, messageID int64) (ids []string) {
	for _, rec := range d.findRecords(messageKey(chatID, messageID), func(event, _ string, r reference) bool {
		return event == EventDeliverySent && r.ChatID == chatID && r.MessageID == messageID
	}) {
		ids = append(ids, referenceOf(rec).Delivery)
	}
	return ids
}

// findCycle folds the asking's records anew, nil when there are none.
func (d *Deliveries) findCycle(c CycleID) *cycleLog {
	records := d.findRecords(cycleKey(c), func(event, key string, r reference) bool {
		return (event == EventApprovalNoted || event == EventDeliveryIntended && r.Kind != KindAbsence) && key == c.Key && r.Cycle == c.Seq
	})
	for _, rec := range slices.Clone(records) {
		if rec.Event != EventDeliveryIntended {
			continue
		}
		// An id or a nonce that was taken before counts for nothing.
		r := referenceOf(rec)
		about := d.about(r.Delivery)
		if len(about) == 0 || about[0].Seq != rec.Seq {
			records = slices.DeleteFunc(records, func(other approvallog.Record) bool { return other.Seq == rec.Seq })
			continue
		}
		if taken, ok := d.nonceIntent(r.NonceSHA256); ok && taken.Seq != rec.Seq {
			records = slices.DeleteFunc(records, func(other approvallog.Record) bool { return other.Seq == rec.Seq })
			continue
		}
		records = append(records, about[1:]...)
	}
	slices.SortStableFunc(records, func(a, b approvallog.Record) int { return cmp.Compare(a.Seq, b.Seq) })
	return refold(records).cycles[c]
}

// askings are those of a key that had a card, oldest first: all that owe anything, and the last two.
func (d *Deliveries) askings(key string) []CycleID {
	if d.finder == nil || key == "" {
		return nil
	}
	var list []CycleID
	for _, rec := range d.findRecords(askingsKey(key), func(event, actionKey string, r reference) bool {
		return event == EventDeliveryIntended && actionKey == key && r.Kind == KindCard
	}) {
		id := CycleID{key, referenceOf(rec).Cycle}
		if !slices.Contains(list, id) {
			list = append(list, id)
		}
	}
	return list
}

// deliveriesState is what a snapshot holds of a Deliveries, and the first records of a journal that goes on from archived
// segments. The deliveries themselves are in the journal.
type deliveriesState struct {
	Epoch    int64                `json:"epoch"`
	Opened   EpochInfo            `json:"opened"`
	Closed   bool                 `json:"closed,omitempty"`
	Moved    map[int64]int64      `json:"moved,omitempty"`
	Muted    map[int64]mutedState `json:"muted,omitempty"`
	Absent   time.Time            `json:"absent_until,omitzero"`
	Followed int64                `json:"followed,omitempty"`
	Last     int64                `json:"last"`
	Absences []string             `json:"absences,omitempty"` // deliveries
	Cycles   []CycleID            `json:"cycles,omitempty"`
}

type mutedState struct {
	At     time.Time `json:"at"`
	Until  time.Time `json:"until"`
	Reason string    `json:"reason,omitempty"`
}

func (d *Deliveries) state() deliveriesState {
	s := deliveriesState{
		Epoch: d.epoch, Opened: d.opened, Closed: d.closed, Moved: d.movedTo, Absent: d.absentUntil, Followed: d.followed, Last: d.last,
		Muted: make(map[int64]mutedState),
	}
	for chat, m := range d.muted {
		s.Muted[chat] = mutedState{At: m.at, Until: m.until, Reason: m.reason}
	}
	for id, e := range d.cycles {
		switch {
		case id == CycleID{}:
			for _, p := range e.deliveries {
				s.Absences = append(s.Absences, p.ID)
			}
		case e.needed():
			s.Cycles = append(s.Cycles, id)
		}
	}
	slices.SortFunc(s.Cycles, compareCycles)
	return s
}

// Save returns the state for [Deliveries.Restore].
func (d *Deliveries) Save() ([]byte, error) { return json.Marshal(d.state()) }

// Restore takes up the state that Save returned. It fails, and leaves d as if it were new, when the journal has no such
// deliveries.
func (d *Deliveries) Restore(state []byte) error {
	var s deliveriesState
	err := json.Unmarshal(state, &s)
	if err == nil {
		err = d.take(s)
	}
	if err != nil {
		d.reset()
		return err
	}
	d.last = s.Last
	return nil
}

// take takes up a state, but for the place that it is of.
func (d *Deliveries) take(s deliveriesState) error {
	for _, id := range s.Cycles {
		e := d.cycle(id)
		if e == nil {
			return fmt.Errorf("the journal has no deliveries for record %d, %q", id.Seq, id.Key)
		}
		d.hold(e)
		d.rest(e)
	}
	if s.Epoch > 0 {
		d.epoch, d.opened, d.closed = max(d.epoch, s.Epoch), s.Opened, s.Closed
	}
	d.absentUntil, d.followed = later(d.absentUntil, s.Absent), max(d.followed, s.Followed)
	maps.Copy(d.movedTo, s.Moved)
	for chat, m := range s.Muted {
		d.muted[chat] = muted{at: m.At, until: m.Until, reason: m.Reason}
	}
	for _, id := range s.Absences {
		if d.byID[id] != nil {
			continue
		}
		p, ok := d.findID(id)
		if !ok || p.Kind != KindAbsence {
			return fmt.Errorf("the journal has no word of an absence %q", id)
		}
		d.held(CycleID{}).deliveries = append(d.held(CycleID{}).deliveries, &p)
		d.byID[id] = &p
	}
	return nil
}

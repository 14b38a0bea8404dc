package dispatch

import (
	"slices"
	"strings"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// Apply folds one more record, which must be the next of the journal. A payload that cannot be read is an error: the
// journal is approvald's own, so that is damage and not another writer's dialect.
func (d *Deliveries) Apply(rec approvallog.Record) error {
	d.last = rec.Seq
	switch rec.Event {
	case EventEpochOpened:
		return fold(rec, func(p epochPayload) {
			d.openEpoch(p)
			if rec.Seq == 1 {
				d.followed = p.LogSeq // nothing was ever shown of what came before
			}
		})
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
		return fold(rec, func(p sentPayload) { d.change(p.Delivery, func(known *Delivery) { known.sent(rec.TS, p) }) })
	case EventDeliveryFailed:
		return fold(rec, func(p failedPayload) {
			d.change(p.Delivery, func(known *Delivery) { known.stall(PhaseFailed, p.Reason) })
			if p.RetryAt.After(d.muted[p.ChatID].until) {
				d.muted[p.ChatID] = muted{at: rec.TS, until: p.RetryAt, reason: p.Reason}
			}
			if p.MigrateTo != 0 {
				if known, ok := d.ByID(p.Delivery); ok {
					d.movedTo[known.ChatID] = p.MigrateTo
				}
			}
		})
	case EventDeliveryUnknown:
		return fold(rec, func(p unknownPayload) {
			d.change(p.Delivery, func(known *Delivery) { known.stall(PhaseUnknown, p.Reason) })
		})
	case EventDeliverySettled:
		return fold(rec, func(p settledPayload) {
			d.change(p.Delivery, func(known *Delivery) { known.Settled, known.Gone = p.State, p.How == HowGone })
		})
	case EventDeliveryRefreshed:
		return fold(rec, func(p refreshedPayload) {
			d.change(p.Delivery, func(known *Delivery) {
				known.Said = said{terms: p.Terms, approved: strings.Join(p.Approved, " "), seq: rec.Seq}
			})
		})
	case EventApprovalNoted:
		return fold(rec, func(p notedPayload) { d.note(rec, p) })
	case EventLogFollowed:
		return fold(rec, func(p followedPayload) { d.followed = max(d.followed, p.LogSeq) })
	case EventJournalCarried:
		return d.carryOn(rec)
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

// held is an asking in memory, which is taken there if it is not.
func (d *Deliveries) held(c CycleID) *cycleLog {
	if e := d.cycles[c]; e != nil {
		return e
	}
	e := d.cycle(c)
	if e == nil {
		e = &cycleLog{id: c}
	}
	d.hold(e)
	return e
}

func (d *Deliveries) intend(rec approvallog.Record, p intendedPayload) {
	if p.Delivery == "" || d.used(p.Delivery, p.NonceSHA256) {
		return
	}
	made := &Delivery{
		ID: p.Delivery, Kind: p.Kind, Cycle: CycleID{Key: rec.ActionKey, Seq: p.Cycle}, Epoch: p.Epoch, Seq: rec.Seq, NonceSHA256: p.NonceSHA256,
		PayloadHash: p.PayloadHash, Record: p.Record, ChatID: p.ChatID, ThreadID: p.ThreadID, Phase: PhaseIntended,
	}
	if p.Kind == KindCard {
		made.Renews = p.Renews
		made.Said = said{terms: p.Terms, approved: strings.Join(p.Approved, " "), seq: rec.Seq}
	}
	if p.Kind == KindDigest {
		made.Newest = p.Newest
		made.Group = &group{asker: orElse(p.Origin, p.Asker), name: p.Asker, class: p.Class}
	}
	if p.Kind == KindAbsence {
		made.Absence = absence{from: p.From, until: p.Until}
		d.absentUntil = later(d.absentUntil, p.Until)
	}
	e := d.held(made.Cycle)
	isCard := func(p *Delivery) bool { return p.Kind == KindCard }
	if d.finder != nil && isCard(made) && !slices.ContainsFunc(e.deliveries, isCard) && len(d.unfinalBefore(made.Cycle)) == 0 {
		d.fresh = rec.Seq
	}
	d.byID[made.ID] = made
	if made.NonceSHA256 != "" {
		d.byNonce[made.NonceSHA256] = made
	}
	e.deliveries = append(e.deliveries, made)
	d.rest(e)
}

// change lets a record change the delivery that it is about. In a core's copy of an asking it may have done so before.
func (d *Deliveries) change(id string, change func(*Delivery)) {
	p := d.byID[id]
	if p == nil && d.finder != nil {
		c, ok := d.cycleOf(id)
		if !ok || c == (CycleID{}) {
			return // word of an absence that has come
		}
		d.held(c)
		p = d.byID[id]
	}
	if p == nil {
		return
	}
	e := d.cycles[p.Cycle]
	if e != nil && e.upTo >= d.last {
		return
	}
	change(p)
	if p.Kind == KindAbsence && (p.Phase == PhaseSent || p.Phase == PhaseUnknown) {
		d.tell(p.Absence)
	}
	if e != nil {
		e.replaceBefore()
		d.rest(e)
	}
}

// tell notes that word of an absence has come, or may have: no more is needed of any try.
func (d *Deliveries) tell(a absence) {
	e := d.cycles[CycleID{}]
	if e == nil {
		return
	}
	e.deliveries = slices.DeleteFunc(e.deliveries, func(p *Delivery) bool {
		if p.Absence == a && d.finder != nil {
			d.drop(p)
		}
		return p.Absence == a
	})
}

func (p *Delivery) sent(at time.Time, s sentPayload) {
	if p.MessageID != 0 {
		return
	}
	p.Phase, p.Reason, p.SentAt = PhaseSent, "", at
	p.ChatID, p.MessageID, p.ThreadID = s.ChatID, s.MessageID, s.ThreadID
}

func (p *Delivery) stall(phase Phase, reason string) {
	if p.MessageID == 0 {
		p.Phase, p.Reason = phase, reason
	}
}

func (d *Deliveries) note(rec approvallog.Record, p notedPayload) {
	e := d.held(CycleID{Key: rec.ActionKey, Seq: p.Cycle})
	defer d.rest(e)
	if slices.ContainsFunc(e.notes, func(n Note) bool {
		return n.Approver == p.Approver && n.Channel == p.Channel && n.SenderID == p.SenderID
	}) {
		return
	}
	e.notes = append(e.notes, Note{
		Approver: p.Approver, At: rec.TS, PayloadHash: p.PayloadHash, Record: p.Record, Channel: p.Channel, SenderID: p.SenderID,
		Delivery: p.Delivery, NonceSHA256: p.NonceSHA256, Seq: rec.Seq,
	})
}

package dispatch

import (
	"slices"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

const (
	// tapLife is how long Telegram keeps a tap for a bot that does not fetch it.
	tapLife = 150 * time.Second
	// contactStep is how often it is noted, at most, that there was contact.
	contactStep = 10 * time.Second
)

// contact is when updates could be received.
type contact struct {
	last  time.Time // zero while not known
	noted time.Time // the last that was kept beyond this process
	// recording is the delivery by which word of an absence is on its way to the disk. Until it is there, the contact
	// that ended the absence is not noted, so that a daemon which dies meanwhile leaves the absence to the next.
	recording string
}

// absence is a time without contact that was longer than Telegram keeps a tap.
type absence struct{ from, until time.Time }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// contacted takes note of contact with Telegram. After a gap in which taps were lost, the approvers are told once, if a
// request waited through it.
func (c *Core) contacted(at time.Time) {
	if !c.recovered || !at.After(c.contact.last) {
		return
	}
	before := later(c.contact.last, c.deliveries.absentUntil)
	c.contact.last = at
	if !before.IsZero() && at.Sub(before) > tapLife && c.waitingSince(at) > 0 {
		c.absent(absence{from: before, until: at})
		return
	}
	c.noteContact()
}

func (c *Core) noteContact() {
	if c.contact.recording == "" && c.contact.last.Sub(c.contact.noted) >= contactStep {
		c.contact.noted = c.contact.last
		c.emit(NoteContact{At: c.contact.last})
	}
}

// absent queues word of an absence. It is recorded at once, as intended and not sent, so that neither a restart nor a
// chat that is closed for hours can make it be forgotten or told twice.
func (c *Core) absent(a absence) {
	l := c.lane(c.chat.ID)
	n := newAbsenceNotice(a)
	l.notices = append(l.notices, n)
	p := c.noticeIntent(l, n)
	c.contact.recording = p.Delivery
	failed := failedPayload{Delivery: p.Delivery, Class: string(ResultCancelled), Reason: "not tried yet"}
	c.emit(AppendJournal{Drafts: []approvallog.Draft{
		journalDraft(EventDeliveryIntended, "", p), journalDraft(EventDeliveryFailed, "", failed),
	}})
}

func newAbsenceNotice(a absence) *notice {
	return &notice{kind: KindAbsence, op: newOp(CycleID{}, approvallog.Request{}), absence: a}
}

// absenceRecorded notes the contact that was held back until the absence before it was on disk.
func (c *Core) absenceRecorded(event string, d Delivery) {
	if event == EventDeliveryFailed && d.ID == c.contact.recording {
		c.contact.recording = ""
		c.noteContact()
	}
}

// recoverAbsence takes up word of absences that an earlier daemon owed and certainly did not send. One whose sending was
// cut off is recorded as unknown.
func (c *Core) recoverAbsence() {
	var told, failed []absence
	for d := range c.deliveries.Of(CycleID{}) {
		switch {
		case d.Kind != KindAbsence:
		case d.Phase == PhaseFailed:
			failed = append(failed, d.Absence)
		case d.Phase == PhaseIntended:
			c.journal(EventDeliveryUnknown, "", unknownPayload{Delivery: d.ID, Reason: "the daemon stopped before the answer came"})
			told = append(told, d.Absence)
		default:
			told = append(told, d.Absence)
		}
	}
	l := c.lane(c.chat.ID)
	for _, a := range failed {
		if !slices.Contains(told, a) {
			told = append(told, a)
			l.notices = append(l.notices, newAbsenceNotice(a))
		}
	}
}

// waitingSince counts the requests that were asked before this time and wait still.
func (c *Core) waitingSince(t time.Time) int {
	n := 0
	for _, o := range c.ops {
		if o.pending() && o.digest == nil && o.req.RequestedAt.Before(t) && !o.req.PastDeadline(c.now) {
			n++
		}
	}
	return n
}

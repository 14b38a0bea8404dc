package dispatch

import (
	"testing"
	"time"
)

// TestADigestThatCannotBeRewrittenIsReplaced: after a restart nobody knows the nonce of its buttons, and what comes later
// is shown all the same, by one new message that a further restart does not repeat.
func TestADigestThatCannotBeRewrittenIsReplaced(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	all := r.flood("ci", 1, 30)
	r.settleAll()
	replaced := func(want int) {
		t.Helper()
		if s := r.core.Stats(); s.Undelivered == 0 {
			t.Errorf("nobody was shown the newcomer, and yet: %+v", s)
		}
		calls := r.settleAll()
		if len(calls) != 2 {
			t.Fatalf("calls %+v", calls)
		}
		sent, ok := calls[0].What.(SendDigest)
		if edit, settled := calls[1].What.(EditDigest); !ok || sent.Count != want || !settled || !edit.Replaced || edit.Count != 0 {
			t.Fatalf("calls %+v", calls)
		}
		if s := r.core.Stats(); s.Undelivered != 0 || s.Unsettled != 0 || s.Pending != len(all) {
			t.Errorf("stats %+v", s)
		}
	}
	r.restart(time.Time{}, all...)
	if len(r.calls) != 0 {
		t.Fatalf("nothing is new, and yet: %+v", r.calls)
	}
	all = append(all, r.flood("ci", 50, 1)...)
	replaced(30)
	r.restart(time.Time{}, all...)
	if len(r.calls) != 0 {
		t.Fatalf("said again: %+v", r.calls)
	}

	// One that came while no daemon ran, or shortly before it stopped.
	all = append(all, r.flood("ci", 60, 1)...)
	r.calls = nil
	r.restart(time.Time{}, all...)
	replaced(31)
}

// TestNewcomersToAnOldDigestAreHeard: an edit makes no sound.
func TestNewcomersToAnOldDigestAreHeard(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	r.flood("ci", 1, 30)
	r.settleAll()
	sent := 0
	for i := range int64(60) {
		r.pass(digestPause)
		r.flood("ci", 100+i, 1)
		for _, c := range r.settleAll() {
			if _, ok := c.What.(SendDigest); ok {
				sent++
			}
		}
	}
	if sent != int(60*digestPause/digestFresh) {
		t.Errorf("%d new messages in ten minutes", sent)
	}
	r.pass(digestFresh)
	r.settleAll()
	r.pass(time.Hour)
	if len(r.calls) != 0 {
		t.Errorf("nothing is new, and yet: %+v", r.calls)
	}
	r.flood("ci", 200, 1)
	if calls := r.settleAll(); len(calls) != 2 || calls[0].What.(SendDigest).Count != 90 {
		t.Errorf("calls %+v", calls)
	}
}

// TestDigestIsRemindedOfOnce: as a reply to it, and not again after a restart.
func TestDigestIsRemindedOfOnce(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	r.core.o.Reminder = 0.5
	all := r.flood("ci", 1, 30)
	r.settleAll()
	digest := r.core.ops[CycleID{all[5].Key, all[5].Seq}].held[0]
	d, _ := r.core.deliveries.ByID(digest.delivery)
	r.restart(time.Time{}, all...)
	r.pass(12*time.Hour - time.Minute)
	if len(r.calls) != 0 {
		t.Fatalf("too early: %+v", r.calls)
	}
	r.pass(2 * time.Minute)
	reminders := 0
	for _, c := range r.settleAll() {
		if n, ok := c.What.(RemindDigest); ok && n.ReplyTo == d.MessageID && n.Count == 29 {
			reminders++
		}
	}
	if reminders != 1 {
		t.Errorf("%d reminders", reminders)
	}
	r.restart(time.Time{}, all...)
	r.pass(time.Hour)
	if len(r.calls) != 0 {
		t.Errorf("reminded again: %+v", r.calls)
	}
}

package dispatch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

const deputyChat = 9

// newNoticeRig is a rig that reminds after half of the time, and asks the deputy after three quarters of it.
func newNoticeRig(t *testing.T) *rig {
	r := newRig(t, Chat{ID: 1})
	r.core.o.Reminder, r.core.o.Deputy = 0.5, Chat{ID: deputyChat}
	return r
}

// asked is a request of one hour that was just made.
func (r *rig) asked(key string, seq int64) approvallog.Request {
	req := approvallog.Request{
		Key: key, Seq: seq, Class: "c", State: approvallog.StatePending, PayloadHash: "h", Quorum: 1, RequestedAt: r.now, ExpiresAt: r.now.Add(time.Hour),
	}
	r.step(RequestChanged{Request: req})
	return req
}

// restart makes a new core of what the journal and the log hold.
func (r *rig) restart(contact time.Time, requests ...approvallog.Request) {
	r.t.Helper()
	deliveries := NewDeliveries()
	for _, rec := range r.journal {
		if err := deliveries.Apply(rec); err != nil {
			r.t.Fatal(err)
		}
	}
	r.core = NewCore(r.core.o)
	r.calls, r.expire = nil, nil
	r.step(Loaded{Deliveries: deliveries, LastContact: contact})
	for _, req := range requests {
		r.step(RequestChanged{Request: req})
	}
	r.step(Recovered{})
}

func TestReminderThenDeputy(t *testing.T) {
	r := newNoticeRig(t)
	req := r.asked("k", 1)
	r.reply(Result{Kind: ResultDone, MessageID: 7})
	r.wantIdleUntil(30 * time.Minute)
	if c := r.reply(Result{Kind: ResultDone, MessageID: 8}); c.What.(SendReminder).ReplyTo != 7 || c.ChatID != 1 {
		t.Errorf("the reminder: %+v", c)
	}
	r.wantIdleUntil(15 * time.Minute)
	if c := r.reply(Result{Kind: ResultDone, MessageID: 70}); c.ChatID != deputyChat || c.What.(SendCard).Request.Key != "k" {
		t.Errorf("the deputy: %+v", c)
	}
	if len(r.expire) != 0 {
		t.Error("silence was taken for something")
	}
	// The end is shown on both cards and in place of the reminder, and once there.
	req.State = approvallog.StateGranted
	r.step(RequestChanged{Request: req})
	edits := map[string]bool{}
	for len(r.calls) > 0 {
		c := r.reply(Result{Kind: ResultDone})
		edits[fmt.Sprintf("%d %T", c.ChatID, c.What)] = true
	}
	if len(edits) != 3 || !edits["1 dispatch.EditSettled"] || !edits["1 dispatch.EditReminder"] || !edits["9 dispatch.EditSettled"] {
		t.Errorf("edits %v", edits)
	}
	req.State = approvallog.StateCompleted
	r.step(RequestChanged{Request: req})
	for len(r.calls) > 0 {
		if c := r.reply(Result{Kind: ResultDone}); fmt.Sprintf("%T", c.What) != "dispatch.EditSettled" {
			t.Errorf("after the use of the grant: %+v", c)
		}
	}
	if len(r.core.ops) != 0 || r.core.Stats().Unsettled != 0 {
		t.Errorf("the core keeps %v", r.core.ops)
	}
}

func TestNoReminder(t *testing.T) {
	for name, change := range map[string]func(*approvallog.Request){
		"decided": func(q *approvallog.Request) { q.State = approvallog.StateRejected },
		"expired": func(q *approvallog.Request) { q.State = approvallog.StateExpired },
	} {
		r := newNoticeRig(t)
		req := r.asked("k", 1)
		r.reply(Result{Kind: ResultDone, MessageID: 7})
		change(&req)
		r.step(RequestChanged{Request: req})
		r.reply(Result{Kind: ResultDone})
		r.pass(50 * time.Minute)
		if len(r.calls) != 0 {
			t.Errorf("%s: %+v", name, r.calls)
		}
	}
	r := newRig(t, Chat{ID: 1}) // neither is configured
	r.asked("k", 1)
	r.reply(Result{Kind: ResultDone, MessageID: 7})
	r.pass(59 * time.Minute)
	if len(r.calls) != 0 {
		t.Errorf("not configured: %+v", r.calls)
	}
}

func TestReminderGoesByTheAskersOwnTimeAndByWhenTheCardCame(t *testing.T) {
	r := newNoticeRig(t)
	req := approvallog.Request{
		Key: "k", Seq: 1, State: approvallog.StatePending, RequestedAt: r.now, ExpiresAt: r.now.Add(24 * time.Hour), WaitUntil: r.now.Add(time.Hour),
	}
	r.step(RequestChanged{Request: req})
	r.reply(Result{Kind: ResultClosed, Reason: "kicked"})
	r.now = r.now.Add(40 * time.Minute)
	r.step(ChatOpened{ChatID: 1})
	r.reply(Result{Kind: ResultDone, MessageID: 7})
	// Half of the twenty minutes that were left; the deputy's turn comes before it, in its own chat.
	r.wantIdleUntil(5 * time.Minute)
	if c := r.reply(Result{Kind: ResultDone, MessageID: 70}); c.ChatID != deputyChat {
		t.Errorf("%+v", c)
	}
	r.wantIdleUntil(5 * time.Minute)
	r.reply(Result{Kind: ResultDone, MessageID: 8})
}

func TestTheDeputyIsAskedWhenTheGatesOwnChatIsClosed(t *testing.T) {
	r := newNoticeRig(t)
	req := r.asked("k", 1)
	r.reply(Result{Kind: ResultClosed, Reason: "bot was kicked"})
	for r.now.Before(req.RequestedAt.Add(46 * time.Minute)) {
		r.pass(time.Minute)
		for len(r.calls) > 0 {
			if c := r.reply(Result{Kind: ResultClosed, Reason: "bot was kicked"}); c.ChatID == deputyChat && r.now.Before(req.RequestedAt.Add(45*time.Minute)) {
				t.Fatal("the deputy was asked too early")
			}
		}
	}
	r.step(ChatOpened{ChatID: deputyChat})
	if c := r.reply(Result{Kind: ResultDone, MessageID: 70}); c.ChatID != deputyChat {
		t.Fatalf("%+v", c)
	}
	if s := r.core.Stats(); s.Undelivered != 0 || !s.ChatClosed {
		t.Errorf("stats %+v", s)
	}
	r.step(ChatOpened{ChatID: 1})
	if c := r.reply(Result{Kind: ResultDone, MessageID: 7}); c.ChatID != 1 {
		t.Errorf("the gate's own chat is open again: %+v", c)
	}
	if len(r.calls) != 0 {
		t.Errorf("%+v", r.calls)
	}
}

// TestRestartNeitherRepeatsNorSkipsANotice: the state in which a daemon dies decides what the next one does.
func TestRestartNeitherRepeatsNorSkipsANotice(t *testing.T) {
	for _, c := range []struct {
		name   string
		result ResultKind // of the reminder, empty: the daemon dies while it is under way
		again  bool
	}{
		{"sent", ResultDone, false}, {"lost answer", ResultUnknown, false}, {"cut off", "", false},
		{"limited", ResultLimited, true}, {"refused", ResultRefused, true}, {"offline", ResultTransient, true}, {"closed", ResultClosed, true},
	} {
		r := newNoticeRig(t)
		req := r.asked("k", 1)
		r.reply(Result{Kind: ResultDone, MessageID: 7})
		r.pass(30 * time.Minute)
		if c.result != "" {
			r.reply(Result{Kind: c.result, MessageID: 8, RetryAfter: time.Minute})
		}
		r.pass(time.Second)
		r.restart(time.Time{}, req)
		if c.result == ResultLimited {
			r.wantIdleUntil(time.Minute - time.Second) // also for the next daemon
		}
		if got := len(r.calls) == 1; got != c.again {
			t.Errorf("%s: calls after the restart: %+v", c.name, r.calls)
		}
		if c.again {
			if call := r.reply(Result{Kind: ResultDone, MessageID: 9}); call.What.(SendReminder).ReplyTo != 7 {
				t.Errorf("%s: %+v", c.name, call)
			}
		}
		// One that was never tried because the daemon was down is not skipped either.
		r = newNoticeRig(t)
		req = r.asked("k", 1)
		r.reply(Result{Kind: ResultDone, MessageID: 7})
		r.now = r.now.Add(40 * time.Minute)
		r.restart(time.Time{}, req)
		r.reply(Result{Kind: ResultDone, MessageID: 8})
	}
}

func TestANoticeThatFailsIsTriedAgainInThisLifeToo(t *testing.T) {
	for _, kind := range []ResultKind{ResultRefused, ResultTransient, ResultMigrated} {
		r := newNoticeRig(t)
		r.core.o.Deputy = Chat{}
		r.asked("k", 1)
		r.reply(Result{Kind: ResultDone, MessageID: 7})
		r.pass(30 * time.Minute)
		r.reply(Result{Kind: kind})
		r.wantIdleUntil(pauseNotice.first)
		r.reply(Result{Kind: ResultDone, MessageID: 8})
		r.pass(20 * time.Minute)
		if len(r.calls) != 0 {
			t.Errorf("%s: %+v", kind, r.calls)
		}
	}
}

func TestAbsence(t *testing.T) {
	r := newNoticeRig(t)
	req := r.asked("k", 1)
	r.reply(Result{Kind: ResultDone, MessageID: 7})
	contact := func(at time.Time) {
		r.now = at
		r.step(Contacted{At: at})
	}
	contact(noon)
	contact(noon.Add(tapLife))
	if len(r.calls) != 0 {
		t.Fatalf("no tap was lost: %+v", r.calls)
	}
	contact(noon.Add(2*tapLife + time.Second))
	a := r.calls[0].What.(SendAbsence)
	if !a.From.Equal(noon.Add(tapLife)) || !a.Until.Equal(noon.Add(2*tapLife+time.Second)) || a.Waiting != 1 {
		t.Errorf("%+v", a)
	}
	if text := absenceText(a.From, a.Until, a.Waiting); !strings.Contains(text, "from 12:02:30 UTC to 12:02:31 UTC") || !strings.Contains(text, "/pending") {
		t.Errorf("text: %s", text)
	}
	// Another daemon that starts meanwhile knows an old contact only, and does not tell again what may have been told.
	r.restart(noon, req)
	contact(r.now.Add(time.Second))
	if len(r.calls) != 0 {
		t.Errorf("told again: %+v", r.calls)
	}
	req.State = approvallog.StateWithdrawn
	r.step(RequestChanged{Request: req})
	r.reply(Result{Kind: ResultDone})
	contact(r.now.Add(time.Hour))
	if len(r.calls) != 0 {
		t.Errorf("nothing waits, and yet: %+v", r.calls)
	}
}

func TestAbsenceSurvivesARestartUntilItIsTold(t *testing.T) {
	r := newNoticeRig(t)
	req := r.asked("k", 1)
	r.reply(Result{Kind: ResultDone, MessageID: 7})
	r.step(Contacted{At: r.now})
	r.core.lane(1).close(r.now, r.now.Add(time.Hour), "muted", true)
	r.now = noon.Add(10 * time.Minute)
	r.step(Contacted{At: r.now})
	r.now = noon.Add(20 * time.Minute)
	r.step(Contacted{At: r.now}) // a second absence before the first was told
	if len(r.calls) != 0 {
		t.Fatalf("sent to a muted chat: %+v", r.calls)
	}
	r.restart(r.now, req)
	for i, from := range []time.Time{noon, noon.Add(10 * time.Minute)} {
		c := r.reply(Result{Kind: ResultDone, MessageID: int64(9 + i)}).What.(SendAbsence)
		if !c.From.Equal(from) || !c.Until.Equal(from.Add(10*time.Minute)) {
			t.Errorf("%+v", c)
		}
	}
	r.restart(r.now, req)
	if len(r.calls) != 0 {
		t.Errorf("told twice: %+v", r.calls)
	}
}

// TestContactIsNotedAfterTheAbsence: a daemon that dies between the two leaves the absence to the next one.
func TestContactIsNotedAfterTheAbsence(t *testing.T) {
	r := newNoticeRig(t)
	r.asked("k", 1)
	r.reply(Result{Kind: ResultDone, MessageID: 7})
	noted := func(effects []Effect) (at time.Time, drafts []approvallog.Draft) {
		for _, e := range effects {
			switch e := e.(type) {
			case NoteContact:
				at = e.At
			case AppendJournal:
				drafts = append(drafts, e.Drafts...)
			}
		}
		return at, drafts
	}
	if at, _ := noted(r.core.Step(r.now, Contacted{At: noon})); !at.Equal(noon) {
		t.Errorf("the first contact was noted as %v", at)
	}
	if at, _ := noted(r.core.Step(r.now, Contacted{At: noon.Add(time.Second)})); !at.IsZero() {
		t.Error("noted again within a second")
	}
	late := noon.Add(time.Hour / 2)
	at, drafts := noted(r.core.Step(late, Contacted{At: late}))
	if !at.IsZero() || len(drafts) < 2 {
		t.Fatalf("noted %v before the absence was on disk, drafts %v", at, drafts)
	}
	at, _ = noted(r.core.Step(late, Contacted{At: late.Add(contactStep)}))
	if !at.IsZero() {
		t.Errorf("noted %v before the absence was on disk", at)
	}
	for i, d := range drafts[:2] {
		rec := approvallog.Record{Seq: int64(100 + i), TS: late, Event: d.Event, Payload: mustJSON(t, d.Payload)}
		at, _ = noted(r.core.Step(late, Journaled{Record: rec}))
	}
	if !at.Equal(late.Add(contactStep)) {
		t.Errorf("noted %v once the absence was on disk", at)
	}
}

// TestAFloodOfCardsStarvesNeitherOutcomesNorReminders: of what waits beside cards, something gets its turn after every
// few of them.
func TestAFloodOfCardsStarvesNeitherOutcomesNorReminders(t *testing.T) {
	r := newNoticeRig(t)
	r.core.o.Deputy = Chat{}
	for i := range int64(3) {
		r.asked(fmt.Sprint("early", i), i+1)
		r.reply(Result{Kind: ResultDone, MessageID: i + 1})
	}
	for i := range int64(100) {
		r.asked(fmt.Sprint("flood", i), i+10)
	}
	r.now = r.now.Add(30 * time.Minute)
	req := r.core.ops[CycleID{"early0", 1}].req
	req.State = approvallog.StateRejected
	r.step(RequestChanged{Request: req})
	seen := map[string]int{}
	for i := range 5 * fairCards {
		c := r.reply(Result{Kind: ResultDone, MessageID: int64(100 + i)})
		name := fmt.Sprintf("%T", c.What)
		if _, known := seen[name]; !known {
			seen[name] = i
		}
		if _, edit := c.What.(EditSettled); edit && !c.Fair {
			t.Error("the edit would yield to the cards that wait")
		}
	}
	for _, name := range []string{"dispatch.EditSettled", "dispatch.SendReminder", "dispatch.SendCard"} {
		if at, ok := seen[name]; !ok || at > 3*fairCards {
			t.Errorf("%s came as number %d (%v)", name, at, ok)
		}
	}
}

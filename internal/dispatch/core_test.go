package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// rig runs a core by hand: what it wants recorded is recorded at once, what it wants of Telegram waits in calls.
type rig struct {
	t       *testing.T
	core    *Core
	now     time.Time
	journal []approvallog.Record
	calls   []Call
	expire  []Expire
	answers []Answer
	tries   []OpenFollowUp

	complaints []string
	cancels    int
}

func newRig(t *testing.T, chat Chat) *rig {
	n := byte(0)
	r := &rig{t: t, now: noon, core: NewCore(CoreOptions{
		Chat: chat, Epoch: 1, Nonce: func() Nonce { n++; return testNonce(n) },
		Rules: testRules{rule: Rule{Quorum: 1, Approvers: []Approver{alice, bob}}},
	})}
	r.step(Recovered{})
	return r
}

func (r *rig) step(ev Event) {
	for _, e := range r.core.Step(r.now, ev) {
		switch e := e.(type) {
		case AppendJournal:
			for _, d := range e.Drafts {
				rec := approvallog.Record{Seq: int64(len(r.journal) + 1), TS: r.now, Event: d.Event, Actor: d.Actor, ActionKey: d.ActionKey, Payload: mustJSON(r.t, d.Payload)}
				r.journal = append(r.journal, rec)
				r.step(Journaled{Record: rec})
			}
		case Prepare:
			r.step(Prepared{Cycle: CycleID{e.Request.Key, e.Request.Seq}})
		case Call:
			r.calls = append(r.calls, e)
		case Expire:
			r.expire = append(r.expire, e)
		case Answer:
			r.answers = append(r.answers, e)
		case OpenFollowUp:
			r.tries = append(r.tries, e)
		case Complain:
			r.complaints = append(r.complaints, e.Text)
		case Cancel:
			r.cancels++
		}
	}
}

func (r *rig) ask(key string, seq int64) approvallog.Request {
	req := approvallog.Request{Key: key, Seq: seq, Class: "c", State: approvallog.StatePending, PayloadHash: "h", Quorum: 1, ExpiresAt: noon.Add(24 * time.Hour)}
	r.step(RequestChanged{Request: req})
	return req
}

// reply takes the call that waits and answers it.
func (r *rig) reply(result Result) Call {
	r.t.Helper()
	if len(r.calls) == 0 {
		r.t.Fatal("no call waits")
	}
	c := r.calls[0]
	r.calls = r.calls[1:]
	r.step(CallDone{Call: c.ID, Result: result})
	return c
}

func (r *rig) pass(d time.Duration) {
	r.now = r.now.Add(d)
	r.step(Ticked{})
}

func (r *rig) events() (names []string) {
	for _, rec := range r.journal {
		names = append(names, rec.Event)
	}
	return names
}

func (r *rig) wantEvents(want ...string) {
	r.t.Helper()
	if got := fmt.Sprint(r.events()); got != fmt.Sprint(want) {
		r.t.Errorf("journal %v, want %v", got, want)
	}
}

func (r *rig) wantIdleUntil(d time.Duration) {
	r.t.Helper()
	if len(r.calls) != 0 {
		r.t.Fatalf("a call is made at once: %+v", r.calls)
	}
	r.pass(d - time.Millisecond)
	if len(r.calls) != 0 {
		r.t.Fatalf("a call is made before %v are over", d)
	}
	r.pass(time.Millisecond)
	if len(r.calls) != 1 {
		r.t.Fatalf("%d calls after %v", len(r.calls), d)
	}
}

func TestIntentBeforeSend(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	r.ask("k", 1)
	r.wantEvents(EventDeliveryIntended)
	r.reply(Result{Kind: ResultDone, MessageID: 5})
	r.wantEvents(EventDeliveryIntended, EventDeliverySent)
	if len(r.calls) != 0 {
		t.Errorf("calls %+v", r.calls)
	}
}

func TestLimitedIsObeyedToTheSecondAndOnlyForItsChat(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	r.ask("a", 1)
	r.ask("b", 2)
	r.reply(Result{Kind: ResultLimited, RetryAfter: 6775 * time.Second, Reason: "429"})
	if got := r.core.Stats(); !got.MutedUntil.Equal(noon.Add(6775*time.Second)) || got.Undelivered != 2 {
		t.Errorf("stats %+v", got)
	}
	r.wantIdleUntil(6775 * time.Second)
	// In order.
	if c := r.reply(Result{Kind: ResultDone, MessageID: 1}); c.What.(SendCard).Request.Key != "a" {
		t.Errorf("%+v goes first", c)
	}
	r.reply(Result{Kind: ResultDone, MessageID: 2})
	r.wantEvents(EventDeliveryIntended, EventDeliveryFailed, EventDeliveryIntended, EventDeliverySent, EventDeliveryIntended, EventDeliverySent)
}

// A limit is Telegram's word about a chat: neither a restart nor anything else that happens to the chat ends it.
func TestLimitBindsTheNextDaemonToo(t *testing.T) {
	edits := func(r *rig) approvallog.Request {
		req := r.ask("k", 1)
		r.reply(Result{Kind: ResultDone, MessageID: 1})
		req.State = approvallog.StateRejected
		r.step(RequestChanged{Request: req})
		return req
	}
	for name, begin := range map[string]func(*rig) approvallog.Request{
		"a card":  func(r *rig) approvallog.Request { return r.ask("k", 1) },
		"an edit": edits,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Chat{ID: 1})
			req := begin(r)
			r.reply(Result{Kind: ResultLimited, RetryAfter: time.Hour, Reason: "429"})
			r.pass(time.Minute)
			r.restart(time.Time{}, req)
			r.step(ChatOpened{ChatID: 1})
			r.step(ChatClosed{ChatID: 1, Reason: "blocked"})
			r.step(ChatOpened{ChatID: 1})
			if s := r.core.Stats(); !s.MutedUntil.Equal(noon.Add(time.Hour)) {
				t.Errorf("stats %+v", s)
			}
			r.wantIdleUntil(time.Hour - time.Minute)
		})
	}
}

// The clock was set back by a day while the daemon was down: the limit lasts no longer than Telegram said.
func TestLimitIsNotLengthenedByTheClock(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	req := r.ask("k", 1)
	r.reply(Result{Kind: ResultLimited, RetryAfter: time.Minute})
	r.now = r.now.Add(-24 * time.Hour)
	r.restart(time.Time{}, req)
	r.wantIdleUntil(time.Minute)
}

// What this machine could not read for a moment says nothing about the message, and nothing about the chat.
func TestLocalFailureIsTriedAgainSoon(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	r.ask("a", 1)
	r.reply(Result{Kind: ResultLocal, Reason: "too many open files"})
	r.ask("b", 2)
	if c := r.reply(Result{Kind: ResultDone, MessageID: 1}); c.What.(SendCard).Request.Key != "b" {
		t.Errorf("%+v goes first", c)
	}
	r.wantIdleUntil(pauseTransient.first)

	req := r.ask("c", 3)
	r.reply(Result{Kind: ResultDone, MessageID: 2})
	r.reply(Result{Kind: ResultDone, MessageID: 3})
	req.State = approvallog.StateRejected
	r.step(RequestChanged{Request: req})
	r.reply(Result{Kind: ResultLocal, Reason: "too many open files"})
	r.wantIdleUntil(pauseTransient.first)
	if _, whole := r.calls[0].What.(EditSettled); !whole {
		t.Errorf("then %+v", r.calls[0])
	}
}

func TestMarkupThatIsRefusedIsLeftOut(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	req := r.ask("k", 1)
	r.reply(Result{Kind: ResultDone, MessageID: 1})
	req.State = approvallog.StateRejected
	r.step(RequestChanged{Request: req})
	if c := r.reply(Result{Kind: ResultUnparsed, Reason: "can't parse entities"}); c.What.(EditSettled).Plain {
		t.Errorf("first %+v", c)
	}
	if c := r.reply(Result{Kind: ResultUnparsed, Reason: "can't parse entities"}); !c.What.(EditSettled).Plain {
		t.Errorf("then %+v", c)
	}
	if c := r.reply(Result{Kind: ResultDone}); c.What != (StripButtons{MessageID: 1}) {
		t.Errorf("at last %+v", c)
	}
}

func TestUnknownOutcomeIsSentOnceMoreUnderANewNonce(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	r.ask("k", 1)
	first := r.reply(Result{Kind: ResultUnknown, Reason: "timeout"}).What.(SendCard)
	if f := r.core.Stats().Failing; len(f) != 1 || !f[0].MaybeSeen {
		t.Errorf("nobody is said to have seen it: %+v", f)
	}
	r.wantIdleUntil(pauseUnknown.first)
	second := r.reply(Result{Kind: ResultDone, MessageID: 2}).What.(SendCard)
	if first.Nonce == second.Nonce {
		t.Error("the second copy has the first one's nonce")
	}
	// A tap on the first tells its id, and with the end of the request both are settled.
	d, _ := r.core.deliveries.ByNonce(first.Nonce.Sum())
	r.step(TapRuled{CallbackID: "x", Tap: Tap{ChatID: 1, MessageID: 1}, Ruling: Ruling{Outcome: OutcomeGranted, Delivery: d, Button: Button{Verdict: Approve, Nonce: first.Nonce}}})
	req := r.core.ops[CycleID{"k", 1}].req
	req.State = approvallog.StateGranted
	r.step(RequestChanged{Request: req})
	edited := map[int64]bool{}
	for range 2 {
		edited[r.reply(Result{Kind: ResultDone}).What.(EditSettled).MessageID] = true
	}
	if !edited[1] || !edited[2] || r.core.Stats().Unsettled != 0 {
		t.Errorf("edited %v, stats %+v", edited, r.core.Stats())
	}
}

func TestThreadGone(t *testing.T) {
	r := newRig(t, Chat{ID: 1, ThreadID: 42})
	r.ask("k", 1)
	if c := r.reply(Result{Kind: ResultThread}); c.What.(SendCard).ThreadID != 42 {
		t.Errorf("first %+v", c)
	}
	if c := r.reply(Result{Kind: ResultDone, MessageID: 1}); c.What.(SendCard).ThreadID != 0 || c.ChatID != 1 {
		t.Errorf("then %+v", c)
	}
	if r.core.Stats().Degraded == "" {
		t.Error("not told as degraded")
	}
}

func TestMigratedChat(t *testing.T) {
	migrated := Result{Kind: ResultMigrated, MigrateTo: -1005, Reason: "the group was upgraded", Class: "migrated"}
	t.Run("told", func(t *testing.T) {
		r := newRig(t, Chat{ID: -5})
		r.ask("k", 1)
		r.reply(migrated)
		r.wantEvents(EventDeliveryIntended, EventDeliveryFailed)
		if s := r.core.Stats(); s.ChatProblem != migrated.Reason || s.Undelivered != 1 {
			t.Errorf("stats %+v", s)
		}
		r.wantIdleUntil(pauseClosed.first)
	})
	t.Run("followed", func(t *testing.T) {
		r := newRig(t, Chat{ID: -5, FollowMigration: true})
		r.ask("a", 1)
		r.ask("b", 2)
		r.reply(migrated)
		for _, key := range []string{"a", "b"} {
			if c := r.reply(Result{Kind: ResultDone, MessageID: 1}); c.ChatID != -1005 || c.What.(SendCard).Request.Key != key {
				t.Errorf("%+v, want %s in the new chat", c, key)
			}
		}
	})
}

func TestClosedChat(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	r.ask("k", 1)
	r.reply(Result{Kind: ResultClosed, Reason: "bot was kicked", Class: "forbidden"})
	s := r.core.Stats()
	if s.ChatProblem != "bot was kicked" || len(s.Failing) != 1 || s.Failing[0].Reason != "bot was kicked" {
		t.Errorf("stats %+v", s)
	}
	if len(r.calls) != 0 {
		t.Fatal("tried again at once")
	}
	r.step(ChatOpened{ChatID: 1})
	r.reply(Result{Kind: ResultDone, MessageID: 3})
	if s := r.core.Stats(); s.Undelivered != 0 || s.ChatProblem != "" {
		t.Errorf("stats %+v", s)
	}
}

func TestRefusedMessageStopsNoOther(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	r.ask("bad", 1)
	r.ask("good", 2)
	r.reply(Result{Kind: ResultRefused, Reason: "Bad Request"})
	if c := r.reply(Result{Kind: ResultDone, MessageID: 1}); c.What.(SendCard).Request.Key != "good" {
		t.Errorf("%+v", c)
	}
	r.wantIdleUntil(pauseRefused.first)
}

func TestEndWhileSendWaits(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	req := r.ask("k", 1)
	req.State = approvallog.StateWithdrawn
	r.step(RequestChanged{Request: req})
	if r.cancels != 1 {
		t.Errorf("%d cancels", r.cancels)
	}
	r.reply(Result{Kind: ResultCancelled})
	r.wantEvents(EventDeliveryIntended, EventDeliveryFailed)
	if len(r.calls) != 0 || len(r.core.ops) != 0 {
		t.Errorf("calls %+v, operations %v", r.calls, r.core.ops)
	}
}

func TestExpiry(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	req := r.ask("k", 1)
	r.reply(Result{Kind: ResultDone, MessageID: 1})
	if next, ok := r.core.Next(); !ok || !next.Equal(req.ExpiresAt) {
		t.Errorf("the core wakes at %v", next)
	}
	r.pass(24 * time.Hour)
	if len(r.expire) != 1 {
		t.Fatalf("%d expiries", len(r.expire))
	}
	r.step(Expired{Cycle: CycleID{"k", 1}, Err: "locked"})
	r.pass(expiryRetry)
	if len(r.expire) != 2 {
		t.Fatalf("%d expiries after a failed one", len(r.expire))
	}
	req.State = approvallog.StateExpired
	r.step(Expired{Cycle: CycleID{"k", 1}, Request: req})
	r.reply(Result{Kind: ResultRefused, Reason: "can't parse entities"})
	if c := r.reply(Result{Kind: ResultDone}); c.What != (StripButtons{MessageID: 1}) {
		t.Errorf("after a refused text: %+v", c)
	}
	if d := r.journal[len(r.journal)-1]; d.Event != EventDeliverySettled || string(d.Payload) != `{"delivery":"`+r.firstDelivery()+`","state":"expired","how":"buttons","reason":"can't parse entities"}` {
		t.Errorf("recorded %s %s", d.Event, d.Payload)
	}
	if len(r.core.ops) != 0 || len(r.core.nonces) != 0 {
		t.Error("the core still keeps what is done")
	}
}

func (r *rig) firstDelivery() string {
	p, err := decode[intendedPayload](r.journal[0])
	if err != nil {
		r.t.Fatal(err)
	}
	return p.Delivery
}

func TestSettleRetries(t *testing.T) {
	for _, c := range []struct {
		result Result
		wait   time.Duration // 0: done at once
	}{
		{Result{Kind: ResultGone}, 0}, {Result{Kind: ResultClosed}, 0}, {Result{Kind: ResultDone}, 0},
		{Result{Kind: ResultLimited, RetryAfter: 300 * time.Second}, 300 * time.Second},
		{Result{Kind: ResultTransient}, pauseTransient.first}, {Result{Kind: ResultLocal}, pauseTransient.first},
	} {
		r := newRig(t, Chat{ID: 1})
		req := r.ask("k", 1)
		r.reply(Result{Kind: ResultDone, MessageID: 1})
		req.State = approvallog.StateRejected
		r.step(RequestChanged{Request: req})
		r.reply(c.result)
		if c.wait > 0 {
			r.wantIdleUntil(c.wait)
			r.reply(Result{Kind: ResultDone})
		}
		if r.core.Stats().Unsettled != 0 || len(r.calls) != 0 {
			t.Errorf("%s: %+v, calls %v", c.result.Kind, r.core.Stats(), r.calls)
		}
	}
}

func TestOneAnswerACallbackID(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	for range 3 {
		r.step(TapRuled{CallbackID: "same", Ruling: refusal(OutcomeStranger)})
	}
	for i := range 100 {
		r.step(TapRuled{CallbackID: fmt.Sprint(i), Ruling: refusal(OutcomeStranger)})
	}
	if len(r.answers) != 101 || len(r.journal) != refusedPerHour {
		t.Errorf("%d answers and %d records of 103 taps by a stranger", len(r.answers), len(r.journal))
	}
	if got := r.core.Stats().RefusedTaps; got != 103 {
		t.Errorf("%d refused taps counted", got)
	}
}

// TestSentIsRecordedOnce: a tap and the answer to the send tell of the same message in either order, before any of the
// two records is on disk.
func TestSentIsRecordedOnce(t *testing.T) {
	for _, tapFirst := range []bool{true, false} {
		r := newRig(t, Chat{ID: 1})
		r.ask("k", 1)
		c := r.calls[0]
		d, _ := r.core.deliveries.ByID(r.firstDelivery())
		tap := TapRuled{CallbackID: "x", Tap: Tap{ChatID: 1, MessageID: 9}, Ruling: Ruling{Outcome: OutcomeNoted, Delivery: d, Button: Button{Verdict: Approve, Nonce: c.What.(SendCard).Nonce}}}
		done := CallDone{Call: c.ID, Result: Result{Kind: ResultDone, MessageID: 9}}
		var effects []Effect
		if tapFirst {
			effects = append(r.core.Step(r.now, tap), r.core.Step(r.now, done)...)
		} else {
			effects = append(r.core.Step(r.now, done), r.core.Step(r.now, tap)...)
		}
		n := 0
		for _, e := range effects {
			if a, ok := e.(AppendJournal); ok {
				n += len(a.Drafts)
				r.step(Journaled{Record: approvallog.Record{Seq: 2, Event: a.Drafts[0].Event, ActionKey: "k", Payload: mustJSON(t, a.Drafts[0].Payload)}})
			}
		}
		if n != 1 || r.core.lane(1).busy != nil {
			t.Errorf("tap first %v: %d records, the lane does %+v", tapFirst, n, r.core.lane(1).busy)
		}
	}
}

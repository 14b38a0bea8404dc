package dispatch

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
)

func (r *rig) wantTries(want ...string) {
	r.t.Helper()
	var got []string
	for _, e := range r.tries {
		got = append(got, e.Parent.FollowUpKey)
	}
	r.tries = nil
	if len(got) != len(want) {
		r.t.Fatalf("tried %q, want %q", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			r.t.Fatalf("tried %q, want %q", got, want)
		}
	}
}

func done1(key string, seq int64) approvallog.Request {
	return approvallog.Request{Key: key, Seq: seq, State: approvallog.StateCompleted, FollowUp: "f", FollowUpKey: approvallog.FollowUpKey(key, seq)}
}

func TestAFollowUpIsTriedUntilItIsAskedFor(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	both := []approvallog.Request{done1("b", 2), done1("a", 1)}
	r.step(FollowUpsDue{Parents: both})
	r.wantTries("a/then-1", "b/then-2")
	r.step(FollowUpsDue{Parents: both}) // each look at the log tells them again
	r.wantTries()
	r.step(FollowUpOpened{Key: "b/then-2"})
	r.step(FollowUpsDue{Parents: both[1:]})
	r.wantTries()

	// What stands in its way is told once, and it is tried again, ever less often.
	const full = "5 requests are pending"
	for i, wait := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		r.step(FollowUpOpened{Key: "a/then-1", Err: full})
		if len(r.complaints) != 1 {
			t.Fatalf("try %d: %d complaints: %v", i, len(r.complaints), r.complaints)
		}
		f := r.core.Alarm().Failing
		if len(f) != 1 || f[0].Key != "a/then-1" || f[0].Reason != `the follow-up of "a" could not be asked for: `+full || !f[0].Since.Equal(noon) {
			t.Fatalf("failing: %+v", f)
		}
		if next, ok := r.core.Next(); !ok || !next.Equal(r.now.Add(wait*time.Second)) {
			t.Fatalf("try %d: next at %v after %v", i, next.Sub(r.now), wait)
		}
		r.pass(wait*time.Second - time.Millisecond)
		r.wantTries()
		r.pass(time.Millisecond)
		r.wantTries("a/then-1")
	}
	r.step(FollowUpsDue{}) // somebody else asked for it
	r.step(FollowUpOpened{Key: "a/then-1", Err: "late"})
	if f := r.core.Alarm().Failing; len(f) != 0 || len(r.complaints) != 1 {
		t.Errorf("failing: %+v, complaints %v", f, r.complaints)
	}
	if _, ok := r.core.Next(); ok {
		t.Error("the core wants to be woken for nothing")
	}
}

// Follow-ups come after the recovery of what waits, and before anything is received.
func TestRecoveryAsksForWhatIsDue(t *testing.T) {
	c := NewCore(CoreOptions{Chat: Chat{ID: 1}, Epoch: 1, Rules: testRules{rule: Rule{Quorum: 1, Approvers: []Approver{alice}}}, Nonce: func() Nonce { return testNonce(1) }})
	expired := approvallog.Request{Key: "old", Seq: 1, State: approvallog.StatePending, ExpiresAt: noon}
	if effects := append(c.Step(noon, RequestChanged{Request: expired}), c.Step(noon, FollowUpsDue{Parents: []approvallog.Request{done1("a", 2)}})...); len(effects) != 0 {
		t.Fatalf("before the recovery: %+v", effects)
	}
	effects := c.Step(noon, Recovered{})
	if len(effects) != 2 {
		t.Fatalf("%+v", effects)
	}
	_, first := effects[0].(Expire)
	_, second := effects[1].(OpenFollowUp)
	if !first || !second {
		t.Errorf("%+v", effects)
	}
}

// plans is a store of payloads.
type plans map[string]string

func (p plans) Payload(hash string) (canonical, file []byte, err error) {
	text, ok := p[hash]
	switch {
	case !ok:
		return nil, nil, &gate.Error{Code: gate.CodePayloadDamaged, Message: "missing"}
	case text == "":
		return nil, nil, &gate.Error{Code: gate.CodeInternal, Message: "too many open files"}
	}
	return []byte(text), nil, nil
}

func TestACardNamesWhatComesAfter(t *testing.T) {
	hash := func(c string) string { return hashOf([]byte(c)) }
	plan := func(class, next string) string {
		return `{"kind":"follow-up","class":"` + class + `","summary":"s","payload_hash":"` + hash("p") + `","reversible":true,"follow_up":"` + next + `"}`
	}
	l := New(Options{Payloads: plans{
		hash("1"): plan("a.one", hash("2")), hash("2"): plan("a.two", ""), hash("odd"): `{"kind":"text","text":"x"}`,
		hash("lost"): plan("a.lost", hash("nowhere")), hash("round"): plan("a.round", hash("round")), hash("busy"): "",
	}})
	for name, want := range map[string][]string{
		"": nil, "1": {"a.one", "a.two"}, "2": {"a.two"}, "odd": {unreadablePlan}, "nowhere": {unreadablePlan}, "lost": {"a.lost", unreadablePlan},
		"round": {"a.round", "a.round", "a.round", "a.round"},
	} {
		req := approvallog.Request{}
		if name != "" {
			req.FollowUp = hash(name)
		}
		got, err := l.classesAfter(req)
		if err != nil || len(got) != len(want) {
			t.Errorf("%s: %q, %v", name, got, err)
			continue
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
	if _, err := l.classesAfter(approvallog.Request{FollowUp: hash("busy")}); !passing(errors.Unwrap(err)) && !passing(err) {
		t.Errorf("a plan that cannot be read for the moment: %v", err)
	}
}

// An error that no later try can mend ends the loop; any other is told to the core.
func TestOpeningAFollowUpFails(t *testing.T) {
	var fail error
	l := New(Options{FollowUps: opener(func() error { return fail })})
	fail = &gate.Error{Code: gate.CodeQueueFull, Message: "full"}
	if ev, err := l.openFollowUp(t.Context(), done1("a", 1)); err != nil || ev != (FollowUpOpened{Key: "a/then-1", Err: "full"}) {
		t.Errorf("%+v, %v", ev, err)
	}
	fail = &gate.Error{Code: gate.CodeFenced, Message: "fenced", Err: approvallog.ErrFenced}
	if _, err := l.openFollowUp(t.Context(), done1("a", 1)); !errors.Is(err, approvallog.ErrFenced) {
		t.Errorf("%v", err)
	}
}

type opener func() error

func (f opener) OpenFollowUp(context.Context, approvallog.Request) (approvallog.Request, error) {
	return approvallog.Request{}, f()
}

// After a long time without a daemon many may be due. They are asked for a few at a time, oldest first, and a failure holds up no other.
func TestManyFollowUpsAreAskedForAFewAtATime(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	var parents []approvallog.Request
	var want []string
	for i := range 20 {
		parents = append(parents, done1("k", int64(20-i)))
		want = append(want, approvallog.FollowUpKey("k", int64(i+1)))
	}
	r.step(FollowUpsDue{Parents: parents})
	var got []string
	for len(r.tries) > 0 {
		if len(r.tries) > maxOpening {
			t.Fatalf("%d at a time", len(r.tries))
		}
		key := r.tries[0].Parent.FollowUpKey
		r.tries = r.tries[1:]
		got = append(got, key)
		ev := FollowUpOpened{Key: key}
		if len(got) == 3 {
			ev.Err = "full"
		}
		r.step(ev)
	}
	if !slices.Equal(got, want) {
		t.Errorf("asked for %q", got)
	}
	if next, ok := r.core.Next(); !ok || !next.Equal(r.now.Add(followUpRetry)) {
		t.Errorf("the one that failed is tried again at %v, %v", next, ok)
	}
}

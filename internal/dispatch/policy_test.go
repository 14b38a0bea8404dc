package dispatch

import (
	"context"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// TestAnotherDeputyIsAsked: with the deputy's chat another, what is due goes to the new one and no more to the old; without one, to
// nobody. The message that is there is settled all the same.
func TestAnotherDeputyIsAsked(t *testing.T) {
	rules := testRules{rule: Rule{Quorum: 1, Approvers: []Approver{alice, bob}}}
	r := newRig(t, Chat{ID: 1})
	r.step(Configured{Policy{Rules: rules, Deputy: Chat{ID: 2}}})
	req := approvallog.Request{Key: "k", Seq: 1, Class: "c", State: approvallog.StatePending, PayloadHash: "h", Quorum: 1, RequestedAt: noon, ExpiresAt: noon.Add(24 * time.Hour)}
	r.step(RequestChanged{Request: req})
	r.reply(Result{Kind: ResultDone, MessageID: 5})
	r.pass(13 * time.Hour)
	if c := r.reply(Result{Kind: ResultDone, MessageID: 6}); c.ChatID != 2 {
		t.Fatalf("the first deputy: %+v", c)
	}
	r.step(Configured{Policy{Rules: rules, Deputy: Chat{ID: 3}}})
	if c := r.reply(Result{Kind: ResultTransient}); c.ChatID != 3 {
		t.Fatalf("the second deputy: %+v", c)
	}
	r.step(Configured{Policy{Rules: rules}})
	r.pass(time.Hour)
	if len(r.calls) != 0 {
		t.Errorf("without a deputy: %+v", r.calls)
	}
	req.State = approvallog.StateRejected
	r.step(RequestChanged{Request: req})
	settled := map[int64]bool{}
	for len(r.calls) > 0 {
		settled[r.reply(Result{Kind: ResultDone}).ChatID] = true
	}
	if !settled[1] || !settled[2] || settled[3] {
		t.Errorf("settled in %v", settled)
	}
}

// TestAReminderThatComesLaterIsSent: a configuration that reminds from now on reminds of what waits already.
func TestAReminderThatComesLaterIsSent(t *testing.T) {
	rules := testRules{rule: Rule{Quorum: 1, Approvers: []Approver{alice, bob}}}
	r := newRig(t, Chat{ID: 1})
	req := approvallog.Request{Key: "k", Seq: 1, Class: "c", State: approvallog.StatePending, PayloadHash: "h", Quorum: 1, RequestedAt: noon, ExpiresAt: noon.Add(24 * time.Hour)}
	r.step(RequestChanged{Request: req})
	r.reply(Result{Kind: ResultDone, MessageID: 5})
	r.step(Configured{Policy{Rules: rules, Reminder: 0.5}})
	r.pass(11 * time.Hour)
	if len(r.calls) != 0 {
		t.Fatalf("reminded too early: %+v", r.calls)
	}
	r.pass(2 * time.Hour)
	if len(r.calls) != 1 {
		t.Fatalf("calls %+v", r.calls)
	}
	if _, ok := r.calls[0].What.(SendReminder); !ok {
		t.Errorf("got %+v", r.calls[0])
	}
}

// TestAPolicyWaitsForTheDecisionInHand: once Configure has returned, nothing is decided by the policy before.
func TestAPolicyWaitsForTheDecisionInHand(t *testing.T) {
	l := New(Options{Rules: testRules{}})
	l.deciding.RLock() // a decision is being written
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.Configure(Policy{Rules: testRules{}, ConfigHash: "new"})
	}()
	select {
	case <-done:
		t.Fatal("it did not wait")
	case <-time.After(20 * time.Millisecond):
	}
	l.deciding.RUnlock()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case <-done:
	case <-ctx.Done():
		t.Fatal("it waits for ever")
	}
	if l.policy().ConfigHash != "new" {
		t.Error("the policy is not in force")
	}
}

package dispatch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/telegramtest"
)

// flood asks n times as one asker, in the core.
func (r *rig) flood(asker string, from, n int64) (all []approvallog.Request) {
	for seq := from; seq < from+n; seq++ {
		req := approvallog.Request{
			Key: fmt.Sprintf("%s-%d", asker, seq), Seq: seq, Requester: "agent:" + asker, Class: "c", Summary: "s", Reversible: true,
			State: approvallog.StatePending, PayloadHash: "h", Quorum: 1, RequestedAt: r.now, ExpiresAt: r.now.Add(24 * time.Hour),
		}
		all = append(all, req)
		r.step(RequestChanged{Request: req})
	}
	return all
}

// names are the kinds of the calls that are made until none is, each of which succeeds.
func (r *rig) settleAll() (calls []Call) {
	for id := int64(100); len(r.calls) > 0; id++ {
		calls = append(calls, r.reply(Result{Kind: ResultDone, MessageID: id}))
	}
	return calls
}

func TestFloodBecomesADigest(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	all := r.flood("ci", 1, 38)
	r.step(RequestChanged{Request: approvallog.Request{
		Key: "single", Seq: 90, Requester: "agent:other", Class: "c", State: approvallog.StatePending, PayloadHash: "h", Quorum: 1, ExpiresAt: noon.Add(time.Hour),
	}})
	calls := r.settleAll()
	if len(calls) != 3 {
		t.Fatalf("%d calls %+v", len(calls), calls)
	}
	if card, ok := calls[1].What.(SendCard); !ok || card.Request.Key != "single" {
		t.Errorf("the other asker's request comes after %+v", calls[1].What)
	}
	sent, ok := calls[2].What.(SendDigest)
	if !ok || sent.Count != 37 || len(sent.Listed) != digestListed || sent.Listed[0].Key != "ci-2" || sent.Asker != "agent:ci" {
		t.Fatalf("digest %+v", calls[2].What)
	}
	if s := r.core.Stats(); s.Pending != 39 || s.Undelivered != 0 {
		t.Errorf("stats %+v", s)
	}

	open := func(req approvallog.Request) []Call {
		d, _ := r.core.deliveries.ByNonce(sent.Nonce.Sum())
		b := Button{Verdict: Open, Reason: requestTag(CycleID{req.Key, req.Seq}), Nonce: sent.Nonce}
		r.step(TapRuled{CallbackID: req.Key, Ruling: Ruling{Outcome: OutcomeOpened, Delivery: d, Button: b}})
		return r.settleAll()
	}
	calls = open(all[1])
	if len(calls) != 1 || calls[0].What.(SendCard).Request.Key != "ci-2" {
		t.Fatalf("opening sends %+v", calls)
	}
	if calls = open(all[1]); len(calls) != 0 {
		t.Errorf("opening twice sends %+v", calls)
	}
	r.pass(digestPause)
	calls = r.settleAll()
	if len(calls) != 1 {
		t.Fatalf("the digest is not brought up to date: %+v", calls)
	}
	if e := calls[0].What.(EditDigest); e.Count != 36 || e.Listed[0].Key != "ci-3" {
		t.Errorf("edit %+v", e)
	}

	// More of the same join it without a message; what cannot be undone never does.
	r.flood("ci", 40, 5)
	r.pass(digestPause)
	if calls = r.settleAll(); len(calls) != 1 || calls[0].What.(EditDigest).Count != 41 {
		t.Errorf("calls %+v", calls)
	}
	hard := approvallog.Request{
		Key: "hard", Seq: 91, Requester: "agent:ci", Class: "c", State: approvallog.StatePending, PayloadHash: "h", Quorum: 1, ExpiresAt: noon.Add(time.Hour),
	}
	r.step(RequestChanged{Request: hard})
	if calls = r.settleAll(); len(calls) != 1 || calls[0].What.(SendCard).Request.Key != "hard" {
		t.Errorf("calls %+v", calls)
	}

	// When it stands for nothing any more, it says so and has no buttons.
	for _, o := range r.core.sorted() {
		if o.digest == nil && o.req.Requester == "agent:ci" {
			req := o.req
			req.State = approvallog.StateWithdrawn
			r.step(RequestChanged{Request: req})
		}
	}
	r.pass(digestPause)
	settled := 0
	for _, c := range r.settleAll() {
		if e, ok := c.What.(EditDigest); ok && e.Count == 0 {
			settled++
		}
	}
	if s := r.core.Stats(); settled != 1 || s.Unsettled != 0 || len(r.core.digests) != 0 {
		t.Errorf("settled %d times, %+v, %v", settled, s, r.core.digests)
	}
}

func TestTwentyAreNoFlood(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	r.flood("ci", 1, maxSingles)
	for _, c := range r.settleAll() {
		if _, ok := c.What.(SendCard); !ok {
			t.Errorf("call %+v", c)
		}
	}
	r.flood("ci", 50, minDigest-1) // busy, but no flood
	for _, c := range r.settleAll() {
		if _, ok := c.What.(SendCard); !ok {
			t.Errorf("call %+v", c)
		}
	}
}

// TestDigestAfterRestart: the digest that is in the chat goes on standing for its requests, and nothing is sent.
func TestDigestAfterRestart(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	all := r.flood("ci", 1, 30)
	calls := r.settleAll()
	nonce := calls[1].What.(SendDigest).Nonce
	r.restart(time.Time{}, all...)
	if len(r.calls) != 0 {
		t.Fatalf("calls %+v", r.calls)
	}
	if s := r.core.Stats(); s.Pending != 30 || s.Undelivered != 0 {
		t.Errorf("stats %+v", s)
	}
	d, ok := r.core.deliveries.ByNonce(nonce.Sum())
	if !ok || d.Kind != KindDigest {
		t.Fatal("the digest is forgotten")
	}
	b := Button{Verdict: Open, Reason: requestTag(CycleID{all[5].Key, all[5].Seq}), Nonce: nonce}
	r.step(TapRuled{CallbackID: "1", Ruling: Ruling{Outcome: OutcomeOpened, Delivery: d, Button: b}})
	calls = r.settleAll()
	if len(calls) != 2 || calls[0].What.(SendCard).Request.Key != all[5].Key || calls[1].What.(EditDigest).Count != 28 {
		t.Errorf("calls %+v", calls)
	}
	// Its requests ended while no daemon ran.
	r.restart(time.Time{})
	if calls = r.settleAll(); len(calls) != 1 || calls[0].What.(EditDigest).Count != 0 {
		t.Errorf("calls %+v", calls)
	}
}

// TestDigestThatCannotBeSent: its requests are delivered one by one.
func TestDigestThatCannotBeSent(t *testing.T) {
	for _, kind := range []ResultKind{ResultRefused, ResultUnknown} {
		r := newRig(t, Chat{ID: 1})
		r.flood("ci", 1, 30)
		r.reply(Result{Kind: ResultDone, MessageID: 5})
		if c := r.reply(Result{Kind: kind}); fmt.Sprintf("%T", c.What) != "dispatch.SendDigest" {
			t.Fatalf("call %+v", c)
		}
		cards := 0
		for _, c := range r.settleAll() {
			if _, ok := c.What.(SendCard); ok {
				cards++
			}
		}
		if cards != 29 || r.core.Stats().Undelivered != 0 {
			t.Errorf("%s: %d cards, %+v", kind, cards, r.core.Stats())
		}
	}
}

func TestJudgeDigest(t *testing.T) {
	for _, c := range []struct {
		name   string
		sender int64
		b      Button
		want   Outcome
	}{
		{"open", 111, Button{Verdict: Open, Reason: requestTag(CycleID{"k", 3})}, OutcomeOpened},
		{"a button that decides", 111, Button{Verdict: Approve}, OutcomeUnknownButton},
		{"no approver of the class", 333, Button{Verdict: Open, Reason: "00000000"}, OutcomeNotForClass},
		{"a stranger", 444, Button{Verdict: Open, Reason: "00000000"}, OutcomeStranger},
	} {
		tc := goodTap(Approve)
		tc.ev.Delivery.Kind, tc.ev.Delivery.Cycle, tc.ev.Delivery.Group = KindDigest, CycleID{Seq: 3}, &group{asker: "agent:ci", class: "deploy.x"}
		tc.ev.Request = approvallog.Request{}
		tc.tap.SenderID, tc.tap.Data = c.sender, c.b.Data()
		if r := tc.judge(); r.Outcome != c.want || r.Record != nil || r.Note != nil || r.Text == "" {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
	tc := goodTap(Approve)
	tc.tap.Data = Button{Verdict: Open, Reason: "00000000", Nonce: testNonce(7)}.Data()
	if r := tc.judge(); r.Outcome != OutcomeUnknownButton {
		t.Errorf("open on a card: %s", r.Outcome)
	}
}

// TestDigestInTheChat goes the whole way: a flood, one digest, a card opened from it and decided, the others expiring.
func TestDigestInTheChat(t *testing.T) {
	h := newHouse(t)
	agent := h.open(nil)
	t.Cleanup(agent.close)
	for i := range 40 {
		h.askAs(agent, "agent:<b>ci", fmt.Sprintf("f<%d>", i), true)
	}
	d := h.start()
	var digest telegramtest.Message
	h.waitFor("the digest", func(s telegramtest.State) bool {
		all := s.Messages(testChat)
		i := slices.IndexFunc(all, func(m telegramtest.Message) bool { return strings.HasPrefix(m.Text, "📚 ") })
		if i >= 0 {
			digest = all[i]
		}
		return i >= 0
	})
	if !strings.HasPrefix(digest.Text, "📚 40 waiting from agent:<b>ci · one · can be undone") || !strings.Contains(digest.Text, "1. f<0> until ") {
		t.Errorf("digest\n%s", digest.Text)
	}
	for _, row := range digest.Buttons {
		for _, b := range row {
			if !strings.HasPrefix(b.Text, "Open ") {
				t.Errorf("the digest has the button %q", b.Text)
			}
		}
	}
	h.stats(d, func(s Stats) bool { return s.Pending == 40 && s.Undelivered == 0 })
	h.askAs(agent, "agent:other", "alone", true)
	h.card("alone", withButtons)
	h.tap(alice, digest, "Open 3")
	m := h.card("f<2>", func(m telegramtest.Message) bool { return withButtons(m) && strings.HasPrefix(m.Text, "🔒") })
	if !strings.Contains(m.Text, "argv  make 'f<2>'") {
		t.Errorf("the opened card does not show its payload:\n%s", m.Text)
	}
	if a := h.tap(alice, m, "Approve"); a.Text != "Granted." {
		t.Errorf("alice was told %+v", a)
	}
	if got := h.state(d.files, "f<2>").State; got != approvallog.StateGranted {
		t.Errorf("the log says %s", got)
	}
	if got := h.state(d.files, "f<3>").State; got != approvallog.StatePending {
		t.Errorf("a request that nobody opened is %s", got)
	}
	if n := h.sends(); n != 3 {
		t.Errorf("%d messages were sent, want the digest and two cards", n)
	}
}

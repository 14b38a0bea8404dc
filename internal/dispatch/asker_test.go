package dispatch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// from asks as a process of a user, under any name.
func (r *rig) from(uid uint32, name, key string, seq int64, reversible bool) approvallog.Request {
	req := approvallog.Request{
		Key: key, Seq: seq, Requester: "agent:" + name, Peer: &approvallog.Peer{UID: uid}, Class: "c", Summary: "s", Reversible: reversible,
		State: approvallog.StatePending, PayloadHash: "h", Quorum: 1, RequestedAt: r.now, ExpiresAt: r.now.Add(24 * time.Hour),
	}
	r.step(RequestChanged{Request: req})
	return req
}

// cardsOf are the keys of the cards among calls, in their order.
func cardsOf(calls []Call) (keys []string) {
	for _, c := range calls {
		if card, ok := c.What.(SendCard); ok {
			keys = append(keys, card.Request.Key)
		}
	}
	return keys
}

// TestNewNamesGainNoTurns: one user id has one turn, however many names it takes, and its names have turns among
// themselves.
func TestNewNamesGainNoTurns(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	for seq := range int64(30) {
		r.from(1000, fmt.Sprint("n", seq), fmt.Sprint("flood-", seq), 1+seq, false)
	}
	for seq := range int64(3) {
		r.from(1001, "steady", fmt.Sprint("steady-", seq), 40+seq, false)
	}
	r.from(1001, "other", "other-0", 50, false)
	// The first of the flood is on its way already when the others come.
	got := cardsOf(r.settleAll())
	want := []string{"flood-0", "steady-0", "flood-1", "other-0", "flood-2", "steady-1", "flood-3", "steady-2", "flood-4"}
	if len(got) != 34 || fmt.Sprint(got[:len(want)]) != fmt.Sprint(want) {
		t.Errorf("the order is %v, want it to begin with %v", got, want)
	}
}

// TestAFloodOfNewNamesBecomesADigest: a name for each request keeps nobody out of a digest, which says whose it is.
func TestAFloodOfNewNamesBecomesADigest(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	var all []approvallog.Request
	for seq := range int64(38) {
		all = append(all, r.from(1000, fmt.Sprint("n", seq), fmt.Sprint("k", seq), 1+seq, true))
	}
	calls := r.settleAll()
	if len(calls) != 2 {
		t.Fatalf("%d calls %+v", len(calls), calls)
	}
	digest, ok := calls[1].What.(SendDigest)
	if !ok || digest.Count != 37 || !strings.Contains(digest.Asker, "uid 1000") {
		t.Fatalf("digest %+v", calls[1].What)
	}
	if text := (Digest{Asker: digest.Asker, Class: digest.Class, Count: digest.Count, Listed: digest.Listed}).Message(r.now, digest.Nonce).HTML; !strings.Contains(text, "agent:n3") {
		t.Errorf("it does not say which name asks for what: %s", text)
	}
	// Any of them can be opened, a restart forgets nothing, and says nothing again.
	r.restart(time.Time{}, all...)
	if s := r.core.Stats(); len(r.calls) != 0 || s.Undelivered != 0 {
		t.Fatalf("after a restart: %+v %+v", r.calls, s)
	}
	d, _ := r.core.deliveries.ByNonce(digest.Nonce.Sum())
	b := Button{Verdict: Open, Reason: requestTag(CycleID{all[9].Key, all[9].Seq}), Nonce: digest.Nonce}
	r.step(TapRuled{CallbackID: "1", Ruling: Ruling{Outcome: OutcomeOpened, Delivery: d, Button: b}})
	if got := cardsOf(r.settleAll()); len(got) != 1 || got[0] != all[9].Key {
		t.Errorf("opened %v", got)
	}
}

// TestAQuietNameStaysOutOfAnothersFlood: on a workstation all agents have one user id. The digest of a name that floods does
// not take the request of another name along.
func TestAQuietNameStaysOutOfAnothersFlood(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	for seq := range int64(38) {
		r.from(1000, "ci", fmt.Sprint("k", seq), 1+seq, true)
	}
	r.from(1000, "deploy", "quiet", 50, true)
	calls := r.settleAll()
	if got := cardsOf(calls); len(got) != 2 || got[1] != "quiet" {
		t.Errorf("cards %v", got)
	}
	if digest, ok := calls[len(calls)-1].What.(SendDigest); !ok || digest.Asker != "agent:ci" || digest.Count != 37 {
		t.Errorf("digest %+v", calls[len(calls)-1].What)
	}
}

// TestWhatADigestDoesNotSpeakOfIsNotShown: a request whose card surely failed joins a digest that was made without it. Its
// number is lower than that of the newest that the message spoke of, and still nobody was shown it until the message says so.
func TestWhatADigestDoesNotSpeakOfIsNotShown(t *testing.T) {
	r := newRig(t, Chat{ID: 1})
	early := r.from(1000, "ci", "early", 1, true)
	// Its card is refused, and it is put off.
	r.reply(Result{Kind: ResultRefused, Reason: "Bad Request"})
	var all []approvallog.Request
	for seq := range int64(38) {
		all = append(all, r.from(1000, "ci", fmt.Sprint("k", seq), 10+seq, true))
	}
	o := r.core.ops[CycleID{early.Key, early.Seq}]
	o.first = true // it is kept out of the digest, as if it were being opened
	r.settleAll()
	o.first = false
	r.core.evaluate(o)
	if o.held[0] == nil || o.heldByMessage() {
		t.Fatalf("held %v, spoken of %t", o.held[0], o.heldByMessage())
	}
	if s := r.core.Stats(); s.Undelivered != 1 {
		t.Errorf("the digest does not speak of it, and yet: %+v", s)
	}
	r.pass(digestPause)
	r.settleAll()
	if s := r.core.Stats(); s.Undelivered != 0 || !o.heldByMessage() {
		t.Errorf("the digest was rewritten, and yet: %+v", s)
	}
	// It made no sound yet: a new message does, and a restart knows which of them spoke of it.
	r.pass(digestFresh)
	if calls := r.settleAll(); len(calls) != 2 || calls[0].What.(SendDigest).Count != 38 {
		t.Errorf("calls %+v", calls)
	}
	all = append(all, early)
	r.restart(time.Time{}, all...)
	if s := r.core.Stats(); len(r.calls) != 0 || s.Undelivered != 0 {
		t.Errorf("said again after a restart: %+v, %+v", r.calls, s)
	}
}

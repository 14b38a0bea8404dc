package approvallog

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var foldStart = time.Date(2026, 8, 4, 9, 0, 0, 0, time.UTC)

// history builds records of one log, one second apart, without the chain that the fold never reads.
type history struct{ records []Record }

func (h *history) add(event, actor, key, payload string) *history {
	n := int64(len(h.records) + 1)
	r := Record{Seq: n, TS: foldStart.Add(time.Duration(n) * time.Second), Event: event, Actor: actor, ActionKey: key, Task: "t"}
	if payload != "" {
		r.Payload = json.RawMessage(payload)
	}
	h.records = append(h.records, r)
	return h
}

func (h *history) fold(t testing.TB) *Requests {
	t.Helper()
	q := NewRequests()
	for _, r := range h.records {
		if err := q.Apply(r); err != nil {
			t.Fatalf("record %d: %v", r.Seq, err)
		}
	}
	return q
}

const requestedHash = `{"class":"deploy.api","payload_hash":"aa"}`

func TestStateFollowsTheFirstEndAndOnlyARevocationReplacesAGrant(t *testing.T) {
	// Each step is an event, "!" before it for a human's, and a payload after a space.
	tests := []struct {
		name  string
		steps []string
		want  State
	}{
		{"requested", []string{"approval.requested"}, StatePending},
		{"granted", []string{"approval.requested", "!approval.granted"}, StateGranted},
		{"rejected", []string{"approval.requested", "!approval.rejected"}, StateRejected},
		{"expired", []string{"approval.requested", "approval.expired"}, StateExpired},
		{"withdrawn", []string{"approval.requested", "approval.withdrawn"}, StateWithdrawn},
		{"grant then reject", []string{"approval.requested", "!approval.granted", "!approval.rejected"}, StateGranted},
		{"reject then grant", []string{"approval.requested", "!approval.rejected", "!approval.granted"}, StateRejected},
		{"expired then grant", []string{"approval.requested", "approval.expired", "!approval.granted"}, StateExpired},
		{"withdrawn then grant", []string{"approval.requested", "approval.withdrawn", "!approval.granted"}, StateWithdrawn},
		{"grant then expired", []string{"approval.requested", "!approval.granted", "approval.expired"}, StateGranted},
		{"grant then withdrawn", []string{"approval.requested", "!approval.granted", "approval.withdrawn"}, StateGranted},
		{"revoked", []string{"approval.requested", "!approval.granted", "!approval.revoked"}, StateRevoked},
		{"revoked before a grant", []string{"approval.requested", "!approval.revoked"}, StatePending},
		{"revoked after a reject", []string{"approval.requested", "!approval.rejected", "!approval.revoked"}, StateRejected},
		{"revoked then started", []string{"approval.requested", "!approval.granted", "!approval.revoked", "execution.started"}, StateRevoked},
		{"started", []string{"approval.requested", "!approval.granted", "execution.started"}, StateStarted},
		{"started without a grant", []string{"approval.requested", "execution.started"}, StatePending},
		{"started after a reject", []string{"approval.requested", "!approval.rejected", "execution.started"}, StateRejected},
		{"started then revoked", []string{"approval.requested", "!approval.granted", "execution.started", "!approval.revoked"}, StateStarted},
		{"completed", []string{"approval.requested", "!approval.granted", "execution.started", "execution.completed"}, StateCompleted},
		{"failed", []string{"approval.requested", "!approval.granted", "execution.started", `execution.failed {"exit_code":3}`}, StateFailed},
		{"completed then failed", []string{"approval.requested", "!approval.granted", "execution.started", "execution.completed", "execution.failed"}, StateCompleted},
		{"completed then started", []string{"approval.requested", "!approval.granted", "execution.started", "execution.completed", "execution.started"}, StateCompleted},
		{"only the end of an execution", []string{"approval.requested", "!approval.granted", "execution.completed"}, StateCompleted},
		{"completed without a grant", []string{"approval.requested", "execution.completed"}, StatePending},
		{"fresh cycle after a reject", []string{"approval.requested", "!approval.rejected", "approval.requested"}, StatePending},
		{"fresh cycle after a grant", []string{"approval.requested", "!approval.granted", "approval.requested"}, StatePending},
		{"fresh cycle needs a fresh grant", []string{"approval.requested", "!approval.granted", "approval.requested", "execution.started"}, StatePending},
		{"fresh cycle decided", []string{"approval.requested", "approval.expired", "approval.requested", "!approval.granted"}, StateGranted},
		{"started over a new cycle", []string{"approval.requested", "!approval.granted", "execution.started", "approval.requested"}, StateStarted},
		{"started over a granted new cycle", []string{"approval.requested", "!approval.granted", "execution.started", "approval.requested", "!approval.granted"}, StateStarted},
		{"new cycle after the end of a started one", []string{"approval.requested", "!approval.granted", "execution.started", "approval.requested", "execution.completed"}, StatePending},
		{"new cycle after an ended one", []string{"approval.requested", "!approval.granted", "execution.started", "execution.failed", "approval.requested"}, StatePending},
		{"unknown events", []string{"approval.requested", "approval.considered", "delivery.sent", "policy.updated"}, StatePending},

		{"grant by an agent", []string{"approval.requested", "approval.granted"}, StatePending},
		{"grant for the same bytes", []string{"approval.requested " + requestedHash, `!approval.granted {"payload_hash":"aa"}`}, StateGranted},
		{"grant for other bytes", []string{"approval.requested " + requestedHash, `!approval.granted {"payload_hash":"bb"}`}, StatePending},
		{"grant for bytes of another type", []string{"approval.requested " + requestedHash, `!approval.granted {"payload_hash":7}`}, StatePending},
		{"grant that names no bytes", []string{"approval.requested " + requestedHash, `!approval.granted {}`}, StateGranted},
		{"reject of other bytes", []string{"approval.requested " + requestedHash, `!approval.rejected {"payload_hash":"bb"}`}, StateRejected},
		{"grant at the deadline", []string{`approval.requested {"wait_until":"2026-08-04T09:00:02Z"}`, "!approval.granted"}, StatePending},
		{"reject after the deadline", []string{`approval.requested {"wait_until":"2026-08-04T09:00:01Z"}`, "!approval.rejected"}, StatePending},
		{"expired after the deadline", []string{`approval.requested {"wait_until":"2026-08-04T09:00:01Z"}`, "!approval.granted", "approval.expired"}, StateExpired},
		{"grant just before the deadline", []string{`approval.requested {"wait_until":"2026-08-04T09:00:02.001Z"}`, "!approval.granted"}, StateGranted},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h history
			for _, step := range tt.steps {
				event, payload, _ := strings.Cut(step, " ")
				actor := "agent:ci"
				if name, human := strings.CutPrefix(event, "!"); human {
					event, actor = name, "human:alice"
				}
				h.add(event, actor, "k", payload)
			}
			r, ok := h.fold(t).Get("k")
			if !ok || r.State != tt.want {
				t.Errorf("state = %q (known %t), want %q", r.State, ok, tt.want)
			}
		})
	}
}

func TestRequestHoldsAllThatTheRecordsSay(t *testing.T) {
	var h history
	h.add(EventRequested, "agent:ci", "deploy#1", `{
		"class":"deploy.production","summary":"restart","payload_hash":"aa","reversible":true,"est_cost_usd":12.5,
		"execution":"harness","wait_until":"2026-08-04T09:05:00.000Z",
		"approvald":{"request_digest":"dd","uid":1004,"pid":77,"quorum":2,"expires_at":"2026-08-04T10:00:00.000Z","exclusive":"prod","follow_up":"ff"}}`)
	h.add(EventGranted, "human:bob", "deploy#1", `{
		"note":"go","payload_hash":"aa","sender":{"channel":"telegram","id":222},
		"approvald":{"approvals":[{"by":"human:alice","at":"2026-08-04T09:00:01.500Z","delivery":"x"},{"by":"human:bob","at":"2026-08-04T09:00:02Z"}]}}`)
	h.add(EventExecutionStarted, "agent:ci", "deploy#1", "")
	h.add(EventExecutionFailed, "agent:ci", "deploy#1", `{"exit_code":3}`)

	got, _ := h.fold(t).Get("deploy#1")
	at := func(seconds int) time.Time { return foldStart.Add(time.Duration(seconds) * time.Second) }
	code := 3
	want := Request{
		Key: "deploy#1", Task: "t", Class: "deploy.production", Summary: "restart", Requester: "agent:ci", State: StateFailed,
		PayloadHash: "aa", Seq: 1, RequestedAt: at(1), ExpiresAt: at(3600), Quorum: 2,
		Decision:  &Decision{By: "human:bob", At: at(2), Note: "go", Seq: 2, Channel: "telegram"},
		WaitUntil: at(300), Reversible: true, EstCostUSD: "12.5", Exclusive: "prod", FollowUp: "ff", FollowUpKey: "deploy#1/then-1", Digest: "dd",
		Peer: &Peer{UID: 1004, PID: 77}, Revision: 3,
		Approvals: []Approval{{By: "human:alice", At: at(1).Add(500 * time.Millisecond)}, {By: "human:bob", At: at(2)}},
		Execution: &Execution{By: "agent:ci", StartedAt: at(3), StartedSeq: 3, EndedAt: at(4), EndedSeq: 4, ExitCode: &code},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

func TestRequestJSONMembersAreStable(t *testing.T) {
	var h history
	h.add(EventRequested, "agent:ci", "k", `{"class":"c","summary":"s","payload_hash":"aa","wait_until":"2026-08-04T09:05:00Z"}`)
	h.add(EventGranted, "human:bob", "k", "")
	h.add(EventRequested, "agent:ci", "bare", "")
	q := h.fold(t)
	for key, want := range map[string]string{
		"k": `{"key":"k","task":"t","class":"c","summary":"s","requester":"agent:ci","state":"granted","payload_hash":"aa","seq":1,` +
			`"requested_at":"2026-08-04T09:00:01Z","expires_at":"2026-08-04T09:05:00Z","quorum":1,` +
			`"decision":{"by":"human:bob","at":"2026-08-04T09:00:02Z","note":"","seq":2,"channel":""}}`,
		"bare": `{"key":"bare","task":"t","class":"","summary":"","requester":"agent:ci","state":"pending","payload_hash":"","seq":3,` +
			`"requested_at":"2026-08-04T09:00:03Z","quorum":1,"decision":null}`,
	} {
		r, _ := q.Get(key)
		got, err := json.Marshal(r)
		if err != nil || string(got) != want {
			t.Errorf("%s:\ngot  %s (%v)\nwant %s", key, got, err, want)
		}
	}
}

func TestFoldPassesOverWhatOtherWritersLeaveOutOrSpellOtherwise(t *testing.T) {
	tests := []struct {
		name, payload string
		check         func(Request) bool
	}{
		{"no payload", "", func(r Request) bool { return r.Quorum == 1 && r.ExpiresAt.IsZero() }},
		{"payload that is no object", `[1]`, func(r Request) bool { return r.Class == "" }},
		{"amount as a string", `{"est_cost_usd":"0.10"}`, func(r Request) bool { return r.EstCostUSD == "0.10" }},
		{"amount as a number", `{"est_cost_usd":3}`, func(r Request) bool { return r.EstCostUSD == "3" }},
		{"amount that is none", `{"est_cost_usd":{"x":1}}`, func(r Request) bool { return r.EstCostUSD == "" }},
		{"class of another type", `{"class":7,"summary":"s"}`, func(r Request) bool { return r.Class == "" && r.Summary == "s" }},
		{"deadline that is no time", `{"wait_until":"tomorrow"}`, func(r Request) bool { return r.ExpiresAt.IsZero() }},
		{"nulls", `{"class":null,"wait_until":null,"approvald":null,"est_cost_usd":null}`, func(r Request) bool { return r.EstCostUSD == "" }},
		{"quorum below one", `{"approvald":{"quorum":-4}}`, func(r Request) bool { return r.Quorum == 1 }},
		{"quorum that is no integer", `{"approvald":{"quorum":2.5}}`, func(r Request) bool { return r.Quorum == 1 }},
		{"uid out of range", `{"approvald":{"uid":-1}}`, func(r Request) bool { return r.Peer == nil }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h history
			r, ok := h.add(EventRequested, "agent:ci", "k", tt.payload).fold(t).Get("k")
			if !ok || r.State != StatePending || !tt.check(r) {
				t.Errorf("request = %+v (known %t)", r, ok)
			}
		})
	}

	var h history
	h.add("task.registered", "system:x", "", "").add("audit.note", "system:x", "ghost", "").add(EventGranted, "human:x", "ghost", "")
	if q := h.fold(t); len(q.entries) != 0 {
		t.Errorf("records without a request made %d requests", len(q.entries))
	}
}

func TestPastItsDeadlineAPendingRequestIsExpired(t *testing.T) {
	var h history
	q := h.add(EventRequested, "agent:ci", "k", `{"wait_until":"2026-08-04T09:01:00Z"}`).fold(t)
	r, _ := q.Get("k")
	deadline := foldStart.Add(time.Minute)
	if got := r.StateAt(deadline.Add(-time.Nanosecond)); got != StatePending {
		t.Errorf("just before the deadline: %s", got)
	}
	if got := r.StateAt(deadline); got != StateExpired {
		t.Errorf("at the deadline: %s", got)
	}
	if n, _ := q.PendingCount(deadline, ""); n != 0 || len(q.Pending()) != 1 {
		t.Error("the request must not count as decidable, and must stay listed until its end is recorded")
	}
}

// foldedKeys are few, so that cycles, conflicts and shared exclusive keys are frequent.
var foldedKeys = []string{"a", "b", "c"}

func drawHistory(t *rapid.T) []Record {
	events := []string{
		EventRequested, EventRequested, EventGranted, EventGranted, EventRejected, EventExpired, EventWithdrawn,
		EventRevoked, EventExecutionStarted, EventExecutionCompleted, EventExecutionFailed, "x.unknown",
	}
	var records []Record
	now := foldStart
	for i := range rapid.IntRange(0, 60).Draw(t, "n") {
		now = now.Add(time.Duration(rapid.IntRange(0, 900).Draw(t, "gap")) * time.Second)
		r := Record{
			Seq: int64(i + 1), TS: now,
			Event:     rapid.SampledFrom(events).Draw(t, "event"),
			Actor:     rapid.SampledFrom([]string{"human:alice", "agent:ci", "agent:cd"}).Draw(t, "actor"),
			ActionKey: rapid.SampledFrom(foldedKeys).Draw(t, "key"),
		}
		hash := rapid.SampledFrom([]string{"h1", "h1", "h2"}).Draw(t, "hash")
		own := map[string]any{}
		if x := rapid.SampledFrom([]string{"", "x1", "x2"}).Draw(t, "exclusive"); x != "" {
			own["exclusive"] = x
		}
		if ttl := rapid.SampledFrom([]int{0, 1800, 7200}).Draw(t, "ttl"); ttl > 0 {
			own["expires_at"] = now.Add(time.Duration(ttl) * time.Second).Format(time.RFC3339)
		}
		payload, err := json.Marshal(map[string]any{"payload_hash": hash, "approvald": own})
		if err != nil {
			t.Fatal(err)
		}
		r.Payload = payload
		records = append(records, r)
	}
	return records
}

// naiveCycle is one cycle as the format's text describes it: looked up in the whole history each
// time, with no state in between.
type naiveCycle struct {
	opened             Record
	state              State
	exclusive, expires string
}

func payloadStrings(r Record) (hash, exclusive, expires string) {
	var p struct {
		Hash string `json:"payload_hash"`
		Own  struct {
			Exclusive string `json:"exclusive"`
			Expires   string `json:"expires_at"`
		} `json:"approvald"`
	}
	_ = json.Unmarshal(r.Payload, &p)
	return p.Hash, p.Own.Exclusive, p.Own.Expires
}

func naive(records []Record, key string) (naiveCycle, bool) {
	var cycles [][]Record
	for _, r := range records {
		switch {
		case r.ActionKey != key:
		case r.Event == EventRequested:
			cycles = append(cycles, []Record{r})
		case len(cycles) > 0:
			cycles[len(cycles)-1] = append(cycles[len(cycles)-1], r)
		}
	}
	if len(cycles) == 0 {
		return naiveCycle{}, false
	}
	var current naiveCycle
	var running *naiveCycle
	for _, cycle := range cycles {
		if running == nil && current.state == StateStarted {
			held := current
			running = &held
		}
		hash, exclusive, expires := payloadStrings(cycle[0])
		current = naiveCycle{opened: cycle[0], state: StatePending, exclusive: exclusive, expires: expires}
		late := func(r Record) bool { return expires != "" && r.TS.Format(time.RFC3339) >= expires }
		for _, r := range cycle[1:] {
			given, _, _ := payloadStrings(r)
			isEnd := r.Event == EventExecutionCompleted || r.Event == EventExecutionFailed
			switch {
			case running != nil && isEnd:
				running = nil
			case current.state == StatePending && r.Event == EventExpired:
				current.state = StateExpired
			case current.state == StatePending && late(r):
			case current.state == StatePending && r.Event == EventGranted && r.Actor == "human:alice" && given == hash:
				current.state = StateGranted
			case current.state == StatePending && r.Event == EventRejected:
				current.state = StateRejected
			case current.state == StatePending && r.Event == EventWithdrawn:
				current.state = StateWithdrawn
			case current.state == StateGranted && r.Event == EventRevoked:
				current.state = StateRevoked
			case current.state == StateGranted && running == nil && r.Event == EventExecutionStarted:
				current.state = StateStarted
			case (current.state == StateGranted || current.state == StateStarted) && isEnd:
				current.state = State(strings.TrimPrefix(r.Event, "execution."))
			}
		}
	}
	if running != nil {
		return *running, true
	}
	return current, true
}

func TestFoldAgreesWithAWalkOverTheWholeHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		records := drawHistory(t)
		q := NewRequests()
		for n := range records {
			if err := q.Apply(records[n]); err != nil {
				t.Fatal(err)
			}
			checkFold(t, q, records[:n+1])
		}
	})
}

func checkFold(t *rapid.T, q *Requests, records []Record) {
	now := records[len(records)-1].TS
	var pending []int64
	decidable := 0
	holder := map[string]int64{}
	for _, key := range foldedKeys {
		want, known := naive(records, key)
		got, ok := q.Get(key)
		if ok != known || got.State != want.state || got.Seq != want.opened.Seq {
			t.Fatalf("%s: got %s of %d (known %t), want %s of %d (known %t)", key, got.State, got.Seq, ok, want.state, want.opened.Seq, known)
		}
		if want.state != StatePending {
			continue
		}
		pending = append(pending, got.Seq)
		if want.expires != "" && now.Format(time.RFC3339) >= want.expires {
			continue
		}
		decidable++
		if x := want.exclusive; x != "" && (holder[x] == 0 || got.Seq < holder[x]) {
			holder[x] = got.Seq
		}
	}
	slices.Sort(pending)
	var listed []int64
	for _, r := range q.Pending() {
		listed = append(listed, r.Seq)
	}
	if !slices.Equal(pending, listed) {
		t.Fatalf("pending: got %v, want %v", listed, pending)
	}
	if got, _ := q.PendingCount(now, ""); got != decidable {
		t.Fatalf("decidable: got %d, want %d", got, decidable)
	}
	for _, x := range []string{"x1", "x2"} {
		if r, _ := q.ExclusiveHolder(x, now); r.Seq != holder[x] {
			t.Fatalf("exclusive %s: got %d, want %d", x, r.Seq, holder[x])
		}
	}
	for _, requester := range []string{"agent:ci", "agent:cd"} {
		since := now.Add(-time.Hour)
		want := 0
		for _, r := range records {
			if r.Event == EventRequested && r.Actor == requester && !r.TS.Before(since) {
				want++
			}
		}
		if got := q.CreatedSince(requester, since); got != want {
			t.Fatalf("%s created: got %d, want %d", requester, got, want)
		}
	}
}

func TestFoldForgetsCreationsThatHaveLeftTheWindow(t *testing.T) {
	q := NewRequests()
	for i := range 500 {
		rec := Record{
			Seq: int64(i + 1), TS: foldStart.Add(time.Duration(i) * time.Hour / 4),
			Event: EventRequested, Actor: fmt.Sprintf("agent:%d", i), ActionKey: "k",
		}
		if err := q.Apply(rec); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(q.created); n > 40 {
		t.Errorf("%d requesters are remembered, want little more than those of the last hour", n)
	}
}

func FuzzFoldTakesAnyPayload(f *testing.F) {
	f.Add(`{"approvald":{"approvals":[1,{"by":"human:x"}],"quorum":1e99},"exit_code":"7"}`)
	f.Add(`{"approvald":[],"wait_until":1}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, payload string) {
		var h history
		for _, event := range []string{EventRequested, EventGranted, EventExecutionStarted, EventExecutionFailed} {
			h.add(event, "human:x", "k", payload)
		}
		r, ok := h.fold(t).Get("k")
		if !ok || r.Quorum < 1 {
			t.Errorf("request = %+v", r)
		}
	})
}

// TestAskersAreToldApartByUserID: whoever the kernel named, or who named itself while writing the files, is one asker under
// any name; only where no user id is known does the name count.
func TestAskersAreToldApartByUserID(t *testing.T) {
	var h history
	for i, r := range []struct{ actor, own string }{
		{"agent:a", `{"uid":1000,"pid":7}`},
		{"agent:b", `{"uid":1000,"pid":8}`},
		{"agent:c", `{"writer_uid":1000}`},
		{"agent:a", `{"writer_uid":1001}`},
		{"agent:a", `{}`},
		{"agent:a", `{"writer_uid":-1}`},
		{"agent:a", `{"uid":1002,"writer_uid":1000}`},
	} {
		h.add(EventRequested, r.actor, string(rune('p'+i)), `{"approvald":`+r.own+`}`)
	}
	q := h.fold(t)
	for asker, want := range map[string]int{"uid:1000": 3, "uid:1001": 1, "uid:1002": 1, "agent:a": 2, "agent:b": 0, "": 0} {
		all, own := q.PendingCount(foldStart, asker)
		if created := q.CreatedSince(asker, foldStart); all != 7 || own != want || created != want {
			t.Errorf("%q: %d of %d pending, %d created, want %d", asker, own, all, created, want)
		}
	}
}

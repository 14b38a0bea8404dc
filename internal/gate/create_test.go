package gate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

func TestRetryAnswersTheRequestThatExists(t *testing.T) {
	g := testGate(t)
	first := mustCreate(t, g, newRequest("k"))
	retry := func() approvallog.Request {
		t.Helper()
		before := records(t, g)
		// Another process, requester and task make the same request.
		in := newRequest("k")
		in.Requester, in.Task = "agent:other", "another task"
		other := openGate(t, g.Config(), OpenOptions{})
		r, created, err := other.Create(t.Context(), in)
		if err != nil || created || r.Seq != first.Seq || r.Requester != "agent:ci" {
			t.Errorf("retry: %+v, created %t, %v", r, created, err)
		}
		if after := records(t, g); after != before {
			t.Errorf("a retry appended %d records", after-before)
		}
		return r
	}
	retry()
	grant(t, g, "k")
	if r := retry(); r.State != approvallog.StateGranted || r.Decision.By != "human:alice" {
		t.Errorf("retry of a decided request: %+v", r)
	}
}

func TestAnotherRequestUnderTheKeyIsAConflict(t *testing.T) {
	g := testGate(t)
	mustCreate(t, g, newRequest("k"))
	says := map[string]string{
		"payload": `not 015abd7f5cc5…`, "class": `class deploy.api, not deploy.web`, "summary": `not "other"`, "reversible": "reversible false, not true",
		"ttl": "the time to live or the quorum", "quorum": "the time to live or the quorum", "exclusive": `not "x"`, "again": `not "other"`,
	}
	for name, change := range map[string]func(*NewRequest){
		"payload":    func(r *NewRequest) { r.Payload = []byte(`{"a":1}`) },
		"class":      func(r *NewRequest) { r.Class = "deploy.web" },
		"summary":    func(r *NewRequest) { r.Summary = "other" },
		"reversible": func(r *NewRequest) { r.Reversible = true },
		"ttl":        func(r *NewRequest) { r.TTL = defaultTTL },
		"quorum":     func(r *NewRequest) { r.Quorum = 1 },
		"exclusive":  func(r *NewRequest) { r.Exclusive = "x" },
		"again":      func(r *NewRequest) { r.Again, r.Summary = true, "other" },
	} {
		in := newRequest("k")
		change(&in)
		_, created, err := g.Create(t.Context(), in)
		if created {
			t.Errorf("%s: created", name)
		}
		wantCode(t, err, CodeRequestConflict)
		if !strings.Contains(err.Error(), says[name]) {
			t.Errorf("%s: it does not say what differs: %v", name, err)
		}
	}
	// A request of another implementation has no digest to compare with.
	record(t, g, approvallog.EventRequested, "agent:ci", "foreign")
	_, _, err := g.Create(t.Context(), newRequest("foreign"))
	wantCode(t, err, CodeRequestConflict)
	if n := records(t, g); n != 2 {
		t.Errorf("%d records", n)
	}
	if left, _ := os.ReadDir(g.Paths().Payloads); len(left) != 1 {
		t.Errorf("refused requests left payloads: %v", left)
	}
}

func TestAskingAgainAfterAnEnd(t *testing.T) {
	human := func(event string) func(*testing.T, *Gate, *testClock) {
		return func(t *testing.T, g *Gate, _ *testClock) { record(t, g, event, "human:alice", "k") }
	}
	agent := func(event string) func(*testing.T, *Gate, *testClock) {
		return func(t *testing.T, g *Gate, _ *testClock) { record(t, g, event, "agent:ci", "k") }
	}
	type steps = []func(*testing.T, *Gate, *testClock)
	granted := human(approvallog.EventGranted)
	started := agent(approvallog.EventExecutionStarted)
	tests := []struct {
		name    string
		steps   steps
		created bool
		code    string
		appends int64
	}{
		{"pending", nil, false, "", 0},
		{"granted", steps{granted}, false, CodeRequestConflict, 0},
		{"rejected", steps{human(approvallog.EventRejected)}, true, "", 1},
		{"withdrawn", steps{agent(approvallog.EventWithdrawn)}, true, "", 1},
		{"revoked", steps{granted, human(approvallog.EventRevoked)}, true, "", 1},
		{"started", steps{granted, started}, false, CodeRequestConflict, 0},
		{"completed", steps{granted, started, agent(approvallog.EventExecutionCompleted)}, true, "", 1},
		{"failed", steps{granted, started, agent(approvallog.EventExecutionFailed)}, true, "", 1},
		// The end that nobody had recorded is recorded first.
		{"past its deadline", steps{func(_ *testing.T, _ *Gate, c *testClock) { c.advance(defaultTTL) }}, true, "", 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			clock := newTestClock()
			g := openGate(t, testConfig(filepath.Join(t.TempDir(), ".approval")), OpenOptions{Now: clock.Now})
			first := mustCreate(t, g, newRequest("k"))
			for _, step := range tt.steps {
				clock.advance(time.Second)
				step(t, g, clock)
			}
			before := g.Log().Head().Seq
			in := newRequest("k")
			in.Again = true
			r, created, err := g.Create(t.Context(), in)
			wantCode(t, err, tt.code)
			if created != tt.created || g.Log().Head().Seq-before != tt.appends {
				t.Errorf("created %t, %d records", created, g.Log().Head().Seq-before)
			}
			if tt.created && (r.State != approvallog.StatePending || r.Seq == first.Seq || r.Decision != nil || r.Previous == "") {
				t.Errorf("the fresh cycle: %+v", r)
			}
			if tt.created && tt.name == "past its deadline" && r.Previous != approvallog.StateExpired {
				t.Errorf("the cycle before it is %s", r.Previous)
			}
		})
	}
}

func TestExclusiveKeyIsHeldByOnePendingRequest(t *testing.T) {
	clock := newTestClock()
	g := openGate(t, testConfig(filepath.Join(t.TempDir(), ".approval")), OpenOptions{Now: clock.Now})
	in := func(key string) NewRequest {
		r := newRequest(key)
		r.Exclusive = "prod"
		return r
	}
	mustCreate(t, g, in("a"))
	_, _, err := g.Create(t.Context(), in("b"))
	wantCode(t, err, CodeBusy)
	if err == nil || !contains(err.Error(), `"a"`, `"prod"`) {
		t.Errorf("the refusal does not name the holder: %v", err)
	}
	if _, created, err := g.Create(t.Context(), in("a")); err != nil || created {
		t.Errorf("a retry is refused as busy: %v", err)
	}
	mustCreate(t, g, newRequest("free"))

	record(t, g, approvallog.EventRejected, "human:alice", "a")
	mustCreate(t, g, in("b"))
	again := in("a")
	again.Again = true
	_, _, err = g.Create(t.Context(), again)
	wantCode(t, err, CodeBusy)

	clock.advance(defaultTTL)
	if _, created, err := g.Create(t.Context(), again); err != nil || !created {
		t.Errorf("a request past its deadline still holds the key: %v", err)
	}
}

func contains(s string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
}

func TestNobodyBuriesTheOthers(t *testing.T) {
	clock := newTestClock()
	cfg := testConfig(filepath.Join(t.TempDir(), ".approval"))
	cfg.Requests.MaxPending, cfg.Requests.PerRequesterPerHour = 7, 3
	g := openGate(t, cfg, OpenOptions{Now: clock.Now})
	of := func(requester, key string) NewRequest {
		r := newRequest(key)
		r.Requester = "agent:" + requester
		return r
	}
	for i := range 3 {
		mustCreate(t, g, of("a", fmt.Sprint("a", i)))
		clock.advance(time.Minute)
	}
	_, _, err := g.Create(t.Context(), of("a", "a3"))
	wantCode(t, err, CodeRateLimited)
	for i := range 3 {
		mustCreate(t, g, of("b", fmt.Sprint("b", i)))
	}
	mustCreate(t, g, of("d", "d0"))
	_, _, err = g.Create(t.Context(), of("c", "c0"))
	wantCode(t, err, CodeQueueFull)
	if _, created, err := g.Create(t.Context(), of("a", "a0")); err != nil || created {
		t.Errorf("a retry is refused for want of room: %v", err)
	}

	record(t, g, approvallog.EventRejected, "human:alice", "a0")
	mustCreate(t, g, of("c", "c0"))
	record(t, g, approvallog.EventRejected, "human:alice", "a1")
	_, _, err = g.Create(t.Context(), of("a", "a3"))
	wantCode(t, err, CodeRateLimited)
	// The first of the three leaves the hour.
	clock.advance(57*time.Minute + time.Second)
	mustCreate(t, g, of("a", "a3"))
}

// TestNewNamesGainNoRoom: an asker whose user id is known has one share of the gate, whatever it calls itself and whichever
// way it comes.
func TestNewNamesGainNoRoom(t *testing.T) {
	clock := newTestClock()
	cfg := testConfig(filepath.Join(t.TempDir(), ".approval"))
	cfg.Requests.MaxPending, cfg.Requests.PerRequesterPerHour = 9, 8
	g := openGate(t, cfg, OpenOptions{Now: clock.Now})
	of := func(n int, set func(*NewRequest)) NewRequest {
		r := newRequest(fmt.Sprint("k", n))
		r.Requester = fmt.Sprint("agent:name-", n)
		set(&r)
		return r
	}
	socket := func(uid uint32) func(*NewRequest) {
		return func(r *NewRequest) { r.Peer = &Peer{UID: uid, PID: 7} }
	}
	files := func(uid uint32) func(*NewRequest) { return func(r *NewRequest) { r.WriterUID = &uid } }
	for n := range 3 {
		mustCreate(t, g, of(n, socket(1000)))
	}
	for n := range 2 {
		mustCreate(t, g, of(3+n, files(1000)))
	}
	_, _, err := g.Create(t.Context(), of(5, socket(1000)))
	wantCode(t, err, CodeQueueFull)
	if !contains(err.Error(), "5 requests of agent:name-5 (uid 1000, under whatever name)", "k5") {
		t.Errorf("the refusal does not say whose requests they are: %v", err)
	}
	_, _, err = g.Create(t.Context(), of(5, files(1000)))
	wantCode(t, err, CodeQueueFull)
	// There is room for everybody else, until the gate as a whole is full.
	mustCreate(t, g, of(6, socket(1001)))
	mustCreate(t, g, of(7, func(*NewRequest) {}))
	// What is decided makes room, but not in the hour.
	for n := range 5 {
		record(t, g, approvallog.EventRejected, "human:alice", fmt.Sprint("k", n))
	}
	for n := range 3 {
		mustCreate(t, g, of(10+n, files(1000)))
	}
	_, _, err = g.Create(t.Context(), of(13, socket(1000)))
	wantCode(t, err, CodeRateLimited)
	if !contains(err.Error(), "uid 1000") {
		t.Errorf("the refusal does not say whose requests they are: %v", err)
	}
}

func TestConfigurationNarrowsWhatTheAskerGives(t *testing.T) {
	cfg := testConfig(filepath.Join(t.TempDir(), ".approval"))
	cfg.Rules = []ClassRule{{Class: "deploy.*", TTL: time.Hour}, {Class: "solo.*", Approvers: []string{"bob"}}}
	g := openGate(t, cfg, OpenOptions{})
	for i, tt := range []struct {
		class      string
		ttl        time.Duration
		quorum     int
		wantTTL    time.Duration
		wantQuorum int
		code       string
	}{
		{"deploy.api", 0, 0, time.Hour, 1, ""},
		{"deploy.api", 2 * time.Hour, 2, time.Hour, 2, ""},
		{"deploy.api", time.Minute, 1, time.Minute, 1, ""},
		{"other", 0, 0, defaultTTL, 1, ""},
		{"other", 48 * time.Hour, 2, defaultTTL, 2, ""},
		{"other", 0, 3, 0, 0, CodeInvalidRequest},
		{"solo.x", 0, 2, 0, 0, CodeInvalidRequest},
		{"solo.x", 0, 1, defaultTTL, 1, ""},
	} {
		in := newRequest(fmt.Sprint(i))
		in.Class, in.TTL, in.Quorum = tt.class, tt.ttl, tt.quorum
		r, _, err := g.Create(t.Context(), in)
		wantCode(t, err, tt.code)
		if err == nil && (r.ExpiresAt.Sub(r.RequestedAt) != tt.wantTTL || r.Quorum != tt.wantQuorum) {
			t.Errorf("%+v: ttl %v, quorum %d", tt, r.ExpiresAt.Sub(r.RequestedAt), r.Quorum)
		}
	}
	// A retry after a change of the configuration is the same request still.
	changed := g.Config()
	changed.Requests.TTL, changed.Requests.Quorum, changed.Rules = time.Minute, 2, nil
	other := openGate(t, changed, OpenOptions{})
	if r, created, err := other.Create(t.Context(), newRequest("0")); err != nil || created || r.Quorum != 1 {
		t.Errorf("retry: %+v, created %t, %v", r, created, err)
	}
}

func TestGoroutinesThatRaceForOneKeyMakeOneRecord(t *testing.T) {
	g := testGate(t)
	const n = 32
	var wg sync.WaitGroup
	var mu sync.Mutex
	won, seqs := 0, map[int64]bool{}
	for range n {
		wg.Go(func() {
			r, created, err := g.Create(t.Context(), newRequest("k"))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			seqs[r.Seq] = true
			if created {
				won++
			}
		})
	}
	wg.Wait()
	if won != 1 || len(seqs) != 1 || records(t, g) != 1 {
		t.Errorf("%d created it, under %v", won, seqs)
	}
}

func TestProcessesThatRaceForOneKeyMakeOneRecord(t *testing.T) {
	const n, rounds = 8, 5
	g := testGate(t)
	results := race(t, n, func(i int) helperJob {
		return helperJob{Home: g.Paths().Home, Op: "create", Key: "shared", Payload: `{"a":1}`, Rounds: rounds}
	})
	won := 0
	for _, r := range results {
		if r.Code != "" || r.Seq != results[0].Seq {
			t.Errorf("%+v, and the first got %+v", r, results[0])
		}
		if r.Won {
			won++
		}
	}
	if got := records(t, g); won != 1 || got != n*rounds+1 {
		t.Errorf("%d processes created the request, %d records", won, got)
	}

	// The same race for a fresh cycle.
	record(t, g, approvallog.EventRejected, "human:alice", "shared")
	before := records(t, g)
	won = 0
	for _, r := range race(t, n, func(int) helperJob {
		return helperJob{Home: g.Paths().Home, Op: "create", Key: "shared", Payload: `{"a":1}`, Again: true}
	}) {
		if r.Won {
			won++
		}
	}
	if got := records(t, g); won != 1 || got != before+1 {
		t.Errorf("%d processes opened the fresh cycle, %d records", won, got-before)
	}

	// Different requests under one key: one exists, the others are told of the conflict.
	codes := map[string]int{}
	for _, r := range race(t, n, func(i int) helperJob {
		return helperJob{Home: g.Paths().Home, Op: "create", Key: "contested", Payload: fmt.Sprintf(`{"a":%d}`, i)}
	}) {
		codes[r.Code]++
	}
	if codes[""] != 1 || codes[CodeRequestConflict] != n-1 {
		t.Errorf("outcomes: %v", codes)
	}
}

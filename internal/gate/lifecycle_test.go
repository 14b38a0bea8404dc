package gate

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

func TestOnlyWhoAskedMayWithdraw(t *testing.T) {
	tests := []struct {
		name      string
		asked     *Peer
		requester string
		peer      *Peer
		code      string
	}{
		{"same name", nil, "agent:ci", nil, ""},
		{"same name and uid", &Peer{UID: 7, PID: 1}, "agent:ci", &Peer{UID: 7, PID: 2}, ""},
		{"same name, uid not known now", &Peer{UID: 7}, "agent:ci", nil, ""},
		{"same name, uid not known then", nil, "agent:ci", &Peer{UID: 7}, ""},
		{"other name", nil, "agent:cd", nil, CodeWrongIdentity},
		{"other name, same uid", &Peer{UID: 7}, "agent:cd", &Peer{UID: 7}, CodeWrongIdentity},
		{"same name, other uid", &Peer{UID: 7}, "agent:ci", &Peer{UID: 8}, CodeWrongIdentity},
		{"a person", nil, "human:alice", nil, CodeWrongIdentity},
		{"nobody", nil, "", nil, CodeWrongIdentity},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := testGate(t)
			in := newRequest("k")
			in.Peer = tt.asked
			mustCreate(t, g, in)
			r, err := g.Withdraw(t.Context(), "k", tt.requester, tt.peer, "superseded")
			wantCode(t, err, tt.code)
			if err == nil && (r.State != approvallog.StateWithdrawn || r.Ending.Reason != "superseded" || r.Ending.By != "agent:ci") {
				t.Errorf("withdrawn: %+v", r)
			}
			if want := map[bool]int64{true: 2, false: 1}[tt.code == ""]; records(t, g) != want {
				t.Errorf("%d records, want %d", records(t, g), want)
			}
		})
	}
}

func TestWithdrawingWhatHasEnded(t *testing.T) {
	clock := newTestClock()
	g := openGate(t, testConfig(filepath.Join(t.TempDir(), ".approval")), OpenOptions{Now: clock.Now})
	for _, key := range []string{"withdrawn", "granted", "late"} {
		mustCreate(t, g, newRequest(key))
	}
	withdraw := func(key, reason string) (approvallog.Request, error) {
		return g.Withdraw(t.Context(), key, "agent:ci", nil, reason)
	}
	if _, err := withdraw("withdrawn", "cancelled"); err != nil {
		t.Fatal(err)
	}
	if r, err := withdraw("withdrawn", "timeout"); err != nil || r.Ending.Reason != "cancelled" {
		t.Errorf("a second time: %+v, %v", r, err)
	}
	grant(t, g, "granted")
	r, err := withdraw("granted", "timeout")
	wantCode(t, err, CodeAlreadyDecided)
	if r.State != approvallog.StateGranted || err == nil || !contains(err.Error(), "granted by human:alice") {
		t.Errorf("beside %v: %+v", err, r)
	}
	clock.advance(defaultTTL)
	r, err = withdraw("late", "timeout")
	wantCode(t, err, CodeAlreadyDecided)
	if r.State != approvallog.StateExpired {
		t.Errorf("beside %v: %+v", err, r)
	}
	_, err = withdraw("unheard of", "timeout")
	wantCode(t, err, CodeNotFound)
	for _, reason := range []string{"", "bored", "Timeout"} {
		_, err = withdraw("late", reason)
		wantCode(t, err, CodeInvalidRequest)
	}
}

func TestGrantIsGoodForOneExecutionOfWhatWasApproved(t *testing.T) {
	g := testGate(t)
	in := newRequest("k")
	in.Payload = []byte(`{"argv":["true"]}`)
	hash := mustCreate(t, g, in).PayloadHash
	start := func() (approvallog.Request, error) {
		return g.StartExecution(t.Context(), "k", hash, "agent:ci", nil)
	}
	finish := func(code int) (approvallog.Request, error) {
		return g.FinishExecution(t.Context(), "k", "agent:ci", nil, code)
	}

	_, err := start()
	wantCode(t, err, CodeNotGranted)
	_, err = finish(0)
	wantCode(t, err, CodeNotGranted)
	grant(t, g, "k")
	_, err = g.StartExecution(t.Context(), "k", strings.Repeat("0", 64), "agent:ci", nil)
	wantCode(t, err, CodePayloadMismatch)
	_, err = g.StartExecution(t.Context(), "k", hash, "agent:cd", nil)
	wantCode(t, err, CodeWrongIdentity)
	_, err = finish(0)
	wantCode(t, err, CodeNotGranted)

	if r, err := start(); err != nil || r.State != approvallog.StateStarted {
		t.Fatalf("started: %+v, %v", r, err)
	}
	r, err := start()
	wantCode(t, err, CodeAlreadyStarted)
	if r.State != approvallog.StateStarted {
		t.Errorf("beside %v: %+v", err, r)
	}
	_, err = g.FinishExecution(t.Context(), "k", "agent:cd", nil, 0)
	wantCode(t, err, CodeWrongIdentity)
	if r, err = finish(3); err != nil || r.State != approvallog.StateFailed || *r.Execution.ExitCode != 3 {
		t.Errorf("finished: %+v, %v", r, err)
	}
	if r, err = finish(3); err != nil || r.State != approvallog.StateFailed {
		t.Errorf("the same end again: %+v, %v", r, err)
	}
	for _, other := range []int{0, 4} {
		r, err = finish(other)
		wantCode(t, err, CodeRequestConflict)
		if r.State != approvallog.StateFailed || *r.Execution.ExitCode != 3 {
			t.Errorf("beside %v: %+v", err, r)
		}
	}
	_, err = start()
	wantCode(t, err, CodeAlreadyStarted)
	if n := records(t, g); n != 4 {
		t.Errorf("%d records", n)
	}

	// Another use needs another grant.
	in.Again = true
	mustCreate(t, g, in)
	_, err = start()
	wantCode(t, err, CodeNotGranted)
	grant(t, g, "k")
	record(t, g, approvallog.EventRevoked, "human:alice", "k")
	_, err = start()
	wantCode(t, err, CodeNotGranted)
}

func TestProcessesThatRaceForOneGrantUseItOnce(t *testing.T) {
	const n = 8
	g := testGate(t)
	in := newRequest("k")
	in.Payload = []byte(`{"argv":["true"]}`)
	mustCreate(t, g, in)
	grant(t, g, "k")
	codes := map[string]int{}
	for _, r := range race(t, n, func(int) helperJob {
		return helperJob{Home: g.Paths().Home, Op: "start", Key: "k", Payload: string(in.Payload)}
	}) {
		codes[r.Code]++
	}
	if codes[""] != 1 || codes[CodeAlreadyStarted] != n-1 || records(t, g) != 3 {
		t.Errorf("outcomes: %v, %d records", codes, records(t, g))
	}
}

func TestWaitEndsWithTheDecisionOfAnyProcess(t *testing.T) {
	g := testGate(t)
	decider := openGate(t, g.Config(), OpenOptions{})
	mustCreate(t, g, newRequest("k"))
	const n = 20
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			r, err := g.Wait(t.Context(), "k")
			if err != nil || r.State != approvallog.StateGranted || r.Decision.By != "human:alice" {
				t.Errorf("waited: %+v, %v", r, err)
			}
		})
	}
	// Another key's records wake the waiters and do not release them.
	mustCreate(t, decider, newRequest("other"))
	grant(t, decider, "other")
	grant(t, decider, "k")
	wg.Wait()
	if r, err := g.Wait(t.Context(), "k"); err != nil || r.State != approvallog.StateGranted {
		t.Errorf("a wait for a decided request: %+v, %v", r, err)
	}
	_, err := g.Wait(t.Context(), "unheard of")
	wantCode(t, err, CodeNotFound)
}

func TestWaitEndsWithItsContextAndChangesNothing(t *testing.T) {
	g := testGate(t)
	mustCreate(t, g, newRequest("k"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := g.Wait(ctx, "k")
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	if r, err := g.Get(t.Context(), "k"); err != nil || r.State != approvallog.StatePending || records(t, g) != 1 {
		t.Errorf("afterwards: %+v, %v", r, err)
	}
}

func TestWaitRecordsTheExpiryThatItAnswers(t *testing.T) {
	g := testGate(t)
	in := newRequest("k")
	in.TTL = time.Second
	mustCreate(t, g, in)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			r, err := g.Wait(t.Context(), "k")
			if err != nil || r.State != approvallog.StateExpired || r.Ending == nil || r.Ending.By != "system:gate" || r.Decision != nil {
				t.Errorf("waited: %+v, %v", r, err)
			}
		})
	}
	wg.Wait()
	if n := records(t, g); n != 2 {
		t.Errorf("%d records", n)
	}
	grant(t, g, "k")
	if r, err := g.Wait(t.Context(), "k"); err != nil || r.State != approvallog.StateExpired {
		t.Errorf("after a late grant: %+v, %v", r, err)
	}
}

func TestWaitAnswersExpiredAlsoWhereItMayNotWrite(t *testing.T) {
	clock := newTestClock()
	g := openGate(t, testConfig(filepath.Join(t.TempDir(), ".approval")), OpenOptions{Now: clock.Now})
	mustCreate(t, g, newRequest("k"))
	clock.advance(defaultTTL)
	fenced := openGate(t, g.Config(), OpenOptions{Now: clock.Now, Guard: func() error { return approvallog.ErrFenced }})
	r, err := fenced.Wait(t.Context(), "k")
	if err != nil || r.State != approvallog.StateExpired {
		t.Errorf("waited: %+v, %v", r, err)
	}
	if list, err := g.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("list: %v, %v", list, err)
	}
	if n := records(t, g); n != 1 {
		t.Errorf("%d records", n)
	}
}

// A start whose answer was lost is answered again, to the very process and call that made it and to nobody else.
func TestAStartIsAnsweredAgainToWhoMadeIt(t *testing.T) {
	g := testGate(t)
	hash := mustCreate(t, g, newRequest("k")).PayloadHash
	grant(t, g, "k")
	start := func(attempt string, peer *Peer) (approvallog.Request, error) {
		return g.StartAttempt(t.Context(), "k", hash, "agent:ci", peer, attempt)
	}
	for range 2 {
		if r, err := start("one", nil); err != nil || r.State != approvallog.StateStarted {
			t.Fatalf("started: %+v, %v", r, err)
		}
	}
	if n := records(t, g); n != 3 {
		t.Errorf("%d records", n)
	}
	for _, attempt := range []string{"", "two"} {
		_, err := start(attempt, nil)
		wantCode(t, err, CodeAlreadyStarted)
	}
	_, err := start("one", &Peer{UID: 0, PID: 1})
	wantCode(t, err, CodeAlreadyStarted)
	_, err = g.StartAttempt(t.Context(), "k", strings.Repeat("0", 64), "agent:ci", nil, "one")
	wantCode(t, err, CodeAlreadyStarted)
	_, err = start(strings.Repeat("x", 65), nil)
	wantCode(t, err, CodeInvalidRequest)
	if _, err := g.FinishExecution(t.Context(), "k", "agent:ci", nil, 0); err != nil {
		t.Fatal(err)
	}
	_, err = start("one", nil)
	wantCode(t, err, CodeAlreadyStarted)
}

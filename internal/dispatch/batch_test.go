package dispatch

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// countingLog counts the appends that reach the disk.
type countingLog struct {
	*memLog
	appends int
}

func (l *countingLog) Update(ctx context.Context, decide func(Tx) error) ([]approvallog.Record, error) {
	records, err := l.memLog.Update(ctx, decide)
	if len(records) > 0 {
		l.appends++
	}
	return records, err
}

// TestRecoveryOfThousandsIsAFewAppends: what fell due while the daemon was down is recorded in one write and one sync
// for each file, and not in one for each request.
func TestRecoveryOfThousandsIsAFewAppends(t *testing.T) {
	const expired, cut = 2000, 1000
	now := noon
	requests, deliveries := approvallog.NewRequests(), NewDeliveries()
	log := &countingLog{memLog: newMemLog(func() time.Time { return now }, requests)}
	journal := &countingLog{memLog: newMemLog(func() time.Time { return now }, deliveries)}
	for i := range expired + cut {
		ttl := time.Hour
		if i >= expired {
			ttl = 72 * time.Hour
		}
		key := fmt.Sprintf("k%d", i)
		must(t, log, approvallog.Draft{Event: approvallog.EventRequested, Actor: "agent:ci", Task: key, ActionKey: key, Payload: map[string]any{
			"class": "one", "summary": "s", "payload_hash": "h", "reversible": true,
			"approvald": map[string]any{"quorum": 1, "expires_at": now.Add(ttl).Format(time.RFC3339Nano)},
		}})
		n := Nonce{byte(i), byte(i >> 8)}
		must(t, journal, journalDraft(EventDeliveryIntended, key, intendedPayload{
			Delivery: n.Sum()[:16], Kind: KindCard, Cycle: int64(i + 1), Epoch: 1, NonceSHA256: n.Sum(), PayloadHash: "h", ChatID: testChat,
		}))
	}
	now = now.Add(24 * time.Hour)
	log.appends, journal.appends = 0, 0
	l := New(Options{
		Log: log, Journal: journal, Requests: requests, Deliveries: deliveries, Rules: testRules{rule: Rule{Quorum: 1, Approvers: []Approver{alice}}},
		Chat: Chat{ID: testChat}, Check: func() error { return nil }, Now: func() time.Time { return now },
	})
	if err := l.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if log.appends != 1 || journal.appends != 1 {
		t.Errorf("%d appends to the log and %d to the journal", log.appends, journal.appends)
	}
	if s := l.Stats(); s.Pending != cut || s.Undelivered != cut {
		t.Errorf("stats %+v", s)
	}
	for _, key := range []string{"k0", fmt.Sprint("k", expired-1)} {
		if r, _ := requests.Get(key); r.State != approvallog.StateExpired {
			t.Errorf("%s is %s", key, r.State)
		}
	}
}

func must(t *testing.T, log Log, d approvallog.Draft) {
	t.Helper()
	if _, err := log.Update(t.Context(), func(tx Tx) error {
		_, err := tx.Append(d)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestABatchKeepsTheOrderOfItsAppends(t *testing.T) {
	draft := func(key string) AppendJournal { return AppendJournal{Drafts: []approvallog.Draft{{ActionKey: key}}} }
	got := batch([]Effect{Complain{Key: "x"}, draft("a"), Expire{approvallog.Request{Key: "e"}}, draft("b"), Call{ID: 1}, Expire{approvallog.Request{Key: "f"}}})
	if len(got) != 4 {
		t.Fatalf("%+v", got)
	}
	if a := got[0].(AppendJournal).Drafts; len(a) != 2 || a[0].ActionKey != "a" || a[1].ActionKey != "b" {
		t.Errorf("appends %+v", a)
	}
	if e := got[1].(expireAll).requests; len(e) != 2 || e[0].Key != "e" || e[1].Key != "f" {
		t.Errorf("expiries %+v", e)
	}
}

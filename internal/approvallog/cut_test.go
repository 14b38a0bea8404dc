package approvallog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// asking is the draft of a request with the key.
func asking(key string) Draft {
	return Draft{
		Event: EventRequested, Actor: "agent:ci", Task: key, ActionKey: key,
		Payload: map[string]any{
			"class": "deploy.production", "summary": "deploy", "payload_hash": fmt.Sprintf("%064x", len(key)), "reversible": false,
			"execution": "harness", "wait_until": testClock.Add(time.Hour).Format(TimeLayout),
			"approvald": map[string]any{"request_digest": fmt.Sprintf("%064x", 7), "quorum": 1, "expires_at": testClock.Add(time.Hour).Format(TimeLayout)},
		},
	}
}

// deciding is the draft of another record in the request's life.
func deciding(event, key string) Draft {
	d := Draft{Event: event, Actor: "agent:ci", Task: key, ActionKey: key, Payload: map[string]any{"class": "deploy.production"}}
	switch event {
	case EventGranted, EventRejected, EventRevoked:
		d.Actor, d.Channel = "human:alice", "telegram"
	case EventWithdrawn:
		d.Payload = map[string]any{"action_key": key, "reason": "cancelled"}
	case EventExpired:
		d.Actor, d.Payload = "system:gate", nil
	}
	return d
}

func appendTo(t testing.TB, l *Log, drafts ...Draft) []Record {
	t.Helper()
	records, err := l.Update(context.Background(), func(tx *Tx) error {
		for _, d := range drafts {
			if _, err := tx.Append(d); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func openRequests(t testing.TB, path string, change ...func(*Options)) (*Log, *Requests) {
	t.Helper()
	q := NewRequests()
	return openTest(t, path, append([]func(*Options){func(o *Options) { o.Fold = q }}, change...)...), q
}

// cutting is a cut that carries over what is pending, as the gate makes it.
func cutting(q *Requests) Cut {
	return Cut{
		Carry: func() (drafts []Draft, err error) {
			for _, r := range q.Pending() {
				more, err := q.CarryOver(r.Key)
				if err != nil {
					return nil, err
				}
				drafts = append(drafts, more...)
			}
			return drafts, nil
		},
		Recent: func() map[string][]time.Time { return q.Recent(testClock) },
	}
}

func mustCut(t testing.TB, l *Log, q *Requests) Seal {
	t.Helper()
	s, err := l.Cut(context.Background(), cutting(q))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func get(t testing.TB, l *Log, q *Requests, key string) Request {
	t.Helper()
	if err := l.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	var r Request
	var known bool
	if err := l.View(func() { r, known = q.Get(key) }); err != nil {
		t.Fatal(err)
	}
	if !known {
		t.Fatalf("%s is not known", key)
	}
	return r
}

func TestCut(t *testing.T) {
	path := logPath(t)
	l, q := openRequests(t, path)
	other, others := openRequests(t, path)
	appendTo(t, l, asking("a"), asking("b"), asking("c"), deciding(EventGranted, "a"), deciding(EventRejected, "b"))
	reader, old := other.NewReader(0), wantClean(t, path, 5)
	if first, err := reader.Next(); err != nil || first.Seq != 1 {
		t.Fatalf("first record: %d, %v", first.Seq, err)
	}
	before := map[string]Request{"a": get(t, l, q, "a"), "b": get(t, l, q, "b"), "c": get(t, l, q, "c")}

	seal := mustCut(t, l, q)
	archived := filepath.Join(filepath.Dir(path), "archive", seal.Segment, "events.jsonl")
	if seal.Head != old.Head || seal.Number != 1 || seal.Base != 0 || seal.Follows != nil {
		t.Errorf("seal: %+v", seal)
	}
	wantClean(t, archived, 5)
	report := wantClean(t, path, 1)
	if info, err := os.Stat(archived); err != nil || info.Mode().Perm() != 0o400 {
		t.Errorf("archived file: %v, %v", info.Mode(), err)
	}
	if head := l.Head(); head != report.Head || l.Last() != 6 {
		t.Errorf("head %v, last %d", head, l.Last())
	}

	fresh, freshly := openRequests(t, path)
	for _, h := range []struct {
		l *Log
		q *Requests
	}{{l, q}, {other, others}, {fresh, freshly}} {
		for key, want := range before {
			if got := get(t, h.l, h.q, key); got.State != want.State || got.Seq != want.Seq || !got.RequestedAt.Equal(want.RequestedAt) ||
				got.Digest != want.Digest || got.RecordHash != want.RecordHash || got.Revision != want.Revision || !got.ExpiresAt.Equal(want.ExpiresAt) {
				t.Errorf("%s: %+v, want %+v", key, got, want)
			}
		}
		if p := h.q.Pending(); len(p) != 1 || p[0].Key != "c" {
			t.Errorf("pending: %v", p)
		}
		if n := h.q.CreatedSince("agent:ci", testClock); n != 3 {
			t.Errorf("%d requests count towards the limit, want 3", n)
		}
	}
	for want := int64(2); want <= 6; want++ {
		if r, err := reader.Next(); err != nil || r.Seq != want {
			t.Fatalf("record %d: %d, %v", want, r.Seq, err)
		}
	}
	if _, err := reader.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	if r := appendTo(t, other, deciding(EventGranted, "c")); r[0].Seq != 7 || r[0].Head().Seq != 2 {
		t.Errorf("appended record: %d, in its file %d", r[0].Seq, r[0].Head().Seq)
	}
	if r, err := reader.Next(); err != nil || r.Seq != 7 {
		t.Fatalf("record 7: %d, %v", r.Seq, err)
	}
	if r := get(t, l, q, "c"); r.State != StateGranted || r.Seq != 3 || r.Decision.Seq != 7 {
		t.Errorf("carried request: %+v", r)
	}
}

// Snapshots are taken while the log is cut: whoever opens it with one is told the same as without.
func TestCutsBesideSnapshots(t *testing.T) {
	path := logPath(t)
	withSnapshot := func(o *Options) {
		o.Snapshot = filepath.Join(filepath.Dir(filepath.Dir(path)), "daemon", "snapshot.json")
	}
	l, q := openRequests(t, path, withSnapshot)
	daemon, requests := openRequests(t, path, withSnapshot)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := daemon.Refresh(context.Background()); err != nil {
				t.Error(err)
				return
			}
			// One that a cut has overtaken may fail; the next does not.
			_ = daemon.WriteSnapshot(context.Background())
		}
	}()
	var keys []string
	for i := range 12 {
		ended, open := fmt.Sprintf("ended-%d", i), fmt.Sprintf("open-%d", i)
		appendTo(t, l, asking(ended), asking(open), deciding(EventRejected, ended))
		keys = append(keys, ended, open)
		if i%3 == 2 {
			mustCut(t, l, q)
		}
		fresh, freshly := openRequests(t, path, withSnapshot)
		for _, key := range keys {
			want := get(t, l, q, key)
			if got := get(t, fresh, freshly, key); got.State != want.State || got.Seq != want.Seq {
				t.Fatalf("%s: %s with record %d, want %s with %d", key, got.State, got.Seq, want.State, want.Seq)
			}
		}
		if err := fresh.Close(); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	<-done
	if err := daemon.Refresh(t.Context()); err != nil { // its last look may have been before the last append
		t.Fatal(err)
	}
	if a, b := len(q.Pending()), len(requests.Pending()); a != 12 || b != 12 {
		t.Errorf("%d and %d requests are pending, want 12", a, b)
	}
}

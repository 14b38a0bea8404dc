package approvallog

import (
	"encoding/json"
	"fmt"
	"testing"
)

// The highest epoch that decided anything is known from the log alone, through snapshots and cuts.
func TestEpochOfTheDecisions(t *testing.T) {
	path := logPath(t)
	open := func() (*Log, *Requests) {
		q := NewRequests()
		return openTest(t, path, func(o *Options) { o.Snapshot, o.Fold = snapshotOf(path), q }), q
	}
	decide := func(l *Log, key, event, own string) {
		t.Helper()
		if _, err := l.Update(t.Context(), func(tx *Tx) error {
			for _, d := range []Draft{
				{Event: EventRequested, Actor: "agent:a", Task: key, ActionKey: key},
				{Event: event, Actor: "human:h", Task: key, ActionKey: key, Payload: map[string]any{"approvald": map[string]any{"epoch": json.RawMessage(own)}}},
			} {
				if _, err := tx.Append(d); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	l, q := open()
	for i, own := range []string{"3", "7", "2", `"9"`, "-1", "9007199254740991"} {
		decide(l, fmt.Sprint("k", i), EventGranted, own)
	}
	if q.Epoch() != 7 {
		t.Fatalf("epoch %d", q.Epoch())
	}
	mustSnapshot(t, l)
	l.Close()
	l, q = open()
	if q.Epoch() != 7 {
		t.Errorf("from the snapshot: %d", q.Epoch())
	}
	if _, err := l.Cut(t.Context(), Cut{}); err != nil || q.Epoch() != 7 {
		t.Errorf("after the cut: %d, %v", q.Epoch(), err)
	}
	decide(l, "later", EventRejected, "4")
	l.Close()
	if l, q = open(); q.Epoch() != 7 {
		t.Errorf("from the archive: %d", q.Epoch())
	}
	decide(l, "last", EventRejected, "8")
	if q.Epoch() != 8 {
		t.Errorf("at last: %d", q.Epoch())
	}
}

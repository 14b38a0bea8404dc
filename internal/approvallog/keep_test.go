package approvallog

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/durable"
)

// decided makes a history of n records about requests that are over.
func decided(n int) []Record {
	var h history
	for i := range n / 2 {
		key := fmt.Sprint("k", i)
		h.add(EventRequested, "agent:ci", key, "{}").add(EventRejected, "human:alice", key, "{}")
	}
	return h.records
}

func TestKeepSnapshotFollowsTheLogAndLeavesOneBehind(t *testing.T) {
	h := newTestHome(t, t.TempDir())
	records := decided(keepEvery + keepAtEnd)
	h.append(t, records[:keepEvery])
	written := make(chan struct{}, 10)
	l, _ := h.open(t, failOnNotice(t), func(o *Options) {
		o.FS = durable.FS{Hook: func(op, _ string) error {
			if op == "snapshot.syncdir" {
				written <- struct{}{}
			}
			return nil
		}}
	})
	defer l.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.KeepSnapshot(ctx)
	}()
	within := func(what string, c <-chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(time.Minute):
			t.Fatalf("waited for %s", what)
		}
	}
	within("the first snapshot", written)
	h.append(t, records[keepEvery:])
	if err := l.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop()
	within("the last snapshot", written)
	within("the end", ended)

	again, _ := h.open(t, failOnNotice(t))
	defer again.Close()
	if again.Behind() != 0 || again.Head() != h.head {
		t.Errorf("%d records behind at %v, want none at %v", again.Behind(), again.Head(), h.head)
	}
}

// Indexes grow by a factor from one to the one before it, however many snapshots were written.
func TestSnapshotsKeepFewIndexes(t *testing.T) {
	h := newTestHome(t, t.TempDir())
	l, _ := h.open(t)
	defer l.Close()
	records := decided(2000)
	for i := 0; i < len(records); i += 100 {
		h.append(t, records[i:i+100])
		if err := l.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		mustSnapshot(t, l)
	}
	s, err := readSnapshot(h.snapshot)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.Indexes); n > 4 {
		t.Errorf("%d indexes after 20 snapshots of 100 records", n)
	}
	again, q := h.open(t, failOnNotice(t))
	defer again.Close()
	err = again.View(func() {
		for _, key := range []string{"k0", "k500", "k999"} {
			if r, known := q.Get(key); !known || r.State != StateRejected {
				t.Errorf("%s: %s, known %t", key, r.State, known)
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// A snapshot is written beside appends and look-ups, and after damage to a file that all of them use.
func TestSnapshotWhileTheLogIsInUse(t *testing.T) {
	h := newTestHome(t, t.TempDir())
	h.append(t, decided(600))
	l, q := h.open(t)
	defer l.Close()
	mustSnapshot(t, l)
	spoilIndexes(t, h.snapshot)

	const rounds = 20
	var group sync.WaitGroup
	group.Go(func() {
		for i := range rounds {
			_, err := l.Update(t.Context(), func(tx *Tx) error {
				_, err := tx.Append(Draft{Event: EventRequested, Actor: "agent:ci", Task: "t", ActionKey: fmt.Sprint("new", i)})
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
	group.Go(func() {
		for range rounds {
			if err := l.WriteSnapshot(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	for range 2 {
		group.Go(func() {
			for i := range 10 * rounds {
				err := l.View(func() {
					if r, known := q.Get(fmt.Sprint("k", i)); !known || r.State != StateRejected {
						t.Errorf("k%d: %s, known %t", i, r.State, known)
					}
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	mustSnapshot(t, l)
	again, fold := h.open(t, failOnNotice(t))
	defer again.Close()
	if got := len(fold.Pending()); got != rounds {
		t.Errorf("%d are pending, want %d", got, rounds)
	}
}

// spoilIndexes damages every block of the indexes beside the snapshot.
func spoilIndexes(t *testing.T, snapshot string) {
	t.Helper()
	indexes, err := filepath.Glob(filepath.Join(filepath.Dir(snapshot), indexPrefix+"*"))
	if err != nil || len(indexes) == 0 {
		t.Fatal(indexes, err)
	}
	for _, path := range indexes {
		text := readFile(t, path)
		for i := indexBlockSize + indexHead; i < len(text); i += indexBlockSize {
			text[i] ^= 1
		}
		writeFile(t, path, text)
	}
}

package approvallog

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// testHome is a gate's home that tests fill without the engine's fsyncs.
type testHome struct {
	log, snapshot string
	head          Head
}

func newTestHome(t fatal, dir string) *testHome {
	h := &testHome{log: filepath.Join(dir, "log", "events.jsonl"), snapshot: filepath.Join(dir, "daemon", "snapshot.json")}
	if err := os.MkdirAll(filepath.Dir(h.log), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return h
}

// append puts the records behind the log's end, as a foreign writer does.
func (h *testHome) append(t fatal, records []Record) {
	f, err := os.OpenFile(h.log, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, r := range records {
		made := encodedAs(t, h.head, r)
		h.head = made.Head()
		if _, err := f.Write(append(made.Raw, '\n')); err != nil {
			t.Fatal(err)
		}
	}
}

// encodedAs is the record as it stands behind head.
func encodedAs(t fatal, head Head, r Record) Record {
	d := Draft{Event: r.Event, Actor: r.Actor, Task: r.Task, ActionKey: r.ActionKey, Channel: r.Channel, Payload: r.Payload}
	made, err := encode(head, r.TS, d)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// fatal is what the helpers need of a test, rapid's included.
type fatal interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// open opens the log with its snapshot and a fold that hardly keeps anything in memory.
func (h *testHome) open(t fatal, change ...func(*Options)) (*Log, *Requests) {
	q := NewRequests()
	q.room = 1
	o := Options{Path: h.log, Snapshot: h.snapshot, Fold: q, LockWait: 200 * time.Millisecond}
	for _, f := range change {
		f(&o)
	}
	l, err := Open(o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return l, q
}

// wantSameAnswers holds the fold of l against one that has seen the same records and forgets nothing.
func wantSameAnswers(t fatal, l *Log, q *Requests, records []Record) {
	whole := NewRequests()
	var head Head
	for _, r := range records {
		r.Hash = encodedAs(t, head, r).Hash
		head = Head{Seq: head.Seq + 1, Hash: r.Hash}
		if err := whole.Apply(r); err != nil {
			t.Fatal(err)
		}
	}
	var now time.Time
	if n := len(records); n > 0 {
		now = records[n-1].TS
	}
	err := l.View(func() {
		for _, key := range append([]string{"never"}, foldedKeys...) {
			got, ok := q.Get(key)
			want, known := whole.Get(key)
			if diff := cmp.Diff(want, got); diff != "" || ok != known {
				t.Fatalf("%s: known %t, want %t (-want +got):\n%s", key, ok, known, diff)
			}
		}
		if diff := cmp.Diff(whole.Pending(), q.Pending()); diff != "" {
			t.Fatalf("pending (-want +got):\n%s", diff)
		}
		for _, x := range []string{"x1", "x2"} {
			got, _ := q.ExclusiveHolder(x, now)
			if want, _ := whole.ExclusiveHolder(x, now); got.Seq != want.Seq {
				t.Fatalf("exclusive %s is held by %d, want %d", x, got.Seq, want.Seq)
			}
		}
		for _, requester := range []string{"agent:ci", "agent:cd"} {
			since := now.Add(-time.Hour)
			if got, want := q.CreatedSince(requester, since), whole.CreatedSince(requester, since); got != want {
				t.Fatalf("%s created %d, want %d", requester, got, want)
			}
		}
	})
	if err != nil {
		t.Fatalf("view: %v", err)
	}
	if n := len(q.entries); n > len(q.pending)+len(q.resting)+hidden(q) {
		t.Fatalf("%d requests are in memory, with %d pending and %d at rest", n, len(q.pending), len(q.resting))
	}
}

// hidden counts the pending cycles behind an execution that runs.
func hidden(q *Requests) (n int) {
	for _, e := range q.entries {
		if e.running != nil && e.needed() {
			n++
		}
	}
	return n
}

// Whatever is done to the files of a snapshot, the answers are those of the log.
func TestSnapshotNeverChangesAnAnswer(t *testing.T) {
	root := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(root, "run")
		if err != nil {
			t.Fatal(err)
		}
		h := newTestHome(t, dir)
		records := drawHistory(t)
		cuts := []int{rapid.IntRange(0, len(records)).Draw(t, "first"), rapid.IntRange(0, len(records)).Draw(t, "second"), len(records)}
		slices.Sort(cuts)

		l, q := h.open(t)
		defer func() { l.Close() }()
		var earlier map[string][]byte
		done := 0
		for i, cut := range cuts {
			h.append(t, records[done:cut])
			done = cut
			if err := l.Refresh(context.Background()); err != nil {
				t.Fatal(err)
			}
			wantSameAnswers(t, l, q, records[:done])
			if i == 2 {
				break
			}
			if err := l.WriteSnapshot(context.Background()); err != nil {
				t.Fatal(err)
			}
			wantSameAnswers(t, l, q, records[:done])
			if i == 0 {
				earlier = filesOf(t, filepath.Dir(h.snapshot))
				if rapid.Bool().Draw(t, "restart") {
					l.Close()
					l, q = h.open(t)
				}
			}
		}
		damage(t, root, h, earlier)
		again, fold := h.open(t)
		defer again.Close()
		wantSameAnswers(t, again, fold, records)
		wantSameAnswers(t, l, q, records) // a handle that had the files open
	})
}

// damage does something to the snapshot's files.
func damage(t *rapid.T, root string, h *testHome, earlier map[string][]byte) {
	dir := filepath.Dir(h.snapshot)
	kind := rapid.SampledFrom([]string{"none", "delete", "empty", "nul", "truncate", "flip", "extend", "roll back", "roll back one", "swap", "swap one"}).Draw(t, "damage")
	files := filesOf(t, dir)
	if len(files) == 0 {
		return
	}
	name := rapid.SampledFrom(slices.Sorted(maps.Keys(files))).Draw(t, "file")
	text := files[name]
	put := func(name string, text []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	switch kind {
	case "delete":
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	case "empty":
		put(name, nil)
	case "nul":
		put(name, make([]byte, len(text)))
	case "truncate":
		put(name, text[:rapid.IntRange(0, len(text)).Draw(t, "size")])
	case "extend":
		put(name, append(slices.Clone(text), 'x'))
	case "flip":
		if len(text) > 0 {
			text[rapid.IntRange(0, len(text)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
			put(name, text)
		}
	case "roll back":
		for name := range files {
			os.Remove(filepath.Join(dir, name))
		}
		for name, text := range earlier {
			put(name, text)
		}
	case "roll back one":
		for _, before := range slices.Sorted(maps.Keys(earlier)) {
			if strings.HasPrefix(before, indexPrefix) == strings.HasPrefix(name, indexPrefix) {
				put(name, earlier[before])
			}
		}
	case "swap", "swap one":
		for other, text := range otherGate(t, root) {
			if kind == "swap" || strings.HasPrefix(other, indexPrefix) == strings.HasPrefix(name, indexPrefix) {
				if kind == "swap one" {
					other = name
				}
				put(other, text)
			}
		}
	}
}

func otherGate(t *rapid.T, root string) map[string][]byte {
	dir, err := os.MkdirTemp(root, "other")
	if err != nil {
		t.Fatal(err)
	}
	other := newTestHome(t, dir)
	other.append(t, drawHistory(t))
	l, _ := other.open(t)
	defer l.Close()
	if err := l.WriteSnapshot(context.Background()); err != nil {
		t.Fatal(err)
	}
	return filesOf(t, filepath.Dir(other.snapshot))
}

func filesOf(t fatal, dir string) map[string][]byte {
	files := make(map[string][]byte)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = text
	}
	return files
}

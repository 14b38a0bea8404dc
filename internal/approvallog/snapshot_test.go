package approvallog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/approvald/approvald/internal/durable"
)

// A crash at any moment of writing a snapshot leaves one that can be used, or none.
func TestSnapshotSurvivesACrashAtEveryStep(t *testing.T) {
	records := someHistory()
	var steps int
	for _, withEarlier := range []bool{false, true} {
		dir := t.TempDir()
		h := newTestHome(t, dir)
		h.append(t, records[:len(records)/2])
		var photographs []map[string][]byte
		var armed bool
		hook := func(string, string) error {
			if armed {
				photographs = append(photographs, filesOf(t, filepath.Dir(h.snapshot)))
			}
			return nil
		}
		l, _ := h.open(t, func(o *Options) { o.FS = durable.FS{Hook: hook} })
		defer l.Close()
		if withEarlier {
			mustSnapshot(t, l)
		}
		h.append(t, records[len(records)/2:])
		if err := l.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		armed = true
		mustSnapshot(t, l)
		photographs = append(photographs, filesOf(t, filepath.Dir(h.snapshot)))
		steps += len(photographs)
		for i, files := range photographs {
			after := &testHome{log: h.log, snapshot: filepath.Join(dir, fmt.Sprint(i), "snapshot.json")}
			for name, text := range files {
				writeFile(t, filepath.Join(filepath.Dir(after.snapshot), name), text)
			}
			again, q := after.open(t)
			wantSameAnswers(t, again, q, records)
			mustSnapshot(t, again)
			again.Close()
			again, q = after.open(t, failOnNotice(t))
			wantSameAnswers(t, again, q, records)
			again.Close()
		}
	}
	if steps < 16 {
		t.Errorf("only %d steps were looked at", steps)
	}
}

// An error at any step leaves the snapshot that was there, and the log usable.
func TestSnapshotThatFailsCostsNothing(t *testing.T) {
	records := someHistory()
	for _, op := range []string{
		"snapshot.mkdir", "index.open", "index.write", "index.sync", "index.rename", "index.syncdir",
		"snapshot.open", "snapshot.write", "snapshot.sync", "snapshot.rename", "snapshot.syncdir",
	} {
		t.Run(op, func(t *testing.T) {
			h := newTestHome(t, t.TempDir())
			h.append(t, records)
			failing := true
			l, q := h.open(t, func(o *Options) {
				o.FS.Hook = func(at, _ string) error {
					if failing && at == op {
						return &durable.Partial{N: 100, Err: syscall.ENOSPC}
					}
					return nil
				}
			})
			defer l.Close()
			if err := l.WriteSnapshot(t.Context()); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("write snapshot: %v", err)
			}
			wantSameAnswers(t, l, q, records)
			again, fold := h.open(t)
			wantSameAnswers(t, again, fold, records)
			again.Close()
			failing = false
			mustSnapshot(t, l)
			again, fold = h.open(t, failOnNotice(t))
			defer again.Close()
			wantSameAnswers(t, again, fold, records)
			if again.Behind() != 0 || l.Behind() != 0 {
				t.Errorf("%d and %d records behind a snapshot that was just written", again.Behind(), l.Behind())
			}
		})
	}
}

func TestSnapshotIsLeftAloneWhenNothingIsNew(t *testing.T) {
	h := newTestHome(t, t.TempDir())
	l, _ := h.open(t)
	defer l.Close()
	mustSnapshot(t, l)
	if files := filesOf(t, filepath.Dir(h.snapshot)); len(files) != 0 {
		t.Errorf("an empty log has a snapshot: %v", slices.Collect(maps.Keys(files)))
	}
	h.append(t, someHistory())
	if err := l.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustSnapshot(t, l)
	before := filesOf(t, filepath.Dir(h.snapshot))
	mustSnapshot(t, l)
	if diff := cmp.Diff(before, filesOf(t, filepath.Dir(h.snapshot))); diff != "" {
		t.Error(diff)
	}
}

// What is wrong is said once, in words, and never keeps the log from being opened.
func TestSnapshotThatCannotBeUsedIsNamed(t *testing.T) {
	for want, spoil := range map[string]func(t *testing.T, h *testHome){
		"nothing is in it":          func(t *testing.T, h *testHome) { writeFile(t, h.snapshot, make([]byte, 512)) },
		"its digest is another one": func(t *testing.T, h *testHome) { replaceIn(t, h.snapshot, `"pending":[`, `"pending":["zz",`) },
		"version 9 is not known":    func(t *testing.T, h *testHome) { reseal(t, h.snapshot, func(s *snapshot) { s.Version = 9 }) },
		"it names no index": func(t *testing.T, h *testHome) {
			reseal(t, h.snapshot, func(s *snapshot) { s.Indexes[0].File = "../index-x" })
		},
		"it names no place of a log": func(t *testing.T, h *testHome) {
			reseal(t, h.snapshot, func(s *snapshot) { s.Log.Last = s.Log.Offset })
		},
		"the log has another record": func(t *testing.T, h *testHome) {
			reseal(t, h.snapshot, func(s *snapshot) { s.Log.Hash = strings.Repeat("a", 64) })
		},
		"no pending request": func(t *testing.T, h *testHome) {
			reseal(t, h.snapshot, func(s *snapshot) { s.State = json.RawMessage(`{"pending":["never"]}`) })
		},
	} {
		t.Run(want, func(t *testing.T) {
			h := newTestHome(t, t.TempDir())
			h.append(t, someHistory())
			l, _ := h.open(t)
			mustSnapshot(t, l)
			l.Close()
			spoil(t, h)
			var notices []string
			again, _ := h.open(t, func(o *Options) {
				o.Logf = func(format string, args ...any) { notices = append(notices, fmt.Sprintf(format, args...)) }
			})
			defer again.Close()
			if len(notices) != 1 || !strings.Contains(notices[0], want) || !strings.Contains(notices[0], h.snapshot) {
				t.Errorf("notices: %q, want one with %q and the path", notices, want)
			}
		})
	}
}

// Damage before the snapshot's place is met when the record is needed, and then nothing is answered.
func TestDamageBeforeTheSnapshotFailsTheLookUpThatMeetsIt(t *testing.T) {
	h := newTestHome(t, t.TempDir())
	h.append(t, someHistory())
	l, _ := h.open(t)
	mustSnapshot(t, l)
	l.Close()
	replaceIn(t, h.log, `"agent:ci"`, `"agent:cj"`)

	again, q := h.open(t, failOnNotice(t))
	defer again.Close()
	err := again.View(func() {
		if r, known := q.Get("a"); known {
			t.Errorf("answered %+v from a damaged log", r)
		}
	})
	if corrupt, ok := errors.AsType[*CorruptError](err); !ok || corrupt.Reason != ReasonHashMismatch || corrupt.Line != 1 {
		t.Fatalf("view: %v", err)
	}
	if _, err := again.Update(t.Context(), func(*Tx) error { return nil }); !errors.Is(err, ErrCorrupt) {
		t.Errorf("update: %v", err)
	}
	if report := verify(t, h.log); report.Status != StatusCorrupt || report.Line != 1 {
		t.Errorf("verify: %+v", report)
	}
}

// A decision that needs what cannot be read is not written.
func TestUpdateWritesNothingWhenALookUpFailed(t *testing.T) {
	h := newTestHome(t, t.TempDir())
	h.append(t, someHistory())
	l, _ := h.open(t)
	mustSnapshot(t, l)
	l.Close()
	replaceIn(t, h.log, `"agent:ci"`, `"agent:cj"`)
	before := readFile(t, h.log)

	again, q := h.open(t)
	defer again.Close()
	_, err := again.Update(t.Context(), func(tx *Tx) error {
		if _, known := q.Get("a"); known {
			t.Error("known")
		}
		_, err := tx.Append(draft("a"))
		return err
	})
	if !errors.Is(err, ErrCorrupt) || !bytes.Equal(before, readFile(t, h.log)) {
		t.Errorf("update: %v", err)
	}
}

// A key whose hash is that of another one is found by its records, not by its hash.
func TestFindIsNotMisledByKeysOfOneHash(t *testing.T) {
	h := newTestHome(t, t.TempDir())
	records := someHistory()
	h.append(t, records)
	l, q := h.open(t)
	defer l.Close()
	f := l.snap.finder
	for _, e := range slices.Clone(f.mem.entries) {
		if e.hash == keyHash("b") {
			f.mem.add(indexEntry{hash: keyHash("a"), at: e.at | 1})
		}
	}
	wantSameAnswers(t, l, q, records)
}

func TestRequestsAtRestDoNotStayInMemory(t *testing.T) {
	h := newTestHome(t, t.TempDir())
	var many history
	for i := range 3 * maxResting {
		key := fmt.Sprint("k", i)
		many.add(EventRequested, "agent:ci", key, "{}").add(EventGranted, "human:alice", key, "{}")
	}
	many.add(EventRequested, "agent:ci", "last", "{}")
	h.append(t, many.records)
	q := NewRequests()
	l, err := Open(Options{Path: h.log, Fold: q})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if n := len(q.entries); n > maxResting+1 {
		t.Errorf("%d requests are in memory", n)
	}
	err = l.View(func() {
		if r, known := q.Get("k0"); !known || r.State != StateGranted || r.Decision.Seq != 2 {
			t.Errorf("the oldest one: %+v, known %t", r, known)
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// someHistory has keys in all states.
func someHistory() []Record {
	const asked = `{"payload_hash":"aa"}`
	var h history
	h.add(EventRequested, "agent:ci", "a", asked).add(EventGranted, "human:alice", "a", asked).add(EventExecutionStarted, "agent:ci", "a", "")
	h.add(EventRequested, "agent:cd", "b", `{"approvald":{"exclusive":"x1"},"payload_hash":"aa"}`).add(EventRejected, "human:alice", "b", "{}")
	h.add(EventRequested, "agent:ci", "a", asked).add(EventExecutionCompleted, "agent:ci", "a", `{"exit_code":0}`).add(EventGranted, "human:alice", "a", asked)
	h.add(EventRequested, "agent:cd", "b", asked).add(EventWithdrawn, "agent:cd", "b", "{}")
	h.add(EventRequested, "agent:cd", "c", `{"approvald":{"exclusive":"x2"},"payload_hash":"aa"}`)
	h.add(EventRequested, "agent:cd", "b", asked).add(EventExpired, "system:gate", "b", "")
	return h.records
}

func mustSnapshot(t testing.TB, l *Log) {
	t.Helper()
	if err := l.WriteSnapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// failOnNotice makes a notice, as that of a snapshot that is not used, a failure.
func failOnNotice(t testing.TB) func(*Options) {
	return func(o *Options) { o.Logf = t.Errorf }
}

func replaceIn(t testing.TB, path, old, new string) {
	t.Helper()
	text := readFile(t, path)
	if !bytes.Contains(text, []byte(old)) {
		t.Fatalf("%s has no %s", path, old)
	}
	writeFile(t, path, bytes.Replace(text, []byte(old), []byte(new), 1))
}

// reseal changes a snapshot and makes its digest right again.
func reseal(t testing.TB, path string, change func(*snapshot)) {
	t.Helper()
	s, err := readSnapshot(path)
	if err != nil {
		t.Fatal(err)
	}
	change(&s)
	text, err := s.encode()
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, text)
}

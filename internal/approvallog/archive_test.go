package approvallog

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/approvald/approvald/internal/durable"
)

// archivedHome is a log with two archived segments and their indexes, and the journal that knows them.
type archivedHome struct {
	path, journal string
	seals         []Seal
}

func (h archivedHome) file(i int, name string) string {
	return filepath.Join(archivePath(h.path), h.seals[i].Segment, name)
}

// makeArchive archives the keys a and b, then c and d; e is pending all the time when carry says so.
func makeArchive(t testing.TB, carry bool) archivedHome {
	t.Helper()
	h := archivedHome{path: logPath(t)}
	h.journal = filepath.Join(filepath.Dir(filepath.Dir(h.path)), "daemon", "deliveries.jsonl")
	l, q := openRequests(t, h.path)
	journal := openTest(t, h.journal)
	if carry {
		appendTo(t, l, asking("e"))
	}
	for _, keys := range [][2]string{{"a", "b"}, {"c", "d"}} {
		for _, key := range keys {
			appendTo(t, l, asking(key), deciding(EventRejected, key))
		}
		c := cutting(q)
		c.Announce = func(s Seal) error {
			_, err := journal.Update(context.Background(), func(tx *Tx) error {
				_, err := tx.Append(Draft{Event: EventArchiveSealed, Actor: "system:gate", Payload: s})
				return err
			})
			return err
		}
		s, err := l.Cut(context.Background(), c)
		if err == nil {
			err = IndexArchive(context.Background(), durable.FS{}, h.path, s, NewRequests())
		}
		if err != nil {
			t.Fatal(err)
		}
		h.seals = append(h.seals, s)
	}
	if err := errors.Join(l.Close(), journal.Close()); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h archivedHome) verify(t testing.TB, head *Head) Report {
	t.Helper()
	report, err := VerifyAll(context.Background(), h.path, h.journal, VerifyOptions{Semantic: true, Head: head})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestVerifyAllOfASoundArchive(t *testing.T) {
	for name, carry := range map[string]bool{"carried": true, "nothing carried": false} {
		t.Run(name, func(t *testing.T) {
			h := makeArchive(t, carry)
			r := h.verify(t, nil)
			if r.Status != StatusClean || len(r.Findings) > 0 || len(r.Archive) != 2 || r.Archive[1].First != r.Archive[0].Last+1 {
				t.Errorf("%+v", r)
			}
			for _, s := range h.seals {
				if r := h.verify(t, &s.Head); r.Status != StatusClean || !r.HeadSeen {
					t.Errorf("head of %s: %s, seen %t", s.Segment, r.Reason, r.HeadSeen)
				}
				wrong := Head{Seq: s.Head.Seq, Hash: s.First}
				if r := h.verify(t, &wrong); r.Reason != ReasonHeadMismatch {
					t.Errorf("a head that never was: %s", r.Status)
				}
			}
			l, q := openRequests(t, h.path)
			for _, key := range []string{"a", "b", "c", "d"} {
				if r := get(t, l, q, key); r.State != StateRejected {
					t.Errorf("%s: %+v", key, r)
				}
			}
			reader, n := l.NewReader(0), int64(0)
			for r, err := reader.Next(); err == nil; r, err = reader.Next() {
				if n++; r.Seq != n {
					t.Fatalf("record %d, want %d", r.Seq, n)
				}
			}
			if n != l.Last() {
				t.Errorf("%d records read, the last is %d", n, l.Last())
			}
		})
	}
}

func edit(t testing.TB, path string, change func([]byte) []byte) {
	t.Helper()
	b := change(readFile(t, path))
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	writeFile(t, path, b)
}

var errKnown = errors.New("the key is known")

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Each damage of an archive is named, with the segment that it is in, and no archived request is ever
// taken for a new one because of it.
func TestDamagedArchives(t *testing.T) {
	tests := map[string]struct {
		damage  func(t *testing.T, h archivedHome)
		reason  Reason
		segment int  // index of the damaged one, -1 for the log itself
		empty   bool // the log holds nothing that tells what it follows
		opens   bool // the log can be opened, and the look-up of a key in there fails
	}{
		"a record is changed": {func(t *testing.T, h archivedHome) {
			edit(t, h.file(0, segmentFile), func(b []byte) []byte { return bytes.Replace(b, []byte("deploy\""), []byte("destroy\""), 2) })
		}, ReasonHashMismatch, 0, true, true},
		"the records are gone": {func(t *testing.T, h archivedHome) {
			must(t, os.Remove(h.file(0, segmentFile)))
		}, ReasonArchiveMissing, 0, true, true},
		"the last record is cut off": {func(t *testing.T, h archivedHome) {
			edit(t, h.file(1, segmentFile), func(b []byte) []byte {
				lines := splitLines(b)
				return join(lines[:len(lines)-1]...)
			})
		}, ReasonArchiveAltered, 1, true, true},
		// What the seal speaks of is all there, and found.
		"a torn record stands behind the last": {func(t *testing.T, h archivedHome) {
			edit(t, h.file(1, segmentFile), func(b []byte) []byte { return append(b, b[:40]...) })
		}, ReasonArchiveAltered, 1, false, true},
		"the records of two segments are swapped": {func(t *testing.T, h archivedHome) {
			must(t, os.Rename(h.file(0, segmentFile), h.file(0, "x")))
			must(t, os.Rename(h.file(1, segmentFile), h.file(0, segmentFile)))
			must(t, os.Rename(h.file(0, "x"), h.file(1, segmentFile)))
		}, ReasonArchiveAltered, 0, true, true},
		"two segments have each other's name": {func(t *testing.T, h archivedHome) {
			one, two := filepath.Dir(h.file(0, "x")), filepath.Dir(h.file(1, "x"))
			must(t, os.Rename(one, one+"x"))
			must(t, os.Rename(two, one))
			must(t, os.Rename(one+"x", two))
		}, ReasonArchiveSeal, -1, false, false},
		"the first segment is gone": {func(t *testing.T, h archivedHome) {
			must(t, os.RemoveAll(filepath.Dir(h.file(0, "x"))))
		}, ReasonArchiveMissing, -1, false, false},
		"the last segment is gone": {func(t *testing.T, h archivedHome) {
			must(t, os.RemoveAll(filepath.Dir(h.file(1, "x"))))
		}, ReasonArchiveMissing, -1, false, false},
		"all segments are gone": {func(t *testing.T, h archivedHome) {
			must(t, os.RemoveAll(archivePath(h.path)))
		}, ReasonArchiveMissing, -1, false, false},
		"the last segment is gone, and only the journal knows": {func(t *testing.T, h archivedHome) {
			must(t, os.RemoveAll(filepath.Dir(h.file(1, "x"))))
		}, ReasonArchiveMissing, -1, true, true},
		"a seal is changed": {func(t *testing.T, h archivedHome) {
			edit(t, h.file(1, sealFile), func(b []byte) []byte {
				return bytes.Replace(b, []byte(h.seals[1].Head.Hash), []byte(h.seals[0].Head.Hash), 1)
			})
		}, ReasonArchiveSeal, -1, true, true},
		"a seal is none": {func(t *testing.T, h archivedHome) {
			edit(t, h.file(1, sealFile), func([]byte) []byte { return make([]byte, 512) })
		}, ReasonArchiveSeal, -1, false, false},
		"a seal has another number": {func(t *testing.T, h archivedHome) {
			edit(t, h.file(1, sealFile), func(b []byte) []byte { return bytes.Replace(b, []byte(`"number": 2`), []byte(`"number": 1`), 1) })
		}, ReasonArchiveLink, -1, false, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := makeArchive(t, !tt.empty)
			tt.damage(t, h)
			r := h.verify(t, nil)
			segment := ""
			if tt.segment >= 0 {
				segment = h.seals[tt.segment].Segment
			}
			if r.Status != StatusCorrupt || r.Reason != tt.reason || r.Segment != segment || !errors.Is(r.Err(), ErrCorrupt) {
				t.Errorf("verify: %s, %s in %q: %s; want %s in %q", r.Status, r.Reason, r.Segment, r.Detail, tt.reason, segment)
			}
			q := NewRequests()
			l, err := Open(Options{Path: h.path, Fold: q})
			if (err == nil) != tt.opens || err != nil && !errors.Is(err, ErrCorrupt) {
				t.Fatalf("open: %v", err)
			}
			if err != nil {
				return
			}
			defer l.Close()
			if tt.segment < 0 {
				return
			}
			key := []string{"a", "d"}[tt.segment]
			_, err = l.Update(context.Background(), func(tx *Tx) error {
				if _, known := q.Get(key); !known {
					_, err := tx.Append(asking(key))
					return err
				}
				return errKnown
			})
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, errKnown) {
				t.Errorf("a key of the damaged segment was taken for a new one: %v", err)
			}
		})
	}
}

// An index only says where to look: without it, or with one that lies, the same is found.
func TestArchiveWithoutItsIndex(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, h archivedHome){
		"gone": func(t *testing.T, h archivedHome) { must(t, os.Remove(h.file(0, segmentIndex))) },
		"zeroes": func(t *testing.T, h archivedHome) {
			edit(t, h.file(0, segmentIndex), func(b []byte) []byte { return make([]byte, len(b)) })
		},
		"a bit": func(t *testing.T, h archivedHome) {
			edit(t, h.file(0, segmentIndex), func(b []byte) []byte { b[5000] ^= 1; return b })
		},
		"another's": func(t *testing.T, h archivedHome) {
			must(t, os.Rename(h.file(1, segmentIndex), h.file(0, segmentIndex)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := makeArchive(t, true)
			damage(t, h)
			l, q := openRequests(t, h.path)
			for _, key := range []string{"a", "b", "c", "d"} {
				if r := get(t, l, q, key); r.State != StateRejected {
					t.Errorf("%s: %+v", key, r)
				}
			}
			if err := l.View(func() {
				if _, known := q.Get("f"); known {
					t.Error("a key that nobody asked for is known")
				}
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// A home that was restored while a cut had not been committed: the directory in the archive holds a
// copy of the log's records and not the log's file. It counts for nothing, and nothing of it is lost.
func TestCopyOfAnUnfinishedCut(t *testing.T) {
	path := logPath(t)
	l, q := openRequests(t, path)
	appendTo(t, l, asking("a"), deciding(EventRejected, "a"))
	f := &faults{}
	other, others := openRequests(t, path, withFaults(f))
	f.set(onOp("archive.rename", errors.New("crash")))
	c := cutting(others)
	var stray string
	kept := filepath.Join(t.TempDir(), "kept")
	c.Announce = func(s Seal) error {
		stray = filepath.Join(archivePath(path), s.Segment)
		return os.CopyFS(kept, os.DirFS(stray))
	}
	if _, err := other.Cut(context.Background(), c); err == nil {
		t.Fatal("the cut did not fail")
	}
	must(t, os.CopyFS(stray, os.DirFS(kept)))
	if r, err := VerifyAll(context.Background(), path, "", VerifyOptions{}); err != nil || r.Status != StatusClean || len(r.Archive) != 0 {
		t.Errorf("verify: %+v, %v", r, err)
	}
	seal := mustCut(t, l, q)
	if r, err := VerifyAll(context.Background(), path, "", VerifyOptions{}); err != nil || r.Status != StatusClean || len(r.Archive) != 1 || seal.Number != 1 {
		t.Errorf("verify: %+v, %v", r, err)
	}
	found, err := filepath.Glob(filepath.Join(filepath.Dir(path), "quarantine", "archive-*", segmentFile))
	if err != nil || len(found) != 1 {
		t.Errorf("kept: %v, %v", found, err)
	}
}

func FuzzSeal(f *testing.F) {
	h := makeArchive(f, true)
	f.Add(readFile(f, h.file(0, sealFile)))
	f.Add(readFile(f, h.file(1, sealFile)))
	f.Add([]byte(`{"v":1,"segment":"..","number":1,"base":0}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseSealed(b)
		if err != nil {
			return
		}
		if s.Segment == ".." || s.Segment == "." || slices.Contains([]byte(s.Segment), '/') || s.end() < 1 {
			t.Errorf("accepted: %+v", s)
		}
	})
}

package approvallog

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/approvald/approvald/internal/durable"
)

// faults injects errors into chosen calls and counts all.
type faults struct {
	mu    sync.Mutex
	calls []string
	fail  func(n int, op, path string) error
}

func (f *faults) hook(op, path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, op)
	if f.fail == nil {
		return nil
	}
	return f.fail(len(f.calls), op, path)
}

func (f *faults) set(fail func(n int, op, path string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls, f.fail = nil, fail
}

func onOp(op string, err error) func(int, string, string) error {
	return func(_ int, called, _ string) error {
		if called == op {
			return err
		}
		return nil
	}
}

func withFaults(f *faults) func(*Options) {
	return func(o *Options) { o.FS = durable.FS{Hook: f.hook} }
}

// The matrix: every step of an append, on a fresh home and on a torn log, fails once with each
// error. Whatever happens, what was acknowledged is in the log, what was not is not shown by the
// fold, and a new process goes on from there.
func TestEveryStepFailsOnce(t *testing.T) {
	lines := makeLog(t, logPath(t), 3)
	starts := map[string][]byte{"fresh": nil, "torn": join(lines[0], lines[1], lines[2][:50])}
	for name, content := range starts {
		steps := stepsOfAnAppend(t, content)
		if len(steps) < 6 {
			t.Fatalf("only %v", steps)
		}
		for i, step := range steps {
			for _, injected := range []error{syscall.EIO, syscall.ENOSPC, &durable.Partial{N: 40, Err: syscall.ENOSPC}, &durable.Partial{N: 40, Err: syscall.EIO}} {
				if _, partial := injected.(*durable.Partial); partial && !strings.HasSuffix(step, ".write") {
					continue
				}
				t.Run(name+"/"+step+"/"+strings.ReplaceAll(injected.Error(), " ", "-"), func(t *testing.T) {
					failStep(t, content, i+1, injected)
				})
			}
		}
	}
}

func stepsOfAnAppend(t *testing.T, content []byte) []string {
	path, f := logPath(t), &faults{}
	if content != nil {
		writeFile(t, path, content)
	}
	mustAppend(t, openTest(t, path, withFaults(f)), "k")
	return f.calls
}

func failStep(t *testing.T, content []byte, step int, injected error) {
	path, f := logPath(t), &faults{}
	records := int64(0)
	if content != nil {
		writeFile(t, path, content)
		records = 2
	}
	h := &recorder{}
	l := openTest(t, path, withFaults(f), func(o *Options) { o.Fold = h })
	f.set(func(n int, _, _ string) error {
		if n == step {
			return injected
		}
		return nil
	})
	ctx := context.Background()
	_, err := l.Append(ctx, l.Head(), draft("first"))
	acknowledged := err == nil
	if err != nil && !errors.Is(err, injected) && !errors.Is(err, errors.Unwrap(injected)) {
		t.Fatalf("error %v does not tell of %v", err, injected)
	}
	if acknowledged {
		records++
	}
	poisoned := errors.Is(err, ErrPoisoned)
	verr := l.View(func() {
		if int64(len(h.records)) != records {
			t.Errorf("the fold shows %d records, %d are acknowledged", len(h.records), records)
		}
	})
	if errors.Is(verr, ErrPoisoned) != poisoned {
		t.Errorf("View: %v after %v", verr, err)
	}
	_, err = l.Append(ctx, l.Head(), draft("second"))
	switch {
	case poisoned && !errors.Is(err, ErrPoisoned):
		t.Errorf("append through a poisoned handle: %v", err)
	case !poisoned && err != nil:
		t.Errorf("the handle is not poisoned, yet: %v", err)
	case err == nil:
		records++
	}
	l.Close()
	after := &recorder{}
	again := openTest(t, path, func(o *Options) { o.Fold = after })
	mustAppend(t, again, "last")
	again.Close()
	// A poisoned record may have reached the disk or not; it was never acknowledged either way.
	report := verify(t, path)
	if report.Status != StatusClean || report.Records != records+1 && !(poisoned && report.Records == records+2) {
		t.Fatalf("%+v, want %d records", report, records+1)
	}
	if left := listed(t, filepath.Dir(path)); strings.Contains(left, ".tmp-") || strings.Contains(left, ".lock") {
		t.Errorf("left behind: %s", left)
	}
}

func TestFailedFsyncPoisonsForGood(t *testing.T) {
	path, f := logPath(t), &faults{}
	l := openTest(t, path, withFaults(f))
	mustAppend(t, l, "1")
	failed := false
	f.set(func(_ int, op, _ string) error {
		if op == "append.sync" && !failed {
			failed = true
			return syscall.EIO
		}
		return nil
	})
	ctx := context.Background()
	if _, err := l.Append(ctx, l.Head(), draft("2")); !errors.Is(err, ErrPoisoned) || !errors.Is(err, syscall.EIO) {
		t.Fatalf("error %v", err)
	}
	for range 3 {
		if _, err := l.Append(ctx, l.Head(), draft("3")); !errors.Is(err, ErrPoisoned) {
			t.Fatalf("a later append: %v", err)
		}
	}
	for name, err := range map[string]error{
		"Sync": l.Sync(), "Refresh": l.Refresh(ctx), "View": l.View(func() { t.Error("View ran") }),
	} {
		if !errors.Is(err, ErrPoisoned) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A full disk refuses exactly the appends that do not fit, and heals.
func TestFullDiskHeals(t *testing.T) {
	path, f := logPath(t), &faults{}
	h := &recorder{}
	l := openTest(t, path, withFaults(f), func(o *Options) { o.Fold = h })
	mustAppend(t, l, "1")
	ctx := context.Background()
	before := readFile(t, path)
	for _, n := range []int{0, 1, 100, 1 << 20} {
		f.set(onOp("append.write", &durable.Partial{N: n, Err: syscall.ENOSPC}))
		_, err := l.Append(ctx, l.Head(), draft("2"))
		if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, ErrPoisoned) {
			t.Fatalf("%d bytes let through: %v", n, err)
		}
		if !bytes.Equal(before, readFile(t, path)) {
			t.Fatalf("%d bytes let through: the file does not end where it did", n)
		}
	}
	f.set(nil)
	mustAppend(t, l, "3")
	wantClean(t, path, 2)
	if len(h.records) != 2 {
		t.Errorf("the fold has %d records", len(h.records))
	}
}

// When the rollback itself fails nobody knows what is there.
func TestFailedRollbackPoisons(t *testing.T) {
	for _, op := range []string{"append.truncate", "append.sync"} {
		t.Run(op, func(t *testing.T) {
			path, f := logPath(t), &faults{}
			l := openTest(t, path, withFaults(f))
			mustAppend(t, l, "1")
			f.set(func(_ int, called, _ string) error {
				switch called {
				case "append.write":
					return &durable.Partial{N: 30, Err: syscall.ENOSPC}
				case op:
					return syscall.EIO
				}
				return nil
			})
			if _, err := l.Append(context.Background(), l.Head(), draft("2")); !errors.Is(err, ErrPoisoned) {
				t.Fatalf("error %v", err)
			}
			l.Close()
			mustAppend(t, openTest(t, path), "3")
			wantClean(t, path, 2)
		})
	}
}

// The path and the open file must stay one and the same; a fresh chain is never begun.
func TestDrift(t *testing.T) {
	tests := map[string]struct {
		change func(t *testing.T, path string)
		reason Reason
	}{
		"renamed": {func(t *testing.T, path string) { rename(t, path, path+".1") }, ReasonLogMissing},
		"renamed and touched": {func(t *testing.T, path string) {
			rename(t, path, path+".1")
			writeFile(t, path, nil)
		}, ReasonLogReplaced},
		"copied and truncated": {func(t *testing.T, path string) {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
		}, ReasonLogTruncated},
		"last record cut off": {func(t *testing.T, path string) {
			writeFile(t, path, join(splitLines(readFile(t, path))[:1]...))
		}, ReasonLogTruncated},
		"removed": {func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}, ReasonLogMissing},
		"an older copy": {func(t *testing.T, path string) {
			old := splitLines(readFile(t, path))[0]
			rename(t, path, path+".1")
			writeFile(t, path, old)
		}, ReasonLogReplaced},
		"the same bytes, another file": {func(t *testing.T, path string) {
			b := readFile(t, path)
			rename(t, path, path+".1")
			writeFile(t, path, b)
		}, ReasonLogReplaced},
		"the last record rewritten": {func(t *testing.T, path string) {
			writeFile(t, path, bytes.Replace(readFile(t, path), []byte("key-2"), []byte("key-x"), 1))
		}, ReasonLogRewritten},
		"a directory": {func(t *testing.T, path string) {
			rename(t, path, path+".1")
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, ReasonNotRegular},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := logPath(t)
			l := openTest(t, path)
			mustAppend(t, l, "key-1", "key-2")
			test.change(t, path)
			before := listed(t, filepath.Dir(path))
			for range 2 {
				_, err := l.Append(context.Background(), l.Head(), draft("3"))
				corrupt, ok := errors.AsType[*CorruptError](err)
				if !ok || corrupt.Reason != test.reason {
					t.Fatalf("error %v, want %s", err, test.reason)
				}
			}
			if after := listed(t, filepath.Dir(path)); after != before {
				t.Errorf("the directory held %s, now %s", before, after)
			}
			if r, err := l.NewReader(l.Head().Seq).Next(); err == nil {
				t.Errorf("a reader went on with %+v", r)
			}
		})
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func TestLogThatComesBackGoesOn(t *testing.T) {
	path := logPath(t)
	l := openTest(t, path)
	mustAppend(t, l, "1")
	rename(t, path, path+".1")
	if _, err := l.Append(context.Background(), l.Head(), draft("2")); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
	rename(t, path+".1", path)
	mustAppend(t, l, "2")
	wantClean(t, path, 2)
}

// A home that holds what only a gate with a log can hold has lost its log.
func TestMissingLog(t *testing.T) {
	for _, other := range []string{"payloads/ab.json", "log/quarantine/x", "log/archive/x", "daemon/deliveries.jsonl", "daemon/snapshot.json"} {
		t.Run(other, func(t *testing.T) {
			path := logPath(t)
			home := filepath.Dir(filepath.Dir(path))
			writeFile(t, filepath.Join(home, other), []byte("x"))
			_, err := Open(Options{Path: path})
			corrupt, ok := errors.AsType[*CorruptError](err)
			if !ok || corrupt.Reason != ReasonLogMissing || !strings.Contains(err.Error(), other) {
				t.Fatalf("error %v", err)
			}
			l := openTest(t, path, func(o *Options) { o.ReadDamaged = true })
			if _, err := l.Append(context.Background(), Head{}, draft("1")); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("append: %v", err)
			}
			if _, err := os.Stat(path); err == nil {
				t.Fatal("a new chain was begun")
			}
		})
	}
	t.Run("fresh", func(t *testing.T) {
		path := logPath(t)
		home := filepath.Dir(filepath.Dir(path))
		l := openTest(t, path)
		if _, err := os.Stat(home); err == nil {
			t.Fatal("opening made the home")
		}
		if err := l.Ensure(context.Background()); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(home, "payloads", "ab.json"), []byte("{}"))
		mustAppend(t, openTest(t, path), "1")
		wantClean(t, path, 1)
	})
}

package gate

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/durable"
)

func mustArchive(t testing.TB, g *Gate, carry bool) Archived {
	t.Helper()
	done, err := g.Archive(t.Context(), ArchiveOptions{Carry: carry})
	if err != nil || done.Path == "" {
		t.Fatalf("archive: %q, %v", done.Path, err)
	}
	return done
}

func TestArchiveRefusesPendingRequests(t *testing.T) {
	clock := newTestClock()
	g := openGate(t, testConfig(filepath.Join(t.TempDir(), ".approval")), OpenOptions{Now: clock.Now})
	if done, err := g.Archive(t.Context(), ArchiveOptions{}); err != nil || done.Path != "" {
		t.Errorf("on a fresh home: %q, %v", done.Path, err)
	}
	in := newRequest("late")
	in.TTL = time.Minute
	mustCreate(t, g, in)
	mustCreate(t, g, newRequest("open"))
	clock.advance(time.Hour)
	_, err := g.Archive(t.Context(), ArchiveOptions{})
	wantCode(t, err, CodePending)
	if err == nil || !strings.Contains(err.Error(), `"open"`) || strings.Contains(err.Error(), "late") {
		t.Errorf("the refusal does not name the request: %v", err)
	}
	if _, err := os.Stat(g.Paths().Archive); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an archive was begun: %v", err)
	}

	done := mustArchive(t, g, true)
	if len(done.Carried) != 1 || done.Carried[0].Key != "open" || done.Head.Seq != 3 {
		t.Errorf("archived up to record %d, carried %v", done.Head.Seq, done.Carried)
	}
	if r, err := g.Get(t.Context(), "late"); err != nil || r.State != approvallog.StateExpired || r.Ending == nil {
		t.Errorf("what expired before: %+v, %v", r, err)
	}
	wantSound(t, g.Paths())
	if again, err := g.Archive(t.Context(), ArchiveOptions{Carry: true}); err != nil || again.Path != "" {
		t.Errorf("again: %q, %v", again.Path, err)
	}
}

// A request that was archived can still be used, ended and taken back, and each segment tells all of
// what happened in it.
func TestArchivedRequestsGoOn(t *testing.T) {
	home := filepath.Join(t.TempDir(), ".approval")
	g := openGate(t, testConfig(home), OpenOptions{})
	other := openGate(t, testConfig(home), OpenOptions{})
	for _, key := range []string{"granted", "started", "rejected", "again"} {
		mustCreate(t, g, newRequest(key))
	}
	for _, key := range []string{"granted", "started"} {
		grant(t, g, key)
	}
	record(t, g, approvallog.EventRejected, "human:alice", "rejected")
	record(t, g, approvallog.EventRejected, "human:alice", "again")
	hash := hashHex(emptyPayload)
	if _, err := g.StartExecution(t.Context(), "started", hash, "agent:ci", nil); err != nil {
		t.Fatal(err)
	}
	before, err := other.Get(t.Context(), "granted")
	if err != nil {
		t.Fatal(err)
	}
	mustArchive(t, g, false)

	if _, created, err := other.Create(t.Context(), newRequest("rejected")); err != nil || created {
		t.Errorf("a retry: created %t, %v", created, err)
	}
	conflicting := newRequest("rejected")
	conflicting.Summary = "something else"
	_, _, err = other.Create(t.Context(), conflicting)
	wantCode(t, err, CodeRequestConflict)
	again := newRequest("granted")
	again.Again = true
	_, _, err = g.Create(t.Context(), again)
	wantCode(t, err, CodeRequestConflict)

	r, err := other.StartExecution(t.Context(), "granted", hash, "agent:ci", nil)
	if err != nil || r.State != approvallog.StateStarted || r.Seq != before.Seq || r.Decision.Seq != before.Decision.Seq {
		t.Errorf("used: %+v, %v", r, err)
	}
	_, err = g.StartExecution(t.Context(), "granted", hash, "agent:ci", nil)
	wantCode(t, err, CodeAlreadyStarted)
	for _, key := range []string{"granted", "started"} {
		if r, err := g.FinishExecution(t.Context(), key, "agent:ci", nil, 0); err != nil || r.State != approvallog.StateCompleted {
			t.Errorf("%s ended: %+v, %v", key, r, err)
		}
	}
	again = newRequest("again")
	again.Again = true
	if r, created, err := g.Create(t.Context(), again); err != nil || !created || r.Previous != approvallog.StateRejected {
		t.Errorf("a fresh cycle: %+v, created %t, %v", r, created, err)
	}
	wantSound(t, g.Paths())
}

// answers is all that a gate answers about some keys.
func answers(t testing.TB, g *Gate, keys []string) string {
	t.Helper()
	var b strings.Builder
	for _, key := range keys {
		r, err := g.Get(t.Context(), key)
		text, _ := json.Marshal(r)
		fmt.Fprintf(&b, "%s %s %s\n", key, text, ErrorCode(err))
	}
	list, err := g.List(t.Context())
	fmt.Fprintf(&b, "%d pending, %v", len(list), err)
	return b.String()
}

var archiveKeys = []string{"granted", "rejected", "open", "done", "done/then-7", "unknown"}

// prepareArchive makes a gate with a first segment in its archive and more to be archived.
func prepareArchive(t testing.TB, home string) {
	t.Helper()
	// An hour ago: a segment is named after the millisecond of its cut, and a second cut within one takes one step more.
	g, err := Open(testConfig(home), OpenOptions{Now: func() time.Time { return time.Now().Add(-time.Hour) }})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for i, key := range []string{"granted", "rejected", "open"} {
		if _, created, err := g.Create(t.Context(), newRequest(key)); err != nil || !created {
			t.Fatalf("create: %v", err)
		}
		if i == 1 {
			decide(t, g, approvallog.EventRejected, "rejected")
			mustArchive(t, g, true)
			decide(t, g, approvallog.EventGranted, "granted")
		}
	}
	done, _, err := g.Create(t.Context(), followed("done"))
	if err != nil {
		t.Fatal(err)
	}
	complete(t, g, done)
}

func decide(t testing.TB, g *Gate, event, key string) {
	t.Helper()
	_, err := g.Log().Update(t.Context(), func(tx *approvallog.Tx) error {
		return g.appendTo(tx, approvallog.Draft{Event: event, Actor: "human:alice", Task: key, ActionKey: key})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// goesOn makes sure that a gate whose archive was interrupted answers as before, and that a new process
// archives, files and decides in it.
func goesOn(t *testing.T, home, before string) {
	t.Helper()
	p := testConfig(home).Paths()
	wantSound(t, p)
	g, err := Open(testConfig(home), OpenOptions{LockWait: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if after := answers(t, g, archiveKeys); after != before {
		t.Errorf("answers differ:\n%s\nbefore:\n%s", after, before)
	}
	if _, created, err := g.Create(t.Context(), newRequest("new")); err != nil || !created {
		t.Errorf("create: created %t, %v", created, err)
	}
	if _, err := g.Withdraw(t.Context(), "new", "agent:ci", nil, "cancelled"); err != nil {
		t.Error(err)
	}
	mustArchive(t, g, true)
	decide(t, g, approvallog.EventGranted, "open")
	waiting := due(t, g)
	if len(waiting) != 1 || waiting[0].Key != "done" {
		t.Fatalf("follow-ups to be asked for: %+v", waiting)
	}
	if _, err := g.OpenFollowUp(t.Context(), waiting[0]); err != nil {
		t.Error(err)
	}
	wantSound(t, p)
	entries, err := os.ReadDir(p.Archive)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(p.Archive, e.Name(), "events.jsonl"))
		if err != nil || info.Mode().Perm() != 0o400 {
			t.Errorf("segment %s: %v, %v", e.Name(), info, err)
		}
		if _, err := os.Stat(filepath.Join(p.Archive, e.Name(), "segment.json")); err != nil {
			t.Error(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(p.Log), ".events.jsonl.next*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// archiveSteps are the steps of an archive that a test can fail.
func archiveSteps(t *testing.T) []string {
	t.Helper()
	home := filepath.Join(memoryDir(t), ".approval")
	prepareArchive(t, home)
	var steps []string
	g := openGate(t, testConfig(home), OpenOptions{FS: durable.FS{Hook: func(op, _ string) error {
		steps = append(steps, op)
		return nil
	}}})
	mustArchive(t, g, true)
	for _, op := range []string{"archive.mkdir", "archive.link", "archive.seal.rename", "archive.next.write", "append.sync", "archive.rename", "archive.commit.syncdir", "archive.protect", "index.rename"} {
		if !slices.Contains(steps, op) {
			t.Errorf("no step %s among %v", op, steps)
		}
	}
	return steps
}

// memoryDir is a directory that costs no time to sync, where there is one: what is tested with it is
// which steps were taken, not what the disk does with them.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "gate-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestArchiveEveryStepFails(t *testing.T) {
	for n, op := range archiveSteps(t) {
		if op == "lock.unlink" {
			continue // a lock that a living process cannot give back stays taken
		}
		t.Run(fmt.Sprintf("%02d-%s", n, op), func(t *testing.T) {
			t.Parallel() // they wait for the disk
			home := filepath.Join(memoryDir(t), ".approval")
			prepareArchive(t, home)
			calls := -1
			var before string
			func() {
				g, err := Open(testConfig(home), OpenOptions{LockWait: 20 * time.Millisecond, FS: durable.FS{Hook: func(string, string) error {
					if calls++; calls == n {
						return syscall.EIO
					}
					return nil
				}}})
				if err != nil {
					t.Fatal(err)
				}
				defer g.Close()
				before = answers(t, g, archiveKeys)
				done, err := g.Archive(t.Context(), ArchiveOptions{Carry: true})
				if err == nil && done.Path == "" {
					t.Error("nothing was archived, and nothing failed")
				}
				if err == nil || !errors.Is(err, approvallog.ErrPoisoned) {
					if after := answers(t, g, archiveKeys); after != before {
						t.Errorf("answers differ:\n%s\nbefore:\n%s", after, before)
					}
				}
			}()
			goesOn(t, home, before)
		})
	}
}

// Each step is the last that a real process comes to.
func TestArchiveKilledAtEveryStep(t *testing.T) {
	var before, after atomic.Int32
	t.Cleanup(func() {
		if before.Load() == 0 || after.Load() == 0 {
			t.Errorf("killed before the commit %d times, after it %d times", before.Load(), after.Load())
		}
	})
	for n, op := range archiveSteps(t) {
		t.Run(fmt.Sprintf("%02d-%s", n, op), func(t *testing.T) {
			t.Parallel()
			home := filepath.Join(memoryDir(t), ".approval")
			prepareArchive(t, home)
			g, err := Open(testConfig(home), OpenOptions{LockWait: 20 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			answered, head := answers(t, g, archiveKeys), g.Log().Head()
			runHelper(t, helperJob{Home: home, Op: "archive", KillAt: n + 1}, syscall.SIGKILL)
			// A handle that was open all the time goes on too.
			if again := answers(t, g, archiveKeys); again != answered {
				t.Errorf("answers differ:\n%s\nbefore:\n%s", again, answered)
			}
			if g.Log().Head() == head {
				before.Add(1)
			} else {
				after.Add(1)
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			goesOn(t, home, answered)
		})
	}
}

// runHelper runs one job in a process of its own and wants it to end by the signal, 0 for well.
func runHelper(t testing.TB, job helperJob, want syscall.Signal) string {
	t.Helper()
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"=1")
	cmd.Stdin = strings.NewReader(string(text))
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var got syscall.Signal
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status, _ := exit.Sys().(syscall.WaitStatus)
		got = status.Signal()
	}
	if got != want || want == 0 && err != nil {
		t.Errorf("helper: %v: %s", err, stderr.String())
	}
	return stdout.String()
}

// Several processes file requests while others archive: every request that was answered for is there
// once, and each segment is sound.
func TestArchiveBesideWriters(t *testing.T) {
	home := filepath.Join(memoryDir(t), ".approval")
	g := openGate(t, testConfig(home), OpenOptions{})
	mustCreate(t, g, newRequest("first"))
	var group sync.WaitGroup
	for i := range 3 {
		group.Go(func() {
			runHelper(t, helperJob{Home: home, Op: "create", Key: fmt.Sprintf("key-%d", i), Rounds: 15}, 0)
		})
	}
	for range 2 {
		group.Go(func() { runHelper(t, helperJob{Home: home, Op: "archive", Rounds: 5}, 0) })
	}
	group.Wait()
	list, err := g.List(t.Context())
	if err != nil || len(list) != 1+3*16 {
		t.Errorf("%d requests, want %d: %v", len(list), 1+3*16, err)
	}
	report := wantSound(t, g.Paths())
	if len(report.Archive) == 0 {
		t.Error("nothing was archived")
	}
	opened := map[string]int{}
	reader := g.Log().NewReader(0)
	for {
		r, err := reader.Next()
		if err != nil {
			break
		}
		if r.Event == approvallog.EventRequested && !strings.Contains(string(r.Payload), `"carried"`) {
			opened[r.ActionKey]++
		}
	}
	for _, r := range list {
		if opened[r.Key] != 1 {
			t.Errorf("%s was opened %d times", r.Key, opened[r.Key])
		}
	}
}

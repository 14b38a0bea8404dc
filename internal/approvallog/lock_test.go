package approvallog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/procid"
)

// ownRecord is a lock record of this process, as another writer would put it.
func ownRecord(t testing.TB) map[string]any {
	t.Helper()
	self, err := procid.Self()
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return map[string]any{
		"v": 1, "pid": self.PID, "host": host, "boot": self.BootID, "pidns": self.PIDNS, "start": self.StartTicks,
		"timens": self.TimeNS, "created": "2026-08-04T09:14:02.000Z", "op": "append", "nonce": "0123456789abcdef",
	}
}

// deadPID returns the number of a process that has ended.
func deadPID(t testing.TB) int {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^$")
	cmd.Env = append(os.Environ(), workerVariable+"=nothing")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	cmd.Wait()
	return pid
}

func TestLeftoverLocks(t *testing.T) {
	gone := deadPID(t)
	change := func(edit func(m map[string]any)) []byte {
		m := ownRecord(t)
		edit(m)
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return append(b, '\n')
	}
	tests := map[string]struct {
		content []byte
		age     time.Duration
		taken   bool
	}{
		"dead process":              {change(func(m map[string]any) { m["pid"] = gone }), 0, true},
		"another start":             {change(func(m map[string]any) { m["start"] = m["start"].(uint64) - 1 }), 0, true},
		"another boot":              {change(func(m map[string]any) { m["boot"] = "00000000-0000-4000-8000-000000000000" }), 0, true},
		"start as a string":         {change(func(m map[string]any) { m["pid"] = gone; m["start"] = "12" }), 0, true},
		"unknown members":           {change(func(m map[string]any) { m["pid"] = gone; m["later"] = []int{1} }), 0, true},
		"empty, 10 minutes old":     {nil, emptyLockAge + time.Second, true},
		"the living":                {change(func(map[string]any) {}), 0, false},
		"the living, long ago":      {change(func(map[string]any) {}), 1000 * time.Hour, false},
		"no start":                  {change(func(m map[string]any) { delete(m, "start") }), 0, false},
		"another pid namespace":     {change(func(m map[string]any) { m["pid"] = gone; m["pidns"] = "pid:[1]" }), 0, false},
		"no pid namespace":          {change(func(m map[string]any) { m["pid"] = gone; delete(m, "pidns") }), 0, false},
		"another host":              {change(func(m map[string]any) { m["pid"] = gone; m["host"] = "elsewhere.example" }), 0, false},
		"no boot":                   {change(func(m map[string]any) { m["pid"] = gone; delete(m, "boot") }), 0, false},
		"no pid":                    {change(func(m map[string]any) { delete(m, "pid") }), 1000 * time.Hour, false},
		"negative pid":              {change(func(m map[string]any) { m["pid"] = -1 }), 0, false},
		"empty, 9 minutes old":      {nil, emptyLockAge - time.Minute, false},
		"half a record":             {[]byte(`{"pid":12`), 1000 * time.Hour, false},
		"NULs":                      {make([]byte, 100), 1000 * time.Hour, false},
		"longer than records are":   {change(func(m map[string]any) { m["pid"] = gone; m["op"] = strings.Repeat("x", maxLockRecord) }), 0, false},
		"the process 1 of a system": {change(func(m map[string]any) { m["pid"] = 1; delete(m, "start") }), 0, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := logPath(t)
			lock := path + ".lock"
			writeFile(t, lock, test.content)
			old := time.Now().Add(-test.age)
			if err := os.Chtimes(lock, old, old); err != nil {
				t.Fatal(err)
			}
			var told string
			l := openTest(t, path, func(o *Options) {
				o.LockWait = 20 * time.Millisecond
				o.Logf = func(f string, args ...any) { told += fmt.Sprintf(f, args...) }
			})
			start := time.Now()
			_, err := l.Append(context.Background(), Head{}, draft("1"))
			if waited := time.Since(start); waited < 20*time.Millisecond {
				t.Errorf("judged after %v, before the whole wait", waited)
			}
			if test.taken {
				if err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(told, lock) {
					t.Errorf("the take-over was not reported: %q", told)
				}
				wantClean(t, path, 1)
				l.Close()
				if left := listed(t, filepath.Dir(path)); left != "events.jsonl events.jsonl.queue" {
					t.Errorf("left behind: %s", left)
				}
				return
			}
			locked, ok := errors.AsType[*LockedError](err)
			if !ok || locked.Path != lock || locked.Holder == "" || !errors.Is(err, ErrLocked) {
				t.Fatalf("error %v", err)
			}
			if !bytes.Equal(readFile(t, lock), test.content) {
				t.Error("the lock was touched")
			}
			// Free as soon as its holder lets go.
			if err := os.Remove(lock); err != nil {
				t.Fatal(err)
			}
			mustAppend(t, l, "2")
		})
	}
}

// lockOfAContainer leaves the lock of a process whose number and host name tell nothing here, as an
// approvald makes it, and returns its file.
func lockOfAContainer(t *testing.T, path string, edit func(m map[string]any)) *os.File {
	t.Helper()
	m := ownRecord(t)
	m["pid"], m["pidns"], m["host"], m["flock"] = 1, "pid:[1]", "container", true
	edit(m)
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(filepath.Dir(path), ".events.jsonl.lock-1-0011223344556677")
	writeFile(t, name, append(b, '\n'))
	if err := os.Link(name, path+".lock"); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// The kernel's word on the holder is certain, so nobody waits and nothing is left behind.
func TestLockOfADeadContainerIsTakenAtOnce(t *testing.T) {
	path := logPath(t)
	lockOfAContainer(t, path, func(map[string]any) {}) // its process has ended: no kernel lock
	l := openTest(t, path, func(o *Options) { o.LockWait = time.Hour })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := l.Append(ctx, Head{}, draft("1")); err != nil {
		t.Fatal(err)
	}
	wantClean(t, path, 1)
	l.Close()
	if left := listed(t, filepath.Dir(path)); left != "events.jsonl events.jsonl.queue" {
		t.Errorf("left behind: %s", left)
	}
}

func TestLockOfALivingContainerIsLeft(t *testing.T) {
	tests := map[string]struct {
		locked bool
		edit   func(m map[string]any)
	}{
		"it has its kernel lock":     {true, func(map[string]any) {}},
		"it promises none":           {false, func(m map[string]any) { delete(m, "flock") }},
		"it denies one":              {false, func(m map[string]any) { m["flock"] = false }},
		"it says something else":     {false, func(m map[string]any) { m["flock"] = "true" }},
		"another machine or boot":    {false, func(m map[string]any) { m["boot"] = "00000000-0000-4000-8000-000000000000" }},
		"a boot that is not told":    {false, func(m map[string]any) { delete(m, "boot") }},
		"a record that is not whole": {false, func(m map[string]any) { delete(m, "pid") }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := logPath(t)
			f := lockOfAContainer(t, path, test.edit)
			if test.locked {
				if err := flock(f, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
					t.Fatal(err)
				}
			}
			before := readFile(t, path+".lock")
			l := openTest(t, path, func(o *Options) { o.LockWait = 30 * time.Millisecond })
			if _, err := l.Append(t.Context(), Head{}, draft("1")); !errors.Is(err, ErrLocked) {
				t.Fatalf("error %v", err)
			}
			if !bytes.Equal(readFile(t, path+".lock"), before) {
				t.Error("the lock was touched")
			}
		})
	}
}

// Whoever looks at the lock of a process of another namespace sees that it lives, while it appends.
func TestOwnLockIsKeptByTheKernel(t *testing.T) {
	path := logPath(t)
	l := openTest(t, path)
	_, err := l.Update(t.Context(), func(tx *Tx) error {
		left, err := readLeftover(path + ".lock")
		if err != nil {
			t.Fatal(err)
		}
		record, err := parseLockRecord(left.bytes)
		if err != nil || !record.Flock || left.unlocked {
			t.Errorf("record %+v, %v; unlocked %v", record, err, left.unlocked)
		}
		_, err = tx.Append(draft("1"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestUnreadableLockIsAlive(t *testing.T) {
	path := logPath(t)
	lock := path + ".lock"
	if err := os.MkdirAll(lock, 0o700); err != nil { // cannot be read even by root
		t.Fatal(err)
	}
	l := openTest(t, path, func(o *Options) { o.LockWait = 10 * time.Millisecond })
	if _, err := l.Append(context.Background(), Head{}, draft("1")); !errors.Is(err, ErrLocked) {
		t.Fatalf("error %v", err)
	}
}

// A lock that another one took in the meantime is neither written under nor removed.
func TestLostLock(t *testing.T) {
	path := logPath(t)
	lock := path + ".lock"
	foreign := []byte(`{"pid":1}` + "\n")
	l := openTest(t, path)
	mustAppend(t, l, "1")
	_, err := l.Update(context.Background(), func(tx *Tx) error {
		if err := os.Remove(lock); err != nil {
			t.Fatal(err)
		}
		writeFile(t, lock, foreign)
		_, err := tx.Append(draft("2"))
		return err
	})
	if err == nil || !strings.Contains(err.Error(), lock) {
		t.Fatalf("error %v", err)
	}
	if !bytes.Equal(readFile(t, lock), foreign) {
		t.Error("the other writer's lock was removed")
	}
	wantClean(t, path, 1)
}

func TestWaitingForTheLockEndsWithTheContext(t *testing.T) {
	path := logPath(t)
	b, err := json.Marshal(ownRecord(t))
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, path+".lock", b)
	l := openTest(t, path, func(o *Options) { o.LockWait = time.Hour })
	ctx, cancel := context.WithCancelCause(context.Background())
	gaveUp := errors.New("gave up")
	results := make(chan error)
	for range 5 { // one leads, the others wait behind it
		go func() {
			_, err := l.Append(ctx, Head{}, draft("1"))
			results <- err
		}()
	}
	cancel(gaveUp)
	for range 5 {
		if err := <-results; !errors.Is(err, gaveUp) {
			t.Errorf("error %v", err)
		}
	}
}

// A live foreign writer that is merely slow is waited for.
func TestAppendWaitsForAForeignWriter(t *testing.T) {
	path := logPath(t)
	l := openTest(t, path, func(o *Options) { o.LockWait = time.Minute })
	mustAppend(t, l, "1")
	b, err := json.Marshal(ownRecord(t))
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, path+".lock", b)
	done := make(chan error)
	go func() {
		_, err := l.Update(context.Background(), func(tx *Tx) error {
			_, err := tx.Append(draft("2"))
			return err
		})
		done <- err
	}()
	// Only removing the lock lets the append through, however the two are scheduled.
	select {
	case err := <-done:
		t.Fatalf("appended under another writer's lock: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	if err := os.Remove(path + ".lock"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wantClean(t, path, 2)
}

func TestPreparedFilesOfTheDeadAreSwept(t *testing.T) {
	path := logPath(t)
	dead := ownRecord(t)
	dead["pid"] = deadPID(t)
	b, err := json.Marshal(dead)
	if err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(filepath.Dir(path), ".events.jsonl.lock-1-00")
	writeFile(t, left, b)
	mustAppend(t, openTest(t, path), "1")
	if _, err := os.Stat(left); err == nil {
		t.Error("it is still there")
	}
}

func FuzzLockRecord(f *testing.F) {
	own, err := json.Marshal(ownRecord(f))
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{string(own), "", "{", `{"pid":1}`, `{"pid":1,"pidns":4026531836,"start":"7"}`, "\x00\x00", `{"pid":1e3}`, `{"pid":1,"pid":2}`} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "x")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		f.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		record, err := parseLockRecord(b)
		dead, holder := leftover{info: info, bytes: b}.judge(procid.Prober{}, lockRecord{Host: "host"}, time.Now())
		if holder == "" {
			t.Fatal("no holder named")
		}
		if dead && (err != nil || record.PID < 1 || record.BootID == "") {
			t.Fatalf("%q was judged dead", b)
		}
	})
}

// lockSeen appends a record and returns what its lock held meanwhile.
func lockSeen(t *testing.T, l *Log) lockRecord {
	t.Helper()
	var seen []byte
	_, err := l.Update(t.Context(), func(tx *Tx) error {
		seen = readFile(t, l.lock.path)
		_, err := tx.Append(draft("k"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	record, err := parseLockRecord(seen)
	if err != nil || !bytes.HasSuffix(seen, []byte("}\n")) {
		t.Fatalf("the lock held %q: %v", seen, err)
	}
	var m struct{ Nonce string }
	if err := json.Unmarshal(seen, &m); err != nil {
		t.Fatal(err)
	}
	record.Nonce = m.Nonce
	return record
}

func TestLockIsStampedAnewUnlessTheLastTenureWasJustNow(t *testing.T) {
	l := openTest(t, logPath(t))
	before := time.Now().UTC().Truncate(time.Millisecond)
	first := lockSeen(t, l)
	if created, err := time.Parse(TimeLayout, first.Created); err != nil || created.Before(before) || len(first.Nonce) != 16 {
		t.Errorf("created %s, %v, asked for at %v; nonce %q", first.Created, err, before, first.Nonce)
	}
	l.lock.stamped = time.Now().Add(time.Hour) // a clock that was put back: not young
	second := lockSeen(t, l)
	l.lock.stamped = time.Now().Add(-restampAfter)
	third := lockSeen(t, l)
	if first.Nonce == second.Nonce || second.Nonce == third.Nonce {
		t.Errorf("nonces %s, %s, %s", first.Nonce, second.Nonce, third.Nonce)
	}
	// However long this test is held up, some two tenures are close together.
	last := third
	for {
		began := l.lock.stamped
		next := lockSeen(t, l)
		if next == last {
			break
		}
		if l.lock.stamped.Equal(began) || time.Since(began) < restampAfter {
			t.Fatalf("in one burst: %+v, then %+v", last, next)
		}
		last = next
	}
}

// A lock whose bytes another one changed is left alone, and the next tenure is under a whole record of its own.
func TestLockWithOtherBytesIsStampedAnew(t *testing.T) {
	path := logPath(t)
	var told string
	l := openTest(t, path, func(o *Options) { o.Logf = func(f string, args ...any) { told += fmt.Sprintf(f, args...) } })
	own := lockSeen(t, l)
	_, err := l.Update(t.Context(), func(tx *Tx) error {
		f, err := os.OpenFile(path+".lock", os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err = f.WriteAt([]byte(`{"v":7`), 0); err == nil {
			_, err = tx.Append(draft("k"))
		}
		return err
	})
	if err != nil || !strings.Contains(told, path+".lock") {
		t.Fatalf("error %v; told %q", err, told)
	}
	if again := lockSeen(t, l); again.PID != own.PID || again.Nonce == own.Nonce {
		t.Errorf("the lock held %+v, then %+v", own, again)
	}
	if _, err := os.Lstat(path + ".lock"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock was not released: %v", err)
	}
	wantClean(t, path, 3)
}

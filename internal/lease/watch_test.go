package lease

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWatchTakesAgain: what was removed under a live holder, while nobody took
// its place, is put back in the same epoch, and that is said.
func TestWatchTakesAgain(t *testing.T) {
	tests := []struct {
		name   string
		damage func(g gate) error
		said   string
	}{
		{"record removed", func(g gate) error { return os.Remove(g.record()) }, "the record was removed"},
		{"lock file removed", func(g gate) error { return os.Remove(g.flock()) }, "the lock file was removed"},
		{"lock file renamed", func(g gate) error { return os.Rename(g.flock(), g.flock()+".old") }, "the lock file was removed"},
		{"both removed", func(g gate) error { return errors.Join(os.Remove(g.record()), os.Remove(g.flock())) }, "was removed"},
		{"directory removed", func(g gate) error { return removeAll(filepath.Dir(g.record())) }, "was removed"},
		{"record emptied", func(g gate) error { return os.Truncate(g.record(), 0) }, "the record was damaged"},
		{"lock file replaced", func(g gate) error {
			return errors.Join(os.WriteFile(g.flock()+".new", nil, 0o600), os.Rename(g.flock()+".new", g.flock()))
		}, "the lock file was removed or replaced"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := newGate(t)
			l := mustAcquire(t, g.options())
			if err := l.SetEpoch(5); err != nil {
				t.Fatal(err)
			}
			before := readRecord(t, g.record())
			if err := tt.damage(g); err != nil {
				t.Fatal(err)
			}
			ev := g.events.await(t, Retaken)
			if !strings.Contains(ev.Text, tt.said) || !strings.Contains(ev.Text, "same epoch") || !strings.Contains(ev.Text, g.record()) {
				t.Errorf("event = %+v", ev)
			}
			if err := l.Check(); err != nil {
				t.Fatalf("Check: %v", err)
			}
			if after := readRecord(t, g.record()); *after.Holder != *before.Holder || after.StartedAt != before.StartedAt {
				t.Errorf("record = %+v, was %+v", after, before)
			}
			_, err := Acquire(t.Context(), g.options())
			wantHeld(t, err)
			if err := l.Release(); err != nil {
				t.Errorf("Release: %v", err)
			}
			mustAcquire(t, g.options())
		})
	}
}

// TestWatchLosesTheLease: in every other case the holder stops.
func TestWatchLosesTheLease(t *testing.T) {
	tests := []struct {
		name   string
		damage func(t *testing.T, g gate)
		said   string
	}{
		{"record replaced by another implementation's", func(t *testing.T, g gate) {
			g.write(t, g.record(), foreignText(1, ModePoll, time.Now()))
		}, "held by another process now: mode poll, pid 1,"},
		{"record replaced by another approvald's", func(t *testing.T, g gate) {
			other := readRecord(t, g.record())
			other.PID, other.Holder.Nonce = 1, "n"
			g.write(t, g.record(), string(other.encode()))
		}, "held by another process now"},
		{"lock file replaced and locked", func(t *testing.T, g gate) {
			fd, err := unix.Open(g.flock()+".new", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Close(fd) })
			if err := errors.Join(unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB), os.Rename(g.flock()+".new", g.flock())); err != nil {
				t.Fatal(err)
			}
		}, "another process has locked the new one"},
		{"home renamed", func(t *testing.T, g gate) {
			if err := os.Rename(g.home, g.home+".moved"); err != nil {
				t.Fatal(err)
			}
		}, "moved, removed or replaced"},
		{"home removed", func(t *testing.T, g gate) {
			if err := removeAll(g.home); err != nil {
				t.Fatal(err)
			}
		}, "moved, removed or replaced"},
		{"parent renamed", func(t *testing.T, g gate) {
			parent := filepath.Dir(g.home)
			if err := os.Rename(parent, parent+".moved"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Rename(parent+".moved", parent) })
		}, "moved, removed or replaced"},
		{"daemon directory renamed", func(t *testing.T, g gate) {
			dir := filepath.Dir(g.record())
			if err := os.Rename(dir, dir+".moved"); err != nil {
				t.Fatal(err)
			}
		}, "the directory was moved or replaced"},
		{"record turned into a directory", func(t *testing.T, g gate) {
			directoryForRecord(g)
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := newGate(t)
			l := mustAcquire(t, g.options())
			tt.damage(t, g)
			waitFor(t, l.Lost())
			err := l.Check()
			if !errors.Is(err, ErrLost) || !errors.Is(l.Err(), ErrLost) || !strings.Contains(err.Error(), tt.said) {
				t.Errorf("Check = %v, want %q", err, tt.said)
			}
			wantUnavailable(t, err)
			if ev := g.events.await(t, Lost); ev.Text != err.Error() {
				t.Errorf("event = %+v", ev)
			}
			there, _ := os.ReadFile(g.record())
			if err := l.Release(); err != nil && !strings.Contains(tt.name, "turned into") {
				t.Errorf("Release: %v", err)
			}
			if now, _ := os.ReadFile(g.record()); strings.HasPrefix(tt.name, "record replaced") && string(now) != string(there) {
				t.Error("the release touched another's record")
			}
		})
	}
}

// removeAll is rm -r against a holder that puts its files back meanwhile.
func removeAll(dir string) error {
	for {
		if err := os.RemoveAll(dir); !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
}

func waitFor(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(30 * time.Second):
		t.Fatal("waited in vain")
	}
}

// TestCheckSeesItWithoutTheWatch: every send and append asks for itself.
func TestCheckSeesItWithoutTheWatch(t *testing.T) {
	g := newGate(t)
	l := mustAcquire(t, g.options())
	l.watch.stop()
	g.write(t, g.record(), foreignText(1, ModePoll, time.Now()))
	if err := l.Check(); !errors.Is(err, ErrLost) {
		t.Errorf("Check = %v", err)
	}
}

// TestWatchWithoutInotify: the timer alone sees a loss, and the start says so.
func TestWatchWithoutInotify(t *testing.T) {
	g := newGate(t)
	o := g.options()
	o.sys = realSystem()
	o.sys.inotify = func() (int, error) { return -1, unix.EMFILE }
	l := mustAcquire(t, o)
	g.events.await(t, WatchDegraded)
	g.write(t, g.record(), foreignText(1, ModePoll, time.Now()))
	waitFor(t, l.Lost())
}

// TestHarmlessChanges: what says the same is the same.
func TestHarmlessChanges(t *testing.T) {
	g := newGate(t)
	l := mustAcquire(t, g.options())
	text, err := os.ReadFile(g.record())
	if err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Hour)
	if err := errors.Join(os.Chtimes(g.record(), past, past), os.Chmod(g.record(), 0o640)); err != nil {
		t.Fatal(err)
	}
	if err := l.Check(); err != nil {
		t.Errorf("after touch: %v", err)
	}
	// A back-up that was restored in place.
	if err := errors.Join(os.WriteFile(g.record()+".bak", text, 0o600), os.Rename(g.record()+".bak", g.record())); err != nil {
		t.Fatal(err)
	}
	if err := l.Check(); err != nil {
		t.Errorf("after a restore: %v", err)
	}
	if got := g.events.String(); got != "" {
		t.Errorf("events: %s", got)
	}
}

func TestSetEpochOfALostLease(t *testing.T) {
	g := newGate(t)
	l := mustAcquire(t, g.options())
	l.watch.stop()
	other := foreignText(1, ModePoll, time.Now())
	g.write(t, g.record(), other)
	if err := l.SetEpoch(8); !errors.Is(err, ErrLost) {
		t.Errorf("SetEpoch = %v", err)
	}
	if now, _ := os.ReadFile(g.record()); string(now) != other {
		t.Errorf("record = %s", now)
	}
}

// TestLossNamesItsCause: what the kernel said about the file is in the line.
func TestLossNamesItsCause(t *testing.T) {
	g := newGate(t)
	l := mustAcquire(t, g.options())
	directoryForRecord(g)
	<-l.Lost()
	err := l.Err()
	if text := wantUnavailable(t, err).Error(); !errors.Is(err, ErrLost) || !strings.Contains(text, "lease lost: ") || !strings.Contains(text, "not a regular file") {
		t.Errorf("the loss: %s", text)
	}
}

// TestReleaseOfARecordThatCannotBeRemoved promises nothing that the next start
// does not keep: it is refused over a directory in the record's place.
func TestReleaseOfARecordThatCannotBeRemoved(t *testing.T) {
	g := newGate(t)
	l := mustAcquire(t, g.options())
	directoryForRecord(g)
	<-l.Lost()
	err := l.Release()
	if text := wantUnavailable(t, err).Error(); !strings.Contains(text, "move it away") || strings.Contains(text, "next start replaces") {
		t.Errorf("the release: %s", text)
	}
	_, err = Acquire(t.Context(), g.options())
	wantUnavailable(t, err)
}

// directoryForRecord puts a directory in the record's place, although the holder
// may put its record back in between.
func directoryForRecord(g gate) {
	for os.Mkdir(g.record(), 0o700) != nil {
		os.Remove(g.record())
	}
}

package lease

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestInspectAndStartAgree: what is called free, stale or torn can be taken,
// and what is called anything else is refused for the reason that was told.
func TestInspectAndStartAgree(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		setup   func(t *testing.T, g gate) error
		verdict string
		why     func(g gate) string
	}{
		{"lock file is a directory", func(_ *testing.T, g gate) error { return os.Mkdir(g.flock(), 0o700) }, "unavailable", gate.flock},
		{"lock file is a FIFO", func(_ *testing.T, g gate) error { return unix.Mkfifo(g.flock(), 0o600) }, "unavailable", gate.flock},
		{"lock file is a link", func(_ *testing.T, g gate) error { return os.Symlink("elsewhere", g.flock()) }, "unavailable", gate.flock},
		{"take-over unfinished, unreadable", func(t *testing.T, g gate) error {
			g.write(t, g.record(), foreignText(deadPid(t), ModePoll, time.Now()))
			g.write(t, g.section(), "")
			return nil
		}, "unavailable", gate.section},
		{"take-over unfinished, alive", func(t *testing.T, g gate) error {
			g.write(t, g.record(), "{")
			g.write(t, g.section(), fmt.Sprintf(`{"pid":%d,"nonce":"n","time":0}`, os.Getpid()))
			return nil
		}, "unavailable", gate.section},
		{"take-over unfinished, dead", func(t *testing.T, g gate) error {
			g.write(t, g.record(), foreignText(deadPid(t), ModePoll, time.Now()))
			g.write(t, g.section(), fmt.Sprintf(`{"pid":%d,"nonce":"n","time":0}`, deadPid(t)))
			return nil
		}, "stale", nil},
		{"take-over unfinished, without a record", func(t *testing.T, g gate) error {
			g.write(t, g.section(), "")
			return nil
		}, "free", nil},
		{"shared lock", func(t *testing.T, g gate) error {
			g.write(t, g.flock(), "")
			f, err := os.Open(g.flock())
			if err != nil {
				return err
			}
			t.Cleanup(func() { f.Close() })
			return unix.Flock(int(f.Fd()), unix.LOCK_SH)
		}, "held", func(gate) string { return fmt.Sprint(os.Getpid()) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			g.mkdir(t)
			if err := tt.setup(t, g); err != nil {
				t.Fatal(err)
			}
			before := tree(t, g.home)
			r, err := Inspect(g.home)
			if err != nil {
				t.Fatal(err)
			}
			if r.Verdict != tt.verdict {
				t.Errorf("report: %+v", r)
			}
			if after := tree(t, g.home); after != before {
				t.Errorf("it changed %s to %s", before, after)
			}
			l, err := Acquire(t.Context(), g.options())
			if tt.why == nil {
				if err != nil {
					t.Fatal(err)
				}
				l.Release()
				return
			}
			if err == nil {
				l.Release()
				t.Fatal("a start takes it")
			}
			if want := tt.why(g); !strings.Contains(r.Why, want) || !strings.Contains(err.Error(), want) || r.Hint == "" {
				t.Errorf("report %+v, refusal %v; both should name %s", r, err, want)
			}
		})
	}
}

// TestInspectWaitsForAHalfWrittenRecord: the other implementation creates its
// record and then writes it.
func TestInspectWaitsForAHalfWrittenRecord(t *testing.T) {
	g := newGate(t)
	text := foreignText(os.Getpid(), ModePoll, time.Now())
	g.write(t, g.record(), text[:20])
	written := make(chan struct{})
	time.AfterFunc(rereadPause, func() {
		defer close(written)
		os.WriteFile(g.record(), []byte(text), 0o600)
	})
	r, err := Inspect(g.home)
	<-written
	if err != nil || r.Verdict != "held" {
		t.Errorf("report %+v, %v", r, err)
	}
}

// TestInspectKnowsWhosePidItIs: the number of a process of another namespace
// names somebody else here.
func TestInspectKnowsWhosePidItIs(t *testing.T) {
	g, m := newGate(t), newMachine(t)
	m.file("locks", "")
	g.write(t, g.flock(), "")
	g.write(t, g.record(), string(ownRecord(70, "boot-1", "pid:[2]").encode()))
	var st unix.Stat_t
	if err := unix.Lstat(g.flock(), &st); err != nil {
		t.Fatal(err)
	}
	m.file("70/fdinfo/3", fmt.Sprintf("lock:\t1: FLOCK  ADVISORY  WRITE 70 %02x:%02x:%d 0 EOF\n", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino))
	r, err := inspect(m.apply(g.options()))
	if err != nil || r.KernelLock == "held" || r.LockPID != 0 {
		t.Errorf("report %+v, %v", r, err)
	}
}

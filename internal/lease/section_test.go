package lease

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/procid"
)

// deadPid is the number of a process that has ended and was reaped.
func deadPid(t *testing.T) int {
	t.Helper()
	p := start(t, "sleeper", gate{})
	p.kill()
	return p.pid()
}

// deadGate is a gate whose record names a process that is gone.
func deadGate(t *testing.T) gate {
	t.Helper()
	g := newGate(t)
	g.write(t, g.record(), foreignText(deadPid(t), ModePoll, time.Now()))
	return g
}

func TestSectionOfALiveProcessIsNeverEvicted(t *testing.T) {
	self, err := procid.Self()
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().AddDate(-2, 0, 0).UnixMilli()
	for name, entry := range map[string]string{
		"by number, two years old": fmt.Sprintf(`{"pid":%d,"nonce":"n","time":%d}`, os.Getpid(), old),
		"by identity": fmt.Sprintf(`{"pid":%d,"nonce":"n","time":%d,"identity":{"boot":%q,"pidns":%q,"pid":%d,"start":%d}}`,
			self.PID, old, self.BootID, self.PIDNS, self.PID, self.StartTicks),
		"another namespace's": fmt.Sprintf(`{"pid":1,"nonce":"n","time":%d,"identity":{"boot":%q,"pidns":"pid:[1]","pid":1,"start":1}}`, old, self.BootID),
		"empty":               "",
		"unreadable":          "{",
		"without a pid":       `{"nonce":"n"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := deadGate(t)
			g.write(t, g.section(), entry)
			record, _ := os.ReadFile(g.record())
			begin := time.Now()
			_, err := Acquire(t.Context(), g.options())
			u := wantUnavailable(t, err)
			if u.Path != g.section() || !strings.Contains(err.Error(), "remove the file only when") {
				t.Errorf("error = %v", err)
			}
			if waited := time.Since(begin); waited < rounds*reclaimWait {
				t.Errorf("gave up after %v, before %d rounds", waited, rounds)
			}
			if now, _ := os.ReadFile(g.section()); string(now) != entry {
				t.Errorf("the section was changed: %q", now)
			}
			if now, _ := os.ReadFile(g.record()); string(now) != string(record) {
				t.Errorf("the record was changed: %q", now)
			}
		})
	}
}

func TestSectionOfADeadProcessIsEvictedAndThatIsSaid(t *testing.T) {
	self, err := procid.Self()
	if err != nil {
		t.Fatal(err)
	}
	dead := deadPid(t)
	for name, entry := range map[string]string{
		"by number": fmt.Sprintf(`{"pid":%d,"nonce":"n","time":%d}`, dead, time.Now().UnixMilli()),
		"by identity": fmt.Sprintf(`{"pid":%d,"nonce":"n","time":1,"identity":{"boot":%q,"pidns":%q,"pid":%d,"start":%d}}`,
			os.Getpid(), self.BootID, self.PIDNS, os.Getpid(), self.StartTicks+1),
		"before the reboot": fmt.Sprintf(`{"pid":%d,"nonce":"n","time":1,"identity":{"boot":"b","pidns":%q,"pid":%d,"start":%d}}`,
			os.Getpid(), self.PIDNS, os.Getpid(), self.StartTicks),
	} {
		t.Run(name, func(t *testing.T) {
			g := deadGate(t)
			g.write(t, g.section(), entry)
			mustAcquire(t, g.options())
			ev := g.events.await(t, SectionEvicted)
			if !strings.Contains(ev.Text, "pid ") || !strings.Contains(ev.Text, g.section()) {
				t.Errorf("event = %+v", ev)
			}
			if got := g.files(t); got != "telegram-transport.flock telegram-transport.lock" {
				t.Errorf("files: %s", got)
			}
		})
	}
}

// TestSectionMadeUnderTheSameKernelLockIsEvicted: a killed container's process
// cannot be seen from the next one, but the lock that it held is ours now.
func TestSectionMadeUnderTheSameKernelLockIsEvicted(t *testing.T) {
	g := deadGate(t)
	holdKernelLock(t, g)()
	id, err := realSystem().identify(g.flock())
	if err != nil {
		t.Fatal(err)
	}
	g.write(t, g.section(), fmt.Sprintf(`{"pid":1,"nonce":"n","time":1,"identity":{"boot":"b","pidns":"pid:[1]","pid":1},"lock":"%d:%d"}`, id.dev, id.ino))
	mustAcquire(t, g.options())
	g.events.await(t, SectionEvicted)
}

// hooked runs act once, right before the named step.
func hooked(o Options, step string, act func()) Options {
	done := false
	o.FS.Hook = func(op, _ string) error {
		if op == step && !done {
			done = true
			act()
		}
		return nil
	}
	return o
}

// TestSuccessorIsNeverOverwritten stops a take-over between its last check and
// the moment at which the record changes, and lets another implementation take
// the record meanwhile.
func TestSuccessorIsNeverOverwritten(t *testing.T) {
	for _, step := range []string{"lease.section.link", "lease.record.open", "lease.record.exchange"} {
		t.Run(step, func(t *testing.T) {
			g := deadGate(t)
			successor := foreignText(os.Getpid(), ModeWebhook, time.Now())
			_, err := Acquire(t.Context(), hooked(g.options(), step, func() {
				if err := os.WriteFile(g.record()+".new", []byte(successor), 0o600); err != nil {
					t.Error(err)
				}
				if err := os.Rename(g.record()+".new", g.record()); err != nil {
					t.Error(err)
				}
			}))
			if held := wantHeld(t, err); held.Code != CodeWebhookRegistered {
				t.Errorf("held = %+v", held)
			}
			if now, _ := os.ReadFile(g.record()); string(now) != successor {
				t.Errorf("the successor's record was overwritten: %s", now)
			}
			if got := g.files(t); got != "telegram-transport.flock telegram-transport.lock" {
				t.Errorf("files: %s", got)
			}
		})
	}
}

// TestLostSectionEndsTheTakeOver: whoever was displaced from the section must
// not rename.
func TestLostSectionEndsTheTakeOver(t *testing.T) {
	g := deadGate(t)
	entry := fmt.Sprintf(`{"pid":%d,"nonce":"other","time":1}`, os.Getpid())
	_, err := Acquire(t.Context(), hooked(g.options(), "lease.record.open", func() { g.write(t, g.section(), entry) }))
	wantUnavailable(t, err)
	if now, _ := os.ReadFile(g.section()); string(now) != entry {
		t.Errorf("the other's section was removed or changed: %q", now)
	}
}

// TestRecordIsNeverAbsentDuringATakeOver looks before every single step.
func TestRecordIsNeverAbsentDuringATakeOver(t *testing.T) {
	for name, text := range map[string]string{"dead": foreignText(deadPid(t), ModePoll, time.Now()), "torn": "{"} {
		t.Run(name, func(t *testing.T) {
			g := newGate(t)
			g.write(t, g.record(), text)
			o := g.options()
			steps := 0
			o.FS.Hook = func(op, _ string) error {
				steps++
				if _, err := os.Lstat(g.record()); err != nil {
					t.Errorf("before %s: %v", op, err)
				}
				return nil
			}
			mustAcquire(t, o)
			if steps < 8 {
				t.Errorf("%d steps only", steps)
			}
		})
	}
}

// TestTakeOverWithoutExchange: file systems that cannot exchange names get a
// check and a rename.
func TestTakeOverWithoutExchange(t *testing.T) {
	g := deadGate(t)
	o := g.options()
	o.sys = realSystem()
	o.sys.exchange = func(string, string) error { return unix.EINVAL }
	l := mustAcquire(t, o)
	if err := l.SetEpoch(3); err != nil {
		t.Fatal(err)
	}
	if err := l.Check(); err != nil {
		t.Error(err)
	}
}

// TestKilledTakeOverLeavesNothingBehind: what a process that was killed
// half-way left goes with the next take-over.
func TestKilledTakeOverLeavesNothingBehind(t *testing.T) {
	g := deadGate(t)
	g.write(t, g.home+"/daemon/.telegram-transport.lock.tmp-0011223344556677", "{}")
	g.write(t, g.home+"/daemon/.telegram-transport.lock.reclaim.tmp-0011223344556677", "{}")
	mustAcquire(t, g.options())
	if got := g.files(t); got != "telegram-transport.flock telegram-transport.lock" {
		t.Errorf("files: %s", got)
	}
}

func TestRemoveExactPutsBackWhatCameBetween(t *testing.T) {
	path := t.TempDir() + "/file"
	for _, tt := range []struct {
		there, want string
		removed     bool
	}{{"mine", "mine", true}, {"other", "mine", false}} {
		if err := os.WriteFile(path, []byte(tt.there), 0o600); err != nil {
			t.Fatal(err)
		}
		removed, err := removeExact(path, []byte(tt.want))
		if removed != tt.removed || err != nil {
			t.Errorf("removeExact of %q = %v, %v", tt.there, removed, err)
		}
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) != tt.removed {
			t.Errorf("after removeExact of %q: %v", tt.there, err)
		}
	}
	if removed, err := removeExact(path+"-absent", nil); removed || err != nil {
		t.Errorf("removeExact of nothing = %v, %v", removed, err)
	}
}

package lease

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/procid"
)

func TestInspect(t *testing.T) {
	tests := []struct {
		name    string
		setup   func(t *testing.T, g gate, m *machine)
		verdict string
		held    bool
		why     string
	}{
		{"nothing at all", func(*testing.T, gate, *machine) {}, "free", false, "no record"},
		{"torn", func(t *testing.T, g gate, _ *machine) { g.write(t, g.record(), "{") }, "torn", false, "cannot be read"},
		{"foreign and alive", func(t *testing.T, g gate, m *machine) {
			m.process(70, 'S', time.Second, 0)
			g.write(t, g.record(), foreignText(70, ModePoll, bootedAt.Add(time.Second)))
		}, "held", true, "process 70 runs"},
		{"foreign and gone", func(t *testing.T, g gate, _ *machine) {
			g.write(t, g.record(), foreignText(70, ModePoll, bootedAt))
		}, "stale", false, "gone: there is no process 70"},
		{"ours and gone", func(t *testing.T, g gate, _ *machine) {
			g.write(t, g.record(), string(ownRecord(70, "boot-1", "pid:[1]").encode()))
		}, "stale", false, "gone"},
		{"ours before the reboot", func(t *testing.T, g gate, _ *machine) {
			g.write(t, g.record(), string(ownRecord(70, "boot-0", "pid:[1]").encode()))
		}, "stale", false, "restarted"},
		{"ours in another namespace", func(t *testing.T, g gate, _ *machine) {
			g.write(t, g.record(), string(ownRecord(70, "boot-1", "pid:[2]").encode()))
			g.write(t, g.flock(), "")
		}, "doubtful", true, "another pid namespace"},
		{"lock held by a process that is seen", func(t *testing.T, g gate, m *machine) {
			g.write(t, g.record(), string(ownRecord(70, "boot-1", "pid:[1]").encode()))
			t.Cleanup(holdKernelLock(t, g))
			raw, err := os.ReadFile("/proc/locks")
			if err != nil {
				t.Fatal(err)
			}
			m.file("locks", string(raw))
		}, "held", true, "holds the kernel lock"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g, m := newGate(t), newMachine(t)
			m.file("locks", "")
			tt.setup(t, g, m)
			before := tree(t, g.home)
			r, err := inspect(m.apply(g.options()))
			if err != nil {
				t.Fatal(err)
			}
			if r.Verdict != tt.verdict || r.Held != tt.held || !strings.Contains(r.Why, tt.why) {
				t.Errorf("report = %+v", r)
			}
			if after := tree(t, g.home); after != before {
				t.Errorf("inspection changed the home: %s, then %s", before, after)
			}
			text := strings.Join(r.Lines(), "\n")
			if !strings.Contains(text, r.Verdict) || !strings.Contains(text, g.record()) {
				t.Errorf("lines: %s", text)
			}
		})
	}
}

func ownRecord(pid int, boot, pidns string) record {
	return record{Version: 1, PID: pid, Mode: ModePoll, StartedAt: "2026-08-04T09:14:02.000Z", InstanceHome: "/srv",
		Holder: &recordedOwner{BootID: boot, PIDNS: pidns, StartTicks: 500, Nonce: "n", Epoch: 12, Program: "approvald"}}
}

func tree(t *testing.T, dir string) string {
	t.Helper()
	var names []string
	filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			names = append(names, path+" "+info.ModTime().String())
		}
		return nil
	})
	return strings.Join(names, "\n")
}

func TestInspectALiveHolder(t *testing.T) {
	g := newGate(t)
	l := mustAcquire(t, g.options())
	if err := l.SetEpoch(3); err != nil {
		t.Fatal(err)
	}
	r, err := Inspect(g.home)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Held || r.Verdict != "held" || r.Holder == nil || r.Holder.PID != os.Getpid() || r.Holder.Epoch != 3 || r.Hint == "" {
		t.Errorf("report = %+v", r)
	}
	if err := l.Check(); err != nil {
		t.Errorf("the inspection took something: %v", err)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, member := range []string{`"held":true`, `"verdict":"held"`, `"pid":`, `"mode":"poll"`, `"since":`, `"epoch":3`, `"why":`, `"hint":`, `"path":`, `"kernel_lock":`} {
		if !strings.Contains(string(raw), member) {
			t.Errorf("%s lacks %s", raw, member)
		}
	}
	l.Release()
	if r, err = Inspect(g.home); err != nil || r.Held || r.Verdict != "free" || r.Holder != nil {
		t.Errorf("after the release: %+v, %v", r, err)
	}
}

// TestInspectWhenTheListLacksTheLock: /proc/locks is given out in pieces and may
// miss one lock; the holder's own descriptors do not.
func TestInspectWhenTheListLacksTheLock(t *testing.T) {
	g := newGate(t)
	mustAcquire(t, g.options())
	root := t.TempDir()
	for name, target := range map[string]string{
		"self": "/proc/self", "sys": "/proc/sys", "stat": "/proc/stat", strconv.Itoa(os.Getpid()): fmt.Sprintf("/proc/%d", os.Getpid()),
	} {
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "locks"), []byte("1: POSIX  ADVISORY  WRITE 1 00:01:2 0 EOF\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := inspect(Options{Home: g.home, Prober: procid.Prober{ProcRoot: root}})
	if err != nil || r.Verdict != "held" || r.KernelLock != "held" || r.LockPID != os.Getpid() {
		t.Errorf("report = %+v, %v", r, err)
	}
}

func TestInspectNamesAnUnfinishedTakeOver(t *testing.T) {
	g := newGate(t)
	g.write(t, g.section(), "{}")
	if r, err := Inspect(g.home); err != nil || r.Section != g.section() || !strings.Contains(strings.Join(r.Lines(), "\n"), g.section()) {
		t.Errorf("report = %+v, %v", r, err)
	}
}

func TestInspectFails(t *testing.T) {
	g := newGate(t)
	if err := os.MkdirAll(g.record(), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Inspect(g.home)
	wantUnavailable(t, err)
	_, err = Inspect("~/gate")
	wantUnavailable(t, err)
}

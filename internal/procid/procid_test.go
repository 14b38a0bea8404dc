package procid

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const thisBoot = "9b0c1a52-0000-4000-8000-000000000001"

// fakeProc is a procfs made of plain files, with this process as pid 10.
type fakeProc struct {
	t    *testing.T
	root string
}

func newFakeProc(t *testing.T) fakeProc {
	t.Helper()
	f := fakeProc{t: t, root: t.TempDir()}
	f.write("sys/kernel/random/boot_id", thisBoot+"\n")
	f.link("self/ns/pid", "pid:[1]")
	f.link("self/ns/time", "time:[1]")
	f.write("self/stat", statLine(10, "approvald", 'S', 500))
	f.write("self/status", "Name:\tapprovald\nNSpid:\t10\n")
	return f
}

func (f fakeProc) write(name, text string) {
	f.t.Helper()
	path := filepath.Join(f.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f fakeProc) link(name, target string) {
	f.t.Helper()
	path := filepath.Join(f.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		f.t.Fatal(err)
	}
}

func (f fakeProc) prober(killErr error) Prober {
	return Prober{ProcRoot: f.root, Kill: func(int, syscall.Signal) error { return killErr }}
}

func statLine(pid int, name string, state byte, start uint64) string {
	return fmt.Sprintf("%d (%s) %c 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 %d 20 21", pid, name, state, start)
}

func TestJudge(t *testing.T) {
	f := newFakeProc(t)
	f.write("20/stat", statLine(20, "sleep", 'S', 700))
	f.write("21/stat", statLine(21, "sleep", 'Z', 700))
	f.write("22/stat", statLine(22, "sleep", 'T', 700))
	f.write("23/stat", statLine(23, "a) Z 1 2 (b", 'S', 700))
	f.write("24/stat", "24 (cut off")
	f.write("25/stat", statLine(25, "sleep", 'X', 700))
	f.write("1/stat", statLine(1, "init", 'S', 3))

	id := func(change func(*Identity)) Identity {
		i := Identity{BootID: thisBoot, PIDNS: "pid:[1]", PID: 20, StartTicks: 700, TimeNS: "time:[1]"}
		change(&i)
		return i
	}
	tests := []struct {
		name string
		id   Identity
		kill error
		want Verdict
		dead bool
	}{
		{"the same process", id(func(*Identity) {}), nil, Alive, false},
		{"another start", id(func(i *Identity) { i.StartTicks = 699 }), nil, Recycled, true},
		{"another start seen through another time namespace", id(func(i *Identity) { i.StartTicks = 699; i.TimeNS = "time:[2]" }), nil, Unknown, false},
		{"no start recorded", id(func(i *Identity) { i.StartTicks = 0 }), nil, Alive, false},
		{"another boot", id(func(i *Identity) { i.BootID = "other" }), nil, OtherBoot, true},
		{"no boot recorded", id(func(i *Identity) { i.BootID = "" }), nil, Unknown, false},
		{"another pid namespace", id(func(i *Identity) { i.PIDNS = "pid:[2]" }), syscall.ESRCH, OtherNamespace, false},
		{"pid 1 of another namespace", id(func(i *Identity) { i.PID = 1; i.PIDNS = "pid:[2]" }), nil, OtherNamespace, false},
		{"pid 1 of this namespace", id(func(i *Identity) { i.PID = 1; i.StartTicks = 3 }), nil, Alive, false},
		{"no such process", id(func(i *Identity) { i.PID = 99 }), syscall.ESRCH, Gone, true},
		{"hidden by /proc and not ours to signal", id(func(i *Identity) { i.PID = 99 }), syscall.EPERM, Alive, false},
		{"hidden by /proc and running", id(func(i *Identity) { i.PID = 99 }), nil, Alive, false},
		{"kill fails oddly", id(func(i *Identity) { i.PID = 99 }), syscall.EINVAL, Unknown, false},
		{"zombie", id(func(i *Identity) { i.PID = 21 }), nil, Zombie, true},
		{"being torn down", id(func(i *Identity) { i.PID = 25 }), nil, Zombie, true},
		{"stopped", id(func(i *Identity) { i.PID = 22 }), nil, Alive, false},
		{"a name with parentheses and a fake state", id(func(i *Identity) { i.PID = 23 }), nil, Alive, false},
		{"unreadable stat", id(func(i *Identity) { i.PID = 24 }), syscall.ESRCH, Unknown, false},
		{"pid 0", id(func(i *Identity) { i.PID = 0 }), nil, Unknown, false},
		{"negative pid", id(func(i *Identity) { i.PID = -1 }), nil, Unknown, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, why := f.prober(tt.kill).Judge(tt.id)
			if got != tt.want || got.Dead() != tt.dead {
				t.Errorf("Judge = %v (dead %v), want %v (dead %v): %s", got, got.Dead(), tt.want, tt.dead, why)
			}
			if why == "" {
				t.Error("Judge gave no reason")
			}
		})
	}
}

func TestJudgeCallsNobodyDeadWhenItCannotLook(t *testing.T) {
	id := Identity{BootID: thisBoot, PIDNS: "pid:[1]", PID: 20, StartTicks: 700}
	noBoot := newFakeProc(t).prober(syscall.ESRCH)
	noBoot.BootID = func() (string, error) { return "", errors.New("no boot id") }
	probers := map[string]Prober{
		"no procfs":  {ProcRoot: filepath.Join(t.TempDir(), "absent"), Kill: func(int, syscall.Signal) error { return syscall.ESRCH }},
		"no boot id": noBoot,
	}
	for name, p := range probers {
		if v, why := p.Judge(id); v.Dead() {
			t.Errorf("%s: Judge = %v: %s", name, v, why)
		}
	}
}

// TestProcOfAnOuterNamespace: a container that kept the host's /proc sees other
// processes under its own numbers there.
func TestProcOfAnOuterNamespace(t *testing.T) {
	f := newFakeProc(t)
	f.write("self/status", "NSpid:\t310\t10\n")
	f.write("20/stat", statLine(20, "of-the-host", 'S', 1))
	self, err := f.prober(nil).Self()
	if err != nil || self.PID != 10 {
		t.Errorf("Self = %+v, %v; want pid 10", self, err)
	}
	id := Identity{BootID: thisBoot, PIDNS: "pid:[1]", PID: 20, StartTicks: 700}
	if v, why := f.prober(nil).Judge(id); v != Alive {
		t.Errorf("Judge = %v (%s), want alive: the process under 20 in /proc is another", v, why)
	}
	if v, why := f.prober(syscall.ESRCH).Judge(id); v != Gone {
		t.Errorf("Judge = %v (%s), want gone: kill(2) knows no 20", v, why)
	}
}

func TestSelfIsAliveAndStable(t *testing.T) {
	a, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	b, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	if a != b {
		t.Errorf("Self gave %+v, then %+v", a, b)
	}
	if a.PID != os.Getpid() || a.StartTicks == 0 || a.BootID == "" || !strings.HasPrefix(a.PIDNS, "pid:[") {
		t.Errorf("Self = %+v", a)
	}
	if v, why := (Prober{}).Judge(a); v != Alive {
		t.Errorf("Judge(Self()) = %v: %s", v, why)
	}
}

// TestJudgeFollowsARealProcess takes one child through its whole life: running,
// stopped, zombie, reaped.
func TestJudgeFollowsARealProcess(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelperSleeps$")
	cmd.Env = append(os.Environ(), "PROCID_HELPER=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	id, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	id.PID = cmd.Process.Pid
	_, stat, why := Prober{}.Look(id.PID)
	if stat.StartTicks == 0 {
		t.Fatalf("no start: %s", why)
	}
	id.StartTicks = stat.StartTicks

	expect := func(want Verdict) {
		t.Helper()
		if got, why := (Prober{}).Judge(id); got != want {
			t.Errorf("Judge = %v (%s), want %v", got, why, want)
		}
	}
	expect(Alive)
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	expect(Alive)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// WNOWAIT waits for the end and leaves the zombie.
	if err := waitNoReap(id.PID); err != nil {
		t.Fatal(err)
	}
	expect(Zombie)
	if err := cmd.Wait(); err == nil {
		t.Error("the helper ended by itself")
	}
	expect(Gone)
}

func TestHelperSleeps(*testing.T) {
	if os.Getenv("PROCID_HELPER") == "" {
		return
	}
	var b [1]byte
	os.Stdin.Read(b[:])
}

func TestUIDAndBootTime(t *testing.T) {
	uid, err := Prober{}.UID(os.Getpid())
	if err != nil || int(uid) != os.Getuid() {
		t.Errorf("UID = %d, %v; want %d", uid, err, os.Getuid())
	}
	boot, err := Prober{}.BootTime()
	if err != nil || boot.After(time.Now()) || boot.Year() < 2000 {
		t.Errorf("BootTime = %v, %v", boot, err)
	}
	f := newFakeProc(t)
	for _, text := range []string{"", "cpu 1 2\n", "btime x\n"} {
		f.write("stat", text)
		if got, err := f.prober(nil).BootTime(); err == nil {
			t.Errorf("BootTime of %q = %v, want an error", text, got)
		}
	}
	for _, text := range []string{"", "Name:\tx\n", "Uid:\n", "Uid:\tx 1\n"} {
		f.write("30/status", text)
		if got, err := f.prober(nil).UID(30); err == nil {
			t.Errorf("UID of %q = %d, want an error", text, got)
		}
	}
}

func TestVerdictNames(t *testing.T) {
	for v := Unknown; v <= OtherNamespace; v++ {
		if s := v.String(); s == "" || strings.HasPrefix(s, "verdict(") {
			t.Errorf("verdict %d has no name", int(v))
		}
	}
	if got := Verdict(99).String(); got != "verdict(99)" {
		t.Errorf("Verdict(99) = %q", got)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte(statLine(1, "init", 'S', 3)))
	f.Add([]byte(statLine(7, "x) R (y\n", 'Z', 1<<63)))
	f.Add([]byte("1 () "))
	f.Add([]byte(")("))
	f.Fuzz(func(t *testing.T, text []byte) {
		stat, err := ParseStat(text)
		if err == nil && (stat.PID <= 0 || stat.State == 0) {
			t.Errorf("ParseStat(%q) = %+v", text, stat)
		}
	})
}

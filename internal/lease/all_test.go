//go:build all

package lease

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sys/unix"
)

// These tests need root and util-linux. Without them they fail.

// raceRounds is how many rounds the long races run; RACE_ROUNDS sets it.
func raceRounds(t *testing.T) int {
	t.Helper()
	text := os.Getenv("RACE_ROUNDS")
	if text == "" {
		return 200
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// ownNamespace runs a command as pid 1 of a pid namespace with a /proc of its own.
var ownNamespace = []string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"}

func TestLongRace(t *testing.T) { race(t, newGate(t), 8, raceRounds(t), nil) }

func TestLongRaceAcrossPidNamespaces(t *testing.T) {
	race(t, newGate(t), 8, raceRounds(t), ownNamespace)
}

func TestLongRaceWithTheOtherImplementation(t *testing.T) {
	raceForeign(t, newGate(t), raceRounds(t))
}

func TestLongHistory(t *testing.T) {
	ops := history(t, "holder", 8, raceRounds(t))
	if result := porcupine.CheckOperationsTimeout(mutualExclusion, ops, time.Minute); result != porcupine.Ok {
		t.Errorf("check = %v of %d takes", result, takes(ops))
	}
}

// TestTwoContainers: each sees only its own processes, both are pid 1. The
// second refuses while the first lives and starts at once when it does not.
func TestTwoContainers(t *testing.T) {
	g := newGate(t)
	one, two := start(t, "holder", g, ownNamespace...), start(t, "holder", g, ownNamespace...)
	one.expect("ready")
	two.expect("ready")
	one.tell("take")
	one.expect("held")
	if rec := readRecord(t, g.record()); rec.PID != 1 {
		t.Fatalf("record = %+v, want pid 1", rec)
	}
	two.tell("take")
	two.expect("refused " + CodePollerRunning)
	_, err := Acquire(t.Context(), g.options())
	wantHeld(t, err)
	if r, err := Inspect(g.home); err != nil || !r.Held {
		t.Errorf("Inspect = %+v, %v", r, err)
	}
	one.kill()
	two.tell("take")
	two.expect("held")
	two.tell("check")
	two.expect("ok")
}

// TestInspectFromAnotherContainer: what cannot be seen is not called free.
func TestInspectFromAnotherContainer(t *testing.T) {
	g := newGate(t)
	mustAcquire(t, g.options())
	p := start(t, "inspector", g, ownNamespace...)
	p.expect("held=true")
}

// TestDroppedCaches: the kernel forgets the inodes of /proc, and a holder
// stays the one that it was.
func TestDroppedCaches(t *testing.T) {
	ours, theirs := newGate(t), newGate(t)
	holder, foreign := start(t, "holder", ours), start(t, "foreign", theirs)
	holder.expect("ready")
	foreign.expect("ready")
	holder.tell("take")
	holder.expect("held")
	foreign.tell("take")
	foreign.expect("held")
	unix.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3\n"), 0); err != nil {
		t.Fatal(err)
	}
	for _, g := range []gate{ours, theirs} {
		_, err := Acquire(t.Context(), g.options())
		wantHeld(t, err)
	}
	holder.tell("check")
	holder.expect("ok")
}

// TestHolderOfAnotherUser: not being allowed to signal a process is no sign
// that it is gone.
func TestHolderOfAnotherUser(t *testing.T) {
	g := newGate(t)
	sleeper := start(t, "sleeper", g)
	sleeper.expect("sleeping")
	g.write(t, g.record(), foreignText(sleeper.pid(), ModePoll, time.Now()))
	p := startAsNobody(t, "holder", g)
	p.expect("ready")
	p.tell("take")
	p.expect("refused " + CodePollerRunning)
}

// TestNoPermission: the directory belongs to somebody else.
func TestNoPermission(t *testing.T) {
	g := newGate(t)
	g.mkdir(t)
	p := startAsNobody(t, "holder", g)
	p.expect("ready")
	if err := errors.Join(os.Chown(filepath.Dir(g.record()), 0, 0), os.Chmod(filepath.Dir(g.record()), 0o555)); err != nil {
		t.Fatal(err)
	}
	p.tell("take")
	line := p.expect("refused " + CodeUnavailable)
	if !strings.Contains(line, g.flock()) || !strings.Contains(line, "permission denied") {
		t.Errorf("refusal: %s", line)
	}
}

// startAsNobody runs a role as a user without any rights, on a gate that is
// handed to it. Its binary is copied to where that user may run it.
func startAsNobody(t *testing.T, role string, g gate) *process {
	t.Helper()
	const nobody = 65534
	dir, err := os.MkdirTemp("", "lease-nobody-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "lease.test")
	if err := errors.Join(os.Chmod(dir, 0o755), copyFile(os.Args[0], program)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Dir(g.home), filepath.Dir(filepath.Dir(g.home))} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err = filepath.Walk(g.home, func(path string, _ os.FileInfo, err error) error {
		return errors.Join(err, os.Chown(path, nobody, nobody))
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = []string{"LEASE_TEST_ROLE=" + role, "LEASE_TEST_HOME=" + g.home}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	cmd.Stderr = os.Stderr
	return startCommand(t, cmd)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// mountGate puts a gate on a file system of its own.
func mountGate(t *testing.T, options string) gate {
	t.Helper()
	g := newGate(t)
	if err := os.MkdirAll(g.home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("lease-test", g.home, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(g.home, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return g
}

func TestReadOnlyFileSystem(t *testing.T) {
	g := mountGate(t, "size=1m")
	g.mkdir(t)
	if err := unix.Mount("", g.home, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	_, err := Acquire(t.Context(), g.options())
	if u := wantUnavailable(t, err); !errors.Is(err, unix.EROFS) || !strings.HasPrefix(u.Path, g.home) {
		t.Errorf("error = %v", err)
	}
	if r, err := Inspect(g.home); err != nil || r.Verdict != "unavailable" || !strings.Contains(r.Why, "read-only") {
		t.Errorf("report %+v, %v", r, err)
	}
}

// TestFullFileSystem leaves room for the root, the directory and so on, but
// never for the record.
func TestFullFileSystem(t *testing.T) {
	for inodes := 1; inodes <= 3; inodes++ {
		t.Run(fmt.Sprint(inodes), func(t *testing.T) {
			g := mountGate(t, fmt.Sprintf("size=64k,nr_inodes=%d", inodes))
			_, err := Acquire(t.Context(), g.options())
			wantUnavailable(t, err)
			if !errors.Is(err, unix.ENOSPC) {
				t.Errorf("error = %v", err)
			}
		})
	}
}

// TestNoDescriptorsLeft runs a take with ever fewer free descriptors: each
// count either works or is refused, and nothing is held after a refusal.
func TestNoDescriptorsLeft(t *testing.T) {
	g := newGate(t)
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	most := uint64(openDescriptors(t) + 8)
	var refused, taken int
	for allowed := uint64(3); allowed <= most; allowed++ {
		limit := unix.Rlimit{Cur: allowed, Max: before.Max}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		l, err := Acquire(t.Context(), g.options())
		if rerr := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); rerr != nil {
			t.Fatal(rerr)
		}
		if err != nil {
			refused++
			wantUnavailable(t, err)
			continue
		}
		taken++
		l.Release()
	}
	if refused == 0 || taken == 0 {
		t.Errorf("%d refused, %d taken: the limit was never in between", refused, taken)
	}
	mustAcquire(t, g.options())
}

// TestLockIsCloseOnExec reads the flags of the descriptors under the gate.
func TestLockIsCloseOnExec(t *testing.T) {
	g := newGate(t)
	mustAcquire(t, g.options())
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, fd := range fds {
		target, _ := os.Readlink(fd)
		if !strings.HasPrefix(target, g.home) {
			continue
		}
		found = append(found, target)
		info, err := os.ReadFile("/proc/self/fdinfo/" + filepath.Base(fd))
		if err != nil {
			t.Fatal(err)
		}
		_, flags, _ := strings.Cut(string(info), "flags:")
		n, err := strconv.ParseInt(strings.Fields(flags)[0], 8, 64)
		if err != nil || n&unix.O_CLOEXEC == 0 {
			t.Errorf("%s: flags %o, %v", target, n, err)
		}
	}
	if !slices.Equal(found, []string{g.flock()}) {
		t.Errorf("descriptors under the gate: %v, want the lock alone", found)
	}
}

// TestInspectAsAnotherUser: a start of this user would be refused, and says by
// which file, whose it is, and what to do.
func TestInspectAsAnotherUser(t *testing.T) {
	for name, spoil := range map[string]func(g gate) (path string, err error){
		"directory": func(g gate) (string, error) {
			dir := filepath.Dir(g.record())
			return dir, errors.Join(os.Chown(dir, 0, 0), os.Chmod(dir, 0o555))
		},
		"lock file": func(g gate) (string, error) { return g.flock(), os.WriteFile(g.flock(), nil, 0o600) },
		"record of a killed daemon of root": func(g gate) (string, error) {
			return g.record(), os.WriteFile(g.record(), ownRecord(1<<22+1, "b", "n").encode(), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate(t)
			g.mkdir(t)
			holder := startAsNobody(t, "holder", g)
			holder.expect("ready")
			path, err := spoil(g)
			if err != nil {
				t.Fatal(err)
			}
			holder.tell("inspect")
			if line := holder.hear(); !strings.Contains(line, path) || strings.Contains(line, "held=true") {
				t.Errorf("the report: %s", line)
			}
			holder.tell("take")
			line := holder.expect("refused " + CodeUnavailable)
			if !strings.Contains(line, path) || !strings.Contains(line, "belongs to user 0") || !strings.Contains(line, "chown 65534 "+path) {
				t.Errorf("the refusal: %s", line)
			}
		})
	}
}

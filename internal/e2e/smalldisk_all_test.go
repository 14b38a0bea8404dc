//go:build all

package e2e

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// newMountedGate makes a gate whose home is on a file system of its own, of 512 KiB.
func newMountedGate(t *testing.T) *faultGate {
	t.Helper()
	g, err := newFaultGate(onethread(t), t.TempDir(), "")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(g.home), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	smallDisk(t, filepath.Dir(g.home))
	return g
}

// wants runs a verb to its end and wants an exit code.
func (g *faultGate) wants(t *testing.T, code int, w work) outcome {
	t.Helper()
	got := g.do(w)
	if got.code != code {
		t.Fatalf("%+v: %v\nwant exit code %d", w, got, code)
	}
	return got
}

// refused runs a verb that must fail, naming a path and saying what to do.
func (g *faultGate) refused(t *testing.T, w work, advice string) {
	t.Helper()
	got := g.wants(t, 1, w)
	if got.stdout != "" || !strings.Contains(got.stderr, g.home) || !strings.Contains(got.stderr, "hint: ") || !strings.Contains(got.stderr, advice) {
		t.Errorf("%+v: %v", w, got)
	}
}

// sound wants a log that verifies, with all these requests.
func (g *faultGate) sound(t *testing.T, keys ...string) {
	t.Helper()
	g.wants(t, 0, verb("log", "verify", "--semantic"))
	if err := g.holds(keys); err != nil {
		t.Error(err)
	}
}

// files are the names of all files below the home with the digests of their bytes, but for the queue's, which is empty and may stay.
func (g *faultGate) files(t *testing.T) []string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(g.home, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, ".queue") {
			return err
		}
		b, err := os.ReadFile(path)
		list = append(list, fmt.Sprintf("%s %x", strings.TrimPrefix(path, g.home), sha256.Sum256(b)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func large(g *faultGate, key string) work {
	return verb("request", key, "--class", "deploy.test", "--summary", strings.Repeat("x", 1000), "--as", "ci", "--payload", filepath.Join(g.dir, "payload"))
}

// TestTheDiskFillsUp: a gate is used until its disk is full, then on, and then there is room again.
func TestTheDiskFillsUp(t *testing.T) {
	g := newMountedGate(t)
	disk := filepath.Dir(g.home)
	filling := filepath.Join(disk, "filling")
	if err := os.WriteFile(filling, make([]byte, 400<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(g.dir, "payload"), []byte(`["`+strings.Repeat("y", 3000)+`"]`), 0o600); err != nil {
		t.Fatal(err)
	}
	var keys []string
	for i := range 100 {
		key := fmt.Sprintf("k-%d", i)
		got := g.do(large(g, key))
		if got.code != 0 {
			if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, g.home) || !strings.Contains(got.stderr, "hint: free some space") {
				t.Fatalf("%v", got)
			}
			break
		}
		keys = append(keys, key)
	}
	if len(keys) < 10 || len(keys) == 100 {
		t.Fatalf("the disk took %d requests", len(keys))
	}
	ballast := fill(t, disk)
	g.sound(t, keys...)

	// However often it is tried, nothing is added and nothing half done is left.
	before := g.files(t)
	for range 10 {
		g.refused(t, large(g, "more"), "free some space")
		g.refused(t, verb("withdraw", keys[0], "--reason", "cancelled", "--as", "ci"), "free some space")
		g.refused(t, verb("log", "archive", "--carry"), "free some space")
	}
	if after := g.files(t); !slices.Equal(before, after) {
		t.Errorf("the home held\n%s\nand after failures\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	g.wants(t, 6, verb("wait", keys[0], "--timeout", "50ms"))
	g.wants(t, 0, verb("show", keys[0]))
	g.wants(t, 0, verb("queue"))
	g.sound(t, keys...)

	for _, name := range []string{ballast, filling} {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	g.wants(t, 0, large(g, "more"))
	g.wants(t, 0, verb("withdraw", keys[0], "--reason", "cancelled", "--as", "ci"))
	g.wants(t, 0, verb("log", "archive", "--carry"))
	g.sound(t, append(keys, "more")...)
	if err := g.leavesNothing(work{}); err != nil {
		t.Error(err)
	}
}

// TestAFileSystemThatBecameReadOnly can be looked at, and nothing more.
func TestAFileSystemThatBecameReadOnly(t *testing.T) {
	g := newMountedGate(t)
	g.wants(t, 0, request("a"))
	remount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("tmpfs", filepath.Dir(g.home), "tmpfs", unix.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	remount(unix.MS_RDONLY)
	g.looks(t, "a")
	g.refused(t, request("b"), "read-only")
	g.refused(t, verb("withdraw", "a", "--reason", "cancelled", "--as", "ci"), "read-only")
	g.refused(t, verb("log", "archive", "--carry"), "read-only")
	g.wants(t, 6, verb("wait", "a", "--timeout", "50ms"))
	remount(0)
	g.wants(t, 0, request("b"))
	g.sound(t, "a", "b")
}

// looks makes sure that everything that only looks works, and changes nothing.
func (g *faultGate) looks(t *testing.T, key string) {
	t.Helper()
	before := g.files(t)
	for _, w := range []work{
		verb("log", "verify", "--semantic"), verb("log", "export"), verb("log", "export", "--format", "csv"), verb("log", "tail"), verb("queue"), verb("show", key), verb("status"), verb("lease"),
	} {
		g.wants(t, 0, w)
	}
	if after := g.files(t); !slices.Equal(before, after) {
		t.Errorf("looking changed\n%s\ninto\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
}

// TestAnotherUserMayOnlyLook: who can read the files and not write them, sees all and changes nothing; also of a torn log.
func TestAnotherUserMayOnlyLook(t *testing.T) {
	const nobody = 65534
	g, err := newFaultGate(onethread(t), quickDir(t), "")
	if err != nil {
		t.Fatal(err)
	}
	g.wants(t, 0, request("a"))
	g.wants(t, 0, request("b"))
	others := func(path string, d fs.DirEntry, err error) error {
		info, ierr := os.Stat(path)
		if err = errors.Join(err, ierr); err == nil {
			err = os.Chmod(path, info.Mode().Perm()|0o444|(info.Mode().Perm()&0o100)>>3|(info.Mode().Perm()&0o100)>>6)
		}
		return err
	}
	if err := errors.Join(filepath.WalkDir(g.dir, others), copyTree(g.program, filepath.Join(g.dir, "program")), os.Chmod(filepath.Join(g.dir, "program"), 0o755)); err != nil {
		t.Fatal(err)
	}
	g.program = filepath.Join(g.dir, "program")
	g.as = nobody
	g.looks(t, "a")
	if got := g.wants(t, 12, request("c")); !strings.Contains(got.stderr, g.home+"/log/") || !strings.Contains(got.stderr, "permission denied") {
		t.Error(got)
	}
	g.refused(t, verb("log", "archive", "--carry"), "run as the user that the gate belongs to")
	info, err := os.Stat(g.log())
	if err == nil {
		err = os.Truncate(g.log(), info.Size()-9)
	}
	if err != nil {
		t.Fatal(err)
	}
	before := g.files(t)
	g.wants(t, 9, verb("log", "verify"))
	g.wants(t, 0, verb("log", "export"))
	g.wants(t, 0, verb("show", "a"))
	if after := g.files(t); !slices.Equal(before, after) {
		t.Error("looking at a torn log changed it")
	}
	g.as = 0
	g.wants(t, 0, request("c"))
	g.sound(t, "a", "c")
}

// TestScarceDescriptorsAndSmallFiles: with any limit on open files, and on the size of files, a request is filed or refused, never
// half of it. Where the runtime itself finds no descriptor it ends the process, which is a crash like another.
func TestScarceDescriptorsAndSmallFiles(t *testing.T) {
	g, err := newFaultGate(onethread(t), quickDir(t), "")
	if err != nil {
		t.Fatal(err)
	}
	g.wants(t, 0, request("a"))
	keys := []string{"a"}
	limited := func(limit string, w work) outcome {
		return g.do(w, "sh", "-c", limit+` && exec "$0" "$@"`)
	}
	refusals := 0
	for n := 3; n <= 24; n++ {
		key := fmt.Sprint("n-", n)
		switch got := limited(fmt.Sprint("ulimit -n ", n), request(key)); {
		case got.code == 0:
			keys = append(keys, key)
		case got.stdout != "":
			t.Errorf("%d descriptors: %v", n, got)
		case strings.Contains(got.stderr, "hint: allow more open files"):
			refusals++
		case got.code == 1:
			t.Errorf("%d descriptors: %v", n, got)
		}
		g.sound(t, keys...)
	}
	if refusals == 0 || len(keys) < 3 { // how many of each is the runtime's affair
		t.Errorf("%d refusals, and filed were %v", refusals, keys)
	}
	// The log has grown past 1 KiB by now: dash counts in blocks of 512 bytes.
	info, err := os.Stat(g.log())
	if err != nil {
		t.Fatal(err)
	}
	for _, bytes := range []int64{512, info.Size() &^ 511, (info.Size() + 512) &^ 511} {
		got := limited(fmt.Sprint("ulimit -f ", bytes/512), request("file"))
		if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, "hint: ") || !strings.Contains(got.stderr, g.home) {
			t.Errorf("files of at most %d bytes: %v", bytes, got)
		}
		g.sound(t, keys...)
	}
	g.wants(t, 0, request("file"))
	g.sound(t, append(keys, "file")...)
	if err := g.leavesNothing(work{}); err != nil {
		t.Error(err)
	}
}

// credential makes a command run as another user.
func credential(cmd *exec.Cmd, uid uint32) {
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
}

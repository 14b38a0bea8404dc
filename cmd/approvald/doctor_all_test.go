//go:build all

package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A disk that is full, out of inodes or read-only: doctor names it before lease, log and journal, which fail with it.
func TestDoctorOnADiskThatTakesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		options      string
		flags        uintptr
		what, repair string
	}{
		"full":       {"size=8m", 0, "MiB free, and a gate wants 16 MiB", "du -xh --max-depth=2 "},
		"no inodes":  {"size=64m,nr_inodes=100", 0, "inodes free, and a gate wants 256", "du -x --inodes --max-depth=2 "},
		"read-only":  {"size=64m", unix.MS_RDONLY, "the file system is mounted read-only", "mount -o remount,rw "},
		"sound":      {"size=64m,nr_inodes=10000", 0, "", ""},
		"never used": {"size=64m,nr_inodes=10000", 0, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			state := filepath.Join(w.dir, "state")
			if err := os.Mkdir(state, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("tmpfs", state, "tmpfs", 0, "mode=0700,"+tc.options); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(state, 0); err != nil {
					t.Error(err)
				}
			})
			if name != "never used" {
				w.run(w.env, 0, "request", "k", "--class", "a.b", "--summary", "s")
			}
			if tc.flags != 0 {
				if err := unix.Mount("", state, "", unix.MS_REMOUNT|tc.flags, ""); err != nil {
					t.Fatal(err)
				}
			}
			if tc.what == "" {
				w.doctor(0)
				return
			}
			f := firstFailed(w.doctor(1))
			if f.Check != "disk" || !strings.Contains(f.What, tc.what) || !strings.HasPrefix(f.Repair, tc.repair) {
				t.Errorf("%+v", f)
			}
			w.sh(f.Repair, "")
			if tc.flags != 0 {
				w.doctor(0)
			}
		})
	}
}

// A file that root made in a service's gate, as by running a verb as root.
func TestDoctorOnAFileOfAnotherOwner(t *testing.T) {
	w := newWorld(t)
	w.run(w.env, 0, "request", "k", "--class", "a.b", "--summary", "s")
	if err := os.Chown(filepath.Join(w.dir, "state/approvald/default/.approval/log/events.jsonl"), 1234, 1234); err != nil {
		t.Fatal(err)
	}
	f := firstFailed(w.doctor(1))
	if f.Check != "files" || !strings.Contains(f.What, "belongs to uid 1234") || !strings.Contains(f.Repair, "chown --reference ~/state/approvald/default/.approval ") {
		t.Errorf("%+v", f)
	}
	w.sh(strings.TrimPrefix(f.Repair, "sudo "), "")
	w.doctor(0)
}

// What doctor asks of the kernel: no file is opened for writing, none made, renamed or removed, and no lock taken. What it does beside
// a daemon is no different.
func TestDoctorWritesNothingAtAll(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	w.up()
	w.run(w.env, 0, "request", "k", "--class", "a.b", "--summary", "s")
	trace := filepath.Join(t.TempDir(), "trace")
	program, err := exec.LookPath("approvald")
	if err != nil {
		t.Fatal(err)
	}
	const calls = "openat,open,creat,flock,fcntl,mkdir,mkdirat,unlink,unlinkat,rename,renameat,renameat2,link,linkat,symlink,symlinkat,truncate,ftruncate,chmod,fchmod,fchmodat,utimensat"
	p := w.startProgram(append(w.env, "PATH="+os.Getenv("PATH")), strace, "-f", "-o", trace, "-e", "trace="+calls, program, "doctor")
	if ws := p.ended(); ws.ExitStatus() != 0 {
		t.Fatalf("exit code %d: %s%s", ws.ExitStatus(), p.out, p.errOut)
	}
	file, err := os.Open(trace)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	harmless := regexp.MustCompile(`openat\([^)]*O_RDONLY|F_GETFL|F_SETFL|F_DUPFD|F_GETFD|F_SETFD|"/dev/null"|\+\+\+|---|resumed>`)
	seen := 0
	for lines := bufio.NewScanner(file); lines.Scan(); {
		seen++
		if line := lines.Text(); !harmless.MatchString(line) || strings.Contains(line, "O_CREAT") {
			t.Errorf("%s", line)
		}
	}
	if seen < 20 {
		t.Errorf("only %d calls were seen", seen)
	}
}

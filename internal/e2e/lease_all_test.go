//go:build all

package e2e

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/telegramtest"
)

// startBy runs the program by way of another one, which gets its path and arguments behind its own.
func (w *world) startBy(wrap []string, args ...string) *process {
	w.t.Helper()
	self, err := os.Executable()
	w.must(err)
	return w.startCommand(exec.Command(wrap[0], append(append(wrap[1:], self), args...)...), args)
}

// TestTwoContainersShareAGate: each daemon is pid 1 of a pid namespace of its own and sees no other process.
func TestTwoContainersShareAGate(t *testing.T) {
	w := newWorld(t)
	container := []string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"}
	first := w.startBy(container, "up")
	w.await(first, "the first to ask for updates", func(s telegramtest.State) bool { return len(s.Calls("getUpdates")) > 0 })
	if s := w.status(); s.Holder.PID != 1 {
		t.Errorf("the holder: %+v", s.Holder)
	}
	second := w.startBy(container, "up")
	second.wantRefusal(10, "telegram-poller-running", "pid 1,", w.recordFile())
	w.start("up").wantRefusal(10, "telegram-poller-running", w.recordFile())
	inside := w.startBy(container, "lease", "--json")
	if code := inside.code(); code != 0 || !strings.Contains(inside.stdout.String(), `"held":true`) {
		t.Errorf("seen from another container: %d: %s", code, inside.stdout.String())
	}
	polls := len(w.telegram.Calls("getUpdates"))
	first.kill()
	third := w.startBy(container, "up", "--standby")
	w.await(third, "the next container to ask for updates", func(s telegramtest.State) bool { return len(s.Calls("getUpdates")) > polls })
	w.wantServes(third, "after:all")
}

// TestPlacesWithoutALease: where exclusion cannot be promised, a start is one line with path and reason and calls nobody.
func TestPlacesWithoutALease(t *testing.T) {
	mount := func(w *world, options string) {
		w.must(os.MkdirAll(w.home, 0o700))
		if err := unix.Mount("tmpfs", w.home, "tmpfs", 0, options); err != nil {
			t.Fatalf("mount a file system (needs root): %v", err)
		}
		w.t.Cleanup(func() {
			if err := unix.Unmount(w.home, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	for _, c := range []struct {
		name    string
		prepare func(w *world)
		as      uint32
		names   []string
	}{
		{"read-only file system", func(w *world) {
			mount(w, "size=1m")
			w.must(unix.Mount("", w.home, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		}, 0, []string{"read-only file system", "daemon"}},
		{"no space", func(w *world) { mount(w, "size=64k,nr_inodes=3") }, 0, []string{"no space left on device", "telegram-transport.lock"}},
		{"no room for the lock file", func(w *world) { mount(w, "size=64k,nr_inodes=2") }, 0, []string{"no space left on device", "telegram-transport.flock"}},
		{"no room for the directory", func(w *world) { mount(w, "size=64k,nr_inodes=1") }, 0, []string{"no space left on device", "/daemon"}},
		{"stale record in a directory of somebody else", func(w *world) {
			w.up().kill()
			w.giveAway()
			w.must(os.Chown(filepath.Dir(w.recordFile()), 0, 0))
			w.must(os.Chmod(filepath.Dir(w.recordFile()), 0o555))
		}, 65534, []string{"permission denied", "telegram-transport.lock"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			c.prepare(w)
			calls := len(w.telegram.Calls())
			before := w.tree(w.home)
			w.startAs(c.as, "up").wantRefusal(11, append(c.names, "telegram-lease-unavailable", w.home)...)
			if n := len(w.telegram.Calls()); n != calls {
				t.Errorf("%d calls before the refusal", n-calls)
			}
			if c.as != 0 {
				w.wantUnchanged(before, w.home)
			}
			// An agent is told that nobody was asked, not that it was refused.
			asked := w.startAs(c.as, "request", "k", "--class", "deploy.production", "--summary", "s", "--wait", "--timeout", "1s")
			if code := asked.code(); code == 0 || code == 3 {
				t.Errorf("the request: exit code %d: %s", code, asked.stderr.String())
			}
		})
	}
}

// giveAway hands everything to a user without rights.
func (w *world) giveAway() {
	w.t.Helper()
	w.must(filepath.Walk(w.dir, func(path string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, 65534, 65534)
	}))
}

// startAs runs the program as a user, from a place where that user can.
func (w *world) startAs(uid uint32, args ...string) *process {
	w.t.Helper()
	if uid == 0 {
		return w.start(args...)
	}
	self, err := os.Executable()
	w.must(err)
	program := filepath.Join(w.dir, "program")
	if _, err := os.Stat(program); err != nil {
		in, err := os.Open(self)
		w.must(err)
		defer in.Close()
		out, err := os.OpenFile(program, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
		w.must(err)
		_, err = io.Copy(out, in)
		w.must(err)
		w.must(out.Close())
	}
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return w.startCommand(cmd, args)
}

// TestStoppedAtAnyMoment stops a daemon at random moments while it works, lets a standby take the gate, has that one write, and lets the
// first go on: whatever it was at, the log has no fork, each request is decided once, and the first ends with exit 11.
func TestStoppedAtAnyMoment(t *testing.T) {
	w := newWorld(t)
	holder := w.up()
	for i := range 10 {
		key := fmt.Sprintf("round:%d", i)
		standby := w.start("up", "--standby")
		w.until("the standby to wait", func() bool { return strings.Contains(standby.stderr.String(), "waiting for the lease") })
		waiters := []*process{}
		for j := range 4 {
			waiters = append(waiters, w.start("request", fmt.Sprint(key, ":", j), "--class", "deploy.production", "--summary", "s", "--irreversible", "--wait"))
		}
		time.Sleep(time.Duration(rand.IntN(150)) * time.Millisecond)
		holder.stop()
		w.must(os.Remove(w.flockFile()))
		w.until("the standby to have the lease", func() bool {
			text := standby.stderr.String()
			return strings.Contains(text, "let go of the bot") || strings.Contains(text, "waits for the append lock")
		})
		holder.signal(syscall.SIGCONT)
		if code := holder.code(); code != 11 {
			t.Errorf("round %d: exit code %d", i, code)
		}
		holder = standby
		for j, waiter := range waiters {
			w.until("alice to have approved everything", func() bool {
				for _, m := range w.telegram.Messages(alice) {
					if len(m.Buttons) > 0 {
						w.telegram.Phone(alice).TapMessage(m, "Approve") //nolint:errcheck // the card may just have been settled
					}
				}
				select {
				case <-waiter.done:
					return true
				case <-time.After(20 * time.Millisecond):
					return false
				}
			})
			code := waiter.code()
			if code == 1 && strings.Contains(waiter.stderr.String(), "append lock") {
				// The holder was stopped with the append lock, for longer than a writer waits.
				w.wantEvents(fmt.Sprint(key, ":", j))
				continue
			}
			if code != 0 {
				t.Errorf("%s:%d: exit code %d: %s", key, j, code, waiter.stderr.String())
			}
			w.wantEvents(fmt.Sprint(key, ":", j), "approval.requested", "approval.granted")
		}
		w.run(0, "log", "verify")
	}
}

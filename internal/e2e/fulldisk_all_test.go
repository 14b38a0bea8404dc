//go:build all

package e2e

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// smallDisk mounts a file system of a few hundred KiB at a directory. It needs root; without it the test fails, as `make
// test-all` promises.
func smallDisk(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"); err != nil {
		t.Fatalf("mount a small file system (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// fill takes every free byte of the file system and returns the file that holds them.
func fill(t *testing.T, dir string) string {
	t.Helper()
	name := filepath.Join(dir, "ballast")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for block := make([]byte, 4096); len(block) > 0; block = block[:len(block)/2] {
		for err == nil {
			_, err = file.Write(block)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
	return name
}

func TestAFullDiskLosesNothing(t *testing.T) {
	w := newWorld(t)
	smallDisk(t, filepath.Join(w.dir, "state"))
	daemon := w.up()
	waiter, card := w.request(daemon, "deploy:api#41")
	before := len(w.records())

	ballast := fill(t, filepath.Join(w.dir, "state"))
	// Records are small and the last page of a file may still have room: what counts is that nobody is answered for what is not there.
	refused := w.start("request", "deploy:api#42", "--class", "deploy.production", "--summary", strings.Repeat("x", 900),
		"--payload", w.write("payload", strings.Repeat("y", 100_000)))
	if code := refused.code(); code == 0 || !strings.Contains(refused.stderr.String(), "no space left") {
		t.Errorf("a request on a full disk: exit code %d: %s", code, refused.stderr.String())
	}
	w.tap(card, "Approve")
	w.until("the tap to be decided or the daemon to give up", func() bool {
		select {
		case <-daemon.done:
			return true
		case <-waiter.done:
			return true
		default:
			return false
		}
	})
	select {
	case <-waiter.done:
		if events := w.events("deploy:api#41"); len(events) != 2 {
			t.Errorf("the program went on with %d and the log says %v", waiter.code(), events)
		}
	default:
	}

	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	daemon.kill()
	daemon = w.up()
	if code := waiter.code(); code != 0 {
		t.Errorf("with space again the tap still counts: exit code %d: %s", code, waiter.stderr.String())
	}
	w.wantEvents("deploy:api#41", "approval.requested", "approval.granted")
	w.wantEvents("deploy:api#42")
	if len(w.records()) <= before {
		t.Error("the log lost records")
	}
	w.settled(daemon, card)
	w.run(0, "log", "verify")
}

// TestRestartsOnAFullDiskLeaveNothing: a supervisor that starts the daemon again and again makes nothing worse.
func TestRestartsOnAFullDiskLeaveNothing(t *testing.T) {
	w := newWorld(t)
	smallDisk(t, filepath.Join(w.dir, "state"))
	daemon := w.up()
	waiter, card := w.request(daemon, "deploy:api#41")
	w.tap(card, "Approve")
	if code := waiter.code(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	w.settled(daemon, card)
	w.stopInTime(daemon)
	ballast := fill(t, filepath.Join(w.dir, "state"))
	files := func() map[string]string {
		tree := w.tree(w.home)
		maps.DeleteFunc(tree, func(_, what string) bool { return strings.HasPrefix(what, "d") }) // a directory's time tells of what came and went
		return tree
	}
	before := files()
	for range 10 {
		up := w.start("up")
		w.until("the daemon to end, or to ask for updates", func() bool {
			select {
			case <-up.done:
				return true
			default:
				return false
			}
		})
		if said := up.stderr.String(); up.code() != 11 || strings.Count(said, "\n") != 1 || !strings.Contains(said, "free some space") || !strings.Contains(said, w.home) {
			t.Errorf("exit code %d: %s", up.code(), said)
		}
	}
	if after := files(); !maps.Equal(before, after) {
		t.Errorf("the home held\n%v\nand now\n%v", before, after)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	w.wantServes(w.up(), "deploy:api#42")
	w.run(0, "log", "verify")
}

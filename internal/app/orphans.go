package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// family tells the processes that this one started and waits for from those that it only inherited.
//
// As pid 1 of a container the daemon is the parent of every process whose own parent has ended: of what the operator's command
// leaves in the background, of what somebody runs in the container. Nobody else waits for those, and unless it does they stay as zombies
// until the container has no process number left.
type family struct {
	mu    sync.Mutex
	own   map[int]bool
	ended chan struct{} // that of an own child makes way for others
}

func newFamily() *family { return &family{own: make(map[int]bool), ended: make(chan struct{}, 1)} }

// run is cmd.Run for a command of our own. Every other process that the daemon starts must take this way too.
func (f *family) run(cmd *exec.Cmd) error {
	if err := f.start(cmd); err != nil {
		return err
	}
	defer f.forget(cmd.Process.Pid)
	return cmd.Wait()
}

// start keeps the inheritance away until the child is known to be ours.
func (f *family) start(cmd *exec.Cmd) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	f.own[cmd.Process.Pid] = true
	return nil
}

func (f *family) forget(pid int) {
	f.mu.Lock()
	delete(f.own, pid)
	f.mu.Unlock()
	select {
	case f.ended <- struct{}{}:
	default:
	}
}

// inherit waits for the processes that were inherited, as each of them ends, until ctx ends.
func (f *family) inherit(ctx context.Context) error {
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	defer signal.Stop(died)
	for {
		if err := f.bury(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-died:
		case <-f.ended:
		}
	}
}

// bury waits for all that have ended, up to the first of our own: whoever started that one is about to wait for it.
func (f *family) bury() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		pid := pidOf(&info)
		if errors.Is(err, unix.ECHILD) || err == nil && (pid == 0 || f.own[pid]) {
			return nil
		}
		if err == nil {
			_, err = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
		if err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECHILD) {
			return fmt.Errorf("wait for an inherited process: %w", err)
		}
	}
}

// pidOf is si_pid, which x/sys/unix does not name: the first member of the union behind three ints, aligned as a pointer is.
func pidOf(info *unix.Siginfo) int {
	const align = unsafe.Sizeof(uintptr(0))
	const offset = (3*4 + align - 1) &^ (align - 1)
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), offset)))
}

package approvallog

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

// errQueueFull: the place of the next in line did not become free in time.
var errQueueFull = errors.New("the line did not move")

// queue is the line in which the processes of approvald wait for the append lock: a kernel lock
// (flock) on a file of its own that is never removed. The kernel wakes who has waited longest, and
// frees the place of a process that dies.
//
// A queue serves one goroutine at a time.
type queue struct {
	path string
	file *os.File // kept open between turns
}

// enter waits up to wait for the place of the next in line. False without an error means that there
// are no kernel locks here: the writers then only queue less fairly.
func (q *queue) enter(ctx context.Context, wait time.Duration) (bool, error) {
	if q.file == nil {
		file, err := os.OpenFile(q.path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return false, nil
		}
		q.file = file
	}
	switch err := flock(q.file, syscall.LOCK_EX|syscall.LOCK_NB); err {
	case nil:
		return true, nil
	case syscall.EWOULDBLOCK:
		return q.block(ctx, wait)
	default:
		return false, nil
	}
}

// block waits inside the kernel, on a descriptor that is given up when the wait is cut short: the
// goroutine, which cannot be interrupted, closes it as soon as it gets its turn.
func (q *queue) block(ctx context.Context, wait time.Duration) (bool, error) {
	file := q.file
	q.file = nil
	turn := make(chan error)
	abandoned := make(chan struct{})
	go func() {
		err := flock(file, syscall.LOCK_EX)
		select {
		case turn <- err:
		case <-abandoned:
			file.Close()
		}
	}()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case err := <-turn:
		q.file = file
		return err == nil, nil
	case <-timer.C:
		close(abandoned)
		return false, errQueueFull
	case <-ctx.Done():
		close(abandoned)
		return false, context.Cause(ctx)
	}
}

// leave gives the place to the next.
func (q *queue) leave() { flock(q.file, syscall.LOCK_UN) }

func (q *queue) close() {
	if q.file != nil {
		q.file.Close()
		q.file = nil
	}
}

func flock(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), how); err != syscall.EINTR {
			return err
		}
	}
}

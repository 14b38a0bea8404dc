package approvallog

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/approvald/approvald/internal/durable"
	"github.com/approvald/approvald/internal/rescue"
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
	// pending is a wait that was cut short: the kernel cannot be told to forget it, so the next
	// wait goes on with it, in the place that it has in the line by now.
	pending *turn
}

// enter waits up to wait for the place of the next in line. False without an error means that there
// are no kernel locks here: the writers then only queue less fairly.
func (q *queue) enter(ctx context.Context, wait time.Duration) (bool, error) {
	if t := q.pending; t != nil {
		q.pending = nil
		if t.resume() {
			return q.await(ctx, t, wait)
		}
	}
	if q.file == nil {
		file, err := durable.Open(q.path, os.O_RDWR|os.O_CREATE, 0o600)
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

// block joins the line inside the kernel.
func (q *queue) block(ctx context.Context, wait time.Duration) (bool, error) {
	t := &turn{file: q.file, wanted: true, got: make(chan error, 1)}
	q.file = nil
	go t.take()
	return q.await(ctx, t, wait)
}

func (q *queue) await(ctx context.Context, t *turn, wait time.Duration) (bool, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case err := <-t.got:
		q.file = t.file
		return err == nil, nil
	case <-timer.C:
		q.leaveFor(t)
		return false, errQueueFull
	case <-ctx.Done():
		q.leaveFor(t)
		return false, context.Cause(ctx)
	}
}

// leaveFor gives a wait up; what is still in the kernel is kept for the next one.
func (q *queue) leaveFor(t *turn) {
	if !t.abandon() {
		q.pending = t
	}
}

// turn is one wait in the kernel, on a descriptor of its own. It takes a goroutine, and with it a
// thread, that cannot be interrupted: there is never more than one for a queue.
type turn struct {
	file *os.File
	got  chan error

	mu     sync.Mutex
	wanted bool // somebody waits for it
	over   bool // the kernel has answered
}

// take waits in the kernel. A turn that nobody wants any more is given to the next at once.
func (t *turn) take() {
	err := flock(t.file, syscall.LOCK_EX)
	rescue.At("append queue")
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	if t.wanted {
		t.got <- err
	} else {
		t.file.Close()
	}
}

// resume wants the turn again. False means that it came and went meanwhile.
func (t *turn) resume() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wanted = !t.over
	return t.wanted
}

// abandon wants the turn no more. True means that it had just come, and was given to the next.
func (t *turn) abandon() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wanted = false
	if t.over {
		t.file.Close()
	}
	return t.over
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

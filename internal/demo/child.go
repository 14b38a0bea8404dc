package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"
)

// family is every process that the demo started. None outlives it: each is in a process group of its own, is killed with
// that group, and dies with the demo even when the demo itself is killed.
type family struct {
	program string
	env     []string
	dir     string

	mu       sync.Mutex
	children []*child
}

// child is one run of the real program.
type child struct {
	args   []string
	cmd    *exec.Cmd
	output *transcript
	began  time.Time
	ended  time.Time
	done   chan struct{} // closed once the process was waited for
	err    error
}

// start runs the program with args. What it prints goes to sink as whole lines, as they come, and is kept for a failure.
func (f *family) start(sink io.Writer, args ...string) (*child, error) {
	c := &child{args: args, output: &transcript{sink: sink}, done: make(chan struct{})}
	c.cmd = exec.Command(f.program, args...)
	c.cmd.Env = f.env
	c.cmd.Dir = f.dir
	c.cmd.Stdout = c.output
	c.cmd.Stderr = c.output
	// Ctrl-C at the terminal is for the demo, which then stops its children in order.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c.cmd.WaitDelay = time.Second

	f.mu.Lock()
	defer f.mu.Unlock()
	c.began = time.Now()
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start approvald %s: %w", args[0], err)
	}
	f.children = append(f.children, c)
	go func() {
		c.err = c.cmd.Wait()
		c.ended = time.Now()
		close(c.done)
	}()
	return c, nil
}

// run starts the program and waits for its exit code.
func (f *family) run(ctx context.Context, sink io.Writer, args ...string) (*child, int, error) {
	c, err := f.start(sink, args...)
	if err != nil {
		return nil, 0, err
	}
	code, err := c.exit(ctx)
	return c, code, err
}

// exit waits for the end of the process and returns its exit code.
func (c *child) exit(ctx context.Context) (int, error) {
	select {
	case <-c.done:
	case <-ctx.Done():
		return 0, fmt.Errorf("approvald %s is still running: %w", c.args[0], context.Cause(ctx))
	}
	var exit *exec.ExitError
	if c.err != nil && !errors.As(c.err, &exit) {
		return 0, fmt.Errorf("approvald %s: %w", c.args[0], c.err)
	}
	if status := c.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return c.cmd.ProcessState.ExitCode(), nil
}

func (c *child) running() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// signal is for one process; the groups are for the end.
func (c *child) signal(s os.Signal) error {
	if err := c.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("send %v to approvald %s: %w", s, c.args[0], err)
	}
	return nil
}

// killAll ends every child that still runs, with all that it started, and waits until the kernel has let go of each.
func (f *family) killAll() {
	f.mu.Lock()
	children := slices.Clone(f.children)
	f.mu.Unlock()
	for _, c := range slices.Backward(children) {
		if c.running() {
			_ = syscall.Kill(-c.pid(), syscall.SIGKILL) // it may have ended since
		}
		<-c.done
	}
}

// transcript passes output on line by line and keeps all of it.
type transcript struct {
	sink io.Writer

	mu      sync.Mutex
	kept    bytes.Buffer
	pending []byte
}

func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept.Write(p)
	t.pending = append(t.pending, p...)
	for {
		i := bytes.IndexByte(t.pending, '\n')
		if i < 0 {
			return len(p), nil
		}
		line := t.pending[:i+1]
		t.pending = t.pending[i+1:]
		if t.sink != nil {
			if _, err := t.sink.Write(line); err != nil {
				return len(p), err
			}
		}
	}
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kept.String()
}

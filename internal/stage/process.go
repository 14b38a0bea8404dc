package stage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one run of a program on a stage. None outlives the stage: each is in a process group of its own, is killed with that
// group, and dies with the program that set the stage even when that is killed.
type Process struct {
	// Args is its command line.
	Args []string
	// Began is when it was started.
	Began time.Time

	cmd    *exec.Cmd
	output *transcript
	ended  time.Time
	done   chan struct{} // closed once the process was waited for
	err    error
}

// Start runs approvald with args in the stage's directory. What it prints goes to sink as whole lines, as they come, and is kept.
func (s *Stage) Start(sink io.Writer, args ...string) (*Process, error) {
	return s.Exec(Command{Argv: append([]string{s.program}, args...), Out: sink})
}

// Command is a program to run on a stage.
type Command struct {
	Argv []string
	Dir  string    // where it runs; empty for the stage's directory
	Env  []string  // its environment; nil for the stage's, in which every approvald is the stage's own
	Out  io.Writer // gets what it prints as whole lines, as they come; nil for nobody
}

// Exec starts a program. It has no standard input.
func (s *Stage) Exec(cmd Command) (*Process, error) {
	c := &Process{Args: cmd.Argv, output: &transcript{sink: cmd.Out}, done: make(chan struct{})}
	c.cmd = exec.Command(cmd.Argv[0], cmd.Argv[1:]...)
	c.cmd.Env, c.cmd.Dir = cmd.Env, cmd.Dir
	if cmd.Env == nil {
		c.cmd.Env = s.env
	}
	if cmd.Dir == "" {
		c.cmd.Dir = s.Dir
	}
	c.cmd.Stdout = c.output
	c.cmd.Stderr = c.output
	// Ctrl-C at the terminal is for the demo, which then stops its children in order.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c.cmd.WaitDelay = time.Second

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	c.Began = time.Now()
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name(), err)
	}
	s.processes = append(s.processes, c)
	go func() {
		c.err = c.cmd.Wait()
		c.ended = time.Now()
		close(c.done)
	}()
	return c, nil
}

// Run starts approvald and waits for its exit code.
func (s *Stage) Run(ctx context.Context, sink io.Writer, args ...string) (*Process, int, error) {
	c, err := s.Start(sink, args...)
	if err != nil {
		return nil, 0, err
	}
	code, err := c.Exit(ctx)
	return c, code, err
}

// name is what a message calls the process.
func (c *Process) name() string {
	return strings.Join(append([]string{filepath.Base(c.Args[0])}, c.Args[1:min(2, len(c.Args))]...), " ")
}

// Exit waits for the end of the process and returns its exit code, 128 and the signal's number for one that a signal ended.
func (c *Process) Exit(ctx context.Context) (int, error) {
	select {
	case <-c.done:
	case <-ctx.Done():
		return 0, fmt.Errorf("%s is still running: %w", c.name(), context.Cause(ctx))
	}
	var exit *exec.ExitError
	if c.err != nil && !errors.As(c.err, &exit) {
		return 0, fmt.Errorf("%s: %w", c.name(), c.err)
	}
	return c.Code(), nil
}

// Code is the exit code of a process that has ended, 128 and the signal's number for one that a signal ended.
func (c *Process) Code() int {
	if status := c.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal())
	}
	return c.cmd.ProcessState.ExitCode()
}

// Done is closed once the process has ended.
func (c *Process) Done() <-chan struct{} { return c.done }

// Ended is when it ended; zero while it runs.
func (c *Process) Ended() time.Time {
	if c.Running() {
		return time.Time{}
	}
	return c.ended
}

// Output is all that it has printed, both streams.
func (c *Process) Output() string { return c.output.String() }

// Running reports whether it has not ended yet.
func (c *Process) Running() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// PID is its number.
func (c *Process) PID() int { return c.cmd.Process.Pid }

// Signal sends a signal to the one process; the groups are for the end.
func (c *Process) Signal(s os.Signal) error {
	if err := c.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("send %v to %s: %w", s, c.name(), err)
	}
	return nil
}

// killAll ends every process that still runs, with all that it started, and waits until the kernel has let go of each.
func (s *Stage) killAll() {
	s.mu.Lock()
	s.closed = true
	processes := slices.Clone(s.processes)
	s.mu.Unlock()
	for _, c := range slices.Backward(processes) {
		if c.Running() {
			_ = syscall.Kill(-c.PID(), syscall.SIGKILL) // it may have ended since
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

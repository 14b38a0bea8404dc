package lease

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/procid"
)

// eventLog collects what a lease reports, and lets a test wait for a kind.
type eventLog struct {
	mu     sync.Mutex
	events []Event
	waiter chan struct{}
}

func (e *eventLog) add(ev Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = append(e.events, ev)
	if e.waiter != nil {
		close(e.waiter)
		e.waiter = nil
	}
}

func (e *eventLog) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var kinds []string
	for _, ev := range e.events {
		kinds = append(kinds, strings.TrimSpace(string(ev.Kind)+" "+ev.Reason))
	}
	return strings.Join(kinds, ", ")
}

// await returns the first event of a kind, past or to come.
func (e *eventLog) await(t *testing.T, kind Kind) Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		e.mu.Lock()
		for _, ev := range e.events {
			if ev.Kind == kind {
				e.mu.Unlock()
				return ev
			}
		}
		if e.waiter == nil {
			e.waiter = make(chan struct{})
		}
		wait := e.waiter
		e.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			t.Fatalf("no event %q; had: %s", kind, e)
		}
	}
}

// holdKernelLock locks a gate's kernel lock without any record, as an
// approvald does that is just starting or has lost its record.
func holdKernelLock(t *testing.T, g gate) (release func()) {
	t.Helper()
	g.mkdir(t)
	fd, err := unix.Open(g.flock(), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() { unix.Close(fd) })
}

// process is this test binary in a role of roles_test.go. It is told what to
// do on stdin and answers on stdout, line by line.
type process struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    *os.File
	lines chan string
	// wrapped: cmd is a command that runs the role as its child.
	wrapped bool
}

// start runs a role; wrap, when given, is a command line to put before it.
func start(t testing.TB, role string, g gate, wrap ...string) *process {
	t.Helper()
	argv := append(wrap, os.Args[0])
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LEASE_TEST_ROLE="+role, "LEASE_TEST_HOME="+g.home)
	if len(wrap) == 0 { // unshare complains when its child is killed
		cmd.Stderr = os.Stderr
	}
	p := startCommand(t, cmd)
	p.wrapped = len(wrap) > 0
	return p
}

func startCommand(t testing.TB, cmd *exec.Cmd) *process {
	t.Helper()
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = inRead
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inRead.Close()
	p := &process{t: t, cmd: cmd, in: inWrite, lines: make(chan string, 1024)}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(p.kill)
	return p
}

// pid is the process that plays the role; 0 when it has ended. A command that
// was put before it is its parent.
func (p *process) pid() int {
	if !p.wrapped {
		return p.cmd.Process.Pid
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	child, _ := strconv.Atoi(strings.TrimSpace(string(raw)))
	return child
}

func (p *process) tell(line string) {
	fmt.Fprintln(p.in, line)
}

// ask tells and returns the answer; the second result is false when the process
// ended. It may be called from any goroutine.
func (p *process) ask(line string) (string, bool) {
	p.tell(line)
	answer, ok := <-p.lines
	return answer, ok
}

// hear returns the next line; a process that ends instead fails the test.
func (p *process) hear() string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.t.Fatal("the process ended without an answer")
		}
		return line
	case <-time.After(60 * time.Second):
		p.t.Fatal("the process does not answer")
	}
	return ""
}

// expect hears lines until one starts with want, which must be the next one.
func (p *process) expect(want string) string {
	p.t.Helper()
	line := p.hear()
	if !strings.HasPrefix(line, want) {
		p.t.Fatalf("the process says %q, want %q", line, want)
	}
	return line
}

func (p *process) signal(sig unix.Signal) {
	p.t.Helper()
	if err := unix.Kill(p.pid(), sig); err != nil {
		p.t.Fatal(err)
	}
}

// stop stops the process and returns when every thread of it has stopped.
func (p *process) stop() {
	p.t.Helper()
	p.signal(unix.SIGSTOP)
	waitUntil(p.t, func() bool {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.pid()))
		if err != nil || len(stats) == 0 {
			p.t.Fatal("no threads: ", err)
		}
		for _, path := range stats {
			raw, err := os.ReadFile(path)
			if err != nil {
				continue // a thread that ended
			}
			if stat, err := procid.ParseStat(raw); err != nil || stat.State != 'T' {
				return false
			}
		}
		return true
	})
}

// kill ends the process with SIGKILL and reaps it. It may be called twice.
func (p *process) kill() {
	if p.cmd.ProcessState != nil {
		return
	}
	if pid := p.pid(); pid > 0 {
		unix.Kill(pid, unix.SIGKILL)
	}
	p.reap()
}

// reap waits for the end of a process that was killed or will end by itself.
func (p *process) reap() int {
	for range p.lines {
	}
	p.cmd.Wait()
	p.in.Close()
	return p.cmd.ProcessState.ExitCode()
}

// waitUntil waits for a state that nothing announces.
func waitUntil(t testing.TB, state func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !state() {
		if time.Now().After(deadline) {
			t.Fatal("the awaited state does not come")
		}
		time.Sleep(time.Millisecond)
	}
}

// kernelLocked reports whether anybody holds the gate's kernel lock.
func kernelLocked(t *testing.T, g gate) bool {
	t.Helper()
	var st unix.Stat_t
	if unix.Lstat(g.flock(), &st) != nil {
		return false
	}
	_, listed, err := listedLock(procid.Prober{}, &st)
	if err != nil {
		t.Fatal(err)
	}
	return listed
}

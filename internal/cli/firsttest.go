package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
)

const (
	// testFor is how long a person gets to decide the test request.
	testFor = 10 * time.Minute
	// upWithin is how long the daemon may take to serve. It tries for ever when Telegram cannot be reached.
	upWithin = time.Minute
	// stopWithin is how long the daemon of a test gets to stop in order.
	stopWithin = 15 * time.Second
)

// offerTest tries the new gate as it will be used: the daemon and the request are processes of their own. The daemon runs for the test only.
func (e *env) offerTest(ctx context.Context, s *setup) error {
	if !s.test {
		if !s.paired || s.pair != "" || !e.interactive() || e.json {
			return nil
		}
		answer, err := e.askLine(ctx, e.answers(), "Start the gate now for a first test request? [Y/n] ", "y")
		if err != nil {
			// The gate is set up; whoever leaves here wants no test.
			return nil
		}
		if answer = strings.ToLower(answer); answer != "y" && answer != "yes" {
			return nil
		}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	t := &firstTest{program: self, flags: []string{"--gate", e.gate, "--config", s.config}}
	daemon, err := t.up(ctx)
	if err != nil {
		return err
	}
	defer daemon.stop()
	e.ui.say("the gate is up for the test; a card appears in chat %d: tap Approve on it", s.chatID)
	req, err := t.request(ctx, daemon)
	if err != nil {
		return err
	}
	by := ""
	if req.Decision != nil {
		by = " by " + req.Decision.By
	}
	e.ui.say("the test request was %s%s", e.ui.bold(string(req.State)), by)
	if code := exitByState[req.State]; code != exitOK {
		return outcomeError{code}
	}
	return nil
}

// firstTest runs this same program.
type firstTest struct {
	program string
	flags   []string
}

// child is one run of it.
type child struct {
	cmd  *exec.Cmd
	out  bytes.Buffer // what it printed, whole once done is closed
	done chan struct{}
	err  error
}

// start runs a verb. What it prints on stderr goes to talk.
func (t *firstTest) start(talk *watcher, args ...string) (*child, error) {
	c := &child{cmd: exec.Command(t.program, append(args, t.flags...)...), done: make(chan struct{})}
	c.cmd.Stdout, c.cmd.Stderr = &c.out, talk
	c.cmd.WaitDelay = time.Second
	// A break at the terminal is for us, who then stop it in order.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		// The kernel counts the thread that started a child as its parent.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.cmd.Start()
		started <- err
		if err == nil {
			c.err = c.cmd.Wait()
		}
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s %s: %w", t.program, args[0], err)
	}
	return c, nil
}

// stop ends a child in order, and at once when it does not obey.
func (c *child) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // one that has ended needs no end
	limit := time.NewTimer(stopWithin)
	defer limit.Stop()
	select {
	case <-c.done:
	case <-limit.C:
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}

// watcher looks for a word in what a child says, and keeps the last line.
type watcher struct {
	word []byte
	seen chan struct{}

	mu   sync.Mutex
	last []byte
	rest []byte
	once sync.Once
}

func (w *watcher) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rest = append(w.rest, p...)
	for {
		line, rest, whole := bytes.Cut(w.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		w.last, w.rest = bytes.Clone(line), bytes.Clone(rest)
		if len(w.word) > 0 && bytes.Contains(line, w.word) {
			w.once.Do(func() { close(w.seen) })
		}
	}
}

func (w *watcher) lastLine() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimPrefix(string(w.last), "approvald: ")
}

// up starts the daemon and waits until it serves.
func (t *firstTest) up(ctx context.Context) (*child, error) {
	talk := &watcher{word: []byte(`"msg":"ready"`), seen: make(chan struct{})}
	daemon, err := t.start(talk, "up")
	if err != nil {
		return nil, err
	}
	limit := time.NewTimer(upWithin)
	defer limit.Stop()
	select {
	case <-talk.seen:
		return daemon, nil
	case <-limit.C:
		daemon.stop()
		return nil, &gate.Error{Code: gate.CodeInternal, Message: fmt.Sprintf("the daemon did not come up within %s", upWithin),
			Hint: "the gate is set up; approvald doctor looks at what may be in the way"}
	case <-ctx.Done():
		daemon.stop()
		return nil, context.Cause(ctx)
	case <-daemon.done:
		return nil, &gate.Error{Code: gate.CodeInternal, Message: "the daemon did not start: " + talk.lastLine(),
			Hint: "the gate is set up; start it with approvald up once that is mended"}
	}
}

// request asks for something harmless and waits for the decision. A break withdraws it.
func (t *firstTest) request(ctx context.Context, daemon *child) (req approvallog.Request, err error) {
	key := "test-hello-" + strings.ToLower(rand.Text()[:8])
	talk := &watcher{}
	asking, err := t.start(talk, "request", key, "--class", "test.hello", "--summary", "a first test of this gate; nothing is done by it",
		"--ttl", testFor.String(), "--wait", "--json")
	if err != nil {
		return req, err
	}
	select {
	case <-asking.done:
	case <-daemon.done:
		asking.stop()
		return req, errors.New("the daemon ended before the test request was decided; the gate is set up, and approvald up says more")
	case <-ctx.Done():
		asking.stop()
		if taken, err := t.start(talk, "withdraw", key, "--reason", "cancelled"); err == nil {
			<-taken.done
		}
		return req, context.Cause(ctx)
	}
	if err := json.Unmarshal(asking.out.Bytes(), &req); err != nil || req.Key == "" {
		return req, fmt.Errorf("the test request failed: %s", strings.TrimSpace(asking.out.String()+" "+talk.lastLine()))
	}
	return req, nil
}

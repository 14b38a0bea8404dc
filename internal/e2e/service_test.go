package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

// manager is the service manager's side of sd_notify: what arrives is kept, in order.
type manager struct {
	conn *net.UnixConn
	got  output
	done chan struct{}
}

// supervise has the world's daemons talk to a service manager.
func (w *world) supervise() *manager {
	w.t.Helper()
	path := filepath.Join(w.dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	w.must(err)
	m := &manager{conn: conn, done: make(chan struct{})}
	go func() {
		defer close(m.done)
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			fmt.Fprintf(&m.got, "%s\n", buf[:n]) //nolint:errcheck // a buffer takes everything
		}
	}()
	w.t.Cleanup(func() {
		conn.Close()
		<-m.done
	})
	w.env = append(w.env, "NOTIFY_SOCKET="+path)
	return m
}

func (m *manager) heard(what string) bool { return strings.Contains(m.got.String(), what) }

func TestReadyIsSaidOnlyWhenTheDaemonCanServe(t *testing.T) {
	w := newWorld(t)
	m := w.supervise()

	w.write("bot.token", "1:short")
	w.run(2, "up")
	w.write("bot.token", w.telegram.Token())
	w.must(os.Chmod(filepath.Join(w.dir, "bot.token"), 0o644))
	w.run(2, "up")
	w.must(os.Chmod(filepath.Join(w.dir, "bot.token"), 0o600))

	good := w.telegram.Token()
	w.telegram.Revoke("7000000001:" + strings.Repeat("n", 35))
	w.run(2, "up")
	w.telegram.Unrevoke(good)
	if m.heard("READY=1") {
		t.Fatalf("a daemon that could not serve said it was ready:\n%s", m.got.String())
	}

	daemon := w.up()
	w.until("READY", func() bool { return m.heard("READY=1") })
	if status := w.status(); !status.Transport.Healthy {
		t.Errorf("ready, and the status says %+v", status)
	}
	before := strings.Count(m.got.String(), "READY=1")
	w.run(10, "up")
	daemon.signal(syscall.SIGTERM)
	if code := daemon.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	w.until("STOPPING", func() bool { return m.heard("STOPPING=1") })
	if n := strings.Count(m.got.String(), "READY=1"); n != before {
		t.Errorf("READY was said %d times", n)
	}
}

func TestStopDuringTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.telegram.Fault(telegramtest.Fault{Method: "getMe", Do: telegramtest.Hang(), Count: telegramtest.Always})
	starting := w.start("up")
	w.await(starting, "the daemon to ask who the bot is", func(s telegramtest.State) bool { return len(s.Calls("getMe")) > 0 })
	w.stopInTime(starting)

	w.telegram.ClearFaults()
	daemon := w.up()
	standby := w.start("up", "--standby")
	w.until("the standby to wait", func() bool { return standby.stderr.String() != "" })
	w.stopInTime(standby)
	w.stopInTime(daemon)
}

func TestStopWithManyWaitingAndByInterrupt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	w.run(0, "request", "deploy:api#41", "--class", "deploy.production", "--summary", "s")
	var waiters []*process
	for range 50 {
		waiters = append(waiters, w.start("wait", "deploy:api#41"))
	}
	began := time.Now()
	daemon.signal(os.Interrupt)
	if code := daemon.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(began); took > stopLimit {
		t.Errorf("the stop took %v", took)
	}
	daemon = w.up()
	w.tap(w.card(daemon, "deploy:api#41"), "Approve")
	for _, waiter := range waiters {
		if code := waiter.code(); code != 0 {
			t.Errorf("a program that waited over the restart: exit code %d: %s", code, waiter.stderr.String())
		}
	}
	w.wantEvents("deploy:api#41", "approval.requested", "approval.granted")
}

func TestOfManyStartersOneServes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.up().kill() // leaves its socket and its lease's record behind
	var starters []*process
	for range 10 {
		starters = append(starters, w.start("up"))
	}
	var serving *process
	refused := 0
	w.until("nine of ten to be refused", func() bool {
		serving, refused = nil, 0
		for _, p := range starters {
			select {
			case <-p.done:
				refused++
			default:
				serving = p
			}
		}
		return refused >= 9
	})
	if serving == nil {
		t.Fatal("none of ten starters serves")
	}
	for _, p := range starters {
		if p != serving && p.code() != 10 {
			t.Errorf("a starter that was refused ended with %d: %s", p.code(), p.stderr.String())
		}
	}
	waiter, card := w.request(serving, "deploy:api#41")
	w.tap(card, "Approve")
	if code := waiter.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, waiter.stderr.String())
	}
	if s := w.status(); s.Holder.PID != serving.cmd.Process.Pid {
		t.Errorf("the socket is answered by process %d, the survivor is %d", s.Holder.PID, serving.cmd.Process.Pid)
	}
}

func TestASocketPathThatCannotBeBoundIsRefused(t *testing.T) {
	w := newWorld(t)
	long := filepath.Join(w.dir, strings.Repeat("r", 100))
	w.must(os.MkdirAll(long, 0o700))
	w.env = append(w.env, "XDG_RUNTIME_DIR="+long)
	refused := w.start("up")
	if code := refused.code(); code == 0 || !strings.Contains(refused.stderr.String(), "at most 107") {
		t.Errorf("exit code %d: %s", code, refused.stderr.String())
	}
	if n := strings.Count(refused.stderr.String(), "\n"); n != 1 {
		t.Errorf("a refusal is one line on stderr:\n%s", refused.stderr.String())
	}

	// A link is not a dead daemon's socket either.
	w = newWorld(t)
	w.must(os.MkdirAll(filepath.Join(w.dir, "run", "approvald"), 0o750))
	socket := filepath.Join(w.dir, "run", "approvald", "default.sock")
	w.must(os.Symlink(w.write("target", "precious"), socket))
	refused = w.start("up")
	if code := refused.code(); code == 0 {
		t.Error("the daemon started over a link at the socket's path")
	}
	if _, err := os.Readlink(socket); err != nil {
		t.Errorf("the link: %v", err)
	}
	if _, err := os.Stat(filepath.Join(w.dir, "target")); errors.Is(err, os.ErrNotExist) {
		t.Error("what the link points to is gone")
	}
}

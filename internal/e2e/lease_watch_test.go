package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/telegramtest"
)

// TestTheHolderPutsBackWhatIsMissing: files that vanish under a running daemon, with nobody in their place, are taken again, and the gate
// goes on in the same epoch.
func TestTheHolderPutsBackWhatIsMissing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	pid := daemon.cmd.Process.Pid
	for _, c := range []struct {
		name    string
		disturb func()
	}{
		{"record deleted", func() { w.must(os.Remove(w.recordFile())) }},
		{"lock file deleted", func() { w.must(os.Remove(w.flockFile())) }},
		{"both deleted", func() { w.must(os.Remove(w.flockFile())); w.must(os.Remove(w.recordFile())) }},
		{"both deleted, the other way round", func() { w.must(os.Remove(w.recordFile())); w.must(os.Remove(w.flockFile())) }},
		{"record damaged", func() { w.must(os.Truncate(w.recordFile(), 10)) }},
		{"lock file replaced", func() {
			w.must(os.WriteFile(w.flockFile()+".x", nil, 0o600))
			w.must(os.Rename(w.flockFile()+".x", w.flockFile()))
		}},
	} {
		told := func() int { return strings.Count(daemon.stderr.String(), "took the lease again, in the same epoch") }
		before := told()
		c.disturb()
		w.until(c.name+": the daemon to have put it right", func() bool {
			_, err := os.Stat(w.recordFile())
			return err == nil && told() > before && w.lease().Verdict == "held"
		})
		r := w.lease()
		if r.Verdict != "held" || r.Holder == nil || r.Holder.PID != pid || r.Holder.Epoch != 1 {
			t.Errorf("%s: the lease: %+v of %+v", c.name, r, r.Holder)
		}
		w.start("up").wantRefusal(10, "telegram-poller-running")
		w.wantServes(daemon, "after: "+c.name)
	}
	w.run(0, "log", "verify")
	w.stopInTime(daemon)
	if r := w.lease(); r.Verdict != "free" {
		t.Errorf("after the stop: %+v", r)
	}
}

// TestTheHolderStopsWhenTheLeaseIsSomebodyElses: sending stops before anything else is decided, the daemon ends with exit 11, and what
// the other one put there is left alone.
func TestTheHolderStopsWhenTheLeaseIsSomebodyElses(t *testing.T) {
	for _, c := range []struct {
		name    string
		disturb func(w *world) (left map[string]string)
	}{
		{"another implementation's record", func(w *world) map[string]string {
			w.writeForeign(w.otherProcess().Process.Pid)
			return w.tree(w.recordFile())
		}},
		{"another approvald's record", func(w *world) map[string]string {
			text, err := os.ReadFile(w.recordFile())
			w.must(err)
			var record map[string]any
			w.must(json.Unmarshal(text, &record))
			record["holder"].(map[string]any)["nonce"] = strings.Repeat("0", 32)
			text, err = json.Marshal(record)
			w.must(err)
			w.must(os.WriteFile(w.recordFile()+".x", text, 0o600))
			w.must(os.Rename(w.recordFile()+".x", w.recordFile()))
			return w.tree(w.recordFile())
		}},
		{"lock file replaced and locked", func(w *world) map[string]string {
			fd, err := unix.Open(w.flockFile()+".x", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
			w.must(err)
			w.t.Cleanup(func() { unix.Close(fd) })
			w.must(unix.Flock(fd, unix.LOCK_EX))
			w.must(os.Rename(w.flockFile()+".x", w.flockFile()))
			return w.tree(w.flockFile())
		}},
		{"daemon directory renamed", func(w *world) map[string]string {
			w.must(os.Rename(filepath.Join(w.home, "daemon"), filepath.Join(w.home, "moved")))
			return nil
		}},
		{"home renamed", func(w *world) map[string]string {
			w.must(os.Rename(w.home, w.home+"-moved"))
			return nil
		}},
		{"another home in its place", func(w *world) map[string]string {
			w.must(os.Rename(w.home, w.home+"-moved"))
			w.must(os.MkdirAll(filepath.Join(w.home, "daemon"), 0o700))
			return w.tree(w.home)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			daemon := w.up()
			w.until("the daemon to be ready", func() bool { return strings.Contains(daemon.stderr.String(), "ready") })
			_, before := w.request(daemon, "before")
			edits := len(w.telegram.Calls("editMessageText"))

			left := c.disturb(w)
			// A tap now must not be decided: the daemon may not write any more.
			w.telegram.Phone(alice).TapMessage(before, "Approve") //nolint:errcheck // the card may not be reached in time
			if code := daemon.code(); code != 11 {
				t.Errorf("exit code %d, want 11", code)
			}
			if last := daemon.lastLine(); !strings.HasPrefix(last, "approvald: telegram-lease-unavailable: ") || !strings.Contains(last, w.home) {
				t.Errorf("the last line: %q", last)
			}
			for path, was := range left {
				if now := w.tree(path)[path]; now != was && !strings.HasPrefix(was, "d") {
					t.Errorf("%s was touched: %q, now %q", path, was, now)
				}
			}
			if n := len(w.telegram.Calls("sendMessage")); n != 1 {
				t.Errorf("%d messages were sent, want the one from before", n)
			}
			if n := len(w.telegram.Calls("editMessageText")); n != edits {
				t.Errorf("%d messages were edited after the loss", n-edits)
			}
			if card, ok := w.telegram.Message(alice, before.ID); !ok || len(card.Buttons) == 0 {
				t.Error("the card was settled after the loss")
			}
		})
	}
}

// lastLine is the last line that a process has printed on stderr.
func (p *process) lastLine() string {
	lines := strings.Split(strings.TrimSuffix(p.stderr.String(), "\n"), "\n")
	return lines[len(lines)-1]
}

// TestADaemonDirectoryThatIsDeletedWhole takes the delivery journal along: nothing may be sent without it.
func TestADaemonDirectoryThatIsDeletedWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	w.wantServes(daemon, "before")
	sent := len(w.telegram.Calls("sendMessage"))
	w.until("the directory to be gone", func() bool {
		return os.RemoveAll(filepath.Join(w.home, "daemon")) == nil // the daemon may just put its record back
	})
	asked := w.start("request", "after", "--class", "deploy.production", "--summary", "s")
	if code := daemon.code(); code != 11 {
		t.Errorf("the daemon ended with %d, want 11", code)
	}
	if last := daemon.lastLine(); !strings.HasPrefix(last, "approvald: telegram-lease-unavailable: ") || !strings.Contains(last, "removed") ||
		!strings.Contains(last, "start again") || strings.Contains(last, "log verify") {
		t.Errorf("the last line: %q", last)
	}
	if code := asked.code(); code != 0 {
		t.Errorf("the request: exit code %d: %s", code, asked.stderr.String())
	}
	if n := len(w.telegram.Calls("sendMessage")); n != sent {
		t.Errorf("%d messages were sent without the journal", n-sent)
	}
	w.run(0, "log", "verify")
	w.card(w.up(), "after")
}

// TestAHomeThatIsDeletedWhole takes the log along as well, file by file: what is told is that the home is gone, not that a file is damaged.
func TestAHomeThatIsDeletedWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	w.wantServes(daemon, "before")
	w.until("the home to be gone", func() bool { return os.RemoveAll(w.home) == nil })
	if code := daemon.code(); code != 11 {
		t.Errorf("the daemon ended with %d, want 11", code)
	}
	if last := daemon.lastLine(); !strings.HasPrefix(last, "approvald: telegram-lease-unavailable: ") || !strings.Contains(last, w.home) ||
		!strings.Contains(last, "removed") || strings.Contains(last, "log verify") {
		t.Errorf("the last line: %q", last)
	}
}

// TestAnEpochThatIsOver: the files are free again, but another daemon had the gate in between. Whoever slept through that has lost it.
func TestAnEpochThatIsOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.up()
	w.until("the daemon to be ready", func() bool { return strings.Contains(old.stderr.String(), "ready") })
	_, card := w.request(old, "asked:before")
	w.pause(old)
	w.must(os.Remove(w.flockFile()))
	w.freeBot()
	between := w.up()
	w.stopInTime(between)
	if r := w.lease(); r.Verdict != "free" {
		t.Fatalf("the lease: %+v", r)
	}
	w.tap(card, "Approve")
	old.signal(syscall.SIGCONT)
	if code := old.code(); code != 11 {
		t.Errorf("exit code %d, want 11", code)
	}
	if last := old.lastLine(); !strings.Contains(last, "telegram-lease-unavailable") || !strings.Contains(last, "epoch 1 has ended, epoch 2") {
		t.Errorf("the last line: %q", last)
	}
	w.wantEvents("asked:before", "approval.requested")
	w.until("the old one to leave nothing behind", func() bool { return w.lease().Verdict == "free" })
	// The tap is still with Telegram and counts for the next daemon.
	next := w.up()
	w.settled(next, card)
	w.wantEvents("asked:before", "approval.requested", "approval.granted")
}

// pause stops a daemon that is not in the middle of an append.
func (w *world) pause(daemon *process) {
	w.t.Helper()
	w.until("nothing to be appended", func() bool {
		locks, err := filepath.Glob(filepath.Join(w.home, "*", "*.jsonl.lock"))
		return err == nil && len(locks) == 0
	})
	daemon.stop()
}

// stop sends SIGSTOP and returns when no thread runs any more: the signal alone leaves them time for a few steps.
func (p *process) stop() {
	p.w.t.Helper()
	p.signal(syscall.SIGSTOP)
	p.w.until("every thread to be stopped", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		p.w.must(err)
		for _, thread := range threads {
			text, err := os.ReadFile(thread)
			if err == nil && !strings.HasPrefix(string(text[bytes.LastIndexByte(text, ')')+1:]), " T ") {
				return false
			}
		}
		return len(threads) > 0
	})
}

// freeBot takes the lock on the bot away from a daemon that is stopped.
func (w *world) freeBot() {
	w.t.Helper()
	locks, err := filepath.Glob(filepath.Join(w.dir, "lock", "bot-*.lock"))
	w.must(err)
	for _, lock := range locks {
		w.must(os.Remove(lock))
	}
}

// TestAFencedDaemon is stopped, loses the gate to a standby, and goes on: its append is refused inside the append lock, it answers its
// agents, touches nothing of its successor's and ends with exit 11. The log has no fork.
func TestAFencedDaemon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old := w.up()
	waiter, card := w.request(old, "asked:before")
	agent := w.agent()
	if status, body := agent.do("GET", "/v1/hello", ""); status != 200 {
		t.Fatalf("hello: %d %s", status, body)
	}

	w.pause(old)
	standby := w.start("up", "--standby")
	w.until("the standby to say that it waits", func() bool { return strings.Contains(standby.stderr.String(), "waiting for the lease") })
	w.start("up").wantRefusal(10, "telegram-poller-running") // stopped is not dead
	w.must(os.Remove(w.flockFile()))
	w.until("the standby to have the gate", func() bool { r := w.lease(); return r.Holder != nil && r.Holder.Epoch == 2 })
	// The bot is still the stopped daemon's, of this very gate: that is waited for. Requests are taken meanwhile.
	w.until("the standby to say what it waits for", func() bool { return strings.Contains(standby.stderr.String(), "has not let go of the bot") })
	for _, key := range []string{"between:1", "between:2", "between:3"} {
		w.run(0, "request", key, "--class", "deploy.production", "--summary", "s")
	}

	// This call is in the stopped daemon's hands before it goes on.
	answer := make(chan string, 1)
	agent.send("POST", "/v1/requests", `{"key":"late","class":"deploy.production","summary":"s","requester":"agent:a"}`)
	go func() { _, body := agent.answer(); answer <- body }()
	old.signal(syscall.SIGCONT)
	if body := <-answer; body != "" && !strings.Contains(body, `"code":"fenced"`) {
		t.Errorf("the agent was told: %s", body)
	}
	if code := old.code(); code != 11 {
		t.Errorf("exit code %d, want 11", code)
	}
	if last := old.lastLine(); !strings.HasPrefix(last, "approvald: telegram-lease-unavailable: ") {
		t.Errorf("the last line: %q", last)
	}

	w.tap(w.card(standby, "asked:before"), "Approve")
	if code := waiter.code(); code != 0 {
		t.Errorf("the program that waited through it: %d: %s", code, waiter.stderr.String())
	}
	w.settled(standby, card)
	for _, key := range []string{"between:1", "between:2", "between:3"} {
		w.tap(w.card(standby, key), "Reject")
	}
	w.wantServes(standby, "after") // by the socket, which is still the successor's
	w.wantEvents("late")
	w.wantEvents("asked:before", "approval.requested", "approval.granted")
	w.run(0, "log", "verify")
	if s := w.status(); s.Holder.PID != standby.cmd.Process.Pid || s.Holder.Epoch != 2 {
		t.Errorf("status: %+v", s)
	}
}

// TestAStoppedDaemonGoesOn: SIGSTOP, or a machine that sleeps, is no loss as long as nobody took the gate.
func TestAStoppedDaemonGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	waiter, card := w.request(daemon, "deploy:api#41")
	daemon.stop()
	w.tap(card, "Approve")
	w.start("up").wantRefusal(10, "telegram-poller-running")
	if r := w.lease(); r.Verdict != "held" || r.Holder.PID != daemon.cmd.Process.Pid {
		t.Errorf("the lease: %+v", r)
	}
	daemon.signal(syscall.SIGCONT)
	if code := waiter.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, waiter.stderr.String())
	}
	if r := w.lease(); r.Holder.PID != daemon.cmd.Process.Pid || r.Holder.Epoch != 1 {
		t.Errorf("the lease: %+v", r.Holder)
	}
	w.wantServes(daemon, "deploy:api#42")
}

// TestStandbyTakesOverAtOnce from a daemon that was killed, each time in an epoch of its own, and the last one has the socket.
func TestStandbyTakesOverAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	for epoch := int64(2); epoch <= 4; epoch++ {
		standby := w.start("up", "--standby")
		w.until("the standby to say that it waits", func() bool { return strings.Contains(standby.stderr.String(), "waiting for the lease") })
		polls := len(w.telegram.Calls("getUpdates"))
		daemon.kill()
		daemon = standby
		w.await(daemon, "the standby to ask for updates", func(s telegramtest.State) bool { return len(s.Calls("getUpdates")) > polls })
		if s := w.status(); s.Holder.PID != daemon.cmd.Process.Pid || s.Holder.Epoch != epoch {
			t.Errorf("status: %+v, want epoch %d", s, epoch)
		}
		w.until("the standby to report why", func() bool { return strings.Contains(daemon.stderr.String(), "(gone: ") })
	}
	w.wantServes(daemon, "after:three")
}

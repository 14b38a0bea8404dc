package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

// TestUpdatesThatAreRepeatedForEver: a server that forgets what was confirmed, and ten restarts. A decision is final in the log, not by an
// offset that somebody remembers.
func TestUpdatesThatAreRepeatedForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	w.wantServes(daemon, "deploy:api#41")
	waiter, card := w.request(daemon, "deploy:api#42")
	w.tap(card, "Reject")
	if code := waiter.code(); code != 3 {
		t.Errorf("exit code %d", code)
	}
	w.settled(daemon, card)
	w.telegram.ReplayAlways(20)
	records := len(w.records())
	sends, edits := len(w.telegram.Calls("sendMessage")), len(w.telegram.Calls("editMessageText"))
	for range 10 {
		w.stopInTime(daemon)
		answers := len(w.telegram.Calls("answerCallbackQuery"))
		daemon = w.up()
		w.await(daemon, "the repeated taps to be answered", func(s telegramtest.State) bool { return len(s.Calls("answerCallbackQuery")) >= answers+2 })
	}
	if n := len(w.records()); n != records {
		t.Errorf("%d records more", n-records)
	}
	if s, e := len(w.telegram.Calls("sendMessage")), len(w.telegram.Calls("editMessageText")); s != sends || e != edits {
		t.Errorf("%d messages and %d edits more", s-sends, e-edits)
	}
}

// TestAStopBetweenTheRecordAndTheAnswer: the update in hand is not confirmed before the end, comes again at each of five starts, and
// neither counts twice nor ends a daemon.
func TestAStopBetweenTheRecordAndTheAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	waiter, card := w.request(daemon, "deploy:api#41")
	w.telegram.Fault(telegramtest.Fault{Method: "answerCallbackQuery", Do: telegramtest.Hang(), Count: telegramtest.Always})
	w.tap(card, "Approve")
	if code := waiter.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, waiter.stderr.String())
	}
	for range 5 {
		w.telegram.Fault(telegramtest.Fault{Method: "getUpdates", Do: telegramtest.Respond(500, "text/plain", "oops"), Count: telegramtest.Always})
		daemon.signal(syscall.SIGTERM)
		if code := daemon.code(); code != 0 {
			t.Errorf("the stop: exit code %d: %s", code, daemon.stderr.String())
		}
		w.telegram.ClearFaults()
		daemon = w.up()
	}
	w.settled(daemon, card)
	w.wantEvents("deploy:api#41", "approval.requested", "approval.granted")
	if n := len(w.telegram.Calls("sendMessage")); n != 1 {
		t.Errorf("%d messages, want the one card", n)
	}
	w.wantServes(daemon, "deploy:api#42")
}

// TestAChildHasNothingOfTheGate: a command that outlives its asker keeps no lock and no file of the gate, and a killed daemon's place is
// free at once although the command still runs.
func TestAChildHasNothingOfTheGate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	runner := w.start("run", "job:1", "--class", "deploy.production", "--summary", "s", "--", "sh", "-c", "ls -l /proc/$$/fd >fds; env >vars; mv vars vars.done; exec sleep 600")
	w.tap(w.card(daemon, "job:1"), "Approve")
	w.until("the command to run", func() bool {
		_, err := os.Stat(filepath.Join(w.dir, "vars.done"))
		return err == nil
	})
	fds, err := os.ReadFile(filepath.Join(w.dir, "fds"))
	w.must(err)
	for line := range strings.Lines(string(fds)) {
		if strings.Contains(line, w.home) || strings.Contains(line, filepath.Join(w.dir, "lock")) || strings.Contains(line, "socket:") {
			t.Errorf("the child has: %s", line)
		}
	}
	vars, err := os.ReadFile(filepath.Join(w.dir, "vars.done"))
	w.must(err)
	if strings.Contains(string(vars), "NOTIFY_SOCKET=") || strings.Contains(string(vars), w.telegram.Token()) {
		t.Errorf("the child's environment: %s", vars)
	}
	daemon.kill()
	w.wantServes(w.up(), "deploy:api#42")
	runner.signal(syscall.SIGTERM)
	runner.code()
}

// TestAStopWaitsForTheAnswerToACard: the card is on the phone and the answer is on its way when the daemon is told to stop. It waits for
// it, begins nothing else, and the next daemon has no reason to send the card again.
func TestAStopWaitsForTheAnswerToACard(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	w.telegram.Fault(telegramtest.Fault{Method: "sendMessage", After: true, Do: telegramtest.Delay(1500 * time.Millisecond)})
	asked := w.start("request", "deploy:api#41", "--class", "deploy.production", "--summary", "s")
	if code := asked.code(); code != 0 {
		t.Fatalf("exit code %d: %s", code, asked.stderr.String())
	}
	first := w.card(daemon, "deploy:api#41")
	w.stopInTime(daemon)
	daemon = w.up()
	w.wantServes(daemon, "deploy:api#42")
	if n := len(w.telegram.Calls("sendMessage")); n != 2 {
		t.Errorf("%d messages, want one for each request", n)
	}
	w.tap(first, "Approve")
	w.settled(daemon, first)
	w.wantEvents("deploy:api#41", "approval.requested", "approval.granted")
}

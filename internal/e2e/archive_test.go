package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

// The log is cut under a daemon, a waiting program and a running one. All go on; the old cards are told
// how they were decided, and nothing is sent again, also not by the next daemon.
func TestTheLogIsArchivedUnderADaemon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	done, old := w.request(daemon, "old")
	w.tap(old, "Approve")
	if code := done.code(); code != 0 {
		t.Fatalf("exit code %d: %s", code, done.stderr.String())
	}
	w.settled(daemon, old)

	goOn := filepath.Join(w.dir, "go-on")
	job := w.start("run", "job", "--class", "deploy.production", "--", "sh", "-c",
		`i=0; while ! test -e "$0" && test $i -lt 3000; do sleep 0.02; i=$((i+1)); done; exit 7`, goOn)
	w.tap(w.card(daemon, "job"), "Approve")
	w.until("the job to run", func() bool { return strings.Contains(strings.Join(w.events("job"), " "), "execution.started") })
	waiter, open := w.request(daemon, "open")
	before := w.records()

	if text := w.run(1, "log", "archive").stderr.String(); !strings.Contains(text, `"open"`) {
		t.Errorf("the refusal does not name the pending request: %s", text)
	}
	w.run(0, "log", "archive", "--carry")
	if after := w.records(); len(after) != 1 || after[0].ActionKey != "open" || len(before) < 6 {
		t.Errorf("the log holds %d records after the archive, %d before", len(after), len(before))
	}

	w.lateTap(daemon, old, "Reject", "already")
	w.tap(open, "Approve")
	if code := waiter.code(); code != 0 {
		t.Errorf("the program that waited ended with %d: %s", code, waiter.stderr.String())
	}
	w.settled(daemon, open)
	w.wantEvents("open", "approval.requested", "approval.granted")
	if err := os.WriteFile(goOn, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := job.code(); code != 7 {
		t.Errorf("the job that ran ended with %d: %s", code, job.stderr.String())
	}
	w.wantEvents("job", "approval.requested", "approval.granted", "execution.started", "execution.failed")

	daemon.kill()
	daemon = w.up()
	w.lateTap(daemon, old, "Reject", "already")
	w.run(0, "wait", "old")
	w.run(0, "log", "verify", "--semantic")
	if got := len(w.telegram.Calls("sendMessage")); got != 3 {
		t.Errorf("%d messages were sent for 3 requests", got)
	}
}

// lateTap presses a button that the card had once and wants to be told so.
func (w *world) lateTap(daemon *process, card telegramtest.Message, button, want string) {
	w.t.Helper()
	tap, err := w.telegram.Phone(alice).TapStale(card, button)
	w.must(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	answer, err := tap.Wait(ctx)
	if err != nil || !strings.Contains(strings.ToLower(answer.Text), want) {
		w.t.Errorf("a late tap was answered %q, want %q: %v\n%s", answer.Text, want, err, daemon.stderr.String())
	}
}

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

const thenFile = "class = \"deploy.verify\"\nsummary = \"does it hold?\"\n"

// shownFollowUp is what show says of a request and of what follows it.
type shownFollowUp struct {
	State string
	Then  struct {
		Key, State string
		Seq        *int64
	}
}

func (w *world) followUp(key string) (s shownFollowUp) {
	w.t.Helper()
	w.must(json.Unmarshal([]byte(w.run(0, "show", key, "--json").stdout.String()), &s))
	return s
}

// TestAKillBetweenTheCompletionAndTheFollowUp: the daemon is killed after the first has completed, before or after it has asked for what
// follows, and the next one is killed at the same place in its recovery. It is asked for once, shown once, and whoever waits for it all
// the time gets the answer.
func TestAKillBetweenTheCompletionAndTheFollowUp(t *testing.T) {
	for point, asked := range map[string]bool{"follow-up due": false, "follow-up asked for": true} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.write("then.toml", thenFile)
			daemon, _ := w.hooked("kill", point, false)
			runner := w.start("run", "job", "--class", "deploy.production", "--summary", "s", "--then", "then.toml", "--", "true")
			card := w.card(daemon, "job")
			if !strings.Contains(card.Body(), "after a run with exit 0 asks separately for deploy.verify") {
				t.Errorf("the card does not say what follows:\n%s", card.Body())
			}
			child := w.followUp("job").Then.Key
			waiter := w.start("wait", child)
			w.tap(card, "Approve")
			if code := daemon.code(); code != 128+9 {
				t.Fatalf("the daemon ended with %d", code)
			}
			if code := runner.code(); code != 0 {
				t.Errorf("run ended with %d: %s", code, runner.stderr.String())
			}
			w.wantEvents("job", "approval.requested", "approval.granted", "execution.started", "execution.completed")
			if s := w.followUp("job"); s.State != "completed" || (s.Then.Seq != nil) != asked || !asked && s.Then.State != "waiting" {
				t.Errorf("after the kill: %+v", s)
			}
			if !asked {
				w.wantEvents(child)
				again, _ := w.hooked("kill", point, false)
				if code := again.code(); code != 128+9 {
					t.Fatalf("the second daemon ended with %d", code)
				}
				w.wantEvents(child)
			}
			daemon = w.up()
			w.tap(w.card(daemon, child), "Approve")
			if code := waiter.code(); code != 0 {
				t.Errorf("the waiter ended with %d: %s", code, waiter.stderr.String())
			}
			w.wantEvents(child, "approval.requested", "approval.granted")
			w.stopInTime(daemon)
			w.stopInTime(w.up())
			w.wantEvents(child, "approval.requested", "approval.granted")
			if n := len(w.telegram.Calls("sendMessage")); n != 2 {
				t.Errorf("%d messages, want two cards", n)
			}
			w.run(0, "log", "verify", "--semantic")
		})
	}
}

// TestACompletionByAnotherProgramCounts: a program that knows nothing of approvald but the format of the log executes what was granted.
// With the daemon running, what follows is asked for at once; without one, when it comes up.
func TestACompletionByAnotherProgramCounts(t *testing.T) {
	for name, down := range map[string]bool{"with the daemon": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.write("then.toml", thenFile)
			daemon := w.up()
			asker, card := w.request(daemon, "job", "--as", "ci", "--then", "then.toml")
			w.tap(card, "Approve")
			if code := asker.code(); code != 0 {
				t.Fatalf("exit code %d", code)
			}
			if down {
				w.stopInTime(daemon)
			}
			w.appendForeign("execution.completed", "agent:ci", "job")
			if down {
				daemon = w.up()
			}
			child := w.followUp("job").Then.Key
			w.tap(w.card(daemon, child), "Reject")
			w.run(3, "wait", child)
			w.wantEvents(child, "approval.requested", "approval.rejected")
			w.run(0, "log", "verify", "--semantic")
		})
	}
}

// appendForeign appends a record as another implementation of the format does.
func (w *world) appendForeign(event, actor, key string) {
	w.t.Helper()
	path := filepath.Join(w.home, "log", "events.jsonl")
	lock := path + ".lock"
	w.until("the append lock", func() bool {
		f, err := os.OpenFile(lock, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			w.must(f.Close())
		}
		return err == nil
	})
	defer os.Remove(lock)
	last := w.records()
	head := last[len(last)-1]
	// The members of a canonical record stand in this order, and hash behind event.
	before := fmt.Sprintf(`{"action_key":%q,"actor":%q,"alg":"sha256/jcs","event":%q,`, key, actor, event)
	after := fmt.Sprintf(`"prev":%q,"seq":%d,"task":%q,"ts":%q}`, head.Hash, head.Seq+1, key, time.Now().UTC().Format("2006-01-02T15:04:05.000Z"))
	sum := sha256.Sum256([]byte(before + after))
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	w.must(err)
	defer f.Close()
	_, err = fmt.Fprintf(f, "%s\"hash\":%q,%s\n", before, hex.EncodeToString(sum[:]), after)
	w.must(err)
}

// TestAFollowUpWaitsWhileTheQueueIsFull: a limit of the gate delays it, and status says so.
func TestAFollowUpWaitsWhileTheQueueIsFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t, top("[requests]\nmax_pending = 2\n"))
	w.write("then.toml", thenFile)
	daemon := w.up()
	runner := w.start("run", "job", "--class", "deploy.production", "--summary", "s", "--then", "then.toml", "--", "sh", "-c", "until test -e go; do sleep 0.01; done")
	w.tap(w.card(daemon, "job"), "Approve")
	w.until("the command to run", func() bool { return w.followUp("job").State == "started" })
	w.run(0, "request", "other", "--class", "deploy.production", "--summary", "s")
	w.write("go", "")
	if code := runner.code(); code != 0 {
		t.Fatalf("run ended with %d: %s", code, runner.stderr.String())
	}
	child := w.followUp("job").Then.Key
	w.until("status to tell that it cannot be asked for", func() bool {
		text := w.run(0, "status", "--json").stdout.String()
		return strings.Contains(text, child) && strings.Contains(text, "could not be asked for")
	})
	if s := w.followUp("job"); s.Then.State != "waiting" {
		t.Errorf("%+v", s)
	}
	w.run(0, "withdraw", "other", "--reason", "cancelled")
	w.card(daemon, child)
	w.await(daemon, "one card of each", func(s telegramtest.State) bool { return len(s.Messages(alice)) == 3 })
	if events := w.events(child); !slices.Equal(events, []string{"approval.requested"}) {
		t.Errorf("%q", events)
	}
}

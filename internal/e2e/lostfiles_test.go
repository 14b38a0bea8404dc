package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/approvald/approvald/internal/telegramtest"
)

func (w *world) journalFile() string { return filepath.Join(w.home, "daemon", "deliveries.jsonl") }
func (w *world) logFile() string     { return filepath.Join(w.home, "log", "events.jsonl") }

// epoch is the running daemon's.
func (w *world) epoch() int64 {
	w.t.Helper()
	var st struct {
		Holder struct {
			Epoch int64 `json:"epoch"`
		} `json:"holder"`
	}
	w.must(json.Unmarshal([]byte(w.run(0, "status", "--json").stdout.String()), &st))
	return st.Holder.Epoch
}

// TestALostJournalIsNoFreshGate: epochs go on, the operator is told, and who taps an old card is told the truth.
func TestALostJournalIsNoFreshGate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lose  func(w *world)
		crash bool
	}{
		"removed, after a crash":       {func(w *world) { w.must(os.Remove(w.journalFile())) }, true},
		"emptied, after a stop":        {func(w *world) { w.must(os.Truncate(w.journalFile(), 0)) }, false},
		"an old copy, after a stop":    {nil, false},
		"removed with the lease's own": {func(w *world) { w.must(os.RemoveAll(filepath.Join(w.home, "daemon"))) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.stopInTime(w.up())
			old, err := os.ReadFile(w.journalFile())
			w.must(err)
			w.stopInTime(w.up())
			daemon := w.up()
			waiter, card := w.request(daemon, "deploy:api#41")
			w.tap(card, "Approve")
			if code := waiter.code(); code != 0 {
				t.Fatalf("exit code %d", code)
			}
			w.settled(daemon, card)
			waiter, card = w.request(daemon, "deploy:api#42")
			before := w.epoch()
			if c.crash {
				daemon.kill()
			} else {
				w.stopInTime(daemon)
			}
			if c.lose != nil {
				c.lose(w)
			} else {
				w.must(os.WriteFile(w.journalFile(), old, 0o600))
			}

			daemon = w.up()
			if got := w.epoch(); got <= before {
				t.Errorf("epoch %d after epoch %d", got, before)
			}
			if said := daemon.stderr.String(); !strings.Contains(said, w.journalFile()+" ") || !strings.Contains(said, "shown again") {
				t.Errorf("the operator was told:\n%s", said)
			}
			var again telegramtest.Message
			w.await(daemon, "another card", func(s telegramtest.State) bool {
				for _, m := range s.Messages(alice) {
					if m.ID > card.ID && strings.Contains(m.Body(), "deploy:api#42") && len(m.Buttons) > 0 {
						again = m
					}
				}
				return again.ID != 0
			})
			answers := len(w.telegram.Calls("answerCallbackQuery"))
			w.tap(card, "Approve")
			w.await(daemon, "the old button to be answered", func(s telegramtest.State) bool { return len(s.Calls("answerCallbackQuery")) > answers })
			if text := w.telegram.Calls("answerCallbackQuery")[answers].Args["text"]; !strings.Contains(text, "newest card") {
				t.Errorf("who taps the old card is told %q", text)
			}
			w.wantEvents("deploy:api#42", "approval.requested")
			w.tap(again, "Reject")
			if code := waiter.code(); code != 3 {
				t.Errorf("exit code %d", code)
			}
			w.settled(daemon, again)
			w.stopInTime(daemon)
			if said := w.up().stderr.String(); strings.Contains(said, "shown again") {
				t.Errorf("told once more:\n%s", said)
			}
		})
	}
}

func TestADamagedJournalIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stopInTime(w.up())
	text, err := os.ReadFile(w.journalFile())
	w.must(err)
	w.must(os.WriteFile(w.journalFile(), append([]byte("junk\n"), text...), 0o600))
	up := w.run(8, "up")
	if said := up.stderr.String(); !strings.Contains(said, w.journalFile()) || !strings.Contains(said, "not the approval log") || strings.Contains(said, "log verify") ||
		strings.Count(said, "\n") != 1 {
		t.Errorf("the refusal:\n%s", said)
	}
	w.run(0, "log", "verify")
	w.must(os.Rename(w.journalFile(), w.journalFile()+".bad"))
	w.wantServes(w.up(), "deploy:api#41")
}

// TestALostArchiveOfTheJournalIsNamed: no write has failed, so nothing is said of one, but of the directory and of both ways out.
func TestALostArchiveOfTheJournalIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	waiter, card := w.request(daemon, "deploy:api#41")
	w.tap(card, "Approve")
	if code := waiter.code(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	w.settled(daemon, card)
	_, pending := w.request(daemon, "deploy:api#42")
	w.run(0, "log", "archive", "--carry")
	w.stopInTime(daemon)
	w.run(0, "request", "deploy:api#43", "--class", "deploy.production", "--summary", "s", "--as", "ci")
	w.run(0, "withdraw", "deploy:api#43", "--as", "ci", "--reason", "cancelled")
	w.run(0, "log", "archive", "--carry")
	archive := filepath.Join(w.home, "daemon", "archive")
	segments, err := filepath.Glob(filepath.Join(archive, "*"))
	w.must(err)
	if len(segments) < 2 {
		t.Fatalf("segments %q", segments)
	}
	refused := func(what string) {
		w.t.Helper()
		for _, verb := range [][]string{{"up"}, {"log", "archive", "--carry"}} {
			p := w.run(8, verb...)
			said := p.stderr.String()
			if strings.Contains(said, "poison") || strings.Contains(said, "failed write") || !strings.Contains(said, archive) ||
				!strings.Contains(said, w.journalFile()) || !strings.Contains(said, "archive-missing") || !strings.Contains(said, "not the approval log") {
				t.Errorf("%s: %s says:\n%s", what, strings.Join(verb, " "), said)
			}
		}
	}
	kept := filepath.Join(w.dir, "kept")
	for i, dir := range segments {
		w.must(os.Rename(dir, kept))
		refused([]string{"the first segment is gone", "the last segment is gone"}[min(i, 1)])
		w.must(os.Rename(kept, dir))
	}
	w.must(os.Rename(archive, kept))
	refused("the archive is gone")

	// Both ways out: the copy is put back, or both are moved aside.
	w.must(os.Rename(kept, archive))
	w.stopInTime(w.up())
	w.must(os.Rename(archive, kept))
	w.must(os.Rename(w.journalFile(), w.journalFile()+".old"))
	daemon = w.up()
	w.await(daemon, "another card", func(s telegramtest.State) bool {
		for _, m := range s.Messages(alice) {
			if m.ID > pending.ID && strings.Contains(m.Body(), "deploy:api#42") && len(m.Buttons) > 0 {
				return true
			}
		}
		return false
	})
}

// TestALogThatWasCutIsNotGoneOnWith: what the home's other files know of it is not forgotten.
func TestALogThatWasCutIsNotGoneOnWith(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	w.wantServes(daemon, "deploy:api#41")
	w.stopInTime(daemon)
	whole, err := os.ReadFile(w.logFile())
	w.must(err)
	lines := strings.SplitAfter(string(whole), "\n")
	for name, text := range map[string]string{"emptied": "", "without its decision": lines[0]} {
		w.must(os.WriteFile(w.logFile(), []byte(text), 0o600))
		dirs := []string{filepath.Join(w.home, "log"), filepath.Join(w.home, "payloads")}
		before := w.tree(dirs...)
		for _, args := range [][]string{{"log", "verify"}, {"up"}, {"request", "next", "--class", "a.b", "--summary", "s"}, {"log", "archive"}} {
			p := w.run(8, args...)
			if said := p.stdout.String() + p.stderr.String(); !strings.Contains(said, "records were cut off") || !strings.Contains(said, w.journalFile()) {
				t.Errorf("%s, %s: said\n%s", name, strings.Join(args, " "), said)
			}
		}
		w.wantUnchanged(before, dirs...)
	}
	w.must(os.WriteFile(w.logFile(), whole, 0o600))
	w.run(0, "log", "verify")
	w.wantServes(w.up(), "deploy:api#42")
}

// TestAFirstRequestThatFailedLeavesAGoodHome: nothing was recorded, so nothing is missed.
func TestAFirstRequestThatFailedLeavesAGoodHome(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must(os.MkdirAll(filepath.Join(w.home, "payloads"), 0o700))
	w.must(os.MkdirAll(filepath.Dir(w.logFile()), 0o700))
	w.must(os.WriteFile(w.logFile(), nil, 0o600))
	w.must(os.WriteFile(filepath.Join(w.home, "payloads", strings.Repeat("a", 64)+".json"), []byte("{}"), 0o600))
	w.run(0, "log", "verify")
	w.run(0, "request", "first", "--class", "a.b", "--summary", "s")
	w.wantServes(w.up(), "deploy:api#41")
}

//go:build all

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

var (
	// startPoints are the named points of a start, in their order, and stopPoints the steps of a stop. TestTheStepsAreThoseOfTheDaemon
	// holds them against what a daemon really comes by.
	startPoints = []string{
		"stage lease", "stage log verified", "stage epoch", "stage socket", "stage recovery", "stage bot", "stage transport", "stage ready",
	}
	stopPoints = []string{"release the bot", "remove the socket", "close the epoch", "close the log", "close the delivery journal", "release the lease"}

	botFaults = map[string]telegramtest.Action{
		"hang":    telegramtest.Hang(),
		"401":     telegramtest.Fail(401, "Unauthorized"),
		"409":     telegramtest.Fail(409, "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"),
		"500":     telegramtest.Fail(500, "Internal Server Error"),
		"garbage": telegramtest.Respond(200, "application/json", "\x00\xff{"),
	}
)

// step is one thing that is done to a daemon at one of its steps.
type step struct {
	hook    bool // in webhook mode
	action  string
	point   string
	atStart bool
	fault   string // of the Bot API, from that point on
}

func (s step) String() string {
	mode := "poll"
	if s.hook {
		mode = "webhook"
	}
	return mode + "/" + s.action + s.fault + " at " + s.point
}

// The webhook changes only what these steps do.
var hookPoints = []string{"stage bot", "stage transport", "stage ready", "release the bot", "after release the bot"}

func everyStep() []step {
	return slices.DeleteFunc(everyStepInBothModes(), func(s step) bool { return s.hook && s.point != "" && !slices.Contains(hookPoints, s.point) })
}

func everyStepInBothModes() (all []step) {
	for _, hook := range []bool{false, true} {
		for _, action := range []string{"kill", "term"} {
			for _, point := range startPoints {
				all = append(all, step{hook: hook, action: action, point: point, atStart: true})
			}
			for _, point := range stopPoints {
				all = append(all, step{hook: hook, action: action, point: point}, step{hook: hook, action: action, point: "after " + point})
			}
		}
		for fault := range botFaults {
			for _, point := range startPoints {
				if point == "stage log verified" || point == "stage epoch" || point == "stage socket" {
					continue // Telegram is not asked between these
				}
				all = append(all, step{hook: hook, action: "wait", point: point, atStart: true, fault: fault})
			}
			// The stop talks to Telegram before the first of its steps.
			all = append(all, step{hook: hook, action: "none", fault: fault})
		}
	}
	return all
}

// TestEveryStepOfStartAndStop: a daemon is killed, asked to stop, or lied to by the Bot API at every step of its start and of its stop,
// while a person taps. It ends in time, with nothing held and the webhook's registration as it should be; the next start decides the
// tap once, and the card was sent once.
func TestEveryStepOfStartAndStop(t *testing.T) {
	for _, s := range everyStep() {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			up := func() *process { return w.up() }
			if s.hook {
				w = newModes(t).world
				up = w.upHook
			}
			first := up()
			_, card := w.request(first, "deploy:api#41")
			w.stopInTime(first)

			before := len(w.telegram.Calls("getUpdates", "setWebhook"))
			daemon, _ := w.hooked(s.action, s.point, false)
			if !s.atStart {
				w.await(daemon, "the daemon to serve", func(st telegramtest.State) bool {
					calls := st.Calls("getUpdates", "setWebhook")
					return len(calls) > before && slices.ContainsFunc(calls[before:], telegramtest.Call.OK)
				})
			}
			w.tapWhatever(card)
			if s.action == "wait" {
				there := filepath.Join(w.dir, "hook.there")
				w.until("the daemon to come by", func() bool { _, err := os.Stat(there); return err == nil })
			}
			if s.fault != "" {
				w.telegram.Fault(telegramtest.Fault{Do: botFaults[s.fault], Count: telegramtest.Always})
				w.write("hook", "") // goes on
			}
			if !s.atStart || s.fault != "" {
				began := time.Now()
				daemon.cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may have refused its start by now
				daemon.code()
				if took := time.Since(began); took > stopLimit {
					t.Errorf("the stop took %v", took)
				}
			}
			code := daemon.code()
			want := map[string][]int{"kill": {137}, "term": {0, 143}, "wait": {0, 2}, "none": {0}}[s.action]
			if !slices.Contains(want, code) {
				t.Errorf("exit code %d, want one of %v: %s", code, want, daemon.stderr.String())
			}
			w.telegram.ClearFaults()
			w.run(0, "log", "verify")
			if report := w.lease(); report.Held {
				t.Errorf("the lease is held: %+v", report)
			}
			if url := w.telegram.WebhookInfo().URL; url != "" && (!s.hook || url != hookURL) {
				t.Errorf("registered: %q", url)
			}

			next := up()
			w.until("the tap's decision", func() bool { return len(w.events("deploy:api#41")) >= 2 })
			w.settled(next, card)
			w.wantEvents("deploy:api#41", "approval.requested", "approval.granted")
			if n := len(w.telegram.Calls("sendMessage")); n != 1 {
				t.Errorf("%d messages for one request", n)
			}
			if url := w.telegram.WebhookInfo().URL; (url != "") != s.hook {
				t.Errorf("registered while the next daemon serves: %q", url)
			}
			w.stopInTime(next)
			if url := w.telegram.WebhookInfo().URL; url != "" {
				t.Errorf("registered after the end: %q", url)
			}
		})
	}
}

// tapWhatever taps whether or not the bot answers, and whether or not the card has its buttons by now.
func (w *world) tapWhatever(card telegramtest.Message) {
	w.t.Helper()
	if _, err := w.telegram.Phone(alice).TapStale(card, "Approve"); err != nil {
		w.t.Fatal(err)
	}
}

// TestTheStepsAreThoseOfTheDaemon: the walk above must not pass because a step was renamed and nobody comes by there any more.
func TestTheStepsAreThoseOfTheDaemon(t *testing.T) {
	w := newWorld(t)
	for _, point := range append(slices.Clone(startPoints), stopPoints...) {
		daemon, _ := w.hooked("kill", point, false)
		if slices.Contains(stopPoints, point) {
			w.until("the daemon to be ready", func() bool { return strings.Contains(daemon.stderr.String(), `"ready"`) })
			daemon.signal(syscall.SIGTERM)
		}
		if code := daemon.code(); code != 137 {
			t.Errorf("no daemon comes by %q: it ended with %d", point, code)
		}
	}
}

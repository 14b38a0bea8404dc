package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

func TestStandbyTakesOver(t *testing.T) {
	w := newWorld(t)
	daemon := w.up()
	waiter, card := w.request(daemon, "deploy:api#41")
	polls := len(w.telegram.Calls("getUpdates"))
	standby := w.start("up", "--standby")
	daemon.kill()
	w.await(standby, "the standby to ask for updates", func(s telegramtest.State) bool { return len(s.Calls("getUpdates")) > polls+1 })
	w.tap(card, "Approve")
	if code := waiter.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, waiter.stderr.String())
	}
}

// TestKillAtAnyMoment kills the daemon at random moments while requests are filed and tapped. Whatever was interrupted, the log
// verifies after each kill, each request is decided as it was tapped and once, and no card is shown twice except where the answer to
// a send was lost with the daemon.
func TestKillAtAnyMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.up().kill() // now there is a log to verify
	phone := w.telegram.Phone(alice)
	type asked struct {
		key    string
		waiter *process
	}
	var requests []asked
	for i := range killRounds {
		daemon := w.start("up")
		key := fmt.Sprintf("round:%d", i)
		// What cannot be undone is never gathered into a digest: each has a card of its own.
		requests = append(requests, asked{key, w.start("request", key, "--class", "deploy.production", "--summary", "s", "--irreversible", "--wait")})
		// Alice taps whatever she sees while the daemon's last moment draws near.
		moment := time.NewTimer(time.Duration(rand.IntN(120)) * time.Millisecond)
	tapping:
		for {
			select {
			case <-moment.C:
				break tapping
			default:
			}
			for _, m := range w.telegram.Messages(alice) {
				if len(m.Buttons) > 0 && rand.IntN(4) == 0 {
					phone.TapMessage(m, "Approve") //nolint:errcheck // the card may just have been settled
				}
			}
			time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
		}
		daemon.kill()
		w.run(0, "log", "verify")
		w.records()
	}

	daemon := w.up()
	limit := time.After(patience)
	for _, r := range requests {
		// A tap from before a kill may still be in the queue: then the request is granted without a new one.
		for open := true; open; {
			select {
			case <-r.waiter.done:
				open = false
			case <-limit:
				t.Fatalf("%s: still waiting: %s", r.key, r.waiter.stderr.String())
			case <-time.After(10 * time.Millisecond):
				for _, m := range w.telegram.Messages(alice) {
					if len(m.Buttons) > 0 && strings.Contains(m.Body(), r.key) {
						phone.TapMessage(m, "Approve") //nolint:errcheck // the card may just have been settled
					}
				}
			}
		}
		if code := r.waiter.code(); code != 0 {
			t.Errorf("%s: exit code %d: %s", r.key, code, r.waiter.stderr.String())
		}
		w.wantEvents(r.key, "approval.requested", "approval.granted")
	}
	w.await(daemon, "every card to be settled", func(s telegramtest.State) bool {
		for _, m := range s.Messages(alice) {
			if len(m.Buttons) > 0 {
				return false
			}
		}
		return true
	})
	cards := map[string]int{}
	for _, m := range w.telegram.Messages(alice) {
		for _, r := range requests {
			if strings.Contains(m.Body(), r.key+" ") || strings.Contains(m.Body(), r.key+"\n") {
				cards[r.key]++
			}
		}
	}
	unknown := w.journalEvents("delivery.unknown")
	extra := 0
	for _, r := range requests {
		if cards[r.key] == 0 {
			t.Errorf("%s was never shown", r.key)
		}
		extra += max(0, cards[r.key]-1)
	}
	if extra > unknown {
		t.Errorf("%d cards were shown again, but only %d sends had an unknown outcome", extra, unknown)
	}
}

// journalEvents counts the records of one kind in the delivery journal.
func (w *world) journalEvents(event string) int {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.home, "daemon", "deliveries.jsonl"))
	if !errors.Is(err, os.ErrNotExist) {
		w.must(err)
	}
	return strings.Count(string(text), `"event":"`+event+`"`)
}

// stopLimit is the promise: a stop takes less than that, whatever hangs.
const stopLimit = 10 * time.Second

func TestStopWithADeadNetwork(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		cause func(w *world)
	}{
		{"every call hangs", func(w *world) {
			w.telegram.Fault(telegramtest.Fault{Do: telegramtest.Hang(), Count: telegramtest.Always})
		}},
		{"only sends hang", func(w *world) {
			w.telegram.Fault(telegramtest.Fault{Method: "sendMessage", Do: telegramtest.Hang(), Count: telegramtest.Always})
		}},
		{"told to wait for hours", func(w *world) {
			w.telegram.Fault(telegramtest.Fault{Do: telegramtest.Limited(6775 * time.Second), Count: telegramtest.Always})
		}},
		{"offline", func(w *world) { w.telegram.Offline() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			daemon := w.up()
			c.cause(w)
			waiter := w.start("request", "deploy:api#41", "--class", "deploy.production", "--summary", "s", "--wait")
			w.until("the request to be in the log", func() bool {
				_, err := os.Stat(filepath.Join(w.home, "log", "events.jsonl"))
				return err == nil && len(w.events("deploy:api#41")) == 1
			})
			w.stopInTime(daemon)
			w.wantEvents("deploy:api#41", "approval.requested")
			w.run(0, "log", "verify")
			select {
			case <-waiter.done:
				t.Errorf("the program that waits ended with %d without a decision: %s", waiter.code(), waiter.stderr.String())
			default:
			}
		})
	}
}

// stopInTime asks a daemon to stop and wants it to be done with code 0 within the limit.
func (w *world) stopInTime(daemon *process) {
	w.t.Helper()
	began := time.Now()
	daemon.signal(syscall.SIGTERM)
	if code := daemon.code(); code != 0 {
		w.t.Errorf("exit code %d", code)
	}
	if took := time.Since(began); took > stopLimit {
		w.t.Errorf("the stop took %v", took)
	}
}

// until waits for a state that only looking can tell.
func (w *world) until(what string, cond func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(patience); !cond(); {
		if time.Now().After(deadline) {
			w.t.Fatalf("waited for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestASecondSignalKillsAtOnceAndHarmsNothing(t *testing.T) {
	w := newWorld(t)
	daemon := w.up()
	w.telegram.Fault(telegramtest.Fault{Do: telegramtest.Hang(), Count: telegramtest.Always})
	w.start("request", "deploy:api#41", "--class", "deploy.production", "--summary", "s")
	w.until("the request to be in the log", func() bool { return len(w.events("deploy:api#41")) == 1 })
	daemon.signal(syscall.SIGTERM)
	w.until("the first signal to be heard", func() bool { return strings.Contains(daemon.stderr.String(), "stopping") })
	daemon.signal(syscall.SIGTERM)
	if code := daemon.code(); code != 0 && code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d", code)
	}
	w.run(0, "log", "verify")
	w.telegram.ClearFaults()
	w.card(w.up(), "deploy:api#41")
}

func TestSignalsThatAreNoRequestToStop(t *testing.T) {
	w := newWorld(t)
	daemon := w.up()
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE} {
		daemon.signal(s)
	}
	daemon.signal(syscall.SIGSTOP)
	daemon.signal(syscall.SIGCONT)
	waiter, card := w.request(daemon, "deploy:api#41")
	w.tap(card, "Approve")
	if code := waiter.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, waiter.stderr.String())
	}
}

func TestWithoutANetworkTheDaemonComesUpAndKeepsTrying(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.telegram.Offline()
	daemon := w.start("up")
	w.until("the daemon to say that Telegram cannot be reached", func() bool { return strings.Contains(daemon.stderr.String(), "cannot be reached") })
	waiter := w.start("request", "deploy:api#41", "--class", "deploy.production", "--summary", "s", "--wait")
	w.until("the request to be in the log", func() bool { return len(w.events("deploy:api#41")) == 1 })
	if status := w.status(); status.Transport.Healthy || status.Transport.Error == "" || status.Pending != 1 {
		t.Errorf("status without a network: %+v", status)
	}
	w.must(w.telegram.Online())
	card := w.card(daemon, "deploy:api#41")
	w.tap(card, "Reject")
	if code := waiter.code(); code != 3 {
		t.Errorf("exit code %d: %s", code, waiter.stderr.String())
	}
	if status := w.status(); !status.Transport.Healthy || status.Holder.PID != daemon.cmd.Process.Pid || status.Holder.Epoch != 1 {
		t.Errorf("status with the network back: %+v", status)
	}
}

// status is what `approvald status --json` says, by the names that are frozen.
type status struct {
	Gate   string
	Holder struct {
		PID   int
		Mode  string
		Epoch int64
	}
	Transport struct {
		Mode    string
		Healthy bool
		Error   string
	}
	Pending, Unsettled int
}

func (w *world) status() status {
	w.t.Helper()
	var s status
	w.must(json.Unmarshal([]byte(w.run(0, "status", "--json").stdout.String()), &s))
	return s
}

func TestARefusedTokenEndsTheStart(t *testing.T) {
	w := newWorld(t)
	w.telegram.Revoke("7000000001:" + strings.Repeat("n", 35))
	refused := w.run(2, "up")
	if strings.Count(refused.stderr.String(), "\n") != 1 || !strings.Contains(refused.stderr.String(), "token") {
		t.Errorf("stderr: %s", refused.stderr.String())
	}
	w.run(2, "up") // the lease was let go of
}

func TestAWrongChatLosesNothingAndIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world, config string) string {
		return strings.Replace(config, "chat_id = 111", "chat_id = 999", 1)
	})
	daemon := w.up()
	waiter := w.start("request", "deploy:api#41", "--class", "deploy.production", "--summary", "s", "--wait")
	w.await(daemon, "a send that is refused", func(s telegramtest.State) bool { return len(s.Calls("sendMessage")) > 0 })
	w.until("the daemon to say so", func() bool { return strings.Contains(daemon.stderr.String(), "chat not found") })
	w.until("the status to say so", func() bool {
		s := w.status()
		return s.Pending == 1 && !s.Transport.Healthy && strings.Contains(s.Transport.Error, "chat not found")
	})
	w.wantEvents("deploy:api#41", "approval.requested")
	w.until("the waiting program to be told", func() bool { return strings.Contains(waiter.stderr.String(), "chat not found") })
	select {
	case <-waiter.done:
		t.Errorf("the program ended with %d", waiter.code())
	default:
	}
	if n := len(w.telegram.Calls("sendMessage")); n > 3 {
		t.Errorf("%d sends to a chat that does not exist, within moments", n)
	}
}

func TestAHomeThatCannotBeMadeIsRefused(t *testing.T) {
	w := newWorld(t, func(w *world, config string) string {
		return fmt.Sprintf("home = %q\n", filepath.Join(w.write("a-file", ""), ".approval")) + config
	})
	refused := w.run(11, "up")
	if strings.Count(refused.stderr.String(), "\n") != 1 || !strings.Contains(refused.stderr.String(), "a-file") {
		t.Errorf("stderr: %s", refused.stderr.String())
	}
	if n := len(w.telegram.Calls()); n != 0 {
		t.Errorf("%d calls before the refusal", n)
	}
}

func TestADamagedLogSendsNothing(t *testing.T) {
	w := newWorld(t)
	daemon := w.up()
	waiter, card := w.request(daemon, "deploy:api#41")
	w.tap(card, "Approve")
	waiter.code()
	w.settled(daemon, card)
	daemon.signal(syscall.SIGTERM)
	daemon.code()
	log := filepath.Join(w.home, "log", "events.jsonl")
	text, err := os.ReadFile(log)
	w.must(err)
	w.must(os.WriteFile(log, []byte(strings.Replace(string(text), "deploy.production", "deploy.productiom", 1)), 0o600))
	calls := len(w.telegram.Calls())
	refused := w.run(8, "up")
	if strings.Count(refused.stderr.String(), "\n") != 1 {
		t.Errorf("stderr: %s", refused.stderr.String())
	}
	if n := len(w.telegram.Calls()); n != calls {
		t.Errorf("%d calls on a damaged log", n-calls)
	}
	w.run(8, "log", "verify")
}

func TestASocketThatIsNotADeadDaemonsIsNotTouched(t *testing.T) {
	w := newWorld(t)
	w.must(os.MkdirAll(filepath.Join(w.dir, "run", "approvald"), 0o750))
	path := filepath.Join("run", "approvald", "default.sock")
	w.write(path, "precious")
	refused := w.start("up")
	if code := refused.code(); code == 0 {
		t.Error("the daemon started over a file at the socket's path")
	}
	if text, err := os.ReadFile(filepath.Join(w.dir, path)); err != nil || string(text) != "precious" {
		t.Errorf("the file: %q, %v", text, err)
	}
}

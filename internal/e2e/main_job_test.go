package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/approvald/approvald/internal/telegramtest"
)

func TestARequestReachesThePhoneAndTheTapReachesTheProgram(t *testing.T) {
	w := newWorld(t)
	daemon := w.up()
	for _, c := range []struct {
		key, button string
		code        int
		event       string
	}{
		{"deploy:api#41", "Approve", 0, "approval.granted"},
		{"deploy:api#42", "Reject", 3, "approval.rejected"},
		{"../../etc/passwd", "Approve", 0, "approval.granted"},
		{"ключ 🔑 __proto__", "Reject", 3, "approval.rejected"},
	} {
		waiter, card := w.request(daemon, c.key)
		w.tap(card, c.button)
		if code := waiter.code(); code != c.code {
			t.Errorf("%s: the program ended with %d, want %d: %s", c.key, code, c.code, waiter.stderr.String())
		}
		w.settled(daemon, card)
		w.wantEvents(c.key, "approval.requested", c.event)
		w.run(c.code, "wait", c.key)
	}
	if got := len(w.telegram.Calls("sendMessage")); got != 4 {
		t.Errorf("%d messages were sent for 4 requests", got)
	}
	daemon.signal(syscall.SIGTERM)
	if code := daemon.code(); code != 0 {
		t.Errorf("the daemon stopped with %d", code)
	}
	w.run(0, "log", "verify")
	w.wantNoSecretOnDisk()
}

// wantNoSecretOnDisk looks for the token in everything that was written.
func (w *world) wantNoSecretOnDisk() {
	w.t.Helper()
	err := filepath.WalkDir(w.dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || filepath.Base(path) == "bot.token" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, secret := range w.secrets {
			if strings.Contains(string(text), secret) {
				w.t.Errorf("%s holds the token", path)
			}
		}
		return err
	})
	w.must(err)
}

func TestSilenceAndWithdrawalAreNoDecisions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	expiring, expired := w.request(daemon, "mail:1", "--ttl", "1s")
	if code := expiring.code(); code != 4 {
		t.Errorf("a request that expired: exit code %d", code)
	}
	w.settled(daemon, expired)
	w.wantEvents("mail:1", "approval.requested", "approval.expired")

	withdrawn, card := w.request(daemon, "mail:2", "--as", "ci")
	w.run(0, "withdraw", "mail:2", "--as", "ci", "--reason", "cancelled")
	if code := withdrawn.code(); code != 5 {
		t.Errorf("a request that was withdrawn: exit code %d", code)
	}
	w.settled(daemon, card)
	w.wantEvents("mail:2", "approval.requested", "approval.withdrawn")

	patient := w.run(6, "request", "mail:3", "--class", "mail.send", "--summary", "s", "--wait", "--timeout", "100ms")
	w.wantEvents("mail:3", "approval.requested")
	if !strings.Contains(patient.stderr.String()+patient.stdout.String(), "mail:3") {
		t.Error("the program does not name the request that still waits")
	}
}

func TestARequestMadeWhileTheDaemonIsDownIsDelivered(t *testing.T) {
	w := newWorld(t)
	waiter := w.start("request", "early", "--class", "deploy.production", "--summary", "s", "--wait")
	daemon := w.up()
	card := w.card(daemon, "early")
	w.tap(card, "Approve")
	if code := waiter.code(); code != 0 {
		t.Errorf("the program that asked before the daemon ran: exit code %d: %s", code, waiter.stderr.String())
	}
}

func TestARestartSendsNothingTwiceAndLosesNothing(t *testing.T) {
	w := newWorld(t)
	daemon := w.up()
	waiter, card := w.request(daemon, "deploy:api#41")
	for _, stop := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGTERM} {
		daemon.signal(stop)
		daemon.code()
		daemon = w.up()
	}
	w.wantEvents("deploy:api#41", "approval.requested")
	w.tap(card, "Approve")
	if code := waiter.code(); code != 0 {
		t.Errorf("the program that waited over three daemons: exit code %d: %s", code, waiter.stderr.String())
	}
	w.settled(daemon, card)
	if got := len(w.telegram.Calls("sendMessage")); got != 1 {
		t.Errorf("%d messages for one request over four daemons", got)
	}
	w.wantEvents("deploy:api#41", "approval.requested", "approval.granted")
}

func TestATapMadeWhileTheDaemonIsDownCounts(t *testing.T) {
	w := newWorld(t)
	daemon := w.up()
	waiter, card := w.request(daemon, "deploy:api#41")
	daemon.signal(syscall.SIGKILL)
	daemon.code()
	w.tap(card, "Approve")
	daemon = w.up()
	if code := waiter.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, waiter.stderr.String())
	}
	w.settled(daemon, card)
	w.wantEvents("deploy:api#41", "approval.requested", "approval.granted")
}

func TestLargeAndBinaryPayloadsReachThePhoneWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	for name, data := range map[string]string{
		"large.txt":  strings.Repeat("0123456789abcde\n", 1<<16),
		"binary.bin": "\xff\xfe\x00not text\x80",
	} {
		path := w.write(name, data)
		waiter, card := w.request(daemon, "payload:"+name, "--payload", path)
		seen := false
		for _, m := range w.telegram.Messages(alice) {
			seen = seen || m.Document != nil && strings.Contains(string(m.Document.Data), data)
		}
		if !seen {
			// Text travels as the text of its bound JSON.
			quoted, err := json.Marshal(data)
			w.must(err)
			seen = slices.ContainsFunc(w.telegram.Messages(alice), func(m telegramtest.Message) bool {
				return m.Document != nil && strings.Contains(string(m.Document.Data), string(quoted))
			})
		}
		if !seen {
			t.Errorf("%s: no document on the phone has all its bytes", name)
		}
		w.tap(card, "Approve")
		if code := waiter.code(); code != 0 {
			t.Errorf("%s: exit code %d: %s", name, code, waiter.stderr.String())
		}
	}
}

func TestARunExecutesWhatWasApprovedOnce(t *testing.T) {
	w := newWorld(t)
	daemon := w.up()
	runner := w.start("run", "job:1", "--class", "deploy.production", "--summary", "s", "--", "sh", "-c", "echo ran >> ran.txt; exit 7")
	card := w.card(daemon, "job:1")
	if _, err := os.Stat(filepath.Join(w.dir, "ran.txt")); err == nil {
		t.Fatal("the command ran before it was approved")
	}
	w.tap(card, "Approve")
	if code := runner.code(); code != 7 {
		t.Errorf("exit code %d, want the command's own 7: %s", code, runner.stderr.String())
	}
	again := w.start("run", "job:1", "--class", "deploy.production", "--summary", "s", "--", "sh", "-c", "echo ran >> ran.txt; exit 7")
	if code := again.code(); code <= 110 {
		t.Errorf("a second run of a used approval: exit code %d", code)
	}
	if text, err := os.ReadFile(filepath.Join(w.dir, "ran.txt")); err != nil || string(text) != "ran\n" {
		t.Errorf("the command ran not exactly once: %q, %v", text, err)
	}
	w.wantEvents("job:1", "approval.requested", "approval.granted", "execution.started", "execution.failed")
}

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/approvald/approvald/internal/telegramtest"
)

const (
	carol = 333
	group = -1001234
)

// inGroup moves the gate into a group of alice, bob and carol.
func inGroup(w *world, config string) string {
	w.telegram.AddUser(telegramtest.User{ID: carol, FirstName: "Carol"})
	w.telegram.AddChat(telegramtest.Chat{ID: group, Type: "supergroup", Members: telegramtest.Members(alice, bob, carol)})
	return strings.Replace(config, "chat_id = 111", fmt.Sprintf("chat_id = %d", group), 1)
}

func (w *world) configFile() string {
	return filepath.Join(w.dir, "config", "approvald", "default.toml")
}

// rewrite changes the configuration file and answers the hash of its new text.
func (w *world) rewrite(edit func(string) string) string {
	w.t.Helper()
	text, err := os.ReadFile(w.configFile())
	w.must(err)
	changed := edit(string(text))
	if changed == string(text) {
		w.t.Fatal("the configuration is as it was")
	}
	w.must(os.WriteFile(w.configFile(), []byte(changed), 0o600))
	sum := sha256.Sum256([]byte(changed))
	return hex.EncodeToString(sum[:])
}

// hangUp sends SIGHUP and waits for a line of the daemon's log that has all of these in it.
func (w *world) hangUp(daemon *process, words ...string) string {
	w.t.Helper()
	before := len(daemon.stderr.String())
	daemon.signal(syscall.SIGHUP)
	var found string
	w.until("a line with "+strings.Join(words, ", "), func() bool {
		for line := range strings.Lines(daemon.stderr.String()[before:]) {
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
				found = line
				return true
			}
		}
		return false
	})
	return found
}

// groupCard waits for the card of a key in the group, with a text on it.
func (w *world) groupCard(daemon *process, key, text string) telegramtest.Message {
	w.t.Helper()
	var card telegramtest.Message
	w.await(daemon, "a card for "+key, func(s telegramtest.State) bool {
		for _, m := range s.Messages(group) {
			if strings.Contains(m.Body(), key) && strings.Contains(m.Body(), text) && len(m.Buttons) > 0 {
				card = m
				return true
			}
		}
		return false
	})
	return card
}

func (w *world) tapBy(who int64, card telegramtest.Message, button string) telegramtest.Answer {
	w.t.Helper()
	tap, err := w.telegram.Phone(who).TapMessage(card, button)
	w.must(err)
	answer, err := tap.Wait(w.t.Context())
	w.must(err)
	return answer
}

// decision is what a decision record says of itself.
type decision struct {
	Event   string `json:"event"`
	Actor   string `json:"actor"`
	Payload struct {
		Approvald struct {
			ConfigSHA256 string `json:"config_sha256"`
		} `json:"approvald"`
	} `json:"payload"`
}

func (w *world) decision(key string) (d decision) {
	w.t.Helper()
	text, err := os.ReadFile(w.logFile())
	w.must(err)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, `"action_key":"`+key+`"`) && (strings.Contains(line, "approval.granted") || strings.Contains(line, "approval.rejected")) {
			w.must(json.Unmarshal([]byte(line), &d))
		}
	}
	return d
}

// TestApproversAreReplacedWithoutARestart: who was taken out of the configuration decides nothing from then on, and what they had
// approved counts no more; who was put in decides at once, also what was asked before; the record names the configuration in force.
func TestApproversAreReplacedWithoutARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inGroup, func(w *world, config string) string { return config + "[requests]\nquorum = 2\n" })
	daemon := w.up()
	waiter := w.start("request", "deploy:api#41", "--class", "deploy.production", "--summary", "a test", "--wait")
	card := w.groupCard(daemon, "deploy:api#41", "")
	w.tapBy(alice, card, "Approve")
	w.groupCard(daemon, "deploy:api#41", "alice")

	hash := w.rewrite(func(config string) string {
		return strings.Replace(strings.Replace(config, `id = "alice"`, `id = "carol"`, 1), "telegram_user_id = 111", "telegram_user_id = 333", 1)
	})
	w.hangUp(daemon, "in force", hash)
	w.tapBy(alice, card, "Approve")
	w.tapBy(bob, card, "Approve")
	w.wantEvents("deploy:api#41", "approval.requested") // alice's word counts no more, so bob's is the first
	w.tapBy(carol, card, "Approve")
	if code := waiter.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, waiter.stderr.String())
	}
	w.wantEvents("deploy:api#41", "approval.requested", "approval.granted")
	if d := w.decision("deploy:api#41"); d.Payload.Approvald.ConfigSHA256 != hash || d.Actor != "human:carol" {
		t.Errorf("the decision names %+v, want the configuration %s", d, hash)
	}
}

// TestLimitsAreReplacedWithoutARestart: what may be asked, and for how long, follows the file.
func TestLimitsAreReplacedWithoutARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	w.run(0, "request", "deploy:api#41", "--class", "deploy.production", "--summary", "s")
	hash := w.rewrite(func(config string) string {
		return config + "[requests]\nmax_pending = 4\nttl = \"90s\"\n\n[[rules]]\nclass = \"deploy.*\"\nquorum = 2\n"
	})
	w.hangUp(daemon, "in force", hash)
	var req struct {
		Quorum      int
		RequestedAt time.Time `json:"requested_at"`
		ExpiresAt   time.Time `json:"expires_at"`
	}
	w.must(json.Unmarshal([]byte(w.run(0, "request", "deploy:api#42", "--class", "deploy.production", "--summary", "s", "--json").stdout.String()), &req))
	if req.Quorum != 2 || req.ExpiresAt.Sub(req.RequestedAt).Seconds() != 90 {
		t.Errorf("a request by the new limits: %+v", req)
	}
	if over := w.start("request", "deploy:api#43", "--class", "deploy.production", "--summary", "s"); over.code() == 0 {
		t.Error("one asker was given more than half of the four that may wait")
	}
}

// TestAFileAtFaultIsRefusedAndTheOldStaysInForce: the log line says file, line and key, `status` says so too, decisions name the
// configuration that is really in force, and a file that was mended is taken.
func TestAFileAtFaultIsRefusedAndTheOldStaysInForce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	text, err := os.ReadFile(w.configFile())
	w.must(err)
	sum := sha256.Sum256(text)
	old := hex.EncodeToString(sum[:])

	for _, c := range []struct{ broken, place string }{
		{string(text) + "\n[requests]\nquorum = \"two\"\n", fmt.Sprintf("default.toml:%d: requests.quorum", strings.Count(string(text), "\n")+3)},
		{string(text) + "\n[requests]\nquorum = 1\nquorom = 2\n", fmt.Sprintf("default.toml:%d: requests.quorom", strings.Count(string(text), "\n")+4)},
		{"[telegram\n", "default.toml:2: "},
		{"", "telegram.chat_id"},
	} {
		w.must(os.WriteFile(w.configFile(), []byte(c.broken), 0o600))
		w.hangUp(daemon, c.place, "stays in force", old)
	}
	w.must(os.WriteFile(w.configFile(), text, 0o600))
	w.must(os.Chmod(w.configFile(), 0o666))
	w.hangUp(daemon, "others may write", "stays in force", old)
	w.must(os.Chmod(w.configFile(), 0o600))
	w.must(os.Rename(w.configFile(), w.configFile()+".away"))
	w.hangUp(daemon, "there is no such configuration file", "stays in force", old)
	w.must(os.Rename(w.configFile()+".away", w.configFile()))

	if c := w.config(); c.SHA256 != old || c.Error == "" || c.NeedsRestart == nil {
		t.Errorf("status: %+v", c)
	}
	if line := w.run(0, "status").stdout.String(); !strings.Contains(line, "is at fault") {
		t.Errorf("status says nothing of it:\n%s", line)
	}
	waiter, card := w.request(daemon, "deploy:api#41")
	w.tap(card, "Approve")
	if code := waiter.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, waiter.stderr.String())
	}
	if d := w.decision("deploy:api#41"); d.Payload.Approvald.ConfigSHA256 != old {
		t.Errorf("the decision names %+v", d)
	}
	w.hangUp(daemon, "in force", old)
	if c := w.config(); c.Error != "" {
		t.Errorf("status: %+v", c)
	}
}

// TestWhatNeedsARestartIsSaid: by key, in the log and in status; the rest of the file is in force.
func TestWhatNeedsARestartIsSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	w.rewrite(func(config string) string {
		return strings.Replace(config, "chat_id = 111", "chat_id = 222", 1) + "[transport]\nmode = \"webhook\"\n[transport.webhook]\nurl = \"https://example.com/hook\"\nsecret_file = \"/nowhere\"\n"
	})
	w.write("bot.token", "7000000009:"+strings.Repeat("n", 35))
	w.hangUp(daemon, "restart", "telegram.chat_id", "transport.mode", "the bot's token")
	want := []string{"telegram.chat_id", "transport.mode", "the bot's token"}
	if c := w.config(); !slices.Equal(c.NeedsRestart, want) {
		t.Errorf("status names %v", c.NeedsRestart)
	}
	if text := w.run(0, "status").stdout.String(); !strings.Contains(text, "restart") || !strings.Contains(text, "telegram.chat_id") {
		t.Errorf("status:\n%s", text)
	}
	waiter, card := w.request(daemon, "deploy:api#41") // goes to the chat from the start
	w.tap(card, "Reject")
	if code := waiter.code(); code != 3 {
		t.Errorf("exit code %d", code)
	}
}

// TestReloadIsToldToTheServiceManager: RELOADING with the time of the monotonic clock, then READY, for a good file and for a bad one.
func TestReloadIsToldToTheServiceManager(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.supervise()
	daemon := w.up()
	w.until("READY", func() bool { return m.heard("READY=1") })
	reloading := regexp.MustCompile(`(?s)RELOADING=1\nMONOTONIC_USEC=[1-9][0-9]+\n(.*)`)
	for _, edit := range []func(string) string{
		func(config string) string { return "reminder = 0.5\n" + config },
		func(config string) string { return "reminder = 2\n" + config },
	} {
		before := len(m.got.String())
		w.rewrite(edit)
		daemon.signal(syscall.SIGHUP)
		w.until("the end of the reload", func() bool {
			told := reloading.FindStringSubmatch(m.got.String()[before:])
			return told != nil && strings.Contains(told[1], "READY=1\n")
		})
	}
	if !strings.Contains(m.got.String(), "the configuration file is at fault") {
		t.Errorf("the service manager was told:\n%s", m.got.String())
	}
}

// TestATerminalThatGoesIsNoOrder: the daemon of a closed terminal goes on, and does not take a file that somebody is just editing.
func TestATerminalThatGoesIsNoOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	self, err := os.Executable()
	w.must(err)
	cmd := exec.Command(self, "up")
	cmd.Env, cmd.Dir = w.env, w.dir
	logged, err := os.Create(filepath.Join(w.dir, "log"))
	w.must(err)
	defer logged.Close()
	cmd.Stderr = logged // the terminal is its input and its output
	tty, err := pty.Start(cmd)
	w.must(err)
	done := make(chan struct{})
	go func() {
		cmd.Wait() //nolint:errcheck // looked at below
		close(done)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-done
	})
	said := func(words string) bool {
		text, err := os.ReadFile(logged.Name())
		w.must(err)
		return strings.Contains(string(text), words)
	}
	w.until("the daemon to be ready", func() bool { return said(`"ready"`) })
	w.must(cmd.Process.Signal(syscall.SIGHUP)) // with its terminal there, it is an order
	w.until("the reload", func() bool { return said("is in force") })

	old := w.config().SHA256
	changed := w.rewrite(func(config string) string { return "reminder = 0.5\n" + config })
	w.must(tty.Close())
	w.until("the end of the terminal to be seen", func() bool { return said("the terminal has gone") })
	w.must(cmd.Process.Signal(syscall.SIGHUP)) // the shell's own, right after the kernel's
	waiter, card := w.request(nil, "deploy:api#41")
	w.tap(card, "Approve")
	if code := waiter.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, waiter.stderr.String())
	}
	if d := w.decision("deploy:api#41"); d.Payload.Approvald.ConfigSHA256 != old || said(changed) {
		t.Errorf("the end of the terminal was taken for the order to read the configuration: %+v", d)
	}
	w.until("a later SIGHUP to be an order again", func() bool {
		w.must(cmd.Process.Signal(syscall.SIGHUP))
		return said(changed)
	})
	w.must(cmd.Process.Signal(syscall.SIGTERM))
	<-done
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the daemon without its terminal ended with %v", cmd.ProcessState)
	}
}

// config is how the daemon says that it stands to its configuration.
func (w *world) config() (c struct {
	SHA256       string
	Error        string
	NeedsRestart []string `json:"needs_restart"`
}) {
	w.t.Helper()
	var s struct{ Config json.RawMessage }
	w.must(json.Unmarshal([]byte(w.run(0, "status", "--json").stdout.String()), &s))
	w.must(json.Unmarshal(s.Config, &c))
	return c
}

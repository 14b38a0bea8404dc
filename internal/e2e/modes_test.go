package e2e

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/approvald/approvald/internal/telegramtest"
)

// TestTheModeChangesAndNothingIsLostOrDoubled: changing the mode is a restart. Taps that are made while no daemon runs are kept by
// Telegram, and count once, whichever way they come in the end, also when the daemon before was killed and left its webhook behind.
func TestTheModeChangesAndNothingIsLostOrDoubled(t *testing.T) {
	t.Parallel()
	m := newModes(t)
	stop := func(p *process) {
		p.signal(syscall.SIGTERM)
		if code := p.code(); code != 0 {
			t.Fatalf("the daemon stopped with %d", code)
		}
	}
	type asked struct {
		key    string
		waiter *process
		card   telegramtest.Message
	}
	daemon := m.start(m.poll)
	var all []asked
	for _, key := range []string{"a", "b", "c", "d"} {
		waiter, card := m.request(daemon, "deploy:"+key)
		all = append(all, asked{"deploy:" + key, waiter, card})
	}
	granted := func(i int) {
		t.Helper()
		if code := all[i].waiter.code(); code != 0 {
			t.Fatalf("%s: exit code %d: %s", all[i].key, code, all[i].waiter.stderr.String())
		}
		m.settled(daemon, all[i].card)
	}
	end := []func(*process){stop, (*process).kill, stop}
	for i, config := range []string{m.webhook, m.poll, m.webhook} {
		end[i](daemon)
		m.tap(all[i].card, "Approve")
		daemon = m.start(config)
		granted(i)
		if set := m.telegram.WebhookInfo().URL != ""; set != (config == m.webhook) {
			t.Errorf("round %d: a webhook is registered: %v", i, set)
		}
	}
	m.tap(all[3].card, "Approve")
	granted(3)
	stop(daemon)
	daemon = m.start(m.poll)
	for _, a := range all {
		m.wantEvents(a.key, "approval.requested", "approval.granted")
	}
	m.await(daemon, "nothing to be left", func(s telegramtest.State) bool { return s.Pending() == 0 })
	if got := len(m.telegram.Calls("sendMessage")); got != len(all) {
		t.Errorf("%d messages for %d requests", got, len(all))
	}
	for _, call := range m.telegram.Calls() {
		if call.Args["drop_pending_updates"] != "" {
			t.Errorf("%s would drop what people tapped", call.Method)
		}
	}
}

// TestALeftoverWebhookIsRemovedWhenPolling: also when the configuration names none any more, and when a start in between did not
// come as far as Telegram.
func TestALeftoverWebhookIsRemovedWhenPolling(t *testing.T) {
	t.Parallel()
	m := newModes(t)
	m.start(m.webhook).kill()
	fault := m.telegram.Fault(telegramtest.Fault{Method: "getWebhookInfo", Do: telegramtest.Fail(502, "Bad Gateway"), Count: telegramtest.Always})
	m.write("config/approvald/default.toml", m.poll)
	between := m.world.start("up")
	m.must(fault.WaitHits(t.Context(), 2))
	between.kill()
	fault.Remove()
	daemon := m.start(m.poll)
	if url := m.telegram.WebhookInfo().URL; url != "" {
		t.Errorf("left registered: %s", url)
	}
	waiter, card := m.request(daemon, "deploy:api#41")
	m.tap(card, "Approve")
	if code := waiter.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	// What somebody else registers at the same address afterwards is not this gate's.
	daemon.signal(syscall.SIGTERM)
	daemon.code()
	m.register(hookURL)
	m.run(10, "up")
	m.run(10, "up")
	if url := m.telegram.WebhookInfo().URL; url != hookURL {
		t.Errorf("somebody else's webhook was removed: %q", url)
	}
}

// register sets the bot's webhook as another program would, which has to obey Telegram's limit of one a second too.
func (w *world) register(hook string) {
	w.t.Helper()
	w.until("the other program's setWebhook", func() bool {
		resp, err := http.Post(w.telegram.URL()+"/bot"+w.telegram.Token()+"/setWebhook?url="+url.QueryEscape(hook), "", nil)
		w.must(err)
		w.must(resp.Body.Close())
		return w.telegram.WebhookInfo().URL == hook
	})
}

// TestAnotherRegistrationIsRefusedUntilToldOtherwise: every time, not just the first, and with the host in one line.
func TestAnotherRegistrationIsRefusedUntilToldOtherwise(t *testing.T) {
	t.Parallel()
	for _, foreign := range []string{"https://elsewhere.example.com/secret-path", hookURL} {
		m := newModes(t)
		m.register(foreign)
		at, _ := url.Parse(foreign)
		for range 3 {
			refused := m.run(10, "up").stderr.String()
			if strings.Count(refused, "\n") != 1 || !strings.Contains(refused, at.Host) || !strings.Contains(refused, "--replace-webhook") || strings.Contains(refused, at.Path) {
				t.Errorf("stderr: %s", refused)
			}
		}
		var e struct{ Error struct{ Code string } }
		if p := m.run(10, "up", "--json"); json.Unmarshal([]byte(p.stdout.String()), &e) != nil || e.Error.Code != "webhook-registered" {
			t.Errorf("stdout: %s", p.stdout.String())
		}
		if got := m.telegram.WebhookInfo(); got.URL != foreign || len(m.telegram.Calls("setWebhook")) != 1 {
			t.Errorf("it is now %+v", got)
		}
		calls := len(m.telegram.Calls("setWebhook"))
		daemon := m.world.start("up", "--replace-webhook")
		m.await(daemon, "the bot to be taken over", func(s telegramtest.State) bool { return len(s.Calls("setWebhook")) > calls })
		waiter, card := m.request(daemon, "deploy:api#41")
		m.tap(card, "Approve")
		if code := waiter.code(); code != 0 {
			t.Errorf("exit code %d: %s", code, waiter.stderr.String())
		}
		daemon.kill()
		// What was taken over once is this gate's own leftover from then on.
		daemon = m.start(m.webhook)
		daemon.signal(syscall.SIGTERM)
		if code := daemon.code(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if url := m.telegram.WebhookInfo().URL; url != "" {
			t.Errorf("left registered: %s", url)
		}
	}
	m := newModes(t)
	m.write("config/approvald/default.toml", m.poll)
	if p := m.run(2, "up", "--replace-webhook"); !strings.Contains(p.stderr.String(), "--replace-webhook is for") {
		t.Errorf("stderr: %s", p.stderr.String())
	}
}

// TestAWebhookIsAnsweredBeforeTelegramIsTold: the answer that takes an update off Telegram's queue waits for the disk and nothing else.
func TestAWebhookIsAnsweredBeforeTelegramIsTold(t *testing.T) {
	t.Parallel()
	m := newModes(t)
	daemon := m.start(m.webhook)
	waiter, card := m.request(daemon, "deploy:api#41")
	for _, method := range []string{"answerCallbackQuery", "editMessageText", "editMessageReplyMarkup"} {
		m.telegram.Fault(telegramtest.Fault{Method: method, Do: telegramtest.Hang(), Count: telegramtest.Always})
	}
	m.tap(card, "Approve")
	m.await(daemon, "the update to be acknowledged", func(s telegramtest.State) bool { return s.Pending() == 0 })
	m.wantEvents("deploy:api#41", "approval.requested", "approval.granted")
	if code := waiter.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

const (
	team      = -1001
	bystander = 333
)

// TestBothModesRecordTheSame plays one script of taps in both modes: what the log says differs in times and nonces alone.
func TestBothModesRecordTheSame(t *testing.T) {
	t.Parallel()
	play := func(mode func(*modes) string) []any {
		m := newModes(t, func(w *world, config string) string {
			w.telegram.AddUser(telegramtest.User{ID: bystander, FirstName: "Eve"})
			w.telegram.AddChat(telegramtest.Chat{ID: team, Type: telegramtest.Supergroup, Members: telegramtest.Members(alice, bob, bystander)})
			return strings.Replace(config, "chat_id = "+strconv.Itoa(alice), "chat_id = "+strconv.Itoa(team), 1)
		})
		daemon := m.start(mode(m))
		ask := func(key string, more ...string) telegramtest.Message {
			m.run(0, append([]string{"request", key, "--class", "deploy.production", "--summary", "a test", "--as", "ci"}, more...)...)
			var card telegramtest.Message
			m.await(daemon, "a card for "+key, func(s telegramtest.State) bool {
				for _, c := range s.Messages(team) {
					if strings.Contains(c.Body(), key) && len(c.Buttons) > 0 {
						card = c
						return true
					}
				}
				return false
			})
			return card
		}
		tap := func(who int64, card telegramtest.Message, button string) {
			t.Helper()
			pressed, err := m.telegram.Phone(who).TapStale(card, button)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := pressed.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		granted := ask("deploy:granted")
		tap(bystander, granted, "Approve")
		tap(alice, granted, "Approve")
		tap(alice, granted, "Approve")
		tap(bob, granted, "Reject")
		rejected := ask("deploy:rejected")
		tap(bob, rejected, "Reject")
		both := ask("deploy:both", "--quorum", "2")
		tap(alice, both, "Approve")
		tap(alice, both, "Approve")
		tap(bob, both, "Approve")
		taken := ask("deploy:withdrawn")
		m.run(0, "withdraw", "deploy:withdrawn", "--reason", "cancelled", "--as", "ci")
		tap(alice, taken, "Approve")
		daemon.signal(syscall.SIGTERM)
		if code := daemon.code(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		text, err := os.ReadFile(filepath.Join(m.home, "log", "events.jsonl"))
		m.must(err)
		var records []any
		for line := range strings.Lines(string(text)) {
			var r any
			m.must(json.Unmarshal([]byte(line), &r))
			records = append(records, timeless(r))
		}
		return records
	}
	polled, posted := play(func(m *modes) string { return m.poll }), play(func(m *modes) string { return m.webhook })
	if len(polled) != 8 {
		t.Errorf("%d records, want four requests and four ends: %v", len(polled), polled)
	}
	if diff := cmp.Diff(polled, posted); diff != "" {
		t.Errorf("the logs differ (- polled, + posted):\n%s", diff)
	}
}

// timeless takes out of a record what no two runs have in common: times, nonces, hashes over them, process numbers, and the hash of the
// configuration, which names the mode.
func timeless(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			switch name {
			case "ts", "at", "expires_at", "wait_until", "hash", "prev", "nonce_sha256", "delivery", "pid", "config_sha256":
				v[name] = "(" + name + ")"
			default:
				v[name] = timeless(value)
			}
		}
	case []any:
		for i := range v {
			v[i] = timeless(v[i])
		}
	}
	return v
}

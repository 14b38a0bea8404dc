package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/approvald/approvald/internal/telegramtest"
)

const hookURL = "https://approve.example.com/telegram/default"

// proxy stands between Telegram and the daemon as nginx would: it ends TLS and passes requests on to a unix socket.
type proxy struct {
	socket    string
	transport http.Transport
}

func (p *proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Host, r.URL.Scheme = r.URL.Host, "http"
	return p.transport.RoundTrip(r)
}

func newProxy() *proxy {
	p := new(proxy)
	p.transport.DisableKeepAlives = true
	p.transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", p.socket)
	}
	return p
}

// modes is a gate with both ways to get updates, one configuration for each.
type modes struct {
	*world
	proxy         *proxy
	poll, webhook string
}

// newModes makes a gate in webhook mode behind a proxy; edit may change both configurations.
func newModes(t testing.TB, edit ...func(w *world, config string) string) *modes {
	return newModesWith(t, telegramtest.Options{}, edit...)
}

// newModesWith is newModes with a Telegram of one's own; without a transport of its own it reaches the daemon through the proxy.
func newModesWith(t testing.TB, o telegramtest.Options, edit ...func(w *world, config string) string) *modes {
	m := &modes{proxy: newProxy()}
	if o.Webhook.Transport == nil {
		o.Webhook.Transport = m.proxy
	}
	m.world = newWorldWith(t, o, func(w *world, config string) string {
		m.proxy.socket = filepath.Join(w.dir, "run", "hook.sock")
		secret := strings.Repeat("s3cret", 6)
		w.secrets = append(w.secrets, secret)
		for _, f := range edit {
			config = f(w, config)
		}
		m.poll = config
		m.webhook = config + fmt.Sprintf("\n[transport]\nmode = \"webhook\"\n[transport.webhook]\nurl = %q\nlisten = %q\nsecret_file = %q\n",
			hookURL, "unix:"+m.proxy.socket, w.write("hook.secret", secret))
		return m.webhook
	})
	return m
}

// start makes the gate's configuration that of a mode and starts the daemon in it.
func (m *modes) start(config string) *process {
	m.t.Helper()
	m.write("config/approvald/default.toml", config)
	if config == m.webhook {
		return m.upHook()
	}
	return m.up()
}

// newWebhookWorld is newWorld with a gate in webhook mode behind a proxy.
func newWebhookWorld(t *testing.T) *world { return newModes(t).world }

// upHook starts the daemon and waits until its webhook is registered.
func (w *world) upHook() *process {
	w.t.Helper()
	before := len(w.telegram.Calls("setWebhook"))
	p := w.start("up")
	w.await(p, "the daemon to register its webhook", func(s telegramtest.State) bool {
		calls := s.Calls("setWebhook")
		return len(calls) > before && calls[len(calls)-1].OK()
	})
	return p
}

func TestWebhookServesAndIsRemovedOnStop(t *testing.T) {
	w := newWebhookWorld(t)
	daemon := w.upHook()
	waiter, card := w.request(daemon, "deploy:api#41")
	w.tap(card, "Approve")
	if code := waiter.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, waiter.stderr.String())
	}
	w.settled(daemon, card)
	if n := len(w.telegram.Calls("getUpdates")); n != 0 {
		t.Errorf("%d calls of getUpdates beside a webhook", n)
	}
	daemon.signal(syscall.SIGTERM)
	if code := daemon.code(); code != 0 {
		t.Errorf("the daemon stopped with %d", code)
	}
	if url := w.telegram.WebhookInfo().URL; url != "" {
		t.Errorf("the webhook is still registered: %s", url)
	}
	w.wantEvents("deploy:api#41", "approval.requested", "approval.granted")
	for _, call := range w.telegram.Calls() {
		if strings.EqualFold(call.Args["drop_pending_updates"], "true") {
			t.Errorf("%s would drop what people tapped", call.Method)
		}
	}
}

func TestAKilledWebhookDaemonsRegistrationIsTakenOver(t *testing.T) {
	t.Parallel()
	w := newWebhookWorld(t)
	daemon := w.upHook()
	waiter, card := w.request(daemon, "deploy:api#41")
	daemon.kill()
	w.tap(card, "Reject") // Telegram keeps it and tries again
	daemon = w.upHook()
	if code := waiter.code(); code != 3 {
		t.Errorf("exit code %d: %s", code, waiter.stderr.String())
	}
	w.settled(daemon, card)
	if got := len(w.telegram.Calls("sendMessage")); got != 1 {
		t.Errorf("%d messages for one request", got)
	}
}

func TestStopOfAWebhookDaemonWithADeadNetwork(t *testing.T) {
	t.Parallel()
	w := newWebhookWorld(t)
	daemon := w.upHook()
	w.telegram.Fault(telegramtest.Fault{Do: telegramtest.Hang(), Count: telegramtest.Always})
	w.stopInTime(daemon)
}

func TestAWebhookThatCannotListenEndsTheDaemon(t *testing.T) {
	w := newWebhookWorld(t)
	w.must(os.MkdirAll(filepath.Join(w.dir, "run", "hook.sock", "taken"), 0o700))
	failed := w.start("up")
	if code := failed.code(); code == 0 || !strings.Contains(failed.stderr.String(), "hook.sock") {
		t.Errorf("exit code %d: %s", code, failed.stderr.String())
	}
	w.run(0, "log", "verify")
}

func TestAWebhookOfSomebodyElseIsLeftAlone(t *testing.T) {
	w := newWorld(t)
	w.foreignWebhook()
	refused := w.run(10, "up")
	if strings.Count(refused.stderr.String(), "\n") != 1 || !strings.Contains(refused.stderr.String(), "elsewhere.example.com") {
		t.Errorf("stderr: %s", refused.stderr.String())
	}
	if url := w.telegram.WebhookInfo().URL; url == "" {
		t.Error("somebody else's webhook was removed")
	}
}

// foreignWebhook registers a webhook with a plain call, as another program would.
func (w *world) foreignWebhook() {
	w.t.Helper()
	resp, err := http.Post(w.telegram.URL()+"/bot"+w.telegram.Token()+"/setWebhook?url=https://elsewhere.example.com/hook", "", nil)
	w.must(err)
	w.must(resp.Body.Close())
}

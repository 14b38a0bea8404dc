//go:build all

package service

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/approvald/approvald/internal/telegramtest"
)

// The socket unit as it is shipped gives the gate's daemon its webhook: the web server's group gets in and nobody else, posts wait
// while the daemon starts again, and a daemon that refuses to start is not started for every post.
func TestWebhookSocketUnit(t *testing.T) {
	const (
		socket  = "/run/approvald-webhook/prod.sock"
		hook    = "/telegram/prod"
		curl    = "curl --silent --max-time 20 --output /dev/null --write-out '%{http_code}' --unix-socket " + socket + " -X POST http://h" + hook
		unit    = "approvald-webhook@prod.socket"
		secrets = "install -m 0600 -o approvald /dev/null /etc/approvald/prod.secret; echo Secret_1 >/etc/approvald/prod.secret"
	)
	var m *machine
	toSocket := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", "/proc/"+strconv.Itoa(m.pid)+"/root"+socket)
	}}
	m = bootWith(t, telegramtest.Options{Webhook: telegramtest.WebhookOptions{Transport: plain{toSocket}}})
	m.users()
	m.configure("prod", fmt.Sprintf("[transport]\nmode = \"webhook\"\n[transport.webhook]\nurl = \"https://approve.example.com%s\"\nlisten = \"systemd\"\nsecret_file = \"/etc/approvald/prod.secret\"", hook))
	m.sh(secrets + "; useradd --system stranger")
	if out, err := m.try("systemctl start approvald@prod"); err == nil {
		t.Errorf("it starts without a socket: %s", out)
	}
	if text := m.sh("journalctl --no-pager -o cat -u approvald@prod"); !strings.Contains(text, "systemctl enable "+unit+"; systemctl stop approvald@prod; systemctl start approvald@prod") {
		t.Errorf("the refusal does not say what to do:\n%s", text)
	}
	// The order that the document gives, on a gate that polls and whose configuration was changed.
	m.sh("cp /etc/approvald/prod.toml /root/webhook.toml")
	m.configure("prod")
	m.sh("systemctl start approvald@prod; cp /root/webhook.toml /etc/approvald/prod.toml")
	m.sh(documented(t))
	if url := m.telegram.WebhookInfo().URL; url != "https://approve.example.com"+hook {
		t.Errorf("registered: %q", url)
	}
	if got := m.sh(as("www-data") + curl); got != "401" {
		t.Errorf("the web server's post without the secret: %s", got)
	}
	if out, err := m.try(as("stranger") + curl); exitCode(t, err) != 7 {
		t.Errorf("another user reaches the listener: %s, %v", out, err)
	}
	if out, err := m.try(as("www-data") + "approvald --gate prod request k --class a.b --summary s"); err == nil {
		t.Errorf("the web server may ask for approvals: %s", out)
	}

	// An edit of the socket unit: restarting the socket restarts the daemon that has it.
	before := m.mainPID()
	m.sh("systemctl restart " + unit)
	m.ready(before)
	if got := m.sh(as("www-data") + curl); got != "401" {
		t.Errorf("after a restart of the socket: %s", got)
	}
	for range 11 {
		m.sh("systemctl restart approvald@prod")
	}

	m.sh(operator + "request between --class a.b --summary s")
	m.card("between")
	old := m.mainPID()
	m.sh("kill -KILL " + old)
	m.tap("between", "Approve")
	m.sh(operator + "wait between --timeout 1m")
	m.ready(old)
	if got := m.telegram.WebhookInfo().LastError; got != "" {
		t.Errorf("Telegram was told %q", got)
	}

	// A fault in the configuration: the post starts the daemon a few times, then systemd gives the socket up.
	m.sh("echo 'colour = 1' >>/etc/approvald/prod.toml; systemctl stop approvald@prod 2>/dev/null; " + as("www-data") + curl + " || true")
	m.until("systemd to give up", func() bool { return m.property(unit, "ActiveState") == "failed" })
	if n := strings.Count(m.sh("journalctl --no-pager -o cat -u approvald@prod"), "colour"); n == 0 || n > 12 {
		t.Errorf("it was started %d times", n)
	}
	m.sh("sed -i '$d' /etc/approvald/prod.toml; systemctl reset-failed '*'; systemctl start " + unit + " approvald@prod")
	m.sh(operator + "request after --class a.b --summary s")
	m.tap("after", "Reject")
	if _, err := m.try(operator + "wait after --timeout 1m"); exitCode(t, err) != 3 {
		t.Errorf("wait: %v", err)
	}

	// Without a daemon: root's home, which setpriv leaves in HOME, hides no configuration.
	m.sh("systemctl stop " + unit + " approvald@prod; useradd --system --groups approvald ci")
	for _, home := range []string{"/root", "/nonexistent"} {
		if out, err := m.try("HOME=" + home + " setpriv --reuid=ci --regid=ci --init-groups approvald --gate prod request down --class a.b --summary s"); exitCode(t, err) != 12 {
			t.Errorf("HOME=%s: %v: %s", home, err, out)
		}
	}
}

// documented are the commands of docs/webhook.md that give a gate its socket.
func documented(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(root + "/docs/webhook.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?ms)^6\\. \\*\\*Socket.*?^   ```sh\n(.*?)^   ```$").FindSubmatch(text)
	if block == nil {
		t.Fatal("docs/webhook.md has no commands in step 6")
	}
	return string(block[1])
}

// plain passes posts on as a reverse proxy does that ends TLS.
type plain struct{ next http.RoundTripper }

func (p plain) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Scheme = "http"
	return p.next.RoundTrip(r)
}

//go:build all

package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestADisplacedWebhookIsTold: another program takes the bot's webhook while the daemon runs. The log, the status and the operator's
// command say so, nothing is fought over, and when it goes the daemon comes back.
func TestADisplacedWebhookIsTold(t *testing.T) {
	t.Parallel()
	m := newModes(t, top(`on_trouble = ["DIR/page me"]`))
	told := filepath.Join(m.dir, "told")
	m.must(os.WriteFile(filepath.Join(m.dir, "page me"), []byte("#!/bin/sh\necho \"$@\" >>"+told+"\n"), 0o700))
	daemon := m.start(m.webhook)
	// Posts without the secret, as the other program's Telegram or any stranger may send, bring the next look forward.
	look := func() {
		for range 5 {
			r, err := http.NewRequest(http.MethodPost, hookURL, strings.NewReader("{}"))
			m.must(err)
			response, err := m.proxy.RoundTrip(r)
			m.must(err)
			m.must(response.Body.Close())
			if response.StatusCode != http.StatusUnauthorized {
				t.Fatal(response.Status)
			}
		}
	}
	heard := func(what string) func() bool {
		return func() bool {
			text, _ := os.ReadFile(told) //nolint:errcheck // it is not there yet
			return strings.Contains(string(text), what)
		}
	}
	const other = "https://elsewhere.example.com/secret-path"
	m.register(other)
	look()
	m.until("the log to say so", func() bool {
		return strings.Contains(daemon.stderr.String(), "another program registered a webhook at elsewhere.example.com")
	})
	if text := m.run(0, "status").stdout.String(); !strings.Contains(text, "trouble     webhook-displaced: ") {
		t.Errorf("status:\n%s", text)
	}
	if m.status().Transport.Healthy {
		t.Error("called healthy")
	}
	m.until("the operator to be told", heard("begin webhook-displaced another program registered a webhook at elsewhere.example.com"))
	for _, call := range m.telegram.Calls("setWebhook")[1:] {
		if call.Args["url"] != other {
			t.Error("it was fought over")
		}
	}
	if strings.Contains(daemon.stderr.String(), "secret-path") {
		t.Error("the other program's address was told, which may be its secret")
	}
	// It ends and takes its webhook along.
	response, err := http.Post(m.telegram.URL()+"/bot"+m.telegram.Token()+"/deleteWebhook", "", nil)
	m.must(err)
	m.must(response.Body.Close())
	look()
	m.until("the daemon to register again", func() bool { return m.telegram.WebhookInfo().URL == hookURL })
	// On stop what is not ours stays.
	m.register(other)
	daemon.signal(syscall.SIGTERM)
	if code := daemon.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if url := m.telegram.WebhookInfo().URL; url != other {
		t.Errorf("somebody else's webhook was removed: %q", url)
	}
}

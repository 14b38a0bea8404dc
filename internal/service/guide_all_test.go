//go:build all

package service

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The guide leads from nothing to a running gate and away again, typed as it stands. Only what cannot be the same is changed: the chat, the
// Bot API server, and the token that is pasted.
func TestGuide(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(root + "/docs/service.md")
	if err != nil {
		t.Fatal(err)
	}
	m := boot(t)
	at := map[string]bool{}
	for _, block := range regexp.MustCompile("(?ms)^## ([^\n]*)$|^```sh\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		if block[1] != "" {
			at[block[1]] = true
			continue
		}
		script := strings.ReplaceAll(block[2], "chat_id = -1001234567890", fmt.Sprintf("chat_id = %d\napi_base = %q", alice, m.telegram.URL()))
		if strings.Contains(script, "cat >/etc/approvald/prod.token") {
			script = "echo '" + m.telegram.Token() + "' | " + script
		}
		if strings.HasPrefix(script, "systemctl disable") {
			m.secondGate()
		}
		out := m.sh(script)
		switch {
		case strings.Contains(script, "systemctl status") && !strings.Contains(out, `Status: "serving gate prod"`):
			t.Errorf("%s%s", script, out)
		case strings.Contains(script, "journalctl") && !strings.Contains(out, `"msg":"ready"`):
			t.Errorf("%s%s", script, out)
		case strings.Contains(script, "doctor") && (!strings.Contains(out, "ok      unit           approvald@prod.service is active (running), enabled") ||
			!strings.Contains(out, "ok      token          /etc/approvald/prod.token holds one")):
			t.Errorf("%s%s", script, out)
		case strings.Contains(script, "request deploy-41"):
			m.tap("deploy-41", "Approve")
			m.sh(as("ci") + "approvald --gate prod wait deploy-41")
		case strings.Contains(script, "systemctl reload"):
			m.until("the status to tell of the reload", func() bool { return strings.Contains(m.property(prod, "StatusText"), "serving gate prod; ") })
		case strings.Contains(script, "systemd-creds") && m.property(prod, "ActiveState") != "active":
			t.Error("the gate does not serve with an encrypted token")
		}
	}
	for _, heading := range []string{"Install", "Configure", "Start", "Let agents ask", "Change the configuration", "A token that is encrypted on disk", "A second gate", "Back up", "Remove"} {
		if !at[heading] {
			t.Errorf("the guide has no %q", heading)
		}
	}
	if out, _ := m.try("ls -d /var/lib/approvald/prod /run/approvald/prod /etc/approvald/prod.*"); !strings.Contains(out, "cannot access '/var/lib/approvald/prod'") ||
		!strings.Contains(out, "cannot access '/run/approvald/prod'") || !strings.Contains(out, "cannot access '/etc/approvald/prod.*'") {
		t.Errorf("left behind: %s", out)
	}
}

// secondGate runs the gate staging beside prod: not on one bot, and with a group of agents of its own.
func (m *machine) secondGate() {
	m.t.Helper()
	m.configure("staging")
	if out, err := m.try("systemctl start approvald@staging"); err == nil || m.property("approvald@staging.service", "ExecMainStatus") != "10" {
		m.t.Errorf("two gates on one bot: %s", out)
	}
	m.sh("systemctl stop approvald@prod; systemctl reset-failed approvald@staging; systemctl start approvald@staging")
	if got := strings.TrimSpace(m.sh("stat -c '%U:%G %a' /run/approvald/staging /run/approvald/staging/approvald.sock")); got != "approvald:staging-agents 750\napprovald:staging-agents 660" {
		m.t.Errorf("the second gate's socket: %s", got)
	}
	ask := as("ci") + "approvald --gate staging request k --class a.b --summary s"
	if out, err := m.try(ask); err == nil {
		m.t.Errorf("an agent of the one gate may ask the other: %s", out)
	}
	m.sh("usermod --append --groups staging-agents ci\n" + ask)
	m.sh("systemctl stop approvald@staging; systemctl start approvald@prod")
}

//go:build all

package service

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// mainPID is the main process of the gate's unit, 0 when none runs.
func (m *machine) mainPID() string { return m.property(prod, "MainPID") }

// ready waits until the unit's daemon is one that is not the process old, and ready.
func (m *machine) ready(old string) {
	m.t.Helper()
	m.until("another daemon to be ready", func() bool {
		return m.mainPID() != old && m.property(prod, "ActiveState") == "active"
	})
}

// A daemon that dies or hangs is started again. One that cannot serve until a person has done something is not, and says what.
func TestServiceIsStartedAgainWhenThatHelps(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.users()
	m.configure("prod")
	m.restrict("prod", "RestartSec=10ms", "WatchdogSec=3")
	m.sh("systemctl start approvald@prod; approvald --gate prod request k --class a.b --summary s")

	for _, how := range []struct{ name, script string }{
		{"killed", "kill -KILL $(systemctl show --value -p MainPID approvald@prod)"},
		{"crashed", "kill -QUIT $(systemctl show --value -p MainPID approvald@prod)"},
		{"hung", "kill -STOP $(systemctl show --value -p MainPID approvald@prod)"},
	} {
		old := m.mainPID()
		m.sh(how.script)
		m.ready(old)
		if state := m.property(prod, "StatusText"); !strings.Contains(state, "serving gate prod") {
			t.Errorf("%s: the unit's status is %q", how.name, state)
		}
	}
	if text := m.sh("journalctl --no-pager -o cat -u approvald@prod"); !strings.Contains(text, "Watchdog timeout") {
		t.Errorf("the daemon that hung was not found by the watchdog:\n%s", text)
	}
	// SIGTERM from anybody is a stop, and a stop is no failure.
	m.sh("systemctl kill --signal=TERM approvald@prod")
	m.until("the daemon to have stopped", func() bool { return m.property(prod, "ActiveState") == "inactive" })

	// The same, but for what a restart cannot help with.
	fails := func(what, before, after string, code int, says string) {
		t.Helper()
		m.sh("systemctl reset-failed approvald@prod 2>/dev/null || true\n" + before)
		restarts := m.property(prod, "NRestarts")
		out, err := m.try("systemctl start approvald@prod")
		if exitCode(t, err) == 0 {
			t.Errorf("%s: it starts", what)
		}
		state := m.property(prod, "ActiveState") + " " + m.property(prod, "ExecMainStatus") + " " + m.property(prod, "NRestarts")
		if want := fmt.Sprintf("failed %d %s", code, restarts); state != want {
			t.Errorf("%s: the unit is %q, want %q: %s", what, state, want, out)
		}
		if text := m.sh("journalctl --no-pager -o cat -u approvald@prod -n 20"); !strings.Contains(text, says) {
			t.Errorf("%s: the journal does not say %q:\n%s", what, says, text)
		}
		m.sh(after)
	}
	fails("a fault in the configuration", "echo 'colour = 1' >>/etc/approvald/prod.toml", "sed -i '$d' /etc/approvald/prod.toml", 2, "colour")
	fails("a configuration that others may write", "chmod 0666 /etc/approvald/prod.toml", "chmod 0644 /etc/approvald/prod.toml", 2, "/etc/approvald/prod.toml")
	const log = "/var/lib/approvald/prod/.approval/log/events.jsonl"
	fails("a damaged log", "sed -i '1s/./x/' "+log, "sed -i '1s/./{/' "+log, 8, log)
	other := "runuser -u approvald -- env XDG_RUNTIME_DIR=/tmp/other APPROVALD_LOCK_DIR=/run/lock/approvald CREDENTIALS_DIRECTORY=/tmp/other"
	fails("another daemon outside of the unit", `install -d -m 0700 -o approvald /tmp/other
install -m 0600 -o approvald /etc/approvald/prod.token /tmp/other/telegram-token
`+other+` approvald --gate prod up >/tmp/other.log 2>&1 &
until grep -q '"msg":"ready"' /tmp/other.log; do sleep 0.02; done`,
		"pkill -TERM -u approvald -x approvald; while pgrep -u approvald -x approvald; do sleep 0.02; done", 10, "telegram-poller-running")
	const daemon = "/var/lib/approvald/prod/.approval/daemon"
	fails("a lease that cannot be had", "mv "+daemon+" /tmp/daemon; install -d -m 0500 "+daemon, "rmdir "+daemon+"; mv /tmp/daemon "+daemon, 11, "telegram-lease-unavailable")
	m.sh("systemctl reset-failed approvald@prod; systemctl start approvald@prod")
}

// While Telegram is out of reach the start goes on, agents can ask, and the status says what is waited for.
func TestServiceStartsWithoutANetwork(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.users()
	m.configure("prod")
	// TimeoutStartSec is over long before the daemon is stopped, which asks for more itself.
	m.restrict("prod", "PrivateNetwork=yes", "TimeoutStartSec=2")
	m.sh("systemctl start --no-block approvald@prod")
	m.until("agents to be able to ask", func() bool {
		_, err := m.try(operator + "request k --class a.b --summary s 2>&1 && test -S /run/approvald/prod/approvald.sock")
		return err == nil
	})
	m.until("the status to say what is waited for", func() bool {
		return strings.Contains(m.property(prod, "StatusText"), "waiting for bot")
	})
	began := time.Now()
	m.until("TimeoutStartSec to be over", func() bool { return time.Since(began) > 3*time.Second })
	if state := m.property(prod, "ActiveState") + " " + m.property(prod, "NRestarts"); state != "activating 0" {
		t.Errorf("the unit is %q", state)
	}
	if calls := m.telegram.Calls(); len(calls) > 0 {
		t.Errorf("without a network it made %d calls", len(calls))
	}
	m.restrict("prod")
	m.sh("systemctl restart approvald@prod")
	m.tap("k", "Reject")
}

// What the unit leaves out, it leaves out because it breaks something. The directives and their reasons stand at the unit's end.
func TestDirectivesThatAreLeftOut(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.users()
	m.configure("prod")
	m.sh("useradd --system --user-group --groups approvald --uid 1234 ci")
	uid := func(key string) string {
		m.sh("systemctl restart approvald@prod; " + as("ci") + "approvald --gate prod request " + key + " --class a.b --summary s")
		text := m.sh(operator + "log tail --json -n 1")
		found := regexp.MustCompile(`"uid":(\d+)`).FindStringSubmatch(text)
		if found == nil {
			t.Fatalf("no user id: %s", text)
		}
		return found[1]
	}
	if got := uid("plain"); got != "1234" {
		t.Errorf("the agent's request is that of uid %s", got)
	}
	m.restrict("prod", "PrivateUsers=yes")
	if got := uid("hidden"); got != "65534" {
		t.Errorf("PrivateUsers=yes: the agent's request is that of uid %s: it could be set", got)
	}

	m.restrict("prod", "ProcSubset=pid")
	if out, err := m.try("systemctl restart approvald@prod"); err == nil {
		t.Errorf("ProcSubset=pid: the daemon starts: it could be set: %s", out)
	}
	if text := m.sh("journalctl --no-pager -o cat -u approvald@prod -n 20"); !strings.Contains(text, "boot_id") {
		t.Errorf("ProcSubset=pid: the refusal is another:\n%s", text)
	}

	// A record of another implementation whose holder has died, and whose number is one of root's by now.
	record := func() {
		m.sh(`systemctl stop approvald@prod
daemon=/var/lib/approvald/prod/.approval/daemon
printf '{"version":1,"pid":%s,"mode":"poll","started_at":"%s","instance_home":"/var/lib/approvald/prod/.approval"}\n' \
	"$(pidof systemd-journald)" "$(date -u -d "$(ps -o lstart= -p "$(pidof systemd-journald)") - 5 minutes" +%FT%T.000Z)" >$daemon/record
chmod 0600 $daemon/record; chown approvald: $daemon/record; mv $daemon/record $daemon/telegram-transport.lock`)
	}
	m.restrict("prod")
	record()
	m.sh("systemctl start approvald@prod")
	m.restrict("prod", "ProtectProc=invisible")
	record()
	if out, err := m.try("systemctl start approvald@prod"); err == nil {
		t.Errorf("ProtectProc=invisible: the daemon starts: it could be set: %s", out)
	}
	if got := m.property(prod, "ExecMainStatus"); got != "10" {
		t.Errorf("ProtectProc=invisible: exit code %s", got)
	}
	m.sh("rm /var/lib/approvald/prod/.approval/daemon/telegram-transport.lock")

	m.restrict("prod", "IPAddressDeny=any")
	before := len(m.telegram.Calls())
	m.sh("systemctl start --no-block approvald@prod")
	m.until("the daemon to find that it cannot call", func() bool {
		return strings.Contains(m.property(prod, "StatusText"), "waiting for bot:")
	})
	if n := len(m.telegram.Calls()) - before; n > 0 {
		t.Errorf("IPAddressDeny=any: %d calls: it could be set", n)
	}
	for _, name := range []string{"PrivateUsers", "ProcSubset", "ProtectProc", "IPAddressDeny", "PrivateNetwork"} {
		if text := m.sh("systemctl cat approvald@prod | grep '^# .*" + name + "='"); text == "" {
			t.Errorf("the unit does not say why it leaves %s out", name)
		}
	}
}

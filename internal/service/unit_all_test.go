//go:build all

package service

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/approvald/approvald/internal/telegramtest"
)

// holder is what `approvald status` and `approvald lease` say about who has the gate.
type holder struct {
	PID int `json:"pid"`
}

// card waits for a card about a key on alice's phone.
func (m *machine) card(key string) telegramtest.Message {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	card, err := m.telegram.WaitMessage(ctx, alice, func(msg telegramtest.Message) bool {
		return strings.Contains(msg.Body(), key) && len(msg.Buttons) > 0
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return card
}

func (m *machine) tap(key, button string) {
	m.t.Helper()
	if _, err := m.telegram.Phone(alice).TapMessage(m.card(key), button); err != nil {
		m.t.Fatal(err)
	}
}

// restrict puts directives into a drop-in of a gate's unit, none to take it away again.
func (m *machine) restrict(gate string, directives ...string) {
	m.t.Helper()
	dir := "/etc/systemd/system/approvald@" + gate + ".service.d"
	m.sh("rm -rf " + dir)
	if len(directives) > 0 {
		m.sh(fmt.Sprintf("mkdir -p %s\nprintf '%%s\\n' '[Service]' '%s' >%[1]s/test.conf", dir, strings.Join(directives, "' '")))
	}
	m.sh("systemctl daemon-reload; systemctl reset-failed 'approvald@*' 2>/dev/null || true")
}

const (
	prod = "approvald@prod.service"
	// operator is how the guide has people look at the gate's files: as the user that owns them.
	operator = "runuser -u approvald -- approvald --gate prod "
)

// The unit as it is shipped starts, serves an agent of another user, is seen from outside and stops, with all that it
// forbids in force.
func TestServiceServes(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.users()
	m.configure("prod")
	m.sh("groupadd agents && useradd --system --groups approvald ci && useradd --system stranger")
	m.sh("systemctl start approvald@prod") // returns when the daemon says that it is ready
	if state := m.property(prod, "StatusText"); !strings.Contains(state, "serving gate prod") {
		t.Errorf("the unit's status is %q", state)
	}
	main, err := strconv.Atoi(m.property(prod, "MainPID"))
	if err != nil {
		t.Fatal(err)
	}

	// In force, as the kernel tells it.
	status := m.sh(fmt.Sprintf("cat /proc/%d/status", main))
	for _, want := range []string{
		"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
	} {
		if !strings.Contains(status, want) {
			t.Errorf("the daemon runs without %q:\n%s", want, status)
		}
	}
	uid := strings.TrimSpace(m.sh("id -u approvald"))
	if !strings.Contains(status, "Uid:\t"+uid+"\t"+uid+"\t"+uid+"\t"+uid) || uid == "0" {
		t.Errorf("the daemon's users:\n%s", status)
	}
	for _, secret := range []string{m.telegram.Token(), strings.SplitN(m.telegram.Token(), ":", 2)[1]} {
		if text := m.sh(fmt.Sprintf("tr '\\0' '\\n' </proc/%d/environ; tr '\\0' '\\n' </proc/%[1]d/cmdline; journalctl --no-pager", main)); strings.Contains(text, secret) {
			t.Error("the token is in the environment, the arguments or the journal")
		}
	}
	for path, want := range map[string]string{
		"/var/lib/approvald/prod": "700 approvald", "/run/approvald/prod": "750 approvald", "/run/approvald/prod/approvald.sock": "660 approvald",
		"/var/lib/approvald/prod/.approval/log/events.jsonl": "600 approvald", "/run/lock/approvald": "700 approvald",
	} {
		if got := strings.TrimSpace(m.sh("stat -c '%a %U' " + path)); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}

	// An agent of another user asks; who it was is in the log.
	m.sh(as("ci") + "approvald --gate prod request deploy-1 --class deploy.production --summary s")
	m.tap("deploy-1", "Approve")
	m.sh(as("ci") + "approvald --gate prod wait deploy-1")
	log := m.sh(operator + "log tail --json")
	if want := fmt.Sprintf(`"uid":%s`, strings.TrimSpace(m.sh("id -u ci"))); !strings.Contains(log, want) {
		t.Errorf("the agent's user id (%s) is not in the log:\n%s", want, log)
	}
	if out, err := m.try(as("stranger") + "approvald --gate prod request k --class a.b --summary s"); err == nil {
		t.Errorf("who is not in the group may ask: %s", out)
	}
	if out, err := m.try(as("ci") + "cat /var/lib/approvald/prod/.approval/log/events.jsonl /etc/approvald/prod.token"); err == nil {
		t.Errorf("an agent reads the gate's files: %s", out)
	}

	// A second daemon outside of the sandbox sees who has the gate.
	var seen struct {
		Held   bool
		Holder holder
	}
	text := m.sh(operator + "lease --json")
	if err := json.Unmarshal([]byte(text), &seen); err != nil || !seen.Held || seen.Holder.PID != main {
		t.Errorf("the lease, seen from outside, for process %d: %s (%v)", main, text, err)
	}
	out, err := m.try("CREDENTIALS_DIRECTORY=/run/credentials/" + prod + " approvald --gate prod up")
	if code := exitCode(t, err); code != 10 || !strings.Contains(out, fmt.Sprintf("pid %d", main)) {
		t.Errorf("a second daemon: exit code %d: %s", code, out)
	}

	m.sh("systemctl stop approvald@prod")
	if got := m.property(prod, "Result") + " " + m.property(prod, "ExecMainStatus"); got != "success 0" {
		t.Errorf("the stop: %s", got)
	}
	if text := m.sh(operator + "lease --json 2>&1 || true"); !strings.Contains(text, `"held":false`) {
		t.Errorf("the lease after the stop: %s", text)
	}
	m.sh(operator + "log verify")
	if entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/run/approvald", m.pid)); err == nil && len(entries) > 0 {
		t.Errorf("left in the runtime directory: %v", entries)
	}
}

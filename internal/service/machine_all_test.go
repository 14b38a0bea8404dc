//go:build all

package service

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

const (
	root  = "../.."
	alice = 111
	// patience bounds every wait for something that should happen at once; it says nothing about how fast it should be.
	patience = time.Minute
)

// machine is a Debian with systemd as its pid 1, in name spaces of this one, and a Bot API server beside it.
type machine struct {
	t        *testing.T
	pid      int // systemd's, as seen from here
	telegram *telegramtest.Server
}

// installed is what `make install` lays down below PREFIX=/usr/local; made once for all tests.
var installed = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "installed-")
	if err != nil {
		return "", err
	}
	return dir, makeInstall(dir, "/usr/local")
})

func makeInstall(destdir, prefix string) error {
	bin, err := os.MkdirTemp("", "bin-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	cmd := exec.Command("make", "-C", root, "install", "DESTDIR="+destdir, "PREFIX="+prefix, "BIN="+bin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make install: %w\n%s", err, out)
	}
	return nil
}

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := installed(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// boot starts a machine on which `make install` was run, and nothing else was done.
func boot(t *testing.T) *machine {
	t.Helper()
	return bootWith(t, telegramtest.Options{})
}

// bootWith is boot with a Telegram of one's own.
func bootWith(t *testing.T, o telegramtest.Options) *machine {
	t.Helper()
	dir, err := installed()
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, telegram: telegramtest.RunT(t, o)}
	m.telegram.AddUser(telegramtest.User{ID: alice, FirstName: "Alice"})
	name := fmt.Sprintf("approvald-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	state, err := os.MkdirTemp("/var/tmp", "machine-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	if err := os.Chmod(state, 0o755); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command("unshare", "--mount", "--pid", "--fork", "--uts", "--ipc", "--kill-child",
		"sh", "testdata/machine.sh", t.TempDir(), name, filepath.Join(dir, "usr", "local"), state)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cmd.Wait() //nolint:errcheck // it is killed
	}()
	t.Cleanup(func() {
		if t.Failed() && m.pid != 0 {
			journal, _ := m.command("journalctl", "--no-pager", "-o", "cat").CombinedOutput()
			t.Logf("%s", journal)
		}
		cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-ended
		removeGroup(t, name)
	})
	m.until("systemd to have booted", func() bool {
		select {
		case <-ended:
			t.Fatalf("no machine:\n%s", out.String())
		default:
		}
		if m.pid = childOf(cmd.Process.Pid); m.pid == 0 {
			return false
		}
		comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", m.pid))
		if err != nil || strings.TrimSpace(string(comm)) != "systemd" {
			return false
		}
		state, _ := m.command("systemctl", "is-system-running").Output()
		return strings.TrimSpace(string(state)) == "running"
	})
	return m
}

// childOf is the only child of a process, or 0.
func childOf(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	child, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return child
}

// removeGroup takes away the control groups of a machine that has ended.
func removeGroup(t *testing.T, name string) {
	t.Helper()
	const script = `set -eu
mount -t cgroup2 cgroup2 "$1"
find "$1" -depth -path "*/$2*" -type d -exec rmdir {} +`
	dir := t.TempDir()
	var out []byte
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var err error // until the kernel has let go of the last process
		if out, err = exec.Command("unshare", "--mount", "sh", "-c", script, "sh", dir, name).CombinedOutput(); err == nil {
			return
		}
	}
	t.Errorf("the machine's control groups stay: %s", out)
}

// command runs in the machine as its root.
func (m *machine) command(argv ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"--target", strconv.Itoa(m.pid), "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--"}, argv...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "HOME=/root", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0", "LC_ALL=C.UTF-8"}
	return cmd
}

// sh runs a script in the machine as its root and wants it to succeed.
func (m *machine) sh(script string) string {
	m.t.Helper()
	out, err := m.try(script)
	if err != nil {
		m.t.Fatalf("%s\n%v\n%s", script, err, out)
	}
	return out
}

// try runs a script in the machine as its root.
func (m *machine) try(script string) (string, error) {
	out, err := m.command("bash", "-euo", "pipefail", "-c", script).CombinedOutput()
	return string(out), err
}

// as is a script's prefix that runs a program as a user of the machine.
func as(user string) string {
	return "setpriv --reuid=" + user + " --regid=" + user + " --init-groups --reset-env env PATH=$PATH "
}

// exitCode is the exit code of a script that was tried.
func exitCode(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		t.Fatal(err)
	}
	return exit.ExitCode()
}

func (m *machine) until(what string, cond func() bool) {
	m.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if cond() {
			return
		}
	}
	m.t.Fatalf("waited for %s", what)
}

// property is what systemd says of a unit.
func (m *machine) property(unit, name string) string {
	m.t.Helper()
	return strings.TrimSpace(m.sh("systemctl show --value -p " + name + " " + unit))
}

// configure gives a gate a configuration and a token, as the guide does.
func (m *machine) configure(gate string, more ...string) {
	m.t.Helper()
	m.sh(fmt.Sprintf(`install -d -m 0755 /etc/approvald
cat >/etc/approvald/%[1]s.toml <<'END'
home = "/var/lib/approvald/%[1]s/.approval"
%[5]s
[telegram]
chat_id = %[2]d
api_base = %[3]q
[[approvers]]
id = "alice"
telegram_user_id = %[2]d
END
install -m 0600 /dev/null /etc/approvald/%[1]s.token
echo '%[4]s' >/etc/approvald/%[1]s.token`, gate, alice, m.telegram.URL(), m.telegram.Token(), strings.Join(more, "\n")))
}

// users makes the daemon's user and directory, as a package's or the guide's first step does.
func (m *machine) users() {
	m.t.Helper()
	m.sh("systemd-sysusers && systemd-tmpfiles --create /usr/local/lib/tmpfiles.d/approvald.conf && systemctl daemon-reload")
}

package sdnotify

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// listen opens a socket like systemd's and returns what arrives on it, one datagram a call.
func listen(t *testing.T, name string) func() string {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4096)
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
}

func TestEachMessageIsOneDatagram(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"), "@approvald-test-" + strconv.Itoa(os.Getpid())} {
		next := listen(t, name)
		n := New(name, 0)
		for _, step := range []struct {
			send func() error
			want string
		}{
			{func() error { return n.Ready("serving gate prod") }, "READY=1\nSTATUS=serving gate prod"},
			{func() error { return n.Status("two\nlines") }, "STATUS=two lines"},
			{n.Watchdog, "WATCHDOG=1"},
			{func() error { return n.ExtendTimeout(30 * time.Second) }, "EXTEND_TIMEOUT_USEC=30000000"},
			{func() error { return n.Stopping("") }, "STOPPING=1\nSTATUS="},
		} {
			if err := step.send(); err != nil {
				t.Fatal(err)
			}
			if got := next(); got != step.want {
				t.Errorf("%s: got %q, want %q", name, got, step.want)
			}
		}
	}
}

func TestEnvironmentIsTakenOut(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/run/notify")
	t.Setenv("WATCHDOG_USEC", "30000000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	n := FromEnvironment()
	if !n.Enabled() || n.WatchdogInterval() != 10*time.Second {
		t.Errorf("enabled %v, interval %v", n.Enabled(), n.WatchdogInterval())
	}
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if _, there := os.LookupEnv(name); there {
			t.Errorf("%s would reach the children", name)
		}
	}
}

func TestWatchdogOfAnotherProcessIsNotFed(t *testing.T) {
	for _, c := range []struct{ usec, pid string }{
		{"30000000", "1"}, {"30000000", "x"}, {"", ""}, {"-5", ""}, {"much", ""}, {"0", ""},
	} {
		t.Setenv("NOTIFY_SOCKET", "/run/notify")
		t.Setenv("WATCHDOG_USEC", c.usec)
		t.Setenv("WATCHDOG_PID", c.pid)
		if got := FromEnvironment().WatchdogInterval(); got != 0 {
			t.Errorf("usec %q pid %q: interval %v, want none", c.usec, c.pid, got)
		}
	}
}

func TestWithoutAManagerNothingIsSent(t *testing.T) {
	for _, n := range []*Notifier{nil, {}} {
		if n.Enabled() || n.WatchdogInterval() != 0 {
			t.Error("an absent service manager is called enabled")
		}
		if err := n.Ready("up"); err != nil {
			t.Error(err)
		}
	}
	if err := New(filepath.Join(t.TempDir(), "nobody"), 0).Ready("up"); err == nil {
		t.Error("a named socket that nobody listens on must be reported")
	}
}

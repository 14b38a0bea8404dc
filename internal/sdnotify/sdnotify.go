// Package sdnotify tells systemd how the service is doing: the notification protocol of sd_notify(3).
//
// It guarantees that each message is one datagram to the socket that systemd named, and that without such a socket every
// call is a cheap no-op, so callers never ask whether they run under systemd. It takes NOTIFY_SOCKET, WATCHDOG_USEC and
// WATCHDOG_PID out of the environment when it reads them, so that no child of the daemon can speak for the service.
//
// It does not guarantee that systemd received or believed a message: the protocol has no answer.
package sdnotify

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Notifier sends state to the service manager. The zero value and nil send nothing.
type Notifier struct {
	socket   string
	watchdog time.Duration
}

// FromEnvironment reads and removes the variables of sd_notify(3) and sd_watchdog_enabled(3). A watchdog that names
// another process (WATCHDOG_PID) is not this process's to feed and is left out.
func FromEnvironment() *Notifier {
	n := &Notifier{socket: take("NOTIFY_SOCKET")}
	usec, pid := take("WATCHDOG_USEC"), take("WATCHDOG_PID")
	if pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return n
	}
	if limit, err := strconv.ParseInt(usec, 10, 64); err == nil && limit > 0 {
		n.watchdog = time.Duration(limit) * time.Microsecond
	}
	return n
}

func take(name string) string {
	value := os.Getenv(name)
	os.Unsetenv(name) //nolint:errcheck // fails only for an invalid name
	return value
}

// New returns a notifier for a socket path (a leading @ is the abstract name space) and a watchdog limit, 0 for none.
func New(socket string, watchdog time.Duration) *Notifier {
	return &Notifier{socket: socket, watchdog: watchdog}
}

// Enabled says whether a service manager listens.
func (n *Notifier) Enabled() bool { return n != nil && n.socket != "" }

// WatchdogInterval is how often Watchdog wants to be called: a third of systemd's limit, so that one late call is not
// yet a kill. It is 0 when no watchdog is wanted.
func (n *Notifier) WatchdogInterval() time.Duration {
	if !n.Enabled() {
		return 0
	}
	return n.watchdog / 3
}

// Ready says that the service can do its whole work, with a line for `systemctl status`.
func (n *Notifier) Ready(status string) error { return n.send("READY=1", statusLine(status)) }

// Reloading says that the configuration is being read again; Ready ends that. The time of the monotonic clock that goes with it lets
// systemd tell the answer to its own signal from an earlier one (Type=notify-reload).
func (n *Notifier) Reloading() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return n.send("RELOADING=1", "MONOTONIC_USEC="+strconv.FormatInt(now.Nano()/1000, 10))
}

// Stopping says that a clean stop has begun.
func (n *Notifier) Stopping(status string) error { return n.send("STOPPING=1", statusLine(status)) }

// Status replaces the line that `systemctl status` shows.
func (n *Notifier) Status(status string) error { return n.send(statusLine(status)) }

// Watchdog vouches for progress until the next call is due.
func (n *Notifier) Watchdog() error { return n.send("WATCHDOG=1") }

// ExtendTimeout asks for d more before a start or a stop that still moves is taken for one that hangs.
func (n *Notifier) ExtendTimeout(d time.Duration) error {
	return n.send("EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(d.Microseconds(), 10))
}

// statusLine keeps a status on one line: a line feed would start another assignment.
func statusLine(status string) string {
	return "STATUS=" + strings.Join(strings.Fields(status), " ")
}

func (n *Notifier) send(assignments ...string) error {
	if !n.Enabled() {
		return nil
	}
	// net.UnixAddr translates a leading @ into the abstract name space by itself.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer conn.Close()
	// A full receive queue of the manager must not hold the daemon.
	if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	if _, err := conn.Write([]byte(strings.Join(assignments, "\n"))); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

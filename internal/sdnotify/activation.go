package sdnotify

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
)

// firstDescriptor is where passed sockets begin (SD_LISTEN_FDS_START of sd_listen_fds(3)).
const firstDescriptor = 3

// ErrNotActivated reports that no socket unit passed a socket to this process.
var ErrNotActivated = errors.New("systemd passed no socket to this process")

// Listener returns the one listening socket that a socket unit passed (sd_listen_fds(3)). The variables are taken out of the
// environment and the descriptor is closed on exec, so no child of the daemon inherits the socket.
func Listener() (net.Listener, error) {
	pid, count := take("LISTEN_PID"), take("LISTEN_FDS")
	take("LISTEN_FDNAMES")
	if pid != strconv.Itoa(os.Getpid()) {
		return nil, ErrNotActivated
	}
	if n, err := strconv.Atoi(count); err != nil || n != 1 {
		return nil, fmt.Errorf("systemd passed %q sockets, want exactly one: give the socket unit one ListenStream", count)
	}
	file := os.NewFile(firstDescriptor, "socket from systemd")
	defer file.Close() // FileListener duplicates it, close-on-exec
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("use the socket from systemd: %w", err)
	}
	return listener, nil
}

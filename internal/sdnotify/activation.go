package sdnotify

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// firstDescriptor is where passed sockets begin (SD_LISTEN_FDS_START of sd_listen_fds(3)).
const firstDescriptor = 3

// ErrNotActivated reports that no socket unit passed a socket to this process.
var ErrNotActivated = errors.New("systemd passed no socket to this process")

// Sockets are the sockets that socket units passed. nil has none.
type Sockets struct {
	names []string // in the order of the descriptors; FileDescriptorName=, else the unit's name
	fault error
}

// SocketsFromEnvironment reads and removes the variables of sd_listen_fds(3), and marks the descriptors close-on-exec: no
// child of the daemon inherits a socket or takes one for its own. It is to be called once, before anything else opens a file
// or starts a child. Variables that are for another process (LISTEN_PID) count for nothing.
func SocketsFromEnvironment() *Sockets {
	pid, count, names := take("LISTEN_PID"), take("LISTEN_FDS"), take("LISTEN_FDNAMES")
	s := &Sockets{}
	if pid != strconv.Itoa(os.Getpid()) {
		return s
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > 1024 {
		s.fault = fmt.Errorf("LISTEN_FDS is %q, which is no number of sockets", count)
		return s
	}
	s.names = make([]string, n)
	copy(s.names, strings.Split(names, ":"))
	for i := range s.names {
		unix.CloseOnExec(firstDescriptor + i)
	}
	return s
}

// Len is how many sockets were passed.
func (s *Sockets) Len() int {
	if s == nil {
		return 0
	}
	return len(s.names)
}

// Listener returns the socket of this name, or the only one whatever its name. It may be called once. The error wraps
// [ErrNotActivated] when none was passed, and says what to do about a socket that cannot be listened on.
func (s *Sockets) Listener(name string) (net.Listener, error) {
	switch {
	case s != nil && s.fault != nil:
		return nil, s.fault
	case s.Len() == 0:
		return nil, ErrNotActivated
	}
	at := slices.Index(s.names, name)
	if at < 0 && len(s.names) == 1 {
		at = 0
	}
	if at < 0 {
		return nil, fmt.Errorf("systemd passed %d sockets and none is named %s: give the socket unit one ListenStream and FileDescriptorName=%s", len(s.names), name, name)
	}
	fd := firstDescriptor + at
	if listening, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN); err != nil || listening != 1 {
		return nil, fmt.Errorf("descriptor %d from systemd is no listening stream socket: the unit needs ListenStream= and Accept=no", fd)
	}
	file := os.NewFile(uintptr(fd), "socket from systemd")
	defer file.Close() // FileListener duplicates it, close-on-exec
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("use the socket from systemd: %w", err)
	}
	return listener, nil
}

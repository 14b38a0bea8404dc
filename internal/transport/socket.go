package transport

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxSocketPath is the longest path that fits sun_path with its NUL (unix(7)).
	maxSocketPath = 107
	// socketPatience is how long the lock on the socket's directory is waited for. It
	// is held for the moment that another daemon needs to bind.
	socketPatience = 2 * time.Second
)

// open returns the listener of the options.
func (w *Webhook) open(ctx context.Context) (net.Listener, error) {
	if w.listener != nil {
		return w.listener, nil
	}
	if path, found := strings.CutPrefix(w.listen, "unix:"); found {
		return listenUnix(ctx, path)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", w.listen)
	if err != nil {
		return nil, fmt.Errorf("webhook listener: %w", err)
	}
	return listener, nil
}

// unixSocket takes its file away when it is closed, unless another has come in its place.
type unixSocket struct {
	*net.UnixListener
	path string
	made unix.Stat_t
}

// Close removes the socket's file and ends the socket, in this order: while it is open no other file can have its inode.
func (s *unixSocket) Close() error {
	var now unix.Stat_t
	if unix.Lstat(s.path, &now) == nil && now.Dev == s.made.Dev && now.Ino == s.made.Ino {
		_ = unix.Unlink(s.path)
	}
	return s.UnixListener.Close()
}

// listenUnix makes the socket at path with mode 0660: the reverse proxy is let in by
// the socket's group, which is the directory's when that has its setgid bit, else
// the daemon's.
//
// The socket of a process that was killed is replaced. One whose process still
// lives, be it stopped or busy, and a file of any other kind are refused and left
// alone. The directory is locked meanwhile, so that of two daemons that find the
// same leftover one cannot remove the other's new socket.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if n := len(path); n > maxSocketPath {
		return nil, fmt.Errorf("webhook socket: %s has %d bytes, the kernel takes at most %d: name a shorter path in transport.webhook.listen", path, n, maxSocketPath)
	}
	unlock, err := lockSocketDir(ctx, filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeStaleSocket(ctx, path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("webhook listener: %w", err)
	}
	l.SetUnlinkOnClose(false)
	made := &unixSocket{UnixListener: l, path: path}
	if err := unix.Lstat(path, &made.made); err != nil {
		return nil, errors.Join(fmt.Errorf("webhook socket: %s: %w", path, err), l.Close())
	}
	if err := os.Chmod(path, 0o660); err != nil {
		return nil, errors.Join(fmt.Errorf("webhook socket: %w", err), made.Close())
	}
	return made, nil
}

// lockSocketDir checks the socket's directory and locks it. Who may write in it could
// put a socket of their own in our place, and would be handed the secret.
func lockSocketDir(ctx context.Context, dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("webhook socket: its directory has to be there, and the reverse proxy has to get through it: %w", err)
	}
	info, err := d.Stat()
	if err == nil && info.Mode().Perm()&0o002 != 0 {
		err = fmt.Errorf("everybody may write to %s and replace the socket: use a directory of its own (mode %04o)", dir, info.Mode().Perm())
	}
	if err != nil {
		_ = d.Close()
		return nil, fmt.Errorf("webhook socket: %w", err)
	}
	for waited := time.Duration(0); ; waited += 10 * time.Millisecond {
		err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = d.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || waited >= socketPatience || !sleep(ctx, 10*time.Millisecond) {
			_ = d.Close()
			return nil, fmt.Errorf("webhook socket: lock %s: %w", dir, err)
		}
	}
}

// removeStaleSocket removes a socket that surely nobody listens on any more.
func removeStaleSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("webhook socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("webhook socket: %s exists and is not a socket: move it away", path)
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("webhook socket: another process listens on %s: stop it, or name another path in transport.webhook.listen", path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case !errors.Is(err, syscall.ECONNREFUSED):
		// A full backlog (EAGAIN) is a process that is stopped or busy, not one that is gone.
		return fmt.Errorf("webhook socket: whether another process listens on %s is not known: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("webhook socket: %w", err)
	}
	return nil
}

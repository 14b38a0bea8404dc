package gateapi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/durable"
	"github.com/approvald/approvald/internal/gate"
)

// maxSocketPath is the longest path that fits sun_path with its final NUL
// (unix(7): 108 bytes).
const maxSocketPath = 107

const (
	socketDirPerm  = 0o750
	socketFilePerm = 0o660
)

// ErrNotSocket reports that something other than a socket lies at the socket's
// path. It is left untouched.
var ErrNotSocket = errors.New("not a socket")

// Listener is the agents' socket of a daemon. Close ends it and leaves its file.
type Listener struct {
	*net.UnixListener
	path string
	made unix.Stat_t
}

// Remove takes the closed socket's file away, unless another socket has come in
// its place. Like [Listen] it is for the lease's holder: the file of a daemon
// that lost its lease is its successor's to replace.
func (l *Listener) Remove() error {
	var now unix.Stat_t
	switch err := unix.Lstat(l.path, &now); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at socket %s: %w", l.path, err)
	}
	// The inode of a closed socket whose file was replaced may be its successor's; the time of the last change is not.
	if now.Dev != l.made.Dev || now.Ino != l.made.Ino || now.Ctim != l.made.Ctim {
		return nil
	}
	if err := unix.Unlink(l.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove socket %s: %w", l.path, err)
	}
	return nil
}

// Listen makes the agents' socket at path: its directory 0750, itself 0660.
//
// The caller must hold the lease of its gate. A socket of that gate that lies
// there is then nobody's: its daemon is gone, however recently it answered, so it
// is replaced. The socket of a daemon that serves another gate, which a gate of
// the same name can be, is refused with [gate.CodeConfig]; anything that is no
// socket with [ErrNotSocket].
func Listen(ctx context.Context, path string, own gate.Identity) (*Listener, error) {
	if err := CheckSocketPath(path); err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	if err := makeSocketDir(dir); err != nil {
		return nil, err
	}
	if err := removeStale(ctx, path, own); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	made := &Listener{UnixListener: l, path: path}
	// The directory keeps everybody else out between bind and chmod.
	if err := os.Chmod(path, socketFilePerm); err != nil {
		return nil, errors.Join(fmt.Errorf("set the mode of socket %s: %w", path, err), l.Close())
	}
	if err := unix.Lstat(path, &made.made); err != nil {
		return nil, errors.Join(fmt.Errorf("look at socket %s: %w", path, err), l.Close())
	}
	return made, nil
}

// CheckSocketPath refuses a path that the kernel cannot bind.
func CheckSocketPath(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("socket path %q is not absolute", path)
	}
	if n := len(path); n > maxSocketPath {
		return fmt.Errorf("socket path %s has %d bytes, the kernel takes at most %d: set XDG_RUNTIME_DIR or home to a shorter directory", path, n, maxSocketPath)
	}
	return nil
}

// makeSocketDir makes the directory, or checks the one that is there: who may
// write in it can put another socket in place of ours.
func makeSocketDir(dir string) error {
	if err := durable.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return fmt.Errorf("make directory for the socket: %w", err)
	}
	switch err := durable.Mkdir(dir, socketDirPerm); {
	case err == nil:
		// Mkdir's mode is cut by the umask, and an agent's group must get in.
		if err := os.Chmod(dir, socketDirPerm); err != nil {
			return fmt.Errorf("set the mode of socket directory: %w", err)
		}
		return nil
	case !errors.Is(err, fs.ErrExist):
		return fmt.Errorf("make socket directory: %w", err)
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("look at socket directory: %w", err)
	}
	if !fi.IsDir() {
		return fmt.Errorf("socket directory %s is not a directory", dir)
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || (st.Uid != 0 && st.Uid != uint32(os.Geteuid()) && !ownerAbove(dir, st.Uid)) {
		return fmt.Errorf("socket directory %s belongs to another user, who could replace the socket", dir)
	}
	if fi.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("socket directory %s has mode %#o: others could replace the socket; run: chmod 0750 %s", dir, fi.Mode().Perm(), dir)
	}
	return nil
}

// ownerAbove reports whether root is asked about a directory of the user who owns the one above it, as root makes it there: that user
// could put another in its place anyway.
func ownerAbove(dir string, uid uint32) bool {
	fi, err := os.Stat(filepath.Dir(dir))
	if err != nil || os.Geteuid() != 0 {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && st.Uid == uid
}

// removeStale takes a dead daemon's socket away and refuses anything else.
func removeStale(ctx context.Context, path string, own gate.Identity) error {
	var st unix.Stat_t
	switch err := unix.Lstat(path, &st); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at socket path %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return fmt.Errorf("%s exists and is %w: move it away, approvald will not touch it", path, ErrNotSocket)
	}
	c := NewClient(path, own)
	defer c.Close()
	if other, ok := errors.AsType[otherGateError](c.greet(ctx)); ok {
		return &gate.Error{
			Code:    gate.CodeConfig,
			Message: fmt.Sprintf("socket %s is in use: %s", path, other),
			Hint:    "give one of the two gates a name of its own: approvald up --gate NAME",
			Err:     other,
		}
	}
	if err := unix.Unlink(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove stale socket %s: %w", path, err)
	}
	return nil
}

package gateapi

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// peerCred asks the kernel who is at the other end: for an accepted connection
// the process that connected, for a dialled one the process that listens.
func peerCred(c net.Conn) (*unix.Ucred, error) {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("peer of a %T is not known to the kernel", c)
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("reach socket descriptor: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, fmt.Errorf("reach socket descriptor: %w", err)
	}
	if credErr != nil {
		return nil, fmt.Errorf("read peer credentials: %w", credErr)
	}
	return cred, nil
}

// checkListener decides whether what listens at path may be told a request. The
// socket's directory says whose daemon belongs there: only its owner (or root,
// also on behalf of systemd's socket activation) can have put a socket into it,
// as long as nobody else may write there.
func checkListener(path string, c net.Conn) error {
	dir := filepath.Dir(path)
	fi, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("look at socket directory: %w", err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("owner of socket directory %s is not known", dir)
	}
	cred, err := peerCred(c)
	if err != nil {
		return err
	}
	return judgeListener(path, fi.Mode(), st.Uid, cred.Uid)
}

// judgeListener is the rule of checkListener on plain values.
func judgeListener(path string, dirMode os.FileMode, dirUID, listenerUID uint32) error {
	dir := filepath.Dir(path)
	if dirMode.Perm()&0o022 != 0 {
		return fmt.Errorf("socket directory %s has mode %#o: anybody who may write there could answer in the daemon's place", dir, dirMode.Perm())
	}
	if listenerUID != 0 && listenerUID != dirUID {
		return fmt.Errorf("socket %s is served by uid %d, but its directory belongs to uid %d", path, listenerUID, dirUID)
	}
	return nil
}

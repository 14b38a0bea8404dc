package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// obstacle finds what would refuse a start although nobody holds the lease; nil
// when nothing is found. It tries nothing, so a failing disk shows only at a start.
func (t *taker) obstacle(r Report, rec observed) *UnavailableError {
	dir := existing(t.daemonDir)
	if u := t.usable(dir, unix.S_IFDIR, unix.W_OK|unix.X_OK); u != nil {
		return u
	}
	if u := t.usable(t.flockPath, unix.S_IFREG, unix.R_OK|unix.W_OK); u != nil && !errors.Is(u.Err, fs.ErrNotExist) {
		return u
	}
	if rec.present {
		return t.sectionObstacle(r)
	}
	return nil
}

// usable looks whether path is of the kind and open to this process's user.
func (t *taker) usable(path string, kind, access uint32) *UnavailableError {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return unavailable(path, "it cannot be examined", hintFor(err), err)
	}
	if got := st.Mode & unix.S_IFMT; got != kind && (kind == unix.S_IFREG || got != unix.S_IFLNK) {
		return unavailable(path, "it is not "+map[uint32]string{unix.S_IFDIR: "a directory", unix.S_IFREG: "a regular file"}[kind], "move it away", nil)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, path, access, unix.AT_EACCESS); err != nil {
		return unavailable(path, "this user may not use it", hintAt(path, err), err)
	}
	return nil
}

// sectionObstacle judges an unfinished take-over as a start does, and leaves it.
func (t *taker) sectionObstacle(r Report) *UnavailableError {
	data, err := readSmall(t.sectionPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	const hint = "see which process it names; remove the file only when that one is certainly gone"
	var entry sectionEntry
	if err == nil {
		err = json.Unmarshal(data, &entry)
	}
	if err != nil || entry.PID < 1 {
		return unavailable(t.sectionPath, "somebody is taking over, or stopped half-way, and does not say who", hint, err)
	}
	lock, err := t.sys.identify(t.flockPath)
	dead, why := t.sectionDead(entry, err == nil && r.KernelLock == "free" && entry.Lock == lockName(lock))
	if dead {
		return nil
	}
	return unavailable(t.sectionPath, fmt.Sprintf("process %d is taking over (%s)", entry.PID, why), hint, nil)
}

// hintAt is hintFor for a path that, or whose directory, may belong to another
// user: a daemon that root started once on a service user's gate leaves such files.
func hintAt(path string, err error) string {
	if errors.Is(err, fs.ErrPermission) {
		for _, path := range []string{path, filepath.Dir(path)} {
			var st unix.Stat_t
			if unix.Lstat(path, &st) == nil && int(st.Uid) != unix.Geteuid() {
				return fmt.Sprintf("%s belongs to user %d: if no daemon of that user runs on this gate, run as root: chown %d %s",
					path, st.Uid, unix.Geteuid(), path)
			}
		}
	}
	return hintFor(err)
}

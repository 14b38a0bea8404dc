package durable

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// What root makes in the directory of another user belongs to that user and their group: a command that was run as root once
// must not lock out the service that keeps its files there. A directory of root's own changes nothing, and neither does who
// is not root. The owner is given by the descriptor of what was just made, in the very directory that was asked for its owner,
// so that no link that the owner puts there meanwhile gives them anything else.

// Open is [os.OpenFile] with that rule, for a file that no hook has to fail; the descriptor is closed on exec. For root it makes no
// file through a dangling link in the directory of another user.
func Open(path string, flag int, perm os.FileMode) (*os.File, error) {
	if flag&os.O_CREATE == 0 || !underAnother(path) {
		return os.OpenFile(path, flag, perm)
	}
	fd, err := openForOwner(path, flag, uint32(perm.Perm()))
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// OpenFD is [unix.Open] with the rule of [Open].
func OpenFD(path string, flag int, perm uint32) (int, error) {
	if flag&os.O_CREATE == 0 || !underAnother(path) {
		return unix.Open(path, flag|unix.O_CLOEXEC, perm)
	}
	return openForOwner(path, flag, perm)
}

func openForOwner(path string, flag int, perm uint32) (int, error) {
	dir, owner, err := openParent(path)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	base := filepath.Base(path)
	for range 16 {
		fd, err := openAt(dir, base, flag|os.O_EXCL|unix.O_NOFOLLOW, perm)
		if err == nil {
			if err := give(fd, owner); err != nil {
				unix.Close(fd)
				_ = unix.Unlinkat(dir, base, 0) // the error that counts is the other one
				return -1, err
			}
			return fd, nil
		}
		if err != unix.EEXIST || flag&os.O_EXCL != 0 {
			return -1, err
		}
		if fd, err = openAt(dir, base, flag&^os.O_CREATE, 0); err != unix.ENOENT {
			return fd, err
		}
		// Removed meanwhile, or a link to nothing.
	}
	return -1, unix.ENOENT
}

// Mkdir is [os.Mkdir] with the rule of [Open].
func Mkdir(path string, perm os.FileMode) error {
	if !underAnother(path) {
		return os.Mkdir(path, perm)
	}
	dir, owner, err := openParent(path)
	if err != nil {
		return &fs.PathError{Op: "mkdir", Path: path, Err: err}
	}
	defer unix.Close(dir)
	base := filepath.Base(path)
	if err := unix.Mkdirat(dir, base, uint32(perm.Perm())); err != nil {
		return &fs.PathError{Op: "mkdir", Path: path, Err: err}
	}
	if err := giveDir(dir, base, owner); err != nil {
		_ = unix.Unlinkat(dir, base, unix.AT_REMOVEDIR) // the error that counts is the other one
		return &fs.PathError{Op: "chown", Path: path, Err: err}
	}
	return nil
}

// MkdirAll is [os.MkdirAll] with the rule of [Open]; nothing is synced.
func MkdirAll(path string, perm os.FileMode) error {
	if os.Geteuid() == 0 {
		if parent := filepath.Dir(path); parent != path {
			if _, err := os.Stat(path); err == nil {
				return os.MkdirAll(path, perm) // tells what is no directory
			}
			if err := MkdirAll(parent, perm); err != nil {
				return err
			}
			if err := Mkdir(path, perm); err != nil && !os.IsExist(err) {
				return err
			}
		}
	}
	return os.MkdirAll(path, perm)
}

// underAnother reports whether the rule holds for what is made at path.
func underAnother(path string) bool {
	if os.Geteuid() != 0 {
		return false
	}
	info, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return false // whoever makes the file is told why
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Uid != 0
}

// openParent opens the directory that path is in and says to whom it belongs.
func openParent(path string) (fd int, owner unix.Stat_t, err error) {
	fd, err = openAt(unix.AT_FDCWD, filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, owner, err
	}
	if err := unix.Fstat(fd, &owner); err != nil {
		unix.Close(fd)
		return -1, owner, err
	}
	return fd, owner, nil
}

func openAt(dir int, name string, flag int, perm uint32) (fd int, err error) {
	for {
		fd, err = unix.Openat(dir, name, flag|unix.O_CLOEXEC, perm)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// giveDir gives the directory that was just made. Whoever owns the one above can have put another of root's in its place
// meanwhile; an empty one has nothing that they could not make themselves.
func giveDir(parent int, name string, owner unix.Stat_t) error {
	fd, err := openAt(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(fd), name)
	defer dir.Close()
	var made unix.Stat_t
	if err := unix.Fstat(fd, &made); err != nil {
		return err
	}
	if made.Uid != 0 || made.Dev != owner.Dev {
		return nil
	}
	if names, _ := dir.Readdirnames(1); len(names) > 0 {
		return nil
	}
	return give(fd, owner)
}

// give makes what fd has open the owner's. Root without that privilege, as in some containers, keeps it: refusing the
// write would help nobody.
func give(fd int, owner unix.Stat_t) error {
	if owner.Uid == 0 {
		return nil
	}
	err := unix.Fchown(fd, int(owner.Uid), int(owner.Gid))
	if err == unix.EPERM || err == unix.EINVAL {
		return nil
	}
	return err
}

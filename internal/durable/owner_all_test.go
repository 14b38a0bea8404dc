//go:build all

package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

const stranger = 4321

func owner(t *testing.T, path string) uint32 {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	if stat.Uid != stat.Gid {
		t.Errorf("%s belongs to user %d and group %d", path, stat.Uid, stat.Gid)
	}
	return stat.Uid
}

// Root makes files for the owner of the directory, and for itself in one of its own.
func TestWhatRootMakesBelongsToTheDirectorysOwner(t *testing.T) {
	for _, uid := range []uint32{0, stranger} {
		dir := t.TempDir()
		if err := os.Chown(dir, int(uid), int(uid)); err != nil {
			t.Fatal(err)
		}
		in := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
		var disk FS
		plain := func(path string, flag int) func() error {
			return func() error {
				f, err := disk.OpenFile("x", path, flag, 0o600)
				if err == nil {
					err = f.Close()
				}
				return err
			}
		}
		for _, step := range []struct {
			path string
			make func() error
		}{
			{in("written"), func() error { return disk.WriteFile("x", in("written"), []byte("a"), 0o640) }},
			{in("exclusive"), func() error { return disk.CreateExclusive("x", in("exclusive"), []byte("a"), 0o600) }},
			{in("a"), func() error { return disk.MkdirAll("x", in("a", "b"), 0o700) }},
			{in("a", "b"), func() error { return nil }},
			{in("a", "b", "below"), plain(in("a", "b", "below"), os.O_RDWR|os.O_CREATE)},
			{in("a", "b", "below"), plain(in("a", "b", "below"), os.O_RDWR|os.O_CREATE)},
			{in("a", "new"), plain(in("a", "new"), os.O_RDWR|os.O_CREATE|os.O_EXCL)},
			{in("c"), func() error { return MkdirAll(in("c", "d"), 0o700) }},
			{in("c", "d"), func() error { return nil }},
			{in("fd"), func() error {
				fd, err := OpenFD(in("fd"), os.O_RDWR|os.O_CREATE, 0o600)
				if err != nil {
					return err
				}
				return syscall.Close(fd)
			}},
		} {
			if err := step.make(); err != nil {
				t.Fatal(err)
			}
			if got := owner(t, step.path); got != uid {
				t.Errorf("in a directory of %d, %s belongs to %d", uid, step.path, got)
			}
		}
		if err := plain(in("a", "new"), os.O_RDWR|os.O_CREATE|os.O_EXCL)(); !errors.Is(err, fs.ErrExist) {
			t.Errorf("a file that is there: %v", err)
		}
	}
}

// A link that the owner of the directory has put there gives them nothing.
func TestNoLinkGivesRootsFilesAway(t *testing.T) {
	dir, roots := t.TempDir(), t.TempDir()
	if err := os.Chown(dir, stranger, stranger); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(roots, "made")
	for name, to := range map[string]string{"file": target, "dir": roots} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if f, err := Open(filepath.Join(dir, "file"), os.O_RDWR|os.O_CREATE, 0o600); err == nil {
		f.Close()
		t.Error("a file was made through a dangling link")
	}
	if _, err := os.Lstat(target); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the link's target: %v", err)
	}
	f, err := Open(filepath.Join(dir, "dir", "in"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if got := owner(t, filepath.Join(roots, "in")); got != 0 {
		t.Errorf("a file in root's directory belongs to %d", got)
	}
	if err := Mkdir(filepath.Join(dir, "dir"), 0o700); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a directory in the place of a link: %v", err)
	}
	if got := owner(t, roots); got != 0 {
		t.Errorf("root's directory belongs to %d", got)
	}
}

package durable

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Hook is called before a step with the operation's name, extended by the step (for example
// "payload.rename"), and the path that the step touches. An error that it returns fails the step
// instead of running it. A [*Partial] given to a write lets some of the bytes through first.
type Hook func(op, path string) error

// Partial is an injected failure of a write that came after N bytes had been written, as a full
// disk gives.
type Partial struct {
	N   int
	Err error
}

func (p *Partial) Error() string { return fmt.Sprintf("after %d bytes: %v", p.N, p.Err) }

// Unwrap returns the error that the write ended with.
func (p *Partial) Unwrap() error { return p.Err }

// FS is the file system. The zero value is the real one without a hook.
type FS struct {
	Hook Hook
}

// Before reports the injected error of one step, nil when there is none. Packages with steps of
// their own (a lock, a log) call it so that a test reaches those as well.
func (f FS) Before(op, path string) error {
	if f.Hook == nil {
		return nil
	}
	if err := f.Hook(op, path); err != nil {
		return &fs.PathError{Op: op, Path: path, Err: err}
	}
	return nil
}

// MkdirAll makes dir and the parents that it lacks with perm, each of them synced together with
// its own parent. A directory that exists keeps its mode.
func (f FS) MkdirAll(op, dir string, perm os.FileMode) error {
	made, err := f.mkdirAll(op, dir, perm)
	if err == nil && made {
		err = f.SyncDir(op, dir)
	}
	return err
}

// mkdirAll is MkdirAll but for the sync of dir itself. A parent that was made is synced only once, when
// it has the name of the directory below it: that sync is of the parent itself as well. Before that
// directory is made the name of its parent is durable, so that no directory is there whose way could be lost.
func (f FS) mkdirAll(op, dir string, perm os.FileMode) (made bool, err error) {
	info, err := os.Stat(dir)
	if err == nil {
		if !info.IsDir() {
			return false, &fs.PathError{Op: op, Path: dir, Err: syscall.ENOTDIR}
		}
		return false, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if _, err := f.mkdirAll(op, parent, perm); err != nil {
			return false, err
		}
	}
	if err := f.Before(op+".mkdir", dir); err != nil {
		return false, err
	}
	if err := Mkdir(dir, perm); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	return true, f.SyncDir(op, parent)
}

// WriteFile puts data at path with perm, in place of what was there: a temporary file with a name
// of its own, fsync, rename, fsync of the directory. After an error before the rename the old file
// is untouched; after a failed fsync of the directory the new one is in place but may not survive
// a crash.
func (f FS) WriteFile(op, path string, data []byte, perm os.FileMode) error {
	temp, err := f.complete(op, path, data, perm)
	if err != nil {
		return err
	}
	if err := f.Before(op+".rename", path); err != nil {
		os.Remove(temp)
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		os.Remove(temp)
		return err
	}
	return f.SyncDir(op, filepath.Dir(path))
}

// Rewrite is WriteFile over a file that is there, whose mode and owner stay as they are. unless, when it is not nil, is asked last
// whether to: its error leaves the old file.
func (f FS) Rewrite(op, path string, data []byte, unless func() error) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	temp, err := f.complete(op, path, data, info.Mode().Perm())
	if err != nil {
		return err
	}
	err = keepOwner(temp, info)
	if err == nil && unless != nil {
		err = unless()
	}
	if err == nil {
		err = f.Before(op+".rename", path)
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		os.Remove(temp)
		return err
	}
	return f.SyncDir(op, filepath.Dir(path))
}

// keepOwner gives a new file to whom another belongs.
func keepOwner(path string, other fs.FileInfo) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	is, ok := info.Sys().(*syscall.Stat_t)
	want, ok2 := other.Sys().(*syscall.Stat_t)
	if !ok || !ok2 || is.Uid == want.Uid && is.Gid == want.Gid {
		return nil
	}
	return os.Lchown(path, int(want.Uid), int(want.Gid))
}

// CreateExclusive puts data at path only when nothing is there, else it fails with an error that
// is [fs.ErrExist]. Nobody ever sees an incomplete file: a synced temporary file is put in place
// with link(2).
func (f FS) CreateExclusive(op, path string, data []byte, perm os.FileMode) error {
	temp, err := f.complete(op, path, data, perm)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	if err := f.Before(op+".link", path); err != nil {
		return err
	}
	if err := os.Link(temp, path); err != nil {
		return err
	}
	return f.SyncDir(op, filepath.Dir(path))
}

// SyncDir makes the names in dir durable.
func (f FS) SyncDir(op, dir string) error {
	if err := f.Before(op+".syncdir", dir); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// complete writes a synced temporary file beside path and returns its name. It removes what it
// made when it fails, so that retries on a full disk leave nothing behind.
func (f FS) complete(op, path string, data []byte, perm os.FileMode) (_ string, err error) {
	temp := TempName(path)
	file, err := f.OpenFile(op, temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return "", err
	}
	defer func() {
		if cerr := file.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			os.Remove(temp)
		}
	}()
	if _, err := file.Extend(data, 0); err != nil {
		return "", err
	}
	size, err := file.size()
	if err != nil {
		return "", err
	}
	if size != int64(len(data)) {
		return "", &fs.PathError{Op: "write", Path: temp, Err: fmt.Errorf("%w: the file has %d bytes, and %d were written", io.ErrShortWrite, size, len(data))}
	}
	// The umask may have taken bits off; the mode asked for is part of the promise.
	if err := file.Chmod(perm); err != nil {
		return "", err
	}
	return temp, file.Sync()
}

// TempName returns a name beside path that no other process uses: hidden, with 8 random bytes.
func TempName(path string) string {
	var random [8]byte
	rand.Read(random[:])
	dir, base := filepath.Split(path)
	return filepath.Join(dir, "."+base+".tmp-"+hex.EncodeToString(random[:]))
}

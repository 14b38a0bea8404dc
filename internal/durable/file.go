package durable

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// File is an open file whose writes, syncs and truncations go through the hook of the [FS] that
// opened it, under the operation's name and ".write", ".sync" and ".truncate".
type File struct {
	*os.File
	fs FS
	op string
}

// OpenFile is [os.OpenFile]; the descriptor is closed on exec.
func (f FS) OpenFile(op, path string, flag int, perm os.FileMode) (*File, error) {
	if err := f.Before(op+".open", path); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, flag, perm)
	if err != nil {
		return nil, err
	}
	return &File{File: file, fs: f, op: op}, nil
}

// Adopt puts an open file under the hook. The descriptor stays the caller's to close.
func (f FS) Adopt(op string, file *os.File) *File { return &File{File: file, fs: f, op: op} }

// Write makes one write(2) call in the ordinary case and returns how many bytes the file has
// taken: with an error, or fewer than asked, the caller must judge what is in the file.
func (f *File) Write(data []byte) (int, error) {
	if err := f.fs.Before(f.op+".write", f.Name()); err != nil {
		if partial, ok := errors.AsType[*Partial](err); ok {
			n, werr := f.File.Write(data[:min(partial.N, len(data))])
			if werr != nil {
				return n, werr
			}
			return n, err
		}
		return 0, err
	}
	n, err := f.File.Write(data)
	if err == nil && n < len(data) {
		err = io.ErrShortWrite
	}
	return n, err
}

// Sync makes the file's bytes and its length durable (fdatasync). A failure is final: the kernel
// may have dropped the bytes, so a second call that succeeds proves nothing.
func (f *File) Sync() error {
	if err := f.fs.Before(f.op+".sync", f.Name()); err != nil {
		return err
	}
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if err == nil {
			return nil
		}
		if err != syscall.EINTR {
			return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
	}
}

// Truncate cuts the file at size bytes.
func (f *File) Truncate(size int64) error {
	if err := f.fs.Before(f.op+".truncate", f.Name()); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

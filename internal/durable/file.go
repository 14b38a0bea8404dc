package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
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

// OpenFile is [Open]; the descriptor is closed on exec.
func (f FS) OpenFile(op, path string, flag int, perm os.FileMode) (*File, error) {
	if err := f.Before(op+".open", path); err != nil {
		return nil, err
	}
	file, err := Open(path, flag, perm)
	if err != nil {
		return nil, err
	}
	return &File{File: file, fs: f, op: op}, nil
}

// Adopt puts an open file under the hook. The descriptor stays the caller's to close.
func (f FS) Adopt(op string, file *os.File) *File { return &File{File: file, fs: f, op: op} }

// Write makes one write(2) call and returns how many bytes the file has taken, as the system tells.
// Fewer than asked are [io.ErrShortWrite]: the rest is not tried, since a disk that is in trouble may
// tell of bytes that it has not taken, and what came behind them would be damage. See [File.Extend].
func (f *File) Write(data []byte) (int, error) {
	if err := f.fs.Before(f.op+".write", f.Name()); err != nil {
		if partial, ok := errors.AsType[*Partial](err); ok {
			n, werr := f.write(data[:min(partial.N, len(data))])
			if werr != nil {
				return n, werr
			}
			return n, err
		}
		return 0, err
	}
	return f.write(data)
}

func (f *File) write(data []byte) (int, error) {
	return f.once("write", len(data), func() (int, error) { return syscall.Write(int(f.Fd()), data) })
}

// WriteAt makes one pwrite(2) call, as Write does one write(2).
func (f *File) WriteAt(data []byte, at int64) (int, error) {
	return f.once("write", len(data), func() (int, error) { return syscall.Pwrite(int(f.Fd()), data, at) })
}

// once makes one call that is to write want bytes.
func (f *File) once(op string, want int, call func() (int, error)) (int, error) {
	n, err := call()
	for err == syscall.EINTR {
		n, err = call()
	}
	n = min(max(n, 0), want)
	if err == nil && n < want {
		err = io.ErrShortWrite
	}
	if err != nil {
		err = &fs.PathError{Op: op, Path: f.Name(), Err: err}
	}
	return n, err
}

// Extend writes all of data behind the end of the file, which is at the byte end. A write that takes
// only some of it is gone on with when the file has grown by just as much: on a full disk the next call
// has the reason. It returns how many bytes the system says that it has taken.
func (f *File) Extend(data []byte, end int64) (n int, err error) {
	for {
		took, err := f.Write(data[n:])
		n += took
		if !errors.Is(err, io.ErrShortWrite) || took == 0 {
			return n, err
		}
		size, serr := f.size()
		if serr != nil {
			return n, serr
		}
		if size != end+int64(n) {
			return n, &fs.PathError{Op: "write", Path: f.Name(), Err: fmt.Errorf(
				"%w: of %d bytes the system has taken %d, it says, and the file has %d bytes instead of %d", io.ErrShortWrite, len(data), n, size, end+int64(n))}
		}
	}
}

func (f *File) size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
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

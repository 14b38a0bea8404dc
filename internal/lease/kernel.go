package lease

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// errBusy: another open file description holds the kernel lock.
var errBusy = errors.New("the kernel lock is held")

// kernelLock is the flock that decides. It lives as long as its descriptor,
// which no child inherits.
type kernelLock struct {
	fd int
	id fileID
}

// unlinked reports whether the locked file has no name any more. Without one
// nobody else can find it.
func (k *kernelLock) unlinked() bool {
	var st unix.Stat_t
	return unix.Fstat(k.fd, &st) == nil && st.Nlink == 0
}

func (k *kernelLock) close() { unix.Close(k.fd) }

// lockKernel takes the kernel lock at once or says errBusy. flock follows the
// inode and not the name, so a lock counts only when the path still names the
// locked file afterwards.
func (t *taker) lockKernel() (*kernelLock, error) {
	for range rounds {
		fd, id, err := t.openLock()
		if err != nil {
			return nil, err
		}
		err = t.flock(fd)
		if err == unix.EBADF {
			// Some network file systems want a descriptor of their own making.
			unix.Close(fd)
			if fd, id, err = t.openLock(); err != nil {
				return nil, err
			}
			err = t.flock(fd)
		}
		switch err {
		case nil:
		case unix.EWOULDBLOCK:
			unix.Close(fd)
			return nil, errBusy
		default:
			unix.Close(fd)
			return nil, t.noLock(err)
		}
		if now, err := t.sys.identify(t.flockPath); err == nil && now.sameFile(id) {
			return &kernelLock{fd: fd, id: id}, nil
		}
		unix.Close(fd)
	}
	refusal := unavailable(t.flockPath, "the lock file is replaced again and again", "find out what removes it", nil)
	refusal.passing = true
	return nil, refusal
}

func (t *taker) openLock() (fd int, id fileID, err error) {
	const flags = unix.O_RDWR | unix.O_CREAT | unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK
	err = retry(func() (err error) {
		fd, err = t.sys.open(t.flockPath, flags, 0o600)
		return err
	})
	if err != nil {
		return -1, fileID{}, unavailable(t.flockPath, "the lock file cannot be opened", hintAt(t.flockPath, err), err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, fileID{}, unavailable(t.flockPath, "the lock file cannot be examined", hintFor(err), err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return -1, fileID{}, unavailable(t.flockPath, "the lock file is not a regular file", "move it away", nil)
	}
	return fd, idOf(&st), nil
}

func (t *taker) flock(fd int) error {
	return retry(func() error { return t.sys.flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
}

// noLock is the refusal for a lock call that failed other than by being busy.
func (t *taker) noLock(err error) error {
	kind := "a file system of unknown type"
	if fs, ferr := t.sys.filesystem(t.daemonDir); ferr == nil {
		kind = "the file system (" + fs.name + ")"
	}
	return unavailable(t.flockPath, kind+" gives no lock", "put the gate's home on a local disk", err)
}

// waitKernel waits until the kernel lock is this process's or ctx ends.
//
// flock(2) itself would wait as well, but nothing can call a thread back from
// it. So the descriptor stays open, the lock is asked for without waiting, and
// inotify tells when the holder's descriptor is closed, which is what the
// kernel does to a process however it ends. A slow tick stands in for file
// systems that do not tell.
func (t *taker) waitKernel(ctx context.Context) (*kernelLock, error) {
	n, err := newNotifier(t.sys, "")
	if err != nil {
		t.report(Event{Kind: WatchDegraded, Path: t.flockPath, Text: "no inotify, so the standby looks only now and then: " + err.Error()})
		n = &notifier{}
	}
	defer n.close()
	tick := time.NewTicker(watchPeriod)
	defer tick.Stop()
	for {
		k, err := t.waitOn(ctx, n, tick.C)
		if k != nil || err != nil {
			return k, err
		}
	}
}

// waitOn waits on the file that the path names now; nil, nil when the path
// came to name another one.
func (t *taker) waitOn(ctx context.Context, n *notifier, tick <-chan time.Time) (*kernelLock, error) {
	fd, id, err := t.openLock()
	if err != nil {
		return nil, err
	}
	keep := false
	defer func() {
		if !keep {
			unix.Close(fd)
		}
	}()
	n.add(t.flockPath, unix.IN_CLOSE_WRITE|unix.IN_ATTRIB|unix.IN_MOVE_SELF|unix.IN_DELETE_SELF)
	for {
		err := t.flockSoon(ctx, fd)
		if err != nil && err != errBusy {
			return nil, err
		}
		now, ierr := t.sys.identify(t.flockPath)
		if ierr != nil || !now.sameFile(id) {
			return nil, nil
		}
		if err == nil {
			keep = true
			return &kernelLock{fd: fd, id: id}, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-n.C:
		case err := <-n.broken:
			return nil, err
		case <-tick:
		}
	}
}

// flockSoon asks for the lock a few times within some ten milliseconds: the
// kernel tells of a closed descriptor just before it drops its lock.
func (t *taker) flockSoon(ctx context.Context, fd int) error {
	for pause := 100 * time.Microsecond; ; pause *= 2 {
		switch err := t.flock(fd); {
		case err == nil:
			return nil
		case err != unix.EWOULDBLOCK:
			return t.noLock(err)
		case pause > 10*time.Millisecond:
			return errBusy
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// sleep waits for d unless ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

func hintFor(err error) string {
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return "give the gate's user write permission there"
	case errors.Is(err, unix.EROFS):
		return "mount the file system writable or move the gate's home"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "free some space"
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return "raise the limit of open files"
	case errors.Is(err, unix.ELOOP):
		return "it is a symbolic link: move it away"
	default:
		return "check the directory and its file system"
	}
}

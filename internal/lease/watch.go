package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/rescue"
)

const (
	// watchPeriod is how often a holder looks whether or not it was told
	// anything: well within the promised second.
	watchPeriod = 500 * time.Millisecond
	dirEvents   = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_MODIFY |
		unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
	homeEvents = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
)

// watcher calls Check whenever something happens to the lease's files.
type watcher struct {
	once sync.Once
	quit chan struct{}
	done sync.WaitGroup
}

func (w *watcher) start(l *Lease) {
	w.quit = make(chan struct{})
	n, err := newNotifier(l.t.sys, "telegram-transport.")
	if err != nil {
		l.t.report(Event{Kind: WatchDegraded, Path: l.t.daemonDir,
			Text: fmt.Sprintf("no inotify, so the lease is checked every %v only: %v; %s", watchPeriod, err, l.t.daemonDir)})
		n = &notifier{}
	}
	w.done.Go(func() {
		defer n.close()
		rescue.Go("lease watch", l.fail, func() { w.look(l, n) })
	})
}

// look goes on until the lease is lost or released.
func (w *watcher) look(l *Lease, n *notifier) {
	tick := time.NewTicker(watchPeriod)
	defer tick.Stop()
	for {
		// Again each time: a directory that was made anew is another one.
		n.add(l.t.daemonDir, dirEvents)
		n.add(l.t.home, homeEvents|unix.IN_ONLYDIR)
		if l.Check() != nil {
			return
		}
		select {
		case <-w.quit:
			return
		case <-n.C:
		case err := <-n.broken:
			l.fail(err)
			return
		case <-tick.C:
		}
	}
}

// stop ends the watch and returns when it has ended.
func (w *watcher) stop() {
	w.once.Do(func() { close(w.quit) })
	w.done.Wait()
}

// intact reports whether the paths still name the locked file and the own
// record. l.mu is held.
func (l *Lease) intact() bool {
	lock, err := l.t.sys.identify(l.t.flockPath)
	if err != nil || !lock.sameFile(l.kernel.id) {
		return false
	}
	id, err := l.t.sys.identify(l.t.recordPath)
	if err != nil {
		return false
	}
	if id == l.seen {
		return true
	}
	o, err := observe(l.t.recordPath)
	if err != nil || !o.ours(l.rec) {
		return false
	}
	l.seen = o.id
	return true
}

// settle decides what a disturbed lease is: put back when the paths are free,
// lost in every other case. l.mu is held, so nobody sends meanwhile.
func (l *Lease) settle() error {
	what, err := l.retake()
	if err != nil {
		err = l.lossOf(err)
		l.lose(err)
		l.t.report(Event{Kind: Lost, Path: l.t.recordPath, Text: err.Error()})
		return err
	}
	if what != "" {
		l.t.report(Event{Kind: Retaken, Path: l.t.recordPath,
			Text: fmt.Sprintf("%s; took the lease again, in the same epoch; %s", what, l.t.recordPath)})
	}
	return nil
}

// lose ends the lease. l.mu is held.
func (l *Lease) lose(err error) {
	l.err = err
	close(l.lost)
}

// fail ends the lease because its watch has failed: a holder that does not look is none.
func (l *Lease) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.lose(err)
	}
}

// lossOf is the refusal that ends the process: exit 11, whoever has the lease.
func (l *Lease) lossOf(err error) error {
	var u *UnavailableError
	if errors.As(err, &u) {
		cause := ErrLost
		if u.Err != nil {
			cause = &lossError{u.Err}
		}
		return unavailable(u.Path, "lease lost: "+u.Reason, u.Hint, cause)
	}
	return unavailable(l.t.recordPath, "lease lost: "+err.Error(), "see approvald lease", ErrLost)
}

// retake puts back what is missing while nobody else has taken its place, and
// says what was missing. It comes round again when somebody is still at work
// on the files. l.mu is held.
func (l *Lease) retake() (what string, err error) {
	for round := range rounds {
		if round > 0 {
			time.Sleep(rereadPause)
		}
		var missing string
		missing, err = l.putBack()
		what = join(what, missing)
		if err == nil && l.intact() {
			return what, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errMoved) && !errors.Is(err, errSectionBusy) {
			return "", err
		}
	}
	if err == nil {
		err = errors.New("its files keep changing")
	}
	return "", err
}

// join tells two things that happened as one.
func join(a, b string) string {
	if a == "" || b == "" || a == b {
		return cmp.Or(a, b)
	}
	return a + " and " + b
}

// putBack is one round of retake.
func (l *Lease) putBack() (what string, err error) {
	if err := l.samePlace(); err != nil {
		return "", err
	}
	lock, err := l.t.sys.identify(l.t.flockPath)
	if err != nil || !lock.sameFile(l.kernel.id) {
		if err := l.relock(); err != nil {
			return "", err
		}
		what = "the lock file was removed or replaced"
	}
	o, err := l.t.read(context.Background())
	switch {
	case err != nil:
		return what, err
	case !o.present:
		err = l.t.fs.CreateExclusive("lease.record", l.t.recordPath, l.rec.encode(), 0o600)
		if errors.Is(err, fs.ErrExist) {
			return what, errMoved
		}
		if err != nil {
			return what, unavailable(l.t.recordPath, "the record is gone and cannot be made again", hintFor(err), err)
		}
		return join(what, "the record was removed"), nil
	case o.torn:
		if err := l.t.takeOver(context.Background(), l.kernel, o, l.rec.encode()); err != nil {
			return what, err
		}
		return join(what, "the record was damaged"), nil
	case o.ours(l.rec):
		l.seen = o.id
		return what, nil
	default:
		return what, fmt.Errorf("it is held by another process now: %s", o.rec.public().describe())
	}
}

// samePlace refuses when the gate's directory is not the one that it was: the
// log and the journal went with it. A daemon directory that was deleted whole
// is made again.
func (l *Lease) samePlace() error {
	home, err := l.t.sys.identify(l.t.home)
	if err != nil || !home.sameFile(l.homeID) {
		return unavailable(l.t.home, "the gate's directory was moved, removed or replaced", "put it back and start again", nil)
	}
	dir, err := l.t.sys.identify(l.t.daemonDir)
	if err == nil && dir.sameFile(l.dirID) {
		return nil
	}
	if !l.kernel.unlinked() {
		return unavailable(l.t.daemonDir, "the directory was moved or replaced", "put it back and start again", nil)
	}
	if err := l.t.makeDir(); err != nil {
		return unavailable(l.t.daemonDir, "the directory is gone and cannot be made again", hintFor(err), err)
	}
	if l.dirID, err = l.t.sys.identify(l.t.daemonDir); err != nil {
		return unavailable(l.t.daemonDir, "the directory cannot be examined", hintFor(err), err)
	}
	return nil
}

// relock takes the kernel lock on the file that the path names now. The old
// one is dropped only when the new one is held.
func (l *Lease) relock() error {
	k, err := l.t.lockKernel()
	if errors.Is(err, errBusy) {
		return unavailable(l.t.flockPath, "the lock file was replaced and another process has locked the new one", "see "+filepath.Base(l.t.recordPath), nil)
	}
	if err != nil {
		return err
	}
	l.forget()
	l.kernel.close()
	l.kernel = k
	held.Lock()
	held.by[k.id.key()] = l
	held.Unlock()
	return nil
}

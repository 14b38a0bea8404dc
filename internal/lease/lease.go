package lease

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Lease is the gate's lease while it is held. Its methods may be called from
// several goroutines.
type Lease struct {
	t      *taker
	reason string
	lost   chan struct{}
	watch  watcher

	mu     sync.Mutex
	kernel *kernelLock // nil once given up
	rec    record
	seen   fileID // the record as it was last known to be ours
	homeID fileID
	dirID  fileID
	err    error
}

// held are the leases of this process, for Options.Again. The key is the
// locked file.
var held = struct {
	sync.Mutex
	by map[[2]uint64]*Lease
}{by: map[[2]uint64]*Lease{}}

func (id fileID) key() [2]uint64 { return [2]uint64{id.dev, id.ino} }

func newLease(t *taker, k *kernelLock, reason string) (*Lease, error) {
	l := &Lease{t: t, reason: reason, lost: make(chan struct{}), kernel: k, rec: t.rec}
	if err := l.settleDown(); err != nil {
		return nil, err
	}
	l.watch.start(l)
	held.Lock()
	defer held.Unlock()
	held.by[k.id.key()] = l
	return l, nil
}

// settleDown notes what the paths name now, and that the record is this one.
func (l *Lease) settleDown() error {
	o, err := observe(l.t.recordPath)
	if err != nil {
		return l.t.unreadable(err)
	}
	if !o.ours(l.rec) {
		return unavailable(l.t.recordPath, "the record was replaced while it was made", "see which process it names", nil)
	}
	l.seen = o.id
	if l.homeID, err = l.t.sys.identify(l.t.home); err == nil {
		l.dirID, err = l.t.sys.identify(l.t.daemonDir)
	}
	if err != nil {
		return unavailable(l.t.daemonDir, "the directory cannot be examined", hintFor(err), err)
	}
	return nil
}

// Check returns nil while the lease is held. Call it before every send and
// every append: it costs two lstat calls. When something is amiss it decides
// what before it returns, and all other callers wait with it, so nothing is
// sent in doubt. An error is final; it wraps ErrLost or ErrReleased.
func (l *Lease) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	if l.intact() {
		return nil
	}
	return l.settle()
}

// Lost is closed when the lease is lost while held; not by Release.
func (l *Lease) Lost() <-chan struct{} { return l.lost }

// Err returns nil while the lease is held as far as is known, else what Check
// returns. It looks at nothing.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Holder returns what the record says.
func (l *Lease) Holder() Holder {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rec.public()
}

// Takeover returns why the record before could be reclaimed (one of the Reason
// constants); ok is false when the gate was free.
func (l *Lease) Takeover() (reason string, ok bool) { return l.reason, l.reason != "" }

// EpochBefore returns the epoch of the holder whose record was reclaimed, 0 when
// there was none or it opened none.
func (l *Lease) EpochBefore() int64 { return l.t.epochBefore }

// Filesystem returns the name of the home's file system and whether the lease
// may reach this host only.
func (l *Lease) Filesystem() (name string, hostOnly bool) {
	return l.t.filesystem.name, l.t.filesystem.remote
}

// SetEpoch writes the epoch's number, which the journal gives, into the
// record. The record is rewritten whole and only while it is this lease's.
func (l *Lease) SetEpoch(epoch int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	if !l.intact() {
		if err := l.settle(); err != nil {
			return err
		}
	}
	next := l.rec
	owner := *l.rec.Holder
	owner.Epoch = epoch
	next.Holder = &owner
	return l.rewrite(next)
}

// rewrite replaces the own record. l.mu is held.
func (l *Lease) rewrite(next record) error {
	for range rounds {
		o, err := observe(l.t.recordPath)
		if err != nil {
			return l.t.unreadable(err)
		}
		if o.ours(l.rec) {
			err = l.t.replace(o, next.encode(), func() bool { return true })
			if err == nil {
				l.rec = next
				if l.intact() {
					return nil
				}
			} else if !errors.Is(err, errMoved) {
				return err
			}
		}
		if err := l.settle(); err != nil {
			return err
		}
	}
	return unavailable(l.t.recordPath, "the record keeps changing", "find out what writes it", nil)
}

// Release gives the lease up: the watch ends first, then the record goes, but
// only while it still names this lease, and the kernel lock last. Calling it
// again does nothing. An error says that the record could not be removed; the
// lease is given up in any case.
func (l *Lease) Release() error {
	l.watch.stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kernel == nil {
		return nil
	}
	var failed error
	o, err := observe(l.t.recordPath)
	if err == nil && o.ours(l.rec) {
		_, err = removeExact(l.t.recordPath, o.data)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		failed = unavailable(l.t.recordPath, "the record could not be removed", "move it away if the next start is refused because of it", err)
	}
	if l.err == nil {
		l.err = ErrReleased
	}
	l.giveUp()
	return failed
}

// giveUp closes the kernel lock. l.mu is held.
func (l *Lease) giveUp() {
	l.forget()
	l.kernel.close()
	l.kernel = nil
}

func (l *Lease) forget() {
	held.Lock()
	defer held.Unlock()
	if held.by[l.kernel.id.key()] == l {
		delete(held.by, l.kernel.id.key())
	}
}

// again takes the lease that this same process holds already: the record is
// rewritten whole under a new nonce and the kernel lock changes hands without
// being dropped. nil, nil when the process holds none.
func (t *taker) again() (*Lease, error) {
	id, err := t.sys.identify(t.flockPath)
	if err != nil {
		return nil, nil
	}
	held.Lock()
	old := held.by[id.key()]
	held.Unlock()
	if old == nil {
		return nil, nil
	}
	old.watch.stop()
	old.mu.Lock()
	defer old.mu.Unlock()
	if old.err != nil || old.kernel == nil {
		return nil, nil
	}
	t.rec.Holder.Epoch = old.rec.Holder.Epoch
	k := old.kernel
	before := old.rec
	if err := old.rewrite(t.rec); err != nil {
		return nil, err
	}
	old.rec = before
	old.lose(fmt.Errorf("%w: taken again by another part of this process", ErrLost))
	old.forget()
	old.kernel = nil
	l, err := newLease(t, k, "")
	if err != nil {
		k.close()
	}
	return l, err
}

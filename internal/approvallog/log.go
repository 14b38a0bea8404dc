package approvallog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/approvald/approvald/internal/durable"
	"github.com/approvald/approvald/internal/procid"
)

// Folder keeps a state that follows from the records.
type Folder interface {
	// Apply is given every record exactly once and in order. An error means that the folder cannot
	// follow this log, and ends the use of the handle.
	Apply(Record) error
}

// Options say which log to open and with what.
type Options struct {
	// Path of the log's file.
	Path string
	// Fold is fed with every record; nil when only the chain matters.
	Fold Folder
	// Guard is asked inside the append lock, before anything is decided. Its error refuses the
	// append and is returned as it is. Nil allows.
	Guard func() error
	// Snapshot is the path of the snapshot of an [Indexed] fold, whose directory also holds the index
	// files. Opening takes the fold up from it and checks only what follows; [Log.WriteSnapshot]
	// writes it. Empty for none.
	Snapshot string
	// ReadDamaged opens a damaged log for reading up to the damage, which [Log.Damage] then tells.
	// Appends stay refused.
	ReadDamaged bool
	// Now is the clock for time stamps; nil is time.Now.
	Now func() time.Time
	// LockWait is how long to wait for the append lock; 0 is 2 seconds.
	LockWait time.Duration
	// FS carries the hook of tests.
	FS durable.FS
	// Prober judges the holder of a leftover lock; the zero value asks the real /proc.
	Prober procid.Prober
	// Program is what the lock record says of its maker; empty is "approvald".
	Program string
	// Took is told how long each append (OpAppend: from asking for the lock to the record being on the disk, the calls of a batch as
	// one) and each fsync of it (OpSync) took, failed ones included. Nil is nobody.
	Took func(op string, took time.Duration)
	// Logf reports what a person should know although it fails nothing: a quarantined tail, a lock
	// taken over. Nil drops it.
	Logf func(format string, args ...any)
}

// What [Options.Took] is told of.
const (
	OpAppend = "append"
	OpSync   = "fsync"
)

func (o *Options) took(op string, began time.Time) {
	if o.Took != nil {
		o.Took(op, time.Since(began))
	}
}

// indexStep is how many records apart the places are that a Log remembers for its readers.
const indexStep = 1024

// Log is a handle of one log. Its methods may be called from any goroutine, but none of them from
// within a decider or a View of the same log.
type Log struct {
	opts Options

	// mu guards the fold and all that follows from what was read. It is held for writing from the
	// moment a batch is decided until it is on the disk, so that nobody sees what is not durable.
	mu       sync.RWMutex
	file     *os.File      // for reading; nil while the log does not exist
	identity os.FileInfo   // of file: its device and inode
	appender *durable.File // for appending; opened by the first append
	at       place         // all before was read and folded
	tail     *tail         // behind it, as of the last look; nil when nothing is there
	index    []place       // every indexStep records, for readers
	damage   *CorruptError
	poison   error
	closed   bool
	snap     snapshots

	segments []archivedSegment // those before this one
	base     int64             // how many records they hold
	unlinked *CorruptError     // why the archive is not what this log goes on from

	text  []byte      // room for what the leader of a batch reads and writes; nothing of it is kept
	lock  *appendLock // used by the leader of a batch only
	calls callQueue
	watch watcher
}

// Open opens the log at o.Path: it verifies every record and feeds it to o.Fold. A file that does
// not exist is an empty log on a fresh home, and damage where other files of a gate show that
// there was one; so is a log that ends before a record that they name. Opening changes nothing on
// the disk; bytes of an unfinished record at the end ([Log.Torn]) wait for the next append.
//
// A damaged log is a [*CorruptError], unless o.ReadDamaged is set.
func Open(o Options) (*Log, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.LockWait == 0 {
		o.LockWait = defaultLockWait
	}
	if o.Program == "" {
		o.Program = "approvald"
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	l := &Log{opts: o}
	l.lock = &appendLock{path: o.Path + ".lock", wait: o.LockWait, fs: o.FS, prober: o.Prober, prog: o.Program, logf: o.Logf}
	l.lock.queue.path = o.Path + ".queue"
	l.watch.path = o.Path
	l.attach()
	l.mu.Lock()
	err := l.read()
	l.mu.Unlock()
	if corrupt, ok := errors.AsType[*CorruptError](err); ok && o.ReadDamaged {
		l.damage, err = corrupt, nil
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// read reads the log for the first time, and makes sure that nothing was cut off it since the home's
// other files named its records. Called with l.mu held.
func (l *Log) read() error {
	known, err := evidenceFor(l.opts.Path)
	if err == nil {
		err = l.resume()
	}
	if err == nil {
		err = l.catchUp(context.Background())
	}
	if err != nil {
		return err
	}
	if cut := known.behind(l.opts.Path, l.base+l.at.head.Seq); cut != nil {
		return l.damaged(cut)
	}
	if payloads := filepath.Join(homeOf(l.opts.Path), "payloads"); l.file != nil && l.base+l.at.head.Seq == 0 && isLog(l.opts.Path) && hasEntries(payloads) {
		// A first request that failed half-way leaves the same, so this proves nothing.
		l.opts.Logf("log %s is empty, and %s is not: if this gate has had requests before, its log was lost; put it back from a copy", l.opts.Path, payloads)
	}
	return nil
}

// Close lets go of the files. Calls that are running or waiting fail with [ErrClosed] or end first.
func (l *Log) Close() error {
	l.calls.lead()
	defer l.calls.handOver()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	l.lock.close()
	l.watch.close()
	if l.snap.finder != nil {
		l.snap.finder.close()
	}
	var err error
	if l.file != nil {
		err = l.file.Close()
	}
	if l.appender != nil {
		err = errors.Join(err, l.appender.Close())
	}
	return err
}

// Head returns the head of what this handle has read.
func (l *Log) Head() Head {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.at.head
}

// Last is the number of the last record that this handle has read, counted over all segments.
func (l *Log) Last() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.base + l.at.head.Seq
}

// Torn reports whether the log ended in an unfinished record when this handle last looked. While
// another process appends that may be a record that is being written.
func (l *Log) Torn() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.tail != nil
}

// Damage returns the [*CorruptError] that this handle has met, nil when none.
func (l *Log) Damage() error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.damage == nil {
		return nil
	}
	return l.damage
}

// Refresh reads what others have appended into the fold, without a lock. A record that is being
// written is not there yet. What is read may not be on the disk yet: see [Log.Sync].
func (l *Log) Refresh(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.catchUp(ctx)
}

// View runs read while the fold stands still and all that it holds of this handle's own records is
// on the disk. It fails without running read when that cannot be said any more: with [ErrPoisoned]
// or [ErrClosed]. When it fails after read, the fold could not find all that read asked for, and what
// read was told does not count.
func (l *Log) View(read func()) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if err := l.usable(); err != nil {
		return err
	}
	read()
	return l.usable()
}

// Sync makes everything that this handle has read durable. A process calls it before it acts on a
// record that another one wrote: that one may have been killed between its write and its fsync.
func (l *Log) Sync() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if l.file == nil {
		return nil
	}
	if err := l.syncFile(); err != nil {
		return l.poisoned("fsync", err)
	}
	return nil
}

func (l *Log) syncFile() error {
	if l.appender != nil {
		return l.appender.Sync()
	}
	return l.opts.FS.Adopt("append", l.file).Sync()
}

// usable says why the handle cannot be used any more.
func (l *Log) usable() error {
	switch {
	case l.closed:
		return ErrClosed
	case l.poison != nil:
		return l.poison
	case l.snap.finder != nil:
		return l.snap.finder.failed()
	}
	return nil
}

// poisoned ends the use of the handle.
func (l *Log) poisoned(what string, err error) error {
	l.poison = fmt.Errorf("%w: %s of %s failed: %w; nothing of it counts as recorded. "+
		"Look after the disk, then start again: the file is read anew", ErrPoisoned, what, l.opts.Path, err)
	return l.poison
}

// damaged ends every append and keeps the first damage found.
func (l *Log) damaged(err *CorruptError) error {
	l.damage = err
	return err
}

// catchUp reads what the file holds beyond l.at. Called with l.mu held.
func (l *Log) catchUp(ctx context.Context) error {
	if err := l.usable(); err != nil {
		return err
	}
	if l.damage != nil {
		return l.damage
	}
	size, err := l.inspect()
	for errors.Is(err, errOtherFile) {
		if err = l.nextSegment(ctx); err == nil {
			size, err = l.inspect()
		}
	}
	if err != nil || l.file == nil {
		return err
	}
	if err := l.readTo(ctx, size); err != nil {
		return err
	}
	if l.unlinked != nil {
		return l.damaged(l.unlinked)
	}
	return nil
}

// readTo reads what the open file holds beyond l.at, up to size.
func (l *Log) readTo(ctx context.Context, size int64) error {
	if size == l.at.offset {
		l.tail = nil
		return nil
	}
	w := &walk{src: l.file, size: size, path: l.opts.Path, records: true, lend: l.snap.fold != nil, at: l.at}
	w.at.lastLine = bytes.Clone(l.at.lastLine)
	w.each = func(seg *segment) error { return l.fold(w, seg) }
	err := w.run(ctx)
	l.at, l.tail = w.at, w.tail
	if corrupt, ok := errors.AsType[*CorruptError](err); ok {
		return l.damaged(corrupt)
	}
	return err
}

// fold feeds a segment's records to the fold. A record that it does not take ends the use of the
// handle: the fold is between two records for ever.
func (l *Log) fold(w *walk, seg *segment) error {
	for i := range seg.records {
		r := &seg.records[i] // the segment's own, which nobody else has yet
		if (r.Seq-1)%indexStep == 0 {
			before := place{offset: r.offset, line: w.at.line + int64(i), head: Head{Seq: r.Seq - 1, Hash: r.Prev}}
			l.index = append(l.index, before)
		}
		*r = r.above(l.base)
		if err := l.apply(r); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) apply(r *Record) error {
	if l.opts.Fold == nil {
		return nil
	}
	if err := l.opts.Fold.Apply(*r); err != nil {
		if l.snap.finder != nil && l.snap.finder.failed() != nil {
			return l.snap.finder.failed() // it could not look up what it needs
		}
		return l.unfollowed(r, err)
	}
	if l.snap.finder == nil {
		return nil
	}
	l.snap.finder.add(r)
	return l.snap.finder.failed()
}

// unfollowed ends the use of the handle at a record that the fold did not take. No write has failed: the record tells of something that
// is not there, as of an archive that was lost, or is none that could have been written.
func (l *Log) unfollowed(r *Record, err error) error {
	corrupt := &CorruptError{
		Path: l.opts.Path, Reason: ReasonUnfollowed, Line: r.Seq - l.base, Offset: r.offset, Seq: r.Seq - l.base, Detail: err.Error(),
	}
	if l.unlinked != nil {
		corrupt = l.unlinked
	}
	l.poison = corrupt
	return l.damaged(corrupt)
}

// inspect makes sure that the path still names the file that was read, grown or not, and returns
// its size. It opens a file that has come to be since.
func (l *Log) inspect() (int64, error) {
	info, err := os.Stat(l.opts.Path)
	if errors.Is(err, fs.ErrNotExist) {
		if l.file != nil {
			return 0, l.drifted(ReasonLogMissing, "the file was renamed or removed; move it back")
		}
		return l.missing()
	}
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, l.drifted(ReasonNotRegular, "the path is not a regular file")
	}
	if l.file == nil {
		if err := l.openFile(); err != nil {
			return 0, err
		}
		info = l.identity // the path may name another file by now
	}
	if !os.SameFile(info, l.identity) {
		return 0, errOtherFile
	}
	if info.Size() < l.at.offset {
		return 0, l.drifted(ReasonLogTruncated, fmt.Sprintf("the file has %d bytes, and had %d before", info.Size(), l.at.offset))
	}
	return info.Size(), nil
}

// openFile opens the file for reading and notes which one it is.
func (l *Log) openFile() error {
	file, err := os.Open(l.opts.Path)
	if err != nil {
		return err
	}
	identity, err := file.Stat()
	if err != nil {
		file.Close()
		return err
	}
	l.file, l.identity = file, identity
	return l.openArchive()
}

// errOtherFile: the path names another file than the one that was read. Either the log was cut, or
// somebody has put another file in its place.
var errOtherFile = errors.New("another file stands in the log's place")

// drifted makes the error of a file that is not what was read. It is not kept as damage: an operator
// who moves the file back has mended it.
func (l *Log) drifted(reason Reason, detail string) error {
	return &CorruptError{Path: l.opts.Path, Reason: reason, Detail: detail}
}

// missing tells a fresh home, which has an empty log, from one whose log is gone: files that are only
// ever made after the log show that there was one.
func (l *Log) missing() (int64, error) {
	found := otherState(l.opts.Path)
	if found == "" {
		return 0, nil
	}
	if _, err := os.Stat(l.opts.Path); err == nil {
		return l.inspect() // both were made since the first look
	}
	return 0, l.drifted(ReasonLogMissing, fmt.Sprintf("the file does not exist, but %s does: this gate had a log. Put it back from a copy", found))
}

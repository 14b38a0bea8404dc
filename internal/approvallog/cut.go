package approvallog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/approvald/approvald/internal/durable"
)

// ErrNothingToArchive: the log holds no record that a cut would take off it.
var ErrNothingToArchive = errors.New("there is nothing to archive")

// A Cut says what is done while a log is cut.
type Cut struct {
	// Close appends what the segment has to hold before it is sealed. Its error leaves the log as it
	// is. Nil appends nothing.
	Close func(*Tx) error
	// Carry gives, behind the segment's last record, the records that the next segment begins with
	// ([Requests.CarryOver]), or refuses the cut with its error. Nil carries nothing.
	Carry func() ([]Draft, error)
	// Recent are the times of [Requests.Recent], at the same moment.
	Recent func() map[string][]time.Time
	// Announce records elsewhere what is about to be sealed, durably, before it is. Its error leaves
	// the log as it is.
	Announce func(Seal) error
}

// Cut takes all records off the log and begins a new segment. In this order, inside the append lock:
//
//  1. what Close appends is written, and the whole segment synced;
//  2. what cuts that were not finished have left behind is removed;
//  3. archive/STAMP is made, the log's file linked into it, and its seal written beside it;
//  4. the new segment, with the records that are carried over, is written to a file of its own;
//  5. Announce;
//  6. that file is renamed over the log: the commit;
//  7. the name is synced, then the archived file made read-only.
//
// A process that dies before 6 leaves the log as it was, beside things that nobody reads and the next
// cut removes. One that dies after it leaves the new segment, and the next append does 7. Other
// processes notice the new file when they next look, and go on with it.
//
// It returns [ErrNothingToArchive] when everything would be carried. An error after the commit poisons
// the handle.
func (l *Log) Cut(ctx context.Context, c Cut) (Seal, error) {
	select {
	case <-l.calls.leadership():
	case <-ctx.Done():
		return Seal{}, context.Cause(ctx)
	}
	defer l.calls.handOver()
	if err := l.Refresh(ctx); err != nil {
		return Seal{}, err
	}
	if l.Head().Seq == 0 {
		return Seal{}, ErrNothingToArchive
	}
	if err := l.lockForAppend(ctx); err != nil {
		return Seal{}, err
	}
	l.mu.Lock()
	seal, err := l.cut(context.WithoutCancel(ctx), c)
	l.mu.Unlock()
	if rerr := l.lock.release(); rerr != nil {
		l.opts.Logf("%v", rerr)
	}
	l.watch.notify()
	return seal, err
}

// cut is Cut inside the append lock and l.mu.
func (l *Log) cut(ctx context.Context, c Cut) (Seal, error) {
	if err := l.closeSegment(ctx, c); err != nil {
		return Seal{}, err
	}
	if l.at.head.Seq == 0 {
		return Seal{}, ErrNothingToArchive
	}
	var carry []Draft
	if c.Carry != nil {
		var err error
		if carry, err = c.Carry(); err != nil {
			return Seal{}, err
		}
	}
	if int64(len(carry)) == l.at.head.Seq {
		return Seal{}, ErrNothingToArchive
	}
	if err := l.sweepArchive(); err != nil {
		return Seal{}, fmt.Errorf("remove what an unfinished cut has left: %w", err)
	}
	s, err := l.prepareSegment(c)
	var next string
	if err == nil {
		next, err = l.prepareNext(s, carry)
	}
	if err == nil && c.Announce != nil {
		err = c.Announce(s.Seal)
	}
	if err == nil {
		err = l.lock.held()
	}
	if err == nil {
		err = l.replaceWith(next)
	}
	if err != nil {
		if serr := l.sweepArchive(); serr != nil {
			l.opts.Logf("what was prepared for the archive could not be removed again; the next log archive does: %v", serr)
		}
		return Seal{}, fmt.Errorf("archive %s: nothing was changed: %w", l.opts.Path, err)
	}
	if err := l.opts.FS.SyncDir("archive.commit", filepath.Dir(l.opts.Path)); err != nil {
		return s.Seal, fmt.Errorf("the log was cut, but the disk may not have noted it: %w", l.poisoned("fsync after the cut", err))
	}
	if err := s.protect(l); err != nil {
		return s.Seal, err
	}
	return s.Seal, l.catchUp(ctx)
}

// replaceWith renames the new segment over the log. Only an error that left the log in its place is one:
// what the system says of a rename that was done does not undo it.
func (l *Log) replaceWith(next string) error {
	if err := l.opts.FS.Before("archive.rename", l.opts.Path); err != nil {
		return err
	}
	err := os.Rename(next, l.opts.Path)
	if err == nil {
		return nil
	}
	if info, serr := os.Stat(l.opts.Path); serr != nil || os.SameFile(info, l.identity) {
		return err
	}
	return nil
}

// closeSegment brings the segment to its end: whole, with what Close appends, and on the disk.
func (l *Log) closeSegment(ctx context.Context, c Cut) error {
	own := &call{decide: func(*Tx) error { return nil }}
	if c.Close != nil {
		own.decide = c.Close
	}
	if err := l.runBatch(ctx, []*call{own}); err != nil {
		return err
	}
	if own.panicked != nil {
		panic(own.panicked)
	}
	if own.err != nil || l.at.head.Seq == 0 {
		return own.err
	}
	if err := l.readyToWrite(); err != nil {
		return err
	}
	if l.at.noLF {
		if err := l.addLF(); err != nil {
			return err
		}
	}
	return l.commit()
}

// addLF ends the last record with the LF that it lacks.
func (l *Log) addLF() error {
	n, err := l.appender.Extend([]byte{'\n'}, l.at.offset)
	if err != nil {
		return l.rollback(l.at.offset, n, err)
	}
	l.at.offset++
	l.at.noLF = false
	return nil
}

// prepareSegment puts the log's file into a directory of the archive, under a second name, and its
// seal beside it. Nobody takes it for a segment while the log's first record is the same.
func (l *Log) prepareSegment(c Cut) (archivedSegment, error) {
	first, err := firstHash(l.file)
	if err != nil {
		return archivedSegment{}, err
	}
	s := archivedSegment{sealed: sealed{Seal: Seal{
		V: 1, Number: int64(len(l.segments)) + 1, Base: l.base, First: first, Head: l.at.head, Bytes: l.at.offset, Follows: l.follows(),
	}}}
	if c.Recent != nil {
		s.Recent = c.Recent()
	}
	if fold, ok := l.opts.Fold.(segmented); ok {
		s.Epoch = fold.Epoch()
	}
	root := archivePath(l.opts.Path)
	if err := l.opts.FS.MkdirAll("archive", root, 0o700); err != nil {
		return s, err
	}
	stamp := l.opts.Now().UTC().Format("20060102T150405.000Z")
	for n := 1; ; n++ {
		s.Segment = stamp
		if n > 1 {
			s.Segment = fmt.Sprintf("%s-%d", stamp, n) // the clock stepped back, or has stood still
		}
		s.dir = filepath.Join(root, s.Segment)
		if err := l.opts.FS.Before("archive.mkdir", s.dir); err != nil {
			return s, err
		}
		err := durable.Mkdir(s.dir, 0o700)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrExist) {
			return s, err
		}
	}
	if err := l.opts.FS.Before("archive.link", s.path()); err != nil {
		return s, err
	}
	if err := os.Link(l.opts.Path, s.path()); err != nil {
		return s, err
	}
	text, err := json.MarshalIndent(s.sealed, "", "  ")
	if err != nil {
		return s, err
	}
	if err := l.opts.FS.WriteFile("archive.seal", filepath.Join(s.dir, sealFile), append(text, '\n'), segmentMode); err != nil {
		return s, err
	}
	return s, l.opts.FS.SyncDir("archive", root)
}

// nextSuffix follows the log's name in the temporary name of the segment that is to take its place.
const nextSuffix = ".next"

// prepareNext writes the segment that follows s, which begins with the records carry, and returns its
// file's name.
func (l *Log) prepareNext(s archivedSegment, carry []Draft) (string, error) {
	text, err := carriedText(s, carry)
	if err != nil {
		return "", err
	}
	name := durable.TempName(l.opts.Path + nextSuffix)
	f, err := l.opts.FS.OpenFile("archive.next", name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	if len(text) > 0 {
		_, err = f.Extend(text, 0)
	}
	if err == nil {
		err = likeFile(f.File, l.identity)
	}
	if err == nil {
		err = f.Sync()
	}
	return name, errors.Join(err, f.Close())
}

// likeFile gives a new file the mode of the one that it takes the place of, and its owner where the
// process may do that: other writers of the gate go on writing.
func likeFile(f *os.File, old os.FileInfo) error {
	if stat, ok := old.Sys().(*syscall.Stat_t); ok && os.Geteuid() == 0 {
		if err := f.Chown(int(stat.Uid), int(stat.Gid)); err != nil {
			return err
		}
	}
	return f.Chmod(old.Mode().Perm())
}

// carriedText is what a segment begins with that the records are carried over to.
func carriedText(s archivedSegment, carry []Draft) ([]byte, error) {
	tx := &Tx{base: s.end(), follows: &s.Head}
	var text []byte
	for _, d := range carry {
		r, err := tx.Append(d)
		if err != nil {
			return nil, err
		}
		text = append(append(text, r.Raw...), '\n')
	}
	return text, nil
}

// sweepArchive removes what cuts that were not committed have left behind: directories whose records
// are the log's own file under a second name, and prepared files of a next segment. A directory that
// holds a copy instead, as in a home that was restored from a backup, is moved to the quarantine.
func (l *Log) sweepArchive() error {
	dir, base := filepath.Split(l.opts.Path)
	prepared, err := filepath.Glob(escapeGlob(dir+"."+base+nextSuffix) + ".*")
	if err != nil {
		return err
	}
	for _, name := range prepared {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	root := archivePath(l.opts.Path)
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		if !e.IsDir() || slices.ContainsFunc(l.segments, func(s archivedSegment) bool { return s.dir == dir }) {
			continue
		}
		if err := l.undo(dir); err != nil {
			return err
		}
	}
	return nil
}

// undo removes the directory of a cut that was not committed.
func (l *Log) undo(dir string) error {
	info, err := os.Stat(filepath.Join(dir, segmentFile))
	switch {
	case err == nil && os.SameFile(info, l.identity), errors.Is(err, fs.ErrNotExist):
		// The seal goes first, so that no directory ever has a seal without records.
		if err := l.opts.FS.Before("archive.undo", dir); err != nil {
			return err
		}
		if err := os.Remove(filepath.Join(dir, sealFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return os.RemoveAll(dir)
	case err != nil:
		return err
	}
	kept := filepath.Join(filepath.Dir(l.opts.Path), "quarantine", "archive-"+filepath.Base(dir))
	if err := l.opts.FS.MkdirAll("quarantine", filepath.Dir(kept), 0o700); err != nil {
		return err
	}
	l.opts.Logf("%s is no segment of this log; it is kept in %s", dir, kept)
	return os.Rename(dir, kept)
}

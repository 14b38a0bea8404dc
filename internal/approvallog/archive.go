package approvallog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// openArchive finds the segments that stand before the file that was just opened. One that is not
// there, or not the one that the log goes on from, is damage of the log as a whole: what it holds
// can be read, and nothing may be appended while an archived request could be taken for a new one.
// Called with l.mu held.
func (l *Log) openArchive() error {
	var err error
	l.segments, l.base, err = segmentsBefore(l.opts.Path, l.file)
	l.attach()
	if err == nil {
		err = l.checkFollows()
	}
	return l.noteUnlinked(err)
}

// segmentsBefore finds the segments that the log in file goes on from, and how many records they hold.
// When they do not follow one another, they come with the error.
func segmentsBefore(path string, file *os.File) ([]archivedSegment, int64, error) {
	all, err := readArchive(path)
	if err != nil {
		return nil, 0, err
	}
	segments, err := cutBefore(all, file)
	if err != nil || len(segments) == 0 {
		return nil, 0, err
	}
	return segments, segments[len(segments)-1].end(), linked(segments)
}

// noteUnlinked keeps what is wrong with the archive until the log has been read.
func (l *Log) noteUnlinked(err error) error {
	corrupt, ok := err.(*CorruptError)
	if !ok {
		return err
	}
	l.unlinked = corrupt
	return nil
}

// follows is the head of the segment before this one, nil in the first.
func (l *Log) follows() *Head {
	if n := len(l.segments); n > 0 {
		return &l.segments[n-1].Head
	}
	return nil
}

// checkFollows compares what the log's first record says that it follows with the archive.
func (l *Log) checkFollows() error {
	raw, err := firstLine(l.file)
	if err != nil {
		return err
	}
	return followsClaim(l.opts.Path, raw, l.follows())
}

// followsClaim makes sure that the first record of the log at path, when it names the segment that it
// follows, names the one that ends with head (nil for none). A record of another writer may name none.
func followsClaim(path string, first []byte, head *Head) error {
	var c lineChecker
	if first == nil || c.check(first) != nil {
		return nil // nothing is there, or what is there is judged as a record
	}
	claim := claimOf(c.record(first, 0))
	if claim == nil || sameHead(claim, head) {
		return nil
	}
	where := archivePath(path)
	if _, err := os.Stat(where); errors.Is(err, fs.ErrNotExist) {
		where += " (the directory is not there)"
	}
	return &CorruptError{
		Path: path, Reason: ReasonArchiveMissing, Line: 1, Seq: 1,
		Detail: fmt.Sprintf("the log goes on from the record %d:%s, and no segment of its archive ends there; put the segment back into %s from a copy", claim.Seq, claim.Hash, where),
	}
}

// claimOf is the head of the segment that a first record says it follows, nil when it says nothing.
func claimOf(r Record) *Head {
	var claim followed
	if !membersOf(r.Payload).own.follows.object(&claim) {
		return nil
	}
	return &Head{Seq: claim.Seq, Hash: claim.Digest}
}

// nextSegment goes over from a log that was cut to the one that follows it: it reads what was not read
// yet of the file that it has open, which stands in the archive now, and lets go of it. It fails with
// [ReasonLogReplaced] when the file is not in the archive: then the log was not cut. Called with l.mu
// held.
func (l *Log) nextSegment(ctx context.Context) error {
	replaced := l.drifted(ReasonLogReplaced, "another file stands in its place; move the original back. A log is never rotated, see: approvald log archive")
	all, err := readArchive(l.opts.Path)
	if err != nil {
		return err
	}
	first, err := firstHash(l.file)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(s archivedSegment) bool { return s.is(l.identity, first) })
	if i < 0 {
		return replaced
	}
	s := all[i]
	info, err := os.Stat(s.path())
	if err != nil || !os.SameFile(info, l.identity) || s.Base != l.base {
		return replaced
	}
	if err := l.readTo(ctx, s.Bytes); err != nil {
		return err
	}
	if l.at.head != s.Head || l.at.offset != s.Bytes {
		return l.damaged(s.altered(fmt.Sprintf("it was sealed at record %d, byte %d, and was read up to record %d, byte %d",
			s.Head.Seq, s.Bytes, l.at.head.Seq, l.at.offset)).(*CorruptError))
	}
	return l.leave()
}

// leave lets go of a segment that was read to its end. The fold begins anew when the next file is opened.
func (l *Log) leave() error {
	err := l.file.Close()
	if l.appender != nil {
		err = l.appender.Close()
	}
	if err != nil {
		return err
	}
	l.file, l.identity, l.appender = nil, nil, nil
	l.at, l.tail, l.index = place{}, nil, nil
	return nil
}

// altered makes the error of a segment that is not what its seal says.
func (s archivedSegment) altered(detail string) error {
	return &CorruptError{Path: s.path(), Reason: ReasonArchiveAltered, Detail: detail}
}

// finishCut does what the process that cut the log may not have come to: it makes the new file's name
// durable, before anything in it is answered for, and only then takes the archived file's write
// permission away, which says that this was done. Called inside the append lock.
func (l *Log) finishCut() error {
	if len(l.segments) == 0 {
		return nil
	}
	last := l.segments[len(l.segments)-1]
	info, err := os.Stat(last.path())
	if err != nil || info.Mode().Perm() == segmentMode {
		return err
	}
	if err := l.opts.FS.SyncDir("archive.commit", filepath.Dir(l.opts.Path)); err != nil {
		return err
	}
	return last.protect(l)
}

func (s archivedSegment) protect(l *Log) error {
	err := l.opts.FS.Before("archive.protect", s.path())
	if err == nil {
		err = os.Chmod(s.path(), segmentMode)
	}
	if err != nil {
		// The mode only guards against accidents, and the file may be somebody else's.
		l.opts.Logf("archived log %s could not be made read-only: %v", s.path(), err)
	}
	return nil
}

package approvallog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/approvald/approvald/internal/durable"
)

// segmentIndex is the index of an archived segment, beside it. It can be made again.
const segmentIndex = "index"

// archived finds records in an archived segment, which it opens when it is first asked. Its methods may
// be called from any goroutine.
type archived struct {
	archivedSegment
	fold Indexed

	mu   sync.Mutex
	open *Segment  // by the index on the disk
	file *os.File  // without it: the records, and
	mem  *memIndex // the index made of them
}

// find gives the records of the hash for which mine is true, oldest first.
func (a *archived) find(hash uint64, mine func(Record) bool) ([]Record, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	records, err := a.lookup(hash, mine)
	var misled *misread
	if errors.As(err, &misled) || errors.Is(err, errIndexDamaged) {
		a.closeFiles()
		if err = a.scan(); err == nil {
			records, err = a.lookup(hash, mine)
		}
	}
	if err != nil {
		return nil, a.trouble(err)
	}
	for i := range records {
		records[i] = records[i].above(a.Base)
	}
	return records, nil
}

func (a *archived) lookup(hash uint64, mine func(Record) bool) ([]Record, error) {
	if a.open == nil && a.mem == nil {
		if err := a.openFiles(); err != nil {
			return nil, err
		}
	}
	if a.open != nil {
		return a.open.find(hash, mine)
	}
	all, err := readRecords(a.file, a.mem.lookup(hash, nil))
	records := all[:0]
	for _, r := range all {
		if mine(r) {
			records = append(records, r)
		}
	}
	return records, err
}

// openFiles opens the segment by its index, else it reads all of it.
func (a *archived) openFiles() error {
	s, err := OpenSegment(a.path(), filepath.Join(a.dir, segmentIndex))
	if err != nil {
		return a.scan()
	}
	if s.Head() != a.Head || s.index.to.offset != a.Bytes {
		s.Close()
		return a.scan()
	}
	a.open = s
	return nil
}

// scan makes an index in memory by reading the segment, and finds out whether it is what its seal says.
func (a *archived) scan() error {
	file, err := openLog(a.path())
	if err != nil {
		return err
	}
	mem := &memIndex{}
	err = a.check(context.Background(), file, func(seg *segment) error {
		for _, r := range seg.records {
			a.fold.Index(r, func(key string, _ bool) { mem.add(makeEntry(key, r.offset, false)) })
		}
		return nil
	})
	if err != nil {
		file.Close()
		return err
	}
	a.file, a.mem = file, mem
	return nil
}

// trouble names the segment in an error, and calls one that is not there damage of the log.
func (s archivedSegment) trouble(err error) error {
	if err == nil || errors.Is(err, ErrCorrupt) {
		return err
	}
	if errors.Is(err, fs.ErrNotExist) {
		return &CorruptError{Path: s.path(), Reason: ReasonArchiveMissing, Detail: "the archived records are not there"}
	}
	if m, ok := errors.AsType[*misread](err); ok {
		return s.altered(m.Error())
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return s.altered(fmt.Sprintf("it has fewer bytes than the %d that its seal says", s.Bytes))
	}
	return fmt.Errorf("archived log %s: %w", s.path(), err)
}

func (a *archived) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closeFiles()
}

func (a *archived) closeFiles() {
	if a.open != nil {
		a.open.Close()
	}
	if a.file != nil {
		a.file.Close()
	}
	a.open, a.file, a.mem = nil, nil, nil
}

// check verifies the segment in file against its seal, and tells its records.
func (s archivedSegment) check(ctx context.Context, file io.ReaderAt, each func(*segment) error) error {
	w := &walk{src: file, size: s.Bytes, path: s.path(), records: true, each: each}
	if err := w.run(ctx); err != nil {
		return err
	}
	return s.compare(w)
}

// walk is check of the segment where it stands.
func (s archivedSegment) walk(ctx context.Context, each func(*segment) error) error {
	file, err := openLog(s.path())
	if err != nil {
		return s.trouble(err)
	}
	defer file.Close()
	return s.trouble(s.check(ctx, file, each))
}

// compare compares what was read of the segment with its seal.
func (s archivedSegment) compare(w *walk) error {
	if w.at.head != s.Head || w.at.offset != s.Bytes || w.tail != nil || w.at.noLF {
		return s.altered(fmt.Sprintf("its seal says that it ends with record %d:%s at byte %d; it ends with record %d:%s at byte %d",
			s.Head.Seq, s.Head.Hash, s.Bytes, w.at.head.Seq, w.at.head.Hash, w.at.offset))
	}
	return nil
}

// IndexArchive makes the index of an archived segment, by which its requests are found without reading
// all of it. Without one they are found all the same.
func IndexArchive(ctx context.Context, files durable.FS, logPath string, s Seal, fold Indexed) error {
	dir := filepath.Join(archivePath(logPath), s.Segment)
	return BuildIndex(ctx, files, filepath.Join(dir, segmentFile), filepath.Join(dir, segmentIndex), fold)
}

package approvallog

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/approvald/approvald/internal/durable"
)

// BuildIndex makes the index of a log file that changes no more, an archived one, under the keys that
// fold's Index names. The file at indexPath is complete and synced, with its name, when BuildIndex
// returns without an error.
//
// A damaged or torn log is a [*CorruptError] or [ErrTorn].
func BuildIndex(ctx context.Context, fs durable.FS, logPath, indexPath string, fold Indexed) error {
	f, err := openLog(logPath)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	mem := &memIndex{}
	w := &walk{src: f, size: info.Size(), path: logPath, records: true, lend: true}
	w.each = func(seg *segment) error {
		for _, r := range seg.records {
			fold.Index(r, func(key string, _ bool) { mem.add(makeEntry(key, r.offset, false)) })
		}
		return nil
	}
	if err := w.run(ctx); err != nil {
		return err
	}
	if w.tail != nil {
		return fmt.Errorf("index %s: %w", logPath, ErrTorn)
	}
	end := mark{offset: w.at.offset, head: w.at.head}
	if w.at.noLF {
		end.offset = w.size
	}
	return writeIndex(fs, indexPath, newIndexID(), mark{}, end, mem.all())
}

// Segment is a log file that changes no more, with its index. Its methods may be called from any
// goroutine.
type Segment struct {
	path  string
	file  *os.File
	index *indexFile
}

// OpenSegment opens a log file with the index that [BuildIndex] made of it. An index that is missing,
// damaged or of another file is an error; make it again then.
func OpenSegment(logPath, indexPath string) (*Segment, error) {
	x, err := openIndex(indexPath)
	if err != nil {
		return nil, err
	}
	f, err := openLog(logPath)
	if err != nil {
		x.close()
		return nil, err
	}
	s := &Segment{path: logPath, file: f, index: x}
	if err := s.bound(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// bound makes sure that the index is that of this very file, by its end.
func (s *Segment) bound() error {
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	if size := info.Size(); size != s.index.to.offset || s.index.from != (mark{}) {
		return fmt.Errorf("%w: it is that of another file than %s", errIndexDamaged, s.path)
	}
	if s.index.to.head.Seq == 0 {
		return nil
	}
	start, err := lastLineStart(s.file, s.index.to.offset)
	if err != nil {
		return err
	}
	var c lineChecker
	last, err := readRecord(s.file, start, &c)
	if err != nil || last.Head() != s.index.to.head {
		return errors.Join(fmt.Errorf("%w: it is that of another file than %s", errIndexDamaged, s.path), err)
	}
	return nil
}

// Head is that of the segment's last record.
func (s *Segment) Head() Head { return s.index.to.head }

// Close lets go of the files.
func (s *Segment) Close() error {
	s.index.close()
	return s.file.Close()
}

// Find returns the records of the key, oldest first: those for which mine is true.
func (s *Segment) Find(key string, mine func(Record) bool) ([]Record, error) {
	return s.find(keyHash(key), mine)
}

func (s *Segment) find(hash uint64, mine func(Record) bool) ([]Record, error) {
	entries, err := s.index.lookup(hash, nil)
	if err != nil {
		return nil, fmt.Errorf("index of %s: %w", s.path, err)
	}
	all, err := readRecords(s.file, entries)
	if err != nil {
		return nil, fmt.Errorf("log %s: %w", s.path, err)
	}
	records := all[:0]
	for _, r := range all {
		if mine(r) {
			records = append(records, r)
		}
	}
	return records, nil
}

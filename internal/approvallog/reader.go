package approvallog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
)

// Reader gives the records of a log one after the other, at the pace of its caller. It never runs
// ahead of the log's fold: a record that Next returned has been folded. One goroutine uses it.
type Reader struct {
	log   *Log
	after int64
	base  int64 // of the segment that is being read
	at    place // in that segment
	ready []Record
}

// NewReader returns a reader of the records after the number afterSeq, which counts the records of
// all segments. It goes through archived segments where it has to.
func (l *Log) NewReader(afterSeq int64) *Reader {
	l.mu.RLock()
	defer l.mu.RUnlock()
	r := &Reader{log: l, after: afterSeq, base: l.base}
	if afterSeq < l.base {
		for _, s := range l.segments {
			if afterSeq < s.end() {
				r.base = s.Base
				return r
			}
		}
	}
	after := afterSeq - l.base
	if after >= l.at.head.Seq {
		r.at = l.at
		r.at.lastLine = nil
		return r
	}
	n := sort.Search(len(l.index), func(i int) bool { return l.index[i].head.Seq > after })
	if n > 0 {
		r.at = l.index[n-1]
	}
	if l.file != nil {
		r.at = nearer(l.file, r.at, l.at.offset, after)
	}
	return r
}

// nearer finds, by halving, a place before the record that follows after: not more than about 64 KiB before it, where from
// is further away. What does not read like a log is left to the walk that begins there.
func nearer(src io.ReaderAt, from place, end, after int64) place {
	if after-from.head.Seq <= 4*indexStep {
		return from
	}
	var c lineChecker
	for low, high := from.offset, end; high-low > 64<<10; {
		middle := low + (high-low)/2
		offset, raw, err := lineFrom(src, middle, high)
		if err != nil || raw == nil {
			high = middle // only the rest of a long line
			continue
		}
		if c.check(raw) != nil {
			return from
		}
		if rec := c.record(raw, offset); rec.Seq <= after+1 {
			low = offset
			from = place{offset: offset, line: rec.Seq - 1, head: Head{Seq: rec.Seq - 1, Hash: rec.Prev}}
		} else {
			high = middle
		}
	}
	return from
}

// lineFrom reads the first whole line that begins behind offset and ends before end; nil for none.
func lineFrom(src io.ReaderAt, offset, end int64) (int64, []byte, error) {
	for size := int64(8 << 10); ; size *= 8 {
		size = min(size, end-offset)
		b := make([]byte, size)
		if err := readFull(src, b, offset); err != nil {
			return 0, nil, err
		}
		if at := bytes.IndexByte(b, '\n') + 1; at > 0 {
			if n := bytes.IndexByte(b[at:], '\n'); n >= 0 {
				return offset + int64(at), b[at : at+n : at+n], nil
			}
		}
		if size == end-offset {
			return 0, nil, nil
		}
	}
}

// Next returns the next record, [io.EOF] at the present end. After more was appended it goes on
// from there. A damaged log gives what stands before the damage, then the [*CorruptError].
func (r *Reader) Next() (Record, error) {
	for {
		for len(r.ready) > 0 {
			next := r.ready[0]
			r.ready = r.ready[1:]
			if next.Seq > r.after {
				r.after = next.Seq
				return next, nil
			}
		}
		more, err := r.fill()
		if err != nil {
			return Record{}, err
		}
		if more {
			continue
		}
		if err := r.log.Refresh(context.Background()); err != nil {
			return Record{}, err
		}
		if more, err = r.fill(); err != nil {
			return Record{}, err
		}
		if !more {
			return Record{}, io.EOF
		}
	}
}

// fill reads what the log has folded beyond the reader's place, at most about one segment of it.
func (r *Reader) fill() (bool, error) {
	l := r.log
	l.mu.RLock()
	base, end, noLF, file, err := l.base, l.at.offset, l.at.noLF, l.file, l.usable()
	segments := l.segments
	l.mu.RUnlock()
	if err != nil {
		return false, err
	}
	if r.base != base {
		return r.fillArchived(segments)
	}
	if r.at.offset == end && r.at.noLF == noLF {
		return false, nil
	}
	err = r.read(file, l.opts.Path, end)
	if errors.Is(err, os.ErrClosed) {
		l.mu.RLock()
		defer l.mu.RUnlock()
		if err := l.usable(); err != nil || l.base == base {
			return false, ErrClosed
		}
		return true, nil // the log was cut meanwhile: the file is in the archive now
	}
	return err == nil, err
}

// fillArchived reads on in the archived segment that the reader is in, and at its end goes over to
// the next one.
func (r *Reader) fillArchived(segments []archivedSegment) (bool, error) {
	i := slices.IndexFunc(segments, func(s archivedSegment) bool { return s.Base == r.base })
	if i < 0 {
		return false, fmt.Errorf("read on from record %d: no segment of the archive begins there", r.base+1)
	}
	s := segments[i]
	if r.at.offset >= s.Bytes {
		r.base, r.at = s.end(), place{}
		return true, nil
	}
	file, err := openLog(s.path())
	if err != nil {
		return false, err
	}
	defer file.Close()
	if r.at.offset == 0 && r.after > s.Base {
		r.at = nearer(file, r.at, s.Bytes, r.after-s.Base)
	}
	before := r.at.offset
	if err = r.read(file, s.path(), s.Bytes); err == nil && r.at.offset == before {
		err = s.altered("it has no whole record where its seal says that there is one")
	}
	return err == nil, err
}

// read reads about a megabyte of whole records on, from a file that has them up to end.
func (r *Reader) read(file io.ReaderAt, path string, end int64) error {
	w := &walk{src: file, size: end, path: path, records: true, at: r.at}
	w.each = func(seg *segment) error {
		for _, rec := range seg.records {
			r.ready = append(r.ready, rec.above(r.base))
		}
		return nil
	}
	var err error
	if end-r.at.offset <= segmentSize {
		err = w.run(context.Background())
	} else if err = w.resume(); err == nil {
		_, err = w.step(context.Background(), &segmenter{src: file, offset: w.at.offset, size: end})
	}
	if err == nil {
		r.at = w.at
	}
	return err
}

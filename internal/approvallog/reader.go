package approvallog

import (
	"context"
	"errors"
	"io"
	"os"
	"sort"
)

// Reader gives the records of a log one after the other, at the pace of its caller. It never runs
// ahead of the log's fold: a record that Next returned has been folded. One goroutine uses it.
type Reader struct {
	log   *Log
	after int64
	at    place
	ready []Record
}

// NewReader returns a reader of the records after the sequence number afterSeq.
func (l *Log) NewReader(afterSeq int64) *Reader {
	l.mu.RLock()
	defer l.mu.RUnlock()
	r := &Reader{log: l, after: afterSeq}
	if afterSeq >= l.at.head.Seq {
		r.at = l.at
		r.at.lastLine = nil
		return r
	}
	n := sort.Search(len(l.index), func(i int) bool { return l.index[i].head.Seq > afterSeq })
	if n > 0 {
		r.at = l.index[n-1]
	}
	return r
}

// Next returns the next record, [io.EOF] at the present end. After more was appended it goes on
// from there. A damaged log gives what stands before the damage, then the [*CorruptError].
func (r *Reader) Next() (Record, error) {
	for {
		for len(r.ready) > 0 {
			next := r.ready[0]
			r.ready = r.ready[1:]
			if next.Seq > r.after {
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
	end, noLF, file, err := l.at.offset, l.at.noLF, l.file, l.usable()
	l.mu.RUnlock()
	if err != nil || r.at.offset == end && r.at.noLF == noLF {
		return false, err
	}
	w := &walk{src: file, size: end, path: l.opts.Path, records: true, at: r.at}
	w.each = func(seg *segment) error {
		r.ready = append(r.ready, seg.records...)
		return nil
	}
	if end-r.at.offset <= segmentSize {
		err = w.run(context.Background())
	} else if err = w.resume(); err == nil {
		_, err = w.step(context.Background(), &segmenter{src: file, offset: w.at.offset, size: end})
	}
	if errors.Is(err, os.ErrClosed) {
		err = ErrClosed
	}
	if err != nil {
		return false, err
	}
	r.at = w.at
	return true, nil
}

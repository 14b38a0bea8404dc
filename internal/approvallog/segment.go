package approvallog

import (
	"bytes"
	"context"
	"io"
)

// segmentSize is about how much of a log one worker checks at a time.
const segmentSize = 1 << 20

// segment is a run of whole lines, checked by itself: lines are independent but for the chain,
// and the chain inside the run is checked here too. Only the joint to what stands before is left.
type segment struct {
	offset int64  // of data in the file
	data   []byte // whole lines with their LF

	count     int64 // sound and linked lines before bad
	first     link
	last      link
	lastLine  []byte // of the sound ones, part of data
	bad       *badLine
	records   []Record   // of the sound lines, when they are wanted
	backwards []stepBack // time stamps earlier than the one before
	firstTS   field
	lastTS    field
	headSeen  []byte // hash of the record with the wanted sequence number, when it is here

	done chan struct{}
}

// link is what the chain needs of a record. Its slices are parts of the record's line.
type link struct {
	seq  int64
	hash []byte
	prev []byte // empty in the first record
}

// badLine is the first line of a segment that is not sound, and where its data ends.
type badLine struct {
	fault
	offset int64 // in the file
	line   []byte
	seq    int64 // 0 when unknown
}

// stepBack is a record whose time stamp lies before that of the record before it.
type stepBack struct {
	index  int64 // of its line in the segment
	offset int64 // in the file
	seq    int64
}

// check checks the segment's lines. wantSeq is the sequence number whose hash is to be noted.
func (s *segment) check(c *lineChecker, wantRecords bool, wantSeq int64) {
	rest, offset := s.data, s.offset
	for len(rest) > 0 {
		end := bytes.IndexByte(rest, '\n')
		raw := rest[:end]
		if fault := s.checkLine(c, raw); fault != nil {
			s.bad = &badLine{fault: *fault, offset: offset, line: raw, seq: c.line.seq}
			return
		}
		l := &c.line
		if wantRecords {
			s.records = append(s.records, c.record(raw[:len(raw):len(raw)], offset))
		}
		if l.seq == wantSeq {
			s.headSeen = s.last.hash
		}
		if s.count == 0 {
			s.firstTS = l.ts
		} else if earlier(l.ts, s.lastTS) {
			s.backwards = append(s.backwards, stepBack{s.count, offset, l.seq})
		}
		s.lastTS = l.ts
		s.lastLine = raw
		s.count++
		rest = rest[end+1:]
		offset += int64(end) + 1
	}
}

// checkLine checks one line and its link to the line before it in the segment.
func (s *segment) checkLine(c *lineChecker, raw []byte) *fault {
	if len(raw) > maxLine {
		c.line = line{}
		return &fault{reason: ReasonMalformed, detail: "longer than a record can be"}
	}
	if fault := c.check(raw); fault != nil {
		return fault
	}
	l := &c.line
	if s.count > 0 {
		if fault := follows(s.last.seq, s.last.hash, l.seq, l.previous()); fault != nil {
			return fault
		}
	}
	s.last = link{seq: l.seq, hash: l.hash.text, prev: l.previous()}
	if s.count == 0 {
		s.first = s.last
	}
	return nil
}

// follows says whether a record with seq and prev can stand behind the one with headSeq and
// headHash, which are 0 and empty in an empty log. Nil means that it can.
func follows[Hash string | []byte](headSeq int64, headHash Hash, seq int64, prev []byte) *fault {
	switch {
	case seq <= headSeq:
		return &fault{reason: ReasonSeqDuplicate, detail: "the sequence number was there before"}
	case seq > headSeq+1:
		return &fault{reason: ReasonSeqGap, detail: "records are missing before this one"}
	case headSeq == 0 && len(prev) > 0:
		return &fault{reason: ReasonNotGenesis, detail: "the first record names a predecessor"}
	case string(prev) != string(headHash):
		return &fault{reason: ReasonPrevMismatch, detail: "the record follows another one than the one before it"}
	}
	return nil
}

// earlier reports whether the time stamp a lies before b.
func earlier(a, b field) bool {
	if len(a.text) == len(TimeLayout) && len(b.text) == len(TimeLayout) {
		return string(a.text) < string(b.text)
	}
	x, _ := parseTime(a)
	y, _ := parseTime(b)
	return x.Before(y)
}

// segmenter cuts the file from a place on into segments.
type segmenter struct {
	src    io.ReaderAt
	offset int64         // of the next segment
	size   int64         // of the file, as it was when the walk began
	free   chan *segment // done with; nil when nobody gives any back
	// rest is set once all whole lines were handed out: the bytes behind the last LF. Of a rest
	// too long to be a record it is the beginning.
	rest     []byte
	restSize int64
	records  []Record // room for those of the next segment
}

// next returns the next segment, nil at the end. A line longer than maxLine makes a segment of its
// own, cut short: whatever it holds, it is no record.
func (s *segmenter) next(ctx context.Context) (*segment, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	left := s.size - s.offset
	if left <= 0 {
		return nil, nil
	}
	want := min(left, segmentSize)
	for {
		data := s.buffer(want)
		if err := readFull(s.src, data, s.offset); err != nil {
			return nil, err
		}
		if end := bytes.LastIndexByte(data, '\n'); end >= 0 {
			seg := &segment{offset: s.offset, data: data[:end+1], records: s.records}
			s.records = nil
			s.offset += int64(end) + 1
			return seg, nil
		}
		if want == left {
			s.rest, s.restSize = data, left
			return nil, nil
		}
		if want > maxLine {
			return s.oversize(ctx, data, left)
		}
		want = min(left, 4*want, maxLine+1)
	}
}

// oversize looks for the end of a line that is too long, without holding it.
func (s *segmenter) oversize(ctx context.Context, data []byte, left int64) (*segment, error) {
	window := make([]byte, segmentSize)
	for at := int64(len(data)); at < left; at += int64(len(window)) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		window = window[:min(int64(len(window)), left-at)]
		if err := readFull(s.src, window, s.offset+at); err != nil {
			return nil, err
		}
		if bytes.IndexByte(window, '\n') >= 0 {
			seg := &segment{offset: s.offset, data: append(data, '\n')}
			s.offset = s.size
			return seg, nil
		}
	}
	s.rest, s.restSize = data, left
	return nil, nil
}

func (s *segmenter) buffer(size int64) []byte {
	if s.free == nil {
		return make([]byte, size, size+1) // judgeRest adds a LF
	}
	select {
	case old := <-s.free:
		if s.records == nil {
			s.records = old.records[:0]
		}
		if int64(cap(old.data)) > size {
			return old.data[:size]
		}
	default:
	}
	return make([]byte, size, max(size, segmentSize)+1)
}

// readFull fills b from offset. A file that has become shorter is an error.
func readFull(src io.ReaderAt, b []byte, offset int64) error {
	n, err := src.ReadAt(b, offset)
	if n == len(b) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

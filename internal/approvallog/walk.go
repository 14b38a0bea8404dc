package approvallog

import (
	"bytes"
	"context"
	"io"
	"runtime"
	"sync"

	"github.com/approvald/approvald/internal/rescue"
)

// place is a position in a log behind a whole record.
type place struct {
	offset int64 // of the next line
	line   int64 // how many lines stand before
	head   Head
	// lastLine is a copy of the last record's line, to see later whether it still stands there.
	lastLine []byte
	// noLF: the last record lacks its LF; offset is where the LF has to go.
	noLF bool
}

// tail is what stands behind the last record and is none.
type tail struct {
	offset int64
	size   int64
	detail string
}

// walk checks a log from a place up to a size.
type walk struct {
	src  io.ReaderAt
	size int64
	path string // for errors

	records bool  // make records
	lend    bool  // each gives the segment back: neither its data nor its records are kept
	wantSeq int64 // note the hash of this one
	each    func(*segment) error

	// Results.
	at       place
	tail     *tail
	headSeen string
	checker  lineChecker
	lastTS   []byte
}

// run walks to the end. A [*CorruptError] says where the log is damaged; w.at is then behind the
// last record before the damage. Records are given to each in order, also those before a damage.
func (w *walk) run(ctx context.Context) error {
	if err := w.resume(); err != nil || w.tail != nil {
		return err
	}
	var err error
	s := &segmenter{src: w.src, offset: w.at.offset, size: w.size}
	if w.size-w.at.offset <= segmentSize {
		err = w.alone(ctx, s)
	} else {
		err = w.together(ctx, s)
	}
	if err != nil || w.tail != nil || s.restSize == 0 {
		return err
	}
	return w.judgeRest(s)
}

// resume steps over the LF that the record before the place lacked, once it is there. Other bytes without any LF are
// what was there before, behind that record, and no part of the log.
func (w *walk) resume() error {
	if w.at.noLF && w.size > w.at.offset {
		var lf [1]byte
		if err := readFull(w.src, lf[:], w.at.offset); err != nil {
			return err
		}
		if lf[0] != '\n' {
			ended, err := hasLF(w.src, w.at.offset, w.size)
			if err == nil && ended {
				err = w.corrupt(fault{reason: ReasonMalformed, detail: "bytes were glued to a record without its LF"}, w.at.offset, 0)
			}
			if err == nil {
				w.tail = &tail{offset: w.at.offset, size: w.size - w.at.offset, detail: detailBehind}
			}
			return err
		}
		w.at.offset++
		w.at.noLF = false
	}
	return nil
}

// alone walks in this goroutine.
func (w *walk) alone(ctx context.Context, s *segmenter) error {
	for {
		more, err := w.step(ctx, s)
		if !more || err != nil {
			return err
		}
	}
}

// step walks one segment on. False means that there is none left.
func (w *walk) step(ctx context.Context, s *segmenter) (bool, error) {
	seg, err := s.next(ctx)
	if seg == nil || err != nil {
		return false, err
	}
	seg.check(&w.checker, w.records, w.wantSeq)
	return true, w.join(seg)
}

// together walks with one goroutine that reads and one for each processor that checks. What is
// held at a time is bounded by their number.
func (w *walk) together(ctx context.Context, s *segmenter) error {
	workers := runtime.GOMAXPROCS(0)
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()

	todo := make(chan *segment, workers)
	order := make(chan *segment, 2*workers)
	if !w.records || w.lend {
		s.free = make(chan *segment, 4*workers)
	}
	for range workers {
		group.Go(func() {
			var c lineChecker
			for seg := range todo {
				seg.check(&c, w.records, w.wantSeq)
				close(seg.done)
			}
		})
	}
	var readErr error
	group.Go(func() {
		rescue.At("log walk")
		defer close(order)
		defer close(todo)
		for {
			var seg *segment
			if seg, readErr = s.next(ctx); seg == nil || readErr != nil {
				return
			}
			seg.done = make(chan struct{})
			select {
			case order <- seg:
			case <-ctx.Done():
				readErr = ctx.Err()
				return
			}
			todo <- seg // workers run until it is closed, so this always proceeds
		}
	})
	for seg := range order {
		<-seg.done
		if err := w.join(seg); err != nil {
			return err
		}
		if s.free != nil {
			select {
			case s.free <- seg:
			default:
			}
		}
	}
	return readErr
}

// join links a checked segment to what was read before it.
func (w *walk) join(seg *segment) error {
	if seg.count > 0 {
		if fault := follows(w.at.head.Seq, w.at.head.Hash, seg.first.seq, seg.first.prev); fault != nil {
			return w.corrupt(*fault, seg.offset, seg.first.seq)
		}
		if len(w.lastTS) > 0 && earlier(seg.firstTS, field{text: w.lastTS, kind: '"'}) {
			seg.backwards = append([]stepBack{{0, seg.offset, seg.first.seq}}, seg.backwards...)
		}
		w.lastTS = append(w.lastTS[:0], seg.lastTS.text...)
		if seg.headSeen != nil {
			w.headSeen = string(seg.headSeen)
		}
		if w.each != nil {
			if err := w.each(seg); err != nil {
				return err
			}
		}
		w.at.line += seg.count
		w.at.head = Head{Seq: seg.last.seq, Hash: string(seg.last.hash)}
		w.at.lastLine = append(w.at.lastLine[:0], seg.lastLine...)
	}
	if seg.bad == nil {
		w.at.offset = seg.offset + int64(len(seg.data))
		return nil
	}
	w.at.offset = seg.bad.offset
	lastOfFile := seg.bad.offset+int64(len(seg.bad.line))+1 == w.size
	if lastOfFile && w.tornLine(seg.bad) {
		w.tail = &tail{offset: seg.bad.offset, size: w.size - seg.bad.offset, detail: "the last line is an unfinished record"}
		return nil
	}
	return w.corrupt(seg.bad.fault, seg.bad.offset, seg.bad.seq)
}

// recordStart is how the canonical text of every record begins: with action_key or actor.
var recordStart = []byte(`{"act`)

// tornLine reports whether the last line of the file, although it has its LF, is what an interrupted
// append leaves behind: the beginning of a record, alone or with the next whole record glued to it
// by a writer that did not look. NULs are never that, and neither is a whole record that is damaged.
func (w *walk) tornLine(bad *badLine) bool {
	if bad.reason != ReasonMalformed || bytes.IndexByte(bad.line, 0) >= 0 || !bytes.HasPrefix(bad.line, recordStart) {
		return false
	}
	if w.beginsWithNext(bad.line) > 0 {
		return false // whoever wrote that record was told that it is there
	}
	if bad.unfinished {
		return true
	}
	// A payload may begin like a record, and so may the torn one: each beginning is tried.
	for rest := bad.line[1:]; ; rest = rest[1:] {
		at := bytes.Index(rest, recordStart)
		if at < 0 {
			return false
		}
		rest = rest[at:]
		if w.checker.check(rest) == nil {
			l := &w.checker.line
			return follows(w.at.head.Seq, w.at.head.Hash, l.seq, l.previous()) == nil
		}
	}
}

// detailBehind is what is wrong with bytes that are kept apart from the whole record before them.
const detailBehind = "bytes that are no record stand behind the last record, in the place of its LF"

// beginsWithNext gives the length of the whole record that continues the chain and that text begins with, 0 for none.
func (w *walk) beginsWithNext(text []byte) int {
	n := objectEnd(text[:min(len(text), maxLine)])
	if n == 0 || w.checker.check(text[:n]) != nil {
		return 0
	}
	l := &w.checker.line
	if follows(w.at.head.Seq, w.at.head.Hash, l.seq, l.previous()) != nil {
		return 0
	}
	return n
}

// objectEnd is where the JSON object ends that text begins with, as far as its braces tell; 0 when it does not.
func objectEnd(text []byte) int {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{':
			depth++
		case c == '}':
			depth--
		}
		if depth == 0 && !quoted {
			if text[i] == '}' {
				return i + 1
			}
			return 0
		}
	}
	return 0
}

// hasLF reports whether there is a LF from offset on, before end.
func hasLF(src io.ReaderAt, offset, end int64) (bool, error) {
	window := make([]byte, min(segmentSize, end-offset))
	for ; offset < end; offset += int64(len(window)) {
		window = window[:min(int64(len(window)), end-offset)]
		if err := readFull(src, window, offset); err != nil {
			return false, err
		}
		if bytes.IndexByte(window, '\n') >= 0 {
			return true, nil
		}
	}
	return false, nil
}

// judgeRest judges the bytes behind the last LF: a whole record that only lacks it counts, also when other bytes stand
// where it should be; anything else is torn.
func (w *walk) judgeRest(s *segmenter) error {
	if s.rest != nil {
		rest := s.rest
		n := w.beginsWithNext(rest)
		if n > 0 {
			rest = rest[:n:n]
		}
		seg := &segment{offset: s.offset, data: append(rest, '\n')}
		seg.check(&w.checker, w.records, w.wantSeq)
		if seg.count == 1 && follows(w.at.head.Seq, w.at.head.Hash, seg.first.seq, seg.first.prev) == nil {
			if err := w.join(seg); err != nil {
				return err
			}
			w.at.offset--
			w.at.noLF = true
			if size := s.offset + s.restSize - w.at.offset; size > 0 {
				w.tail = &tail{offset: w.at.offset, size: size, detail: detailBehind}
			}
			return nil
		}
	}
	w.tail = &tail{offset: s.offset, size: s.restSize, detail: "the last line has no LF and is not a record"}
	return nil
}

func (w *walk) corrupt(f fault, offset, seq int64) error {
	if seq == 0 {
		seq = w.at.head.Seq + 1
	}
	return &CorruptError{Path: w.path, Reason: f.reason, Line: w.at.line + 1, Offset: offset, Seq: seq, Detail: f.detail}
}

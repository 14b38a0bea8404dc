package approvallog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"
)

// Indexed is a [Folder] that keeps in memory only a part of what it has folded and finds the rest
// again in the log, so that its memory does not grow with history. Its Apply and Index keep nothing of
// the bytes of a record's Payload and Raw.
type Indexed interface {
	Folder
	// Attach gives it the means to find records again. It is called before the first record.
	Attach(*Finder)
	// Index names the keys under which the record, which was applied last, is to be found again.
	// fresh says that no record of that key before this one matters once there is a later fresh
	// one: a look-up gives the records from the last but one fresh on, or more.
	Index(rec Record, add func(key string, fresh bool))
	// Save returns as JSON what Restore needs to take the state up again at this place of the log.
	Save() ([]byte, error)
	// Restore takes up what Save returned. It may use the finder. When it fails, the folder is as if
	// it were new.
	Restore(state []byte) error
}

// Finder finds the records of a key again. An index, in memory and on disk, only says where to look:
// what is found was read from the log, with its digest checked.
//
// It is used where the fold is used: inside Apply, View and Update.
type Finder struct {
	log    *Log
	fold   Indexed
	sealed []*archived // oldest first

	// Used where records are added, by one goroutine at a time.
	recent hashes
	adding int64                        // the offset of the record that is being added
	addKey func(key string, fresh bool) // f.addAt, made once

	mu   sync.RWMutex
	runs []*indexRun // of the log's parts, in its order
	mem  *memIndex   // of what follows them
	from mark        // where mem begins
	err  error
	// closed: the log was closed, or goes on in another file, with another finder.
	closed bool
}

// indexRun is the index of one part of the log: in memory or in a file.
type indexRun struct {
	from, to mark
	mem      *memIndex
	file     *indexFile
	name     string // of the file
}

func (r *indexRun) lookup(hash uint64, found []indexEntry) ([]indexEntry, error) {
	if r.mem != nil {
		return r.mem.lookup(hash, found), nil
	}
	return r.file.lookup(hash, found)
}

func (r *indexRun) all() iter.Seq2[indexEntry, error] {
	if r.mem != nil {
		return r.mem.all()
	}
	return r.file.all()
}

func (r *indexRun) size() uint64 {
	if r.mem != nil {
		return uint64(len(r.mem.entries))
	}
	return r.file.entries
}

func (r *indexRun) close() {
	if r.file != nil {
		r.file.close()
	}
}

// Find returns records of the key, oldest first: all, or those from the last but one fresh on
// ([Indexed]). Only those for which mine is true are of the key.
//
// When the log cannot be read, or is not any more what was folded, Find returns nothing, and the
// View or Update that it was called in fails.
func (f *Finder) Find(key string, mine func(Record) bool) []Record {
	records, err := f.find(key, mine)
	if err != nil {
		f.fail(err)
		return nil
	}
	return records
}

func (f *Finder) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

// failed returns the error of the first look-up that failed.
func (f *Finder) failed() error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.err
}

func (f *Finder) find(key string, mine func(Record) bool) ([]Record, error) {
	hash := keyHash(key)
	records, err := f.findIn(hash, mine)
	if _, misled := errors.AsType[*misread](err); !misled {
		return records, err
	}
	// The index named a place where no record stands. The log tells which of the two is wrong.
	if err := f.reindex(f.log.file, func(*indexRun) bool { return true }); err != nil {
		return nil, err
	}
	records, err = f.findIn(hash, mine)
	if m, misled := errors.AsType[*misread](err); misled {
		return nil, &CorruptError{
			Path: f.log.opts.Path, Reason: ReasonLogRewritten, Offset: m.offset,
			Detail: fmt.Sprintf("the record that was read at byte %d is there no more", m.offset),
		}
	}
	return records, err
}

func (f *Finder) findIn(hash uint64, mine func(Record) bool) ([]Record, error) {
	entries, err := f.lookup(hash)
	if err != nil {
		return nil, err
	}
	short, ended := fromLastButOneFresh(entries)
	records, err := readRecords(f.log.file, short)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(records, func(r Record) bool { return !mine(r) }) {
		// Another key with the same hash: its fresh records say nothing about this key.
		if records, err = readRecords(f.log.file, entries); err != nil {
			return nil, err
		}
		records, ended = slices.DeleteFunc(records, func(r Record) bool { return !mine(r) }), false
	}
	for i := range records {
		records[i] = records[i].above(f.log.base)
	}
	for _, s := range slices.Backward(f.sealed) {
		if ended {
			break
		}
		older, err := s.find(hash, mine)
		if err != nil {
			return nil, err
		}
		records = append(older, records...)
	}
	return records, nil
}

// fromLastButOneFresh cuts off what no longer matters; ended tells that something was found fresh
// twice, so that nothing older matters at all.
func fromLastButOneFresh(entries []indexEntry) (_ []indexEntry, ended bool) {
	seen := 0
	for i, e := range slices.Backward(entries) {
		if e.fresh() {
			if seen++; seen == 2 {
				return entries[i:], true
			}
		}
	}
	return entries, false
}

// lookup gives the entries of a hash in the log's order. Damaged index files are replaced on the way.
func (f *Finder) lookup(hash uint64) ([]indexEntry, error) {
	for {
		f.mu.RLock()
		var found []indexEntry
		var bad *indexRun
		var err error
		for _, r := range f.runs {
			if found, err = r.lookup(hash, found); err != nil {
				bad = r
				break
			}
		}
		if err == nil {
			found = f.mem.lookup(hash, found)
		}
		f.mu.RUnlock()
		if err == nil {
			return found, nil
		}
		f.log.opts.Logf("%s: %v; the log is read in its place", bad.name, err)
		if err := f.reindex(f.log.file, func(r *indexRun) bool { return r == bad }); err != nil {
			return nil, err
		}
	}
}

// reindex puts indexes in memory, made from the log, in place of those index files that are to go.
func (f *Finder) reindex(src io.ReaderAt, goes func(*indexRun) bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, r := range f.runs {
		if r.file == nil || !goes(r) {
			continue
		}
		mem, err := f.scan(src, r.from, r.to)
		if err != nil {
			return err
		}
		r.close()
		f.runs[i] = &indexRun{from: r.from, to: r.to, mem: mem}
	}
	return nil
}

// scan makes the index of a part of the log by reading it. What is not fresh may be said of all.
func (f *Finder) scan(src io.ReaderAt, from, to mark) (*memIndex, error) {
	mem := &memIndex{}
	w := &walk{
		src: src, size: to.offset, path: f.log.opts.Path, records: true, lend: true,
		at: place{offset: from.offset, line: from.head.Seq, head: from.head},
	}
	w.each = func(seg *segment) error {
		for _, r := range seg.records {
			f.fold.Index(r, func(key string, _ bool) { mem.add(makeEntry(key, r.offset, false)) })
		}
		return nil
	}
	if err := w.run(context.Background()); err != nil {
		return nil, err
	}
	if w.at.offset != to.offset || w.at.head != to.head {
		return nil, &CorruptError{
			Path: f.log.opts.Path, Reason: ReasonLogRewritten, Line: w.at.line, Offset: w.at.offset, Seq: w.at.head.Seq,
			Detail: "the records up to here are not those that were read before",
		}
	}
	return mem, nil
}

// add indexes a record that was just applied.
func (f *Finder) add(r *Record) {
	if f.addKey == nil {
		f.addKey = f.addAt
	}
	f.adding = r.offset
	f.fold.Index(*r, f.addKey)
}

func (f *Finder) addAt(key string, fresh bool) {
	f.mem.add(entryAt(f.recent.of(key), f.adding, fresh))
}

// freeze ends the index in memory at the place at and begins a new one.
func (f *Finder) freeze(at mark) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.from == at {
		return
	}
	f.runs = append(f.runs, &indexRun{from: f.from, to: at, mem: f.mem})
	f.mem, f.from = &memIndex{}, at
}

// close lets go of the files.
func (f *Finder) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sealed {
		s.close()
	}
	for _, r := range f.runs {
		r.close()
	}
	f.runs, f.mem, f.closed = nil, &memIndex{}, true
}

// misread: at a place that an index named stands no record.
type misread struct {
	offset int64
	why    string
}

func (e *misread) Error() string { return fmt.Sprintf("no record at byte %d: %s", e.offset, e.why) }

// readRecords reads the records at the entries' places.
func readRecords(src io.ReaderAt, entries []indexEntry) ([]Record, error) {
	records := make([]Record, 0, len(entries))
	var c lineChecker
	for _, e := range entries {
		r, err := readRecord(src, e.offset(), &c)
		if err != nil {
			return nil, err
		}
		records = append(records, r)
	}
	return records, nil
}

// readRecord reads and checks the record whose line begins at offset. Its link to the record before
// it is not looked at: that was done when it was folded.
func readRecord(src io.ReaderAt, offset int64, c *lineChecker) (Record, error) {
	raw, err := readLine(src, offset)
	if err != nil {
		return Record{}, err
	}
	if fault := c.check(raw); fault != nil {
		return Record{}, &misread{offset, fault.detail}
	}
	return c.record(raw, offset), nil
}

// readLine reads the line that begins at offset, without its LF.
func readLine(src io.ReaderAt, offset int64) ([]byte, error) {
	before := int64(1)
	if offset == 0 {
		before = 0
	}
	for size := int64(2048); ; size *= 8 {
		b := make([]byte, before+size)
		n, err := src.ReadAt(b, offset-before)
		if err != nil && err != io.EOF {
			return nil, err
		}
		b = b[:n]
		if int64(n) <= before || before > 0 && b[0] != '\n' {
			return nil, &misread{offset, "no line begins there"}
		}
		b = b[before:]
		if end := bytes.IndexByte(b, '\n'); end >= 0 {
			return b[:end:end], nil
		}
		if err == io.EOF || size > maxLine {
			return b, nil // the last record may lack its LF; what is no record, the check finds out
		}
	}
}

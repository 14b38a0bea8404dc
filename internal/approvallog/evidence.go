package approvallog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// A chain says nothing of records that were cut off its end. What else a home holds does: the delivery
// journal and the snapshot name records that were on the disk before they were. They are only ever
// evidence against a log, and none of them is needed.

// evidence says that the log has had a record with this number, counted over all segments.
type evidence struct {
	seq  int64
	path string // of the file that says so
}

func (e *evidence) add(seq int64, path string) {
	if seq > e.seq {
		*e = evidence{seq: seq, path: path}
	}
}

// homeOf is the home of the log at path: the parent of a directory log, else the log's own directory.
func homeOf(path string) string {
	home := filepath.Dir(path)
	if filepath.Base(home) == "log" {
		home = filepath.Dir(home)
	}
	return home
}

func journalOf(path string) string  { return filepath.Join(homeOf(path), "daemon", "deliveries.jsonl") }
func snapshotOf(path string) string { return filepath.Join(homeOf(path), "daemon", "snapshot.json") }

// isLog tells a gate's log from a copy of it beside it, and from other files of the same form.
func isLog(path string) bool { return filepath.Base(path) == segmentFile }

// evidenceFor gathers what the home of the log at path says of it. It has to be asked before the log is
// read: afterwards, it may know of records that were not there yet.
func evidenceFor(path string) (evidence, error) {
	var e evidence
	if !isLog(path) {
		return e, nil
	}
	journal := journalOf(path)
	seq, err := lastMentioned(journal)
	if err != nil && !errors.Is(err, fs.ErrPermission) { // who may read the log only, reads it without
		return e, fmt.Errorf("look what %s knows of the log: %w", journal, err)
	}
	e.add(seq, journal)
	if s, err := readSnapshot(snapshotOf(path)); err == nil && s.Log.of(path) {
		e.add(s.Log.Base+s.Log.Seq, snapshotOf(path))
	}
	return e, nil
}

// of reports whether the place is one of the log at path, or was before all was cut off it. A snapshot
// may have come from elsewhere, or belong to the segment before.
func (p snapshotPlace) of(path string) bool {
	if p.First == "" {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	first, err := firstHash(f)
	return err == nil && (first == "" || first == p.First)
}

// behind is the damage of a log that ends before what it is known to have held, nil when it does not.
// end is the number of its last record. Bytes behind it that are no record, or were until they were taken off, count for
// nothing: what the home's other files name was whole.
func (e evidence) behind(path string, end int64) *CorruptError {
	if e.seq <= end {
		return nil
	}
	return &CorruptError{
		Path: path, Reason: ReasonLogTruncated, Seq: end + 1,
		Detail: fmt.Sprintf("it ends with record %d, and %s knows record %d: records were cut off. Put the newest copy of the log back; "+
			"to go on without those records, move %s aside", end, e.path, e.seq, e.path),
	}
}

func hasEntries(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) > 0
}

// maxEvidence bounds how much of a journal's end is looked through, in bytes.
const maxEvidence = 32 << 20

// mention is what a record of the journal says of the approval log: the number of the record that asked
// for what it is about, or of the log's last at that time.
type mention struct {
	Payload struct {
		Cycle  int64 `json:"cycle"`
		LogSeq int64 `json:"log_seq"`
	} `json:"payload"`
}

// lastMentioned is the highest number of a record that the end of the journal mentions: so much of its
// end as it takes to find one. Almost every record of a journal does.
func lastMentioned(journal string) (int64, error) {
	f, err := os.Open(journal)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0, err // what is no file is told by those who use it
	}
	for size := int64(64 << 10); ; size *= 8 {
		size = min(size, info.Size())
		b := make([]byte, size)
		if n, err := f.ReadAt(b, info.Size()-size); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		} else {
			b = b[:n]
		}
		if size < info.Size() {
			_, b, _ = bytes.Cut(b, []byte{'\n'}) // the rest of a record that begins before
		}
		if last := highestMention(b); last > 0 || size == info.Size() || size >= maxEvidence {
			return last, nil
		}
	}
}

func highestMention(records []byte) int64 {
	var last int64
	for line := range bytes.Lines(records) {
		var m mention
		if json.Unmarshal(line, &m) == nil {
			last = max(last, m.Payload.Cycle, m.Payload.LogSeq)
		}
	}
	return last
}

// otherState returns a path that a home has only once its log exists, "" when there is none.
func otherState(path string) string {
	home := homeOf(path)
	for _, name := range []string{"log/quarantine", "log/archive", "payloads"} {
		entries, err := os.ReadDir(filepath.Join(home, name))
		if err == nil && len(entries) > 0 {
			return filepath.Join(home, name, entries[0].Name())
		}
	}
	for _, name := range []string{journalOf(path), snapshotOf(path)} {
		info, err := os.Stat(name)
		if err == nil && info.Size() > 0 {
			return name
		}
	}
	return ""
}

package approvallog

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// snapshotVersion is the only version that is read; others are as absent.
const snapshotVersion = 2

// maxSnapshot bounds what is read of a snapshot's file, in bytes.
const maxSnapshot = 256 << 20

// errSnapshotDamaged: the snapshot's file does not hold what was written. The log is read instead.
var errSnapshotDamaged = errors.New("it is damaged")

// snapshotFile is how a snapshot stands on the disk: with the SHA-256 of its text.
type snapshotFile struct {
	SHA256   string          `json:"sha256"`
	Snapshot json.RawMessage `json:"snapshot"`
}

// snapshot is the fold of a log up to a place.
type snapshot struct {
	Version int             `json:"v"`
	Log     snapshotPlace   `json:"log"`
	Indexes []snapshotIndex `json:"indexes"`
	State   json.RawMessage `json:"state"`
}

// snapshotPlace is the place behind the log's record Seq, which has the hash and whose line begins at
// the byte Last.
type snapshotPlace struct {
	Base   int64  `json:"base,omitempty"`  // how many records the segments before this one hold
	First  string `json:"first,omitempty"` // the hash of the log's first record
	Offset int64  `json:"offset"`
	Last   int64  `json:"last"`
	Seq    int64  `json:"seq"`
	Hash   string `json:"hash"`
}

// snapshotIndex names the index of one part of the log: a file beside the snapshot, and its id.
type snapshotIndex struct {
	File string `json:"file"`
	ID   string `json:"id"`
}

func (s snapshot) encode() ([]byte, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	text, err = json.Marshal(snapshotFile{SHA256: hex.EncodeToString(sum[:]), Snapshot: text})
	return append(text, '\n'), err
}

// parseSnapshot reads what encode gave. Anything else is [errSnapshotDamaged].
func parseSnapshot(b []byte) (snapshot, error) {
	var file snapshotFile
	var s snapshot
	if err := json.Unmarshal(b, &file); err != nil {
		if len(bytes.Trim(b, "\x00")) == 0 {
			return s, fmt.Errorf("%w: nothing is in it", errSnapshotDamaged)
		}
		return s, fmt.Errorf("%w: %w", errSnapshotDamaged, err)
	}
	if sum := sha256.Sum256(file.Snapshot); file.SHA256 != hex.EncodeToString(sum[:]) {
		return s, fmt.Errorf("%w: its digest is another one", errSnapshotDamaged)
	}
	if err := json.Unmarshal(file.Snapshot, &s); err != nil {
		return s, fmt.Errorf("%w: %w", errSnapshotDamaged, err)
	}
	at := s.Log
	switch {
	case s.Version != snapshotVersion:
		return s, fmt.Errorf("%w: version %d is not known", errSnapshotDamaged, s.Version)
	case at.Seq < 1 || at.Last < 0 || at.Offset <= at.Last || at.Offset-at.Last > maxLine+1 || !isHash([]byte(at.Hash)):
		return s, fmt.Errorf("%w: it names no place of a log", errSnapshotDamaged)
	}
	for _, x := range s.Indexes {
		if id, err := hex.DecodeString(x.ID); err != nil || len(id) != len(indexID{}) || !isIndexName(x.File) {
			return s, fmt.Errorf("%w: it names no index", errSnapshotDamaged)
		}
	}
	return s, nil
}

// An index's file is named after the log's first and last record in it, and its id.
const indexPrefix = "index-"

func indexName(from, to mark, id indexID) string {
	return fmt.Sprintf("%s%d-%d-%x", indexPrefix, from.head.Seq+1, to.head.Seq, id[:8])
}

// isIndexName reports whether a name from a snapshot is one of ours, and no way out of the directory.
func isIndexName(name string) bool {
	return strings.HasPrefix(name, indexPrefix) && filepath.Base(name) == name
}

// readSnapshot reads the snapshot's file.
func readSnapshot(path string) (snapshot, error) {
	f, err := os.Open(path)
	if err != nil {
		return snapshot{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSnapshot))
	if err != nil {
		return snapshot{}, err
	}
	return parseSnapshot(b)
}

// place finds the snapshot's place in the log: the record that ends there must be the one that the
// snapshot names, and with it, by the chain, everything before it.
func (p snapshotPlace) place(src io.ReaderAt, size int64) (place, error) {
	if p.Offset > size {
		return place{}, fmt.Errorf("the log ends before the snapshot's record %d", p.Seq)
	}
	raw, err := readLine(src, p.Last)
	if err != nil {
		return place{}, err
	}
	var c lineChecker
	if p.Last+int64(len(raw))+1 != p.Offset {
		return place{}, fmt.Errorf("the log's record %d does not stand where the snapshot has it", p.Seq)
	}
	if fault := c.check(raw); fault != nil || c.line.seq != p.Seq || string(c.line.hash.text) != p.Hash {
		return place{}, fmt.Errorf("the log has another record %d than the snapshot", p.Seq)
	}
	return place{offset: p.Offset, line: p.Seq, head: Head{Seq: p.Seq, Hash: p.Hash}, lastLine: raw}, nil
}

// openRuns opens the indexes that the snapshot names. Together they must cover the log up to its
// place, without a gap.
func (s snapshot) openRuns(dir string) (runs []*indexRun, err error) {
	defer func() {
		if err != nil {
			for _, r := range runs {
				r.close()
			}
		}
	}()
	end := mark{}
	for _, x := range s.Indexes {
		file, err := openIndex(filepath.Join(dir, x.File))
		if err != nil {
			return runs, err
		}
		runs = append(runs, &indexRun{from: file.from, to: file.to, file: file, name: x.File})
		if hex.EncodeToString(file.id[:]) != x.ID || file.from != end {
			return runs, fmt.Errorf("%w: %s is another one than the snapshot's", errIndexDamaged, x.File)
		}
		end = file.to
	}
	if want := (mark{offset: s.Log.Offset, head: Head{Seq: s.Log.Seq, Hash: s.Log.Hash}}); end != want {
		return runs, fmt.Errorf("%w: the indexes do not reach the snapshot's place", errIndexDamaged)
	}
	return runs, nil
}

// lastLineStart returns where the line begins whose LF stands before end.
func lastLineStart(src io.ReaderAt, end int64) (int64, error) {
	for size := int64(4096); ; size *= 8 {
		size = min(size, end)
		b := make([]byte, size)
		if err := readFull(src, b, end-size); err != nil {
			return 0, err
		}
		if at := bytes.LastIndexByte(bytes.TrimSuffix(b, []byte{'\n'}), '\n'); at >= 0 {
			return end - size + int64(at) + 1, nil
		}
		if size == end || size > maxLine {
			return end - size, nil
		}
	}
}

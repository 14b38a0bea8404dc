package approvallog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// EventArchiveSealed is the delivery journal's record of a segment that was taken off the log. Its
// payload is the [Seal]. It is written before the segment is: one whose segment never came to be
// means nothing.
const EventArchiveSealed = "archive.sealed"

const (
	archiveDir  = "archive"      // beside the log: the archived segments, a directory each
	segmentFile = "events.jsonl" // the segment's records
	sealFile    = "segment.json" // its seal
	segmentMode = 0o400
)

// Seal says of an archived segment what it holds and which one it follows.
type Seal struct {
	V int `json:"v"` // 1
	// Segment is the name of its directory: the UTC time of the cut.
	Segment string `json:"segment"`
	// Number counts the segments from 1.
	Number int64 `json:"number"`
	// Base is how many records the segments before it hold.
	Base int64 `json:"base"`
	// First is the hash of its first record, Head its last record as it stands in the file.
	First string `json:"first"`
	Head  Head   `json:"head"`
	Bytes int64  `json:"bytes"`
	// Follows is the head of the segment before it, nil in the first.
	Follows *Head `json:"follows,omitempty"`
}

// maxSealed bounds the numbers of a seal, so that their sums are numbers too.
const maxSealed = 1 << 53

// end is how many records there are up to the segment's end, all segments counted.
func (s Seal) end() int64 { return s.Base + s.Head.Seq }

func (s Seal) valid() error {
	switch {
	case s.V != 1:
		return fmt.Errorf("version %d is not known", s.V)
	case !filepath.IsLocal(s.Segment) || filepath.Base(s.Segment) != s.Segment || s.Segment == "." || s.Number < 1 || s.Base < 0 || s.Bytes < 1 || s.Head.Seq < 1:
		return errors.New("a member is missing or out of its range")
	case max(s.Number, s.Base, s.Head.Seq, s.Bytes) > maxSealed:
		return errors.New("a number is larger than any log can have")
	case !isHash([]byte(s.First)) || !isHash([]byte(s.Head.Hash)) || s.Follows != nil && !isHash([]byte(s.Follows.Hash)):
		return errors.New("a hash is none")
	}
	return nil
}

// sealed is what a segment's seal file holds.
type sealed struct {
	Seal
	// Recent are the times of the last hour before the cut at which each asker opened requests: what
	// limits their rate must not begin anew because of a cut.
	Recent map[string][]time.Time `json:"recent,omitempty"`
	// Epoch is the highest that a decision names in the segment and those before it.
	Epoch int64 `json:"epoch,omitempty"`
}

func parseSealed(b []byte) (sealed, error) {
	var s sealed
	if err := checkStrict(b); err != nil {
		return sealed{}, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return sealed{}, err
	}
	return s, s.valid()
}

// archivedSegment is a segment in its directory.
type archivedSegment struct {
	sealed
	dir string
}

func (s archivedSegment) path() string { return filepath.Join(s.dir, segmentFile) }

// archivePath is where the archived segments of the log at path stand.
func archivePath(path string) string { return filepath.Join(filepath.Dir(path), archiveDir) }

// readArchive reads the seals of the segments that stand beside the log at path, in their order.
// Directories without a seal are those of cuts that were not finished and are passed over; whether
// the last segment is one of a cut that was not committed is for the caller to find out.
func readArchive(path string) ([]archivedSegment, error) {
	root := archivePath(path)
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var segments []archivedSegment
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		text, err := os.ReadFile(filepath.Join(dir, sealFile))
		if errors.Is(err, fs.ErrNotExist) || !e.IsDir() {
			continue
		}
		if err != nil {
			return nil, err
		}
		s, err := parseSealed(text)
		if err == nil && s.Segment != e.Name() {
			err = fmt.Errorf("it is that of the segment %q", s.Segment)
		}
		if err != nil {
			return nil, &CorruptError{Path: filepath.Join(dir, sealFile), Reason: ReasonArchiveSeal, Detail: err.Error()}
		}
		segments = append(segments, archivedSegment{s, dir})
	}
	slices.SortFunc(segments, func(a, b archivedSegment) int {
		return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Segment, b.Segment))
	})
	return segments, nil
}

// linked makes sure that each segment follows the one before it.
func linked(segments []archivedSegment) error {
	var before *Seal
	for i := range segments {
		s := &segments[i].Seal
		want := Seal{Number: 1}
		if before != nil {
			want = Seal{Number: before.Number + 1, Base: before.end(), Follows: &before.Head}
		}
		switch {
		case s.Number > want.Number:
			return &CorruptError{
				Path: segments[i].dir, Reason: ReasonArchiveMissing,
				Detail: fmt.Sprintf("it is segment %d, and segment %d is not in the archive", s.Number, want.Number),
			}
		case s.Number < want.Number:
			return &CorruptError{Path: segments[i].dir, Reason: ReasonArchiveLink, Detail: fmt.Sprintf("there are two segments with the number %d", s.Number)}
		case s.Base != want.Base || !sameHead(s.Follows, want.Follows):
			return &CorruptError{
				Path: segments[i].dir, Reason: ReasonArchiveLink,
				Detail: fmt.Sprintf("it follows another segment than segment %d as it stands in the archive", want.Number-1),
			}
		}
		before = s
	}
	return nil
}

func sameHead(a, b *Head) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// cutBefore returns those of the segments that were cut off before the log in file came to be. The
// segment that is this very file, by its inode or by its first record, and all after it, were not:
// either their cut was not committed, or it came after the file was opened.
func cutBefore(segments []archivedSegment, file *os.File) ([]archivedSegment, error) {
	first, err := firstHash(file)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(segments, func(s archivedSegment) bool { return s.is(info, first) })
	if at < 0 {
		return segments, nil
	}
	return segments[:at], nil
}

// is reports whether the file with this identity and first record is the segment.
func (s archivedSegment) is(file os.FileInfo, first string) bool {
	if first != "" {
		return s.First == first
	}
	info, err := os.Stat(s.path())
	return err == nil && os.SameFile(info, file)
}

// firstHash is the hash that the first record of a log claims, empty when there is none.
func firstHash(file *os.File) (string, error) {
	raw, err := firstLine(file)
	if err != nil || raw == nil {
		return "", err
	}
	var c lineChecker
	if c.check(raw) != nil {
		return "", nil
	}
	return string(c.line.hash.text), nil
}

// firstLine reads the first line without its LF, nil when none is complete.
func firstLine(file *os.File) ([]byte, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	for want := int64(4096); ; want *= 8 {
		b := make([]byte, min(want, info.Size()))
		if err := readFull(file, b, 0); err != nil {
			return nil, err
		}
		if end := bytes.IndexByte(b, '\n'); end >= 0 {
			return b[:end], nil
		}
		if want > maxLine || want >= info.Size() {
			return nil, nil
		}
	}
}

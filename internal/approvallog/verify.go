package approvallog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/approvald/approvald/internal/procid"
)

// Status is what Verify finds a log to be.
type Status string

// The statuses.
const (
	StatusClean   Status = "clean"
	StatusTorn    Status = "torn-tail"
	StatusCorrupt Status = "corrupt"
)

// maxFindings bounds how many findings a report lists; it counts all of them.
const maxFindings = 1000

// VerifyOptions say how far a log is examined.
type VerifyOptions struct {
	// Head is a head noted earlier, elsewhere. The log must have that very record; without one it
	// cannot be told whether whole records were cut off the end.
	Head *Head
	// Semantic also looks for records that contradict each other; see Findings.
	Semantic bool
	// Progress is told from time to time how many bytes of the whole are done.
	Progress func(done, total int64)
}

// Finding is something to look at that is no damage.
type Finding struct {
	Segment string `json:"segment,omitempty"` // of the archive; empty for the log itself
	Code    string `json:"code"`
	Seq     int64  `json:"seq"`
	Line    int64  `json:"line"`
	Offset  int64  `json:"offset"`
	Message string `json:"message"`
}

// Codes of findings. Those from the second on are looked for with Semantic only.
const (
	FindingTimeSteppedBack         = "time-stepped-back"
	FindingMissingLF               = "missing-lf"
	FindingDecisionWithoutRequest  = "decision-without-request"
	FindingSecondDecision          = "second-decision"
	FindingGrantAfterDeadline      = "grant-after-deadline"
	FindingExecutionWithoutGrant   = "execution-without-grant"
	FindingDecisionWithoutApprover = "decision-without-person"
	FindingOtherPayload            = "grant-of-other-payload"
	FindingEndAfterDeadline        = "end-after-deadline"
	FindingFollowUpTooEarly        = "follow-up-too-early"
	FindingFollowUpOfAnother       = "follow-up-by-another"
)

// Report is what Verify found.
type Report struct {
	Status  Status `json:"status"`
	Records int64  `json:"records"` // whole and sound ones, up to the damage
	Head    Head   `json:"head"`    // of the last of them
	// HeadSeen: the noted head was given and is in the log.
	HeadSeen bool `json:"head_seen,omitempty"`

	// Of the damage or the torn tail; zero in a clean log.
	Reason      Reason `json:"reason,omitempty"`
	FirstBadSeq int64  `json:"first_bad_seq,omitempty"`
	Line        int64  `json:"line,omitempty"`
	Offset      int64  `json:"offset,omitempty"` // of the line's first byte
	Detail      string `json:"detail,omitempty"`

	// Findings lists the first thousand of them.
	Findings      []Finding `json:"findings,omitempty"`
	FindingsTotal int64     `json:"findings_total,omitempty"`

	// Segment is the archived one that has the damage, empty when it is in the log itself. Archive are
	// the reports of all archived segments. Of [VerifyAll] only.
	Segment string          `json:"segment,omitempty"`
	Archive []SegmentReport `json:"archive,omitempty"`

	path string
}

// Path is the file or directory that Reason is about.
func (r Report) Path() string { return r.path }

// Err is nil for a clean log, [ErrTorn] for a torn one and a [*CorruptError] for a damaged one.
func (r Report) Err() error {
	switch r.Status {
	case StatusClean:
		return nil
	case StatusTorn:
		return fmt.Errorf("log %s, line %d (byte %d): %w: %s", r.path, r.Line, r.Offset, ErrTorn, r.Detail)
	default:
		return &CorruptError{Path: r.path, Reason: r.Reason, Line: r.Line, Offset: r.Offset, Seq: r.FirstBadSeq, Detail: r.Detail}
	}
}

func (r *Report) find(f Finding) {
	r.FindingsTotal++
	if len(r.Findings) < maxFindings {
		r.Findings = append(r.Findings, f)
	}
}

// Verify reads the log at path in one pass, with all processors and in memory that does not grow
// with the log (but for Semantic, which remembers each action key), and changes nothing. The error
// is that of a log that could not be read; what is wrong with one that could is in the report.
//
// The first failure wins, looked for in each line in the order of the Reason constants. The end of
// a log that is being appended to is judged when the writer is done.
func Verify(ctx context.Context, path string, o VerifyOptions) (Report, error) {
	f, err := openLog(path)
	if err != nil {
		return Report{}, err
	}
	defer f.Close()
	v := &verifier{progress: o.Progress}
	if o.Semantic {
		v.semantic = newSemantic(v.find)
	}
	if err := v.file(ctx, f, path, o.Head); err != nil {
		return Report{}, err
	}
	r := &v.report
	if o.Head != nil && r.Status != StatusCorrupt {
		if r.HeadSeen = v.headSeen; !r.HeadSeen {
			r.damage(headMismatch(*o.Head, v.walk))
		}
	}
	if o.Progress != nil {
		o.Progress(v.walk.size, v.walk.size)
	}
	return *r, nil
}

// file examines one file and fills the report, but for the noted head: that is for the caller to judge.
func (v *verifier) file(ctx context.Context, f *os.File, path string, head *Head) error {
	w := &walk{src: f, path: path, records: v.semantic != nil, each: v.segment}
	if head != nil {
		w.wantSeq = head.Seq
	}
	v.walk = w
	r := &v.report
	r.path, r.Status = path, StatusClean
	err := walkToEnd(ctx, f, w)
	r.Records, r.Head = w.at.line, w.at.head
	corrupt, damaged := errors.AsType[*CorruptError](err)
	switch {
	case damaged:
		r.damage(corrupt)
	case err != nil:
		return fmt.Errorf("read log %s: %w", path, err)
	case w.tail != nil:
		r.Status, r.Reason, r.FirstBadSeq = StatusTorn, ReasonTornTail, w.at.head.Seq+1
		r.Line, r.Offset, r.Detail = w.at.line+1, w.tail.offset, w.tail.detail
		if w.at.noLF {
			r.Line = w.at.line
		}
	}
	if w.at.noLF {
		v.find(Finding{Code: FindingMissingLF, Seq: w.at.head.Seq, Line: w.at.line, Offset: w.at.offset, Message: "the last record is whole but lacks its LF; the next append adds it"})
	}
	v.headSeen = v.headSeen || head != nil && (*head == Head{} || head.Hash == w.headSeen)
	return nil
}

func headMismatch(want Head, w *walk) *CorruptError {
	e := &CorruptError{Reason: ReasonHeadMismatch, Seq: want.Seq, Offset: w.at.offset}
	if want.Seq > w.at.head.Seq {
		e.Detail = fmt.Sprintf("the log ends at record %d, before the noted head %d: records were cut off", w.at.head.Seq, want.Seq)
	} else {
		e.Detail = fmt.Sprintf("record %d has another hash than the noted head", want.Seq)
	}
	return e
}

func (r *Report) damage(e *CorruptError) {
	r.Status, r.Reason, r.FirstBadSeq, r.Line, r.Offset, r.Detail = StatusCorrupt, e.Reason, e.Seq, e.Line, e.Offset, e.Detail
}

// verifier turns what the walk finds into a report.
type verifier struct {
	report   Report
	name     string // of the archived segment that is being read
	walk     *walk
	semantic *semantic
	headSeen bool // the noted head was met, in any of the files
	progress func(done, total int64)
}

func (v *verifier) find(f Finding) {
	f.Segment = v.name
	v.report.find(f)
}

func (v *verifier) segment(seg *segment) error {
	line := v.walk.at.line
	for _, b := range seg.backwards {
		if repeatsOlder(seg.data[b.offset-seg.offset:]) {
			continue
		}
		v.find(Finding{Code: FindingTimeSteppedBack, Seq: b.seq, Line: line + b.index + 1, Offset: b.offset, Message: "the time stamp lies before that of the record before it"})
	}
	offset := seg.offset
	for i, r := range seg.records {
		v.semantic.record(r, line+int64(i)+1, offset)
		offset += int64(len(r.Raw)) + 1
	}
	if v.progress != nil {
		v.progress(seg.offset+int64(len(seg.data)), v.walk.size)
	}
	return nil
}

// repeatsOlder reports whether the first record of data was carried over from an archived segment, with
// the time that it had there.
func repeatsOlder(data []byte) bool {
	raw, _, _ := bytes.Cut(data, []byte{'\n'})
	var c lineChecker
	return c.check(raw) == nil && membersOf(c.record(raw, 0).Payload).own.carried.kind == '{'
}

// openLog opens a log for reading. A missing one is an error.
func openLog(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read log", Path: path, Err: errors.New("not a regular file")}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// walkToEnd walks to the end of a log that others may be appending to: an unfinished end counts
// only once no writer holds the append lock and the file has stopped growing.
func walkToEnd(ctx context.Context, f *os.File, w *walk) error {
	const pause = 2 * time.Millisecond
	deadline := time.Now().Add(defaultLockWait)
	for {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		w.size, w.tail = info.Size(), nil
		if err := w.run(ctx); err != nil || w.tail == nil {
			return err
		}
		writing := someoneAppends(w.path+".lock") && time.Now().Before(deadline)
		again, err := f.Stat()
		if err != nil {
			return err
		}
		if !writing && again.Size() == w.size {
			return nil
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// someoneAppends reports whether a writer holds the append lock, as far as a look at it tells: one that the
// kernel says is gone does not.
func someoneAppends(lock string) bool {
	left, err := readLeftover(lock)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	self, serr := procid.Prober{}.Self()
	return err != nil || serr != nil || !left.abandoned(self.BootID)
}

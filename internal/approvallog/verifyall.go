package approvallog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// SegmentReport is what VerifyAll found one archived segment to be.
type SegmentReport struct {
	Segment string `json:"segment"`
	Status  Status `json:"status"`
	Records int64  `json:"records"`
	Head    Head   `json:"head"`
	// First and Last are the numbers of its records, counted over all segments.
	First int64 `json:"first"`
	Last  int64 `json:"last"`

	// Of its damage; zero when it is clean.
	Reason      Reason `json:"reason,omitempty"`
	FirstBadSeq int64  `json:"first_bad_seq,omitempty"`
	Line        int64  `json:"line,omitempty"`
	Offset      int64  `json:"offset,omitempty"`
	Detail      string `json:"detail,omitempty"`
}

// VerifyAll verifies the log at path and all archived segments that it goes on from: each by itself, each
// against its seal, and the links from one to the next. What the delivery journal at journal says was
// sealed has to be there too; a journal that is not there says nothing.
//
// The report is that of the log itself, with the reports of the segments in it. Of several damages it
// tells the one that comes first, from the oldest segment on. A noted head may lie in any of them.
func VerifyAll(ctx context.Context, path, journal string, o VerifyOptions) (Report, error) {
	known, err := evidenceFor(path)
	if err != nil {
		return Report{}, err
	}
	f, err := openLog(path)
	if err != nil {
		return Report{}, err
	}
	defer f.Close()
	a := &archiveVerifier{head: o.Head, known: known, looks: o.Semantic}
	if err := a.locate(path, journal, f); err != nil {
		return Report{}, err
	}
	a.measure(f, o.Progress)
	for _, s := range a.segments {
		if err := a.archived(ctx, s); err != nil {
			return Report{}, err
		}
	}
	if err := a.log(ctx, f, path); err != nil {
		return Report{}, err
	}
	if o.Progress != nil {
		o.Progress(a.total, a.total)
	}
	return a.report, nil
}

// archiveVerifier verifies one segment after the other. The report is that of the log once all were read.
type archiveVerifier struct {
	verifier
	head     *Head
	looks    bool // for records that contradict each other
	known    evidence
	segments []archivedSegment
	reports  []SegmentReport
	findings []Finding
	counted  int64 // findings
	first    *CorruptError
	where    string // the segment of first
	done     int64  // bytes of the segments that were read
	total    int64
}

// damaged keeps the first damage.
func (a *archiveVerifier) damaged(segment string, err error) error {
	corrupt, ok := errors.AsType[*CorruptError](err)
	if !ok {
		return err
	}
	if a.first == nil {
		a.first, a.where = corrupt, segment
	}
	return nil
}

// locate finds the segments that the log in f goes on from, and what is wrong with their seals.
func (a *archiveVerifier) locate(path, journal string, f *os.File) error {
	all, err := readArchive(path)
	if err != nil {
		return a.damaged("", err)
	}
	if a.segments, err = cutBefore(all, f); err != nil {
		return err
	}
	if err := a.damaged("", linked(a.segments)); err != nil {
		return err
	}
	first, err := firstHash(f)
	if err != nil {
		return err
	}
	return a.damaged("", a.announced(path, journal, first))
}

// announced compares the archive with what the journal says was sealed. A seal whose records are the
// beginning of a segment that was sealed later, or of the log itself, is that of a cut that was not
// committed.
func (a *archiveVerifier) announced(path, journal, first string) error {
	seals, err := readSeals(journal)
	for _, want := range seals {
		if err != nil {
			return err
		}
		i := slices.IndexFunc(a.segments, func(s archivedSegment) bool { return s.Segment == want.Segment })
		switch {
		case i >= 0 && !sameSeal(a.segments[i].Seal, want):
			err = &CorruptError{
				Path: a.segments[i].dir, Reason: ReasonArchiveSeal,
				Detail: fmt.Sprintf("its seal is not the one that the delivery journal has of it: %d:%s", want.Head.Seq, want.Head.Hash),
			}
		case i >= 0 || want.First == first || slices.ContainsFunc(a.segments, func(s archivedSegment) bool { return s.First == want.First }):
		default:
			err = &CorruptError{
				Path: archivePath(path), Reason: ReasonArchiveMissing,
				Detail: fmt.Sprintf("the delivery journal has the seal of a segment %s, records %d to %d, which is not there", want.Segment, want.Base+1, want.end()),
			}
		}
	}
	return err
}

func sameSeal(a, b Seal) bool {
	linked := sameHead(a.Follows, b.Follows)
	a.Follows, b.Follows = nil, nil
	return linked && a == b
}

// readSeals gives the seals in the delivery journal and in what was archived of it, as far as they can be read.
func readSeals(journal string) ([]Seal, error) {
	f, err := openLog(journal)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var seals []Seal
	each := func(seg *segment) error {
		for _, r := range seg.records {
			var s Seal
			if r.Event == EventArchiveSealed && json.Unmarshal(r.Payload, &s) == nil && s.valid() == nil {
				seals = append(seals, s)
			}
		}
		return nil
	}
	// What is damaged of the journal is told by those who use it.
	before, err := readArchive(journal)
	if err == nil {
		before, err = cutBefore(before, f)
	}
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return nil, err
	}
	for _, s := range before {
		if err := s.walk(context.Background(), each); err != nil && !errors.Is(err, ErrCorrupt) {
			return nil, err
		}
	}
	w := &walk{src: f, size: info.Size(), path: journal, records: true, each: each}
	if err := w.run(context.Background()); err != nil && !errors.Is(err, ErrCorrupt) {
		return nil, err
	}
	return seals, nil
}

// measure makes one progress of the many files.
func (a *archiveVerifier) measure(f *os.File, progress func(done, total int64)) {
	for _, s := range a.segments {
		a.total += s.Bytes
	}
	if info, err := f.Stat(); err == nil {
		a.total += info.Size()
	}
	if progress != nil {
		a.progress = func(done, _ int64) { progress(min(a.done+done, a.total), a.total) }
	}
}

// begin begins with a file. Each segment is complete in itself: what goes on from an earlier one is
// carried over, and would stand there twice.
func (a *archiveVerifier) begin(segment string) {
	a.name = segment
	if a.looks {
		a.semantic = newSemantic(a.find)
	}
}

// archived verifies one segment of the archive.
func (a *archiveVerifier) archived(ctx context.Context, s archivedSegment) error {
	a.begin(s.Segment)
	damage, err := a.segmentFile(ctx, s)
	if err != nil {
		return err
	}
	r := a.report
	report := SegmentReport{Segment: s.Segment, Status: StatusClean, Records: r.Records, Head: r.Head, First: s.Base + 1, Last: s.end()}
	if damage != nil {
		r.damage(damage)
		report.Status, report.Reason, report.FirstBadSeq = r.Status, r.Reason, r.FirstBadSeq
		report.Line, report.Offset, report.Detail = r.Line, r.Offset, r.Detail
		if err := a.damaged(s.Segment, damage); err != nil {
			return err
		}
	}
	a.reports = append(a.reports, report)
	a.findings, a.counted = append(a.findings, r.Findings...), a.counted+r.FindingsTotal
	a.report = Report{}
	a.done += s.Bytes
	return nil
}

// segmentFile verifies a segment's file and compares it with its seal. The damage is nil when there is
// none; a segment that ends in a torn record is damaged, for nothing is ever appended to it.
func (a *archiveVerifier) segmentFile(ctx context.Context, s archivedSegment) (*CorruptError, error) {
	f, err := openLog(s.path())
	if errors.Is(err, fs.ErrNotExist) {
		return &CorruptError{Path: s.path(), Reason: ReasonArchiveMissing, Detail: "the archived records are not there"}, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := a.file(ctx, f, s.path(), a.head); err != nil {
		return nil, err
	}
	if a.report.Status == StatusCorrupt {
		r := a.report
		return &CorruptError{Path: s.path(), Reason: r.Reason, Line: r.Line, Offset: r.Offset, Seq: r.FirstBadSeq, Detail: r.Detail}, nil
	}
	err = s.compare(a.walk)
	if err == nil {
		var first []byte
		if first, err = firstLine(f); err == nil {
			err = followsClaim(s.path(), first, s.Follows)
		}
	}
	damage, ok := errors.AsType[*CorruptError](err)
	if err != nil && !ok {
		return nil, err
	}
	return damage, nil
}

// log verifies the log itself and completes the report.
func (a *archiveVerifier) log(ctx context.Context, f *os.File, path string) error {
	a.begin("")
	if err := a.file(ctx, f, path, a.head); err != nil {
		return err
	}
	var follows *Head
	if n := len(a.segments); n > 0 {
		follows = &a.segments[n-1].Head
	}
	first, err := firstLine(f)
	if err == nil {
		err = a.damaged("", followsClaim(path, first, follows))
	}
	if err != nil {
		return err
	}
	r := &a.report
	r.Archive = a.reports
	r.Findings = append(a.findings, r.Findings...)
	r.Findings = r.Findings[:min(len(r.Findings), maxFindings)]
	r.FindingsTotal += a.counted
	if a.first != nil {
		r.damage(a.first)
		r.Segment, r.path = a.where, a.first.Path
	}
	if r.Status != StatusCorrupt {
		end := r.Head.Seq
		if n := len(a.segments); n > 0 {
			end += a.segments[n-1].end()
		}
		if cut := a.known.behind(path, end); cut != nil {
			r.damage(cut)
		}
	}
	if a.head != nil && r.Status != StatusCorrupt {
		if r.HeadSeen = a.headSeen; !r.HeadSeen {
			r.damage(headMismatch(*a.head, a.walk))
		}
	}
	return nil
}

package approvallog

import (
	"bufio"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ExportFormat names a form of export.
type ExportFormat string

// The formats.
const (
	// ExportJSONLines gives the records as they are stored, so that they can be verified.
	ExportJSONLines ExportFormat = "jsonl"
	// ExportCSV gives the decisions and other ends of requests, one a row, for an auditor's table.
	ExportCSV ExportFormat = "csv"
)

// ExportOptions say what is exported. Zero bounds are open; all bounds are inclusive but Until. Sequence
// numbers count the records of all segments.
type ExportOptions struct {
	Format         ExportFormat // empty is ExportJSONLines
	FromSeq, ToSeq int64
	Since, Until   time.Time
}

func (o ExportOptions) wants(r Record) bool {
	return r.Seq >= o.FromSeq && (o.ToSeq == 0 || r.Seq <= o.ToSeq) &&
		(o.Since.IsZero() || !r.TS.Before(o.Since)) && (o.Until.IsZero() || r.TS.Before(o.Until))
}

// ExportResult says what was exported and what proves where it ends.
type ExportResult struct {
	Records int64 // lines written, without a header
	Head    Head  // of the last record within the bounds, as it stands in its segment
	// Segment is the archived segment that Head is in, empty for the log itself.
	Segment string
	LogHead Head // of the log itself as it was read
}

// Export writes a range of the log at path to out, with the archived segments that it goes on from,
// verifying all of it as it reads. From a damaged one it writes what stands before the damage and
// returns the [*CorruptError]; a torn tail is left out.
//
// In JSON lines of more than one segment each begins with a record that has the number 1 and no
// predecessor, and is verified by itself.
func Export(ctx context.Context, path string, out io.Writer, o ExportOptions) (ExportResult, error) {
	f, err := openLog(path)
	if err != nil {
		return ExportResult{}, err
	}
	defer f.Close()

	var result ExportResult
	buffered := bufio.NewWriterSize(out, 64<<10)
	var row func(Record, bool) (bool, error)
	switch o.Format {
	case ExportJSONLines, "":
		row = func(r Record, wanted bool) (bool, error) {
			if !wanted {
				return false, nil
			}
			buffered.Write(r.Raw)
			return true, buffered.WriteByte('\n')
		}
	case ExportCSV:
		table := &decisionTable{csv: csv.NewWriter(buffered), asked: make(map[string]asked)}
		if err := table.csv.Write(decisionColumns); err != nil {
			return ExportResult{}, err
		}
		row = table.row
	default:
		return ExportResult{}, fmt.Errorf("export format %q is neither %s nor %s", o.Format, ExportJSONLines, ExportCSV)
	}

	each := func(name string, base int64) func(seg *segment) error {
		return func(seg *segment) error {
			for _, r := range seg.records {
				r = r.above(base)
				wanted := o.wants(r)
				wrote, err := row(r, wanted)
				if err != nil {
					return fmt.Errorf("write the export: %w", err)
				}
				if wanted {
					result.Head, result.Segment = r.Head(), name
				}
				if wrote {
					result.Records++
				}
			}
			return nil
		}
	}
	segments, base, err := segmentsBefore(path, f)
	for _, s := range segments {
		if err == nil {
			err = s.walk(ctx, each(s.Segment, s.Base))
		}
	}
	w := &walk{src: f, path: path, records: true, each: each("", base)}
	if err == nil {
		err = walkToEnd(ctx, f, w)
	}
	result.LogHead = w.at.head
	if ferr := buffered.Flush(); err == nil && ferr != nil {
		err = fmt.Errorf("write the export: %w", ferr)
	}
	return result, err
}

var decisionColumns = []string{
	"seq", "time", "event", "action_key", "task", "class", "summary", "requester", "requested_seq", "requested_at",
	"by", "channel", "note", "payload_hash", "record_hash", "approved_by",
}

// decisionTable writes the ends of requests, each with what was asked.
type decisionTable struct {
	csv   *csv.Writer
	asked map[string]asked // by action key, of those that can still end
}

type asked struct {
	seq                                    int64
	at                                     time.Time
	requester, class, summary, payloadHash string
}

func (t *decisionTable) row(r Record, wanted bool) (bool, error) {
	payload := membersOf(r.Payload)
	if payload.own.carried.kind == '{' {
		return false, nil // it stands in the segment that it was carried over from
	}
	switch r.Event {
	case EventRequested:
		t.asked[r.ActionKey] = asked{
			seq: r.Seq, at: r.TS, requester: r.Actor,
			class: payload.class.string(), summary: payload.summary.string(), payloadHash: payload.payloadHash.string(),
		}
		return false, nil
	case EventGranted, EventRejected, EventExpired, EventWithdrawn, EventRevoked:
	default:
		return false, nil
	}
	if !wanted {
		return false, nil
	}
	a := t.asked[r.ActionKey]
	note := payload.note.string()
	if note == "" {
		note = payload.reason.string()
	}
	requestedSeq, requestedAt := "", ""
	if a.seq > 0 {
		requestedSeq, requestedAt = strconv.FormatInt(a.seq, 10), a.at.Format(TimeLayout)
	}
	cells := []string{
		strconv.FormatInt(r.Seq, 10), r.TS.Format(TimeLayout), r.Event, r.ActionKey, r.Task, a.class, a.summary, a.requester,
		requestedSeq, requestedAt, r.Actor, r.Channel, note, a.payloadHash, r.Hash,
		strings.Join(approvers(r, payload), " "),
	}
	for i := range cells {
		cells[i] = harmless(cells[i])
	}
	if err := t.csv.Write(cells); err != nil {
		return false, err
	}
	// Each row leaves the csv writer at once, so that the two buffers never disagree.
	t.csv.Flush()
	return true, t.csv.Error()
}

// approvers are all whose approvals made a grant, in their order; nil for any other record.
func approvers(r Record, payload *members) (names []string) {
	if r.Event != EventGranted {
		return nil
	}
	for _, a := range append(payload.own.approvalList(), Approval{By: r.Actor}) {
		if !slices.Contains(names, a.By) {
			names = append(names, a.By)
		}
	}
	return names
}

// harmless keeps a spreadsheet from running a text that an agent wrote as a formula.
func harmless(cell string) string {
	if cell != "" && strings.ContainsRune("=+-@\t\r", rune(cell[0])) {
		return "'" + cell
	}
	return cell
}

package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/visible"
)

func newLogCommand(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "log",
		Short: "Verify, follow, export and archive the approval log",
		Example: `  approvald log verify
  approvald log tail -f`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("approvald log verify", "log needs one of verify, tail, export, archive")
			}
			return usagef("approvald log verify", "unknown log command %s", visible.Quote(args[0]))
		},
	}
	cmd.AddCommand(newLogVerifyCommand(e), newLogTailCommand(e), newLogExportCommand(e), newLogArchiveCommand(e))
	return cmd
}

// verifyReport is what `log verify --json` prints. Members are frozen; those
// after first_bad_seq say more about damage and findings.
type verifyReport struct {
	Status      approvallog.Status    `json:"status"`
	Records     int64                 `json:"records"`
	Head        *approvallog.Head     `json:"head"`
	Reason      approvallog.Reason    `json:"reason"`
	FirstBadSeq int64                 `json:"first_bad_seq"`
	Line        int64                 `json:"line,omitempty"`
	Offset      int64                 `json:"offset,omitempty"`
	Detail      string                `json:"detail,omitempty"`
	Findings    []approvallog.Finding `json:"findings,omitempty"`
	// Segment is the archived one that the damage is in.
	Segment string                      `json:"segment,omitempty"`
	Archive []approvallog.SegmentReport `json:"archive,omitempty"`
}

func newLogVerifyCommand(e *env) *cobra.Command {
	var head string
	var semantic bool
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check every record and the hash chain; writes nothing",
		Long: `Check every record and the hash chain. Exit code 0: clean; 8: damaged; 9: the log
ends in a torn record, which the next append puts into quarantine. A last record
that is whole and only lacks its line end is clean; the next append adds that.

Records cut off the end leave a chain that verifies. To notice that, keep the head
that is printed and give it to --head the next time; it may lie in the archive by then.

Archived segments are verified too: each by itself, against its seal, and the links
from one to the next.`,
		Example: `  approvald log verify
  approvald log verify --semantic --head 412:9f2c01d4b3a75e8890ffab3160c2d17e4b5a6978c0d1e2f30415263748596a7b`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := e.loadConfig()
			if err != nil {
				return err
			}
			opts := approvallog.VerifyOptions{Semantic: semantic}
			if cmd.Flags().Changed("head") {
				if opts.Head, err = parseHead(head); err != nil {
					return err
				}
			}
			progress := newProgress(e.ui.err)
			opts.Progress = progress.show
			path := cfg.Paths().Log
			rep, err := approvallog.VerifyAll(cmd.Context(), path, cfg.Paths().Journal, opts)
			progress.clear()
			if errors.Is(err, fs.ErrNotExist) {
				err = missingLog(path)
				if damage, ok := errors.AsType[*approvallog.CorruptError](err); ok {
					rep, err = approvallog.Report{Status: approvallog.StatusCorrupt, Reason: damage.Reason, Detail: damage.Detail}, nil
				}
			}
			if err != nil {
				return err
			}
			return e.verified(path, rep, opts.Head != nil)
		},
	}
	cmd.Flags().StringVar(&head, "head", "", "a head known from before, as `SEQ:HASH`; it must be in the log")
	cmd.Flags().BoolVar(&semantic, "semantic", false, "also report records that make no sense together, with exit code 1")
	return cmd
}

// missingLog is the error for a log that is not there: it tells a gate that was
// never used ([gate.CodeNotFound]) from one that has lost its log.
func missingLog(path string) error {
	log, err := approvallog.Open(approvallog.Options{Path: path})
	if err != nil {
		return err
	}
	return errors.Join(&gate.Error{
		Code: gate.CodeNotFound, Message: "there is no log at " + path, Hint: "the gate's first request makes it",
	}, log.Close())
}

// senseless reports whether a finding says that records do not go together. A
// clock that was put back is no fault of the log, and neither is a last record
// that is whole and waits for its line end.
func senseless(f approvallog.Finding) bool {
	return f.Code != approvallog.FindingTimeSteppedBack && f.Code != approvallog.FindingMissingLF
}

// verified prints the report and finds the exit code.
func (e *env) verified(path string, rep approvallog.Report, headGiven bool) error {
	code := exitOK
	switch {
	case rep.Status == approvallog.StatusCorrupt:
		code = exitCorrupt
	case rep.Status == approvallog.StatusTorn:
		code = exitTorn
	case slices.ContainsFunc(rep.Findings, senseless):
		code = exitFailure
	}
	if e.json {
		out := verifyReport{
			Status: rep.Status, Records: rep.Records, Reason: rep.Reason, FirstBadSeq: rep.FirstBadSeq,
			Line: rep.Line, Offset: rep.Offset, Detail: rep.Detail, Findings: rep.Findings, Segment: rep.Segment, Archive: rep.Archive,
		}
		if rep.Head.Seq > 0 {
			out.Head = &rep.Head
		}
		if err := e.ui.emit(out); err != nil {
			return err
		}
	} else {
		e.printReport(path, rep, headGiven)
	}
	if code != exitOK {
		return outcomeError{code}
	}
	return nil
}

func (e *env) printReport(path string, rep approvallog.Report, headGiven bool) {
	for _, s := range rep.Archive {
		e.ui.line("%s  archived %s, %s", string(s.Status), s.Segment, count(int(s.Records), "record"))
	}
	e.ui.line("%s  %s, %s", e.ui.bold(string(rep.Status)), path, count(int(rep.Records), "record"))
	if rep.Head.Seq > 0 {
		e.ui.line("head   %s", formatHead(rep.Head))
	}
	if rep.Status != approvallog.StatusClean {
		e.ui.line("reason %s: %s", string(rep.Reason), rep.Detail)
		if rep.Path() != path {
			e.ui.line("file   %s", rep.Path())
		}
		if rep.Line > 0 {
			e.ui.line("where  line %d, byte %d, record %d", rep.Line, rep.Offset, rep.FirstBadSeq)
		}
	}
	for _, f := range rep.Findings {
		in := ""
		if f.Segment != "" {
			in = " of " + f.Segment
		}
		e.ui.line("found  record %d%s: %s: %s", f.Seq, in, f.Code, f.Message)
	}
	if more := rep.FindingsTotal - int64(len(rep.Findings)); more > 0 {
		e.ui.line("found  and %d more", more)
	}
	if rep.Status == approvallog.StatusClean && !headGiven {
		e.ui.say("the chain alone does not show records cut off the end; keep the head for: approvald log verify --head SEQ:HASH")
	}
}

// tellExported says what proves where the export ends.
func (e *env) tellExported(res approvallog.ExportResult) {
	n := count(int(res.Records), "record")
	switch {
	case res.LogHead.Seq == 0:
		e.ui.say("exported %s; the log is empty", n)
	case res.Head.Seq == 0:
		e.ui.say("exported %s; the log's head is %s", n, formatHead(res.LogHead))
	default:
		last := formatHead(res.Head)
		if res.Segment != "" {
			last += " in the archived segment " + res.Segment
		}
		e.ui.say("exported %s; the last is %s, the log's head is %s", n, last, formatHead(res.LogHead))
	}
}

func formatHead(h approvallog.Head) string { return fmt.Sprintf("%d:%s", h.Seq, h.Hash) }

func parseHead(s string) (*approvallog.Head, error) {
	seq, hash, ok := strings.Cut(s, ":")
	n, err := strconv.ParseInt(seq, 10, 64)
	if !ok || err != nil || n < 1 || len(hash) != 64 || strings.Trim(hash, "0123456789abcdef") != "" {
		return nil, usagef("--head 412:9f2c...41, as log verify prints it", "--head %s is not SEQ:HASH", visible.Quote(s))
	}
	return &approvallog.Head{Seq: n, Hash: hash}, nil
}

// progress is a line on a terminal that tells how far a long verify is.
type progress struct {
	w     *os.File
	began time.Time
	last  time.Time
	shown bool
}

func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return &progress{}
	}
	return &progress{w: f, began: time.Now()}
}

func (p *progress) show(done, total int64) {
	now := time.Now()
	if p.w == nil || total <= 0 || now.Sub(p.began) < time.Second/2 || now.Sub(p.last) < time.Second/10 {
		return
	}
	p.last, p.shown = now, true
	// Talk to a terminal; a failed write harms nothing.
	_, _ = fmt.Fprintf(p.w, "\rverifying %3d%% of %d MiB", done*100/total, total>>20)
}

func (p *progress) clear() {
	if p.shown {
		_, _ = fmt.Fprint(p.w, "\r\x1b[K")
	}
}

func newLogTailCommand(e *env) *cobra.Command {
	var follow bool
	var lines int
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Print the last records, and with -f those to come",
		Example: `  approvald log tail -n 20
  approvald log tail -f --json | jq .event`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if lines < 0 {
				return usagef("-n 10", "-n %d: give a number of records", lines)
			}
			cfg, err := e.loadConfig()
			if err != nil {
				return err
			}
			ctx, stop := withSignals(cmd.Context(), "")
			defer stop()
			return e.tail(ctx, cfg.Paths().Log, lines, follow)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with new records as they are appended")
	cmd.Flags().IntVarP(&lines, "lines", "n", 10, "how many records of the end to print first")
	return cmd
}

func (e *env) tail(ctx context.Context, path string, lines int, follow bool) error {
	// A damaged log is still worth reading up to the damage.
	log, err := approvallog.Open(approvallog.Options{Path: path, ReadDamaged: true})
	if err != nil {
		return err
	}
	// Nothing was written through it.
	defer func() { _ = log.Close() }()
	changed, stop := log.Changed()
	defer stop()
	reader := log.NewReader(max(0, log.Last()-int64(lines)))
	for {
		rec, err := reader.Next()
		switch {
		case err == nil:
			if err := e.printRecord(rec); err != nil {
				return err
			}
			continue
		case !errors.Is(err, io.EOF):
			return err
		case log.Damage() != nil:
			return log.Damage()
		case !follow:
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
			if err := log.Refresh(ctx); err != nil {
				return err
			}
		}
	}
}

func (e *env) printRecord(rec approvallog.Record) error {
	if e.json {
		e.ui.write(escapeJSON(string(rec.Raw)) + "\n")
		return nil
	}
	parts := []string{strconv.FormatInt(rec.Seq, 10), stamp(rec.TS), visible.Line(rec.Event), visible.Line(rec.Actor)}
	add := func(part string, show func(string) string) {
		if part != "" {
			parts = append(parts, show(part))
		}
	}
	add(rec.ActionKey, visible.Line)
	var p struct {
		Class   string `json:"class"`
		Summary string `json:"summary"`
		Note    string `json:"note"`
		Reason  string `json:"reason"`
	}
	// Other writers' payloads may have any shape.
	if json.Unmarshal(rec.Payload, &p) == nil {
		add(p.Class, visible.Line)
		add(p.Reason, visible.Line)
		add(p.Summary, quoteEnclosed)
		add(p.Note, quoteEnclosed)
	}
	e.ui.line("%s", verbatim(strings.Join(parts, "  ")))
	return nil
}

// quoteEnclosed is visible.Quote for a text that others follow on its line: its own quotes are escaped, so that it cannot end early.
func quoteEnclosed(s string) string {
	return `"` + strings.ReplaceAll(visible.Line(s), `"`, `\u{22}`) + `"`
}

func newLogExportCommand(e *env) *cobra.Command {
	var format, from, to string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the log, or a part of it, to stdout",
		Long: `Write the log to stdout: as JSON lines, byte for byte, or as CSV of the requests
and decisions for an auditor. --from and --to take a record's number or a time
(2006-01-02 or RFC 3339). Archived records come first, and numbers count over all:
they are those that log tail and show print. In JSON lines each segment begins anew
with record 1. The head that proves where the export ends goes to stderr.`,
		Example: `  approvald log export > log.jsonl
  approvald log export --format csv --from 2026-08-01 --to 2026-08-31 > august.csv`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts := approvallog.ExportOptions{Format: approvallog.ExportFormat(format)}
			if e.json && opts.Format == approvallog.ExportCSV {
				return usagef("approvald log export --format jsonl --json", "--format csv is no JSON")
			}
			if opts.Format != approvallog.ExportJSONLines && opts.Format != approvallog.ExportCSV {
				return usagef("--format jsonl or --format csv", "--format %s is unknown", visible.Quote(format))
			}
			var err error
			if opts.FromSeq, opts.Since, err = parsePoint("--from", from); err != nil {
				return err
			}
			if opts.ToSeq, opts.Until, err = parsePoint("--to", to); err != nil {
				return err
			}
			cfg, err := e.loadConfig()
			if err != nil {
				return err
			}
			out := bufio.NewWriterSize(rawWriter{e.ui}, 64<<10)
			res, err := approvallog.Export(cmd.Context(), cfg.Paths().Log, out, opts)
			if ferr := out.Flush(); err == nil && ferr != nil {
				err = fmt.Errorf("write export: %w", ferr)
			}
			if errors.Is(err, fs.ErrNotExist) {
				err = missingLog(cfg.Paths().Log)
			}
			if err != nil {
				return err
			}
			e.tellExported(res)
			return nil
		},
	}
	cmd.Flags().StringVar(&format, "format", "jsonl", "jsonl or csv")
	cmd.Flags().StringVar(&from, "from", "", "first record, by `NUMBER|TIME`")
	cmd.Flags().StringVar(&to, "to", "", "last record, by `NUMBER|TIME`")
	return cmd
}

// rawWriter gives a stream of data to stdout as it is.
type rawWriter struct{ u *ui }

func (w rawWriter) Write(b []byte) (int, error) {
	w.u.raw(b)
	return len(b), w.u.broken
}

// parsePoint reads a place in the log: a record's number or a time.
func parsePoint(flag, s string) (seq int64, at time.Time, err error) {
	if s == "" {
		return 0, time.Time{}, nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && n > 0 {
		return n, time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, s); err == nil {
			return 0, t, nil
		}
	}
	return 0, time.Time{}, usagef(flag+" 412, or "+flag+" 2026-08-04T09:00:00Z", "%s %s is neither a record's number nor a time", flag, visible.Quote(s))
}

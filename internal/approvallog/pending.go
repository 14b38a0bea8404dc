package approvallog

import (
	"context"
	"errors"
	"io"
	"time"
)

var errPending = errors.New("engine not committed yet")

type Log struct{}
type Tx struct{}
type Reader struct{}

func Open(Options) (*Log, error) { return nil, errPending }
func (*Log) Update(ctx context.Context, decide func(tx *Tx) error) ([]Record, error) {
	return nil, errPending
}
func (*Tx) Head() Head                   { return Head{} }
func (*Tx) Now() time.Time               { return time.Time{} }
func (*Tx) Append(Draft) (Record, error) { return Record{}, errPending }
func (*Log) Append(ctx context.Context, expect Head, drafts ...Draft) ([]Record, error) {
	return nil, errPending
}
func (*Log) Ensure(ctx context.Context) error   { return errPending }
func (*Log) Refresh(ctx context.Context) error  { return errPending }
func (*Log) View(read func()) error             { return errPending }
func (*Log) Changed() (<-chan struct{}, func()) { return nil, func() {} }
func (*Log) NewReader(afterSeq int64) *Reader   { return &Reader{} }
func (*Reader) Next() (Record, error)           { return Record{}, io.EOF }
func (*Log) Sync() error                        { return errPending }
func (*Log) Head() Head                         { return Head{} }
func (*Log) Torn() bool                         { return false }
func (*Log) Damage() error                      { return nil }
func (*Log) Close() error                       { return nil }

// Status is the outcome of Verify.
type Status string

const (
	StatusClean   Status = "clean"
	StatusTorn    Status = "torn-tail"
	StatusCorrupt Status = "corrupt"
)

type VerifyOptions struct {
	Head     *Head
	Semantic bool
	Progress func(done, total int64)
}

// Finding is something to report that is no damage.
type Finding struct {
	Code    string `json:"code"`
	Seq     int64  `json:"seq"`
	Line    int64  `json:"line"`
	Offset  int64  `json:"offset"`
	Message string `json:"message"`
}

type Report struct {
	Status        Status
	Records       int64
	Head          Head
	Reason        Reason
	FirstBadSeq   int64
	Line          int64
	Offset        int64
	Detail        string
	Findings      []Finding
	FindingsTotal int64
}

func (Report) Err() error { return errPending }

func Verify(ctx context.Context, path string, o VerifyOptions) (Report, error) {
	return Report{}, errPending
}

type ExportFormat string

const (
	ExportJSONLines ExportFormat = "jsonl"
	ExportCSV       ExportFormat = "csv"
)

type ExportOptions struct {
	Format         ExportFormat
	FromSeq, ToSeq int64
	Since, Until   time.Time
}

type ExportResult struct {
	Records int64
	Head    Head // of the last record exported
	LogHead Head // of the log when it was read
}

func Export(ctx context.Context, path string, w io.Writer, o ExportOptions) (ExportResult, error) {
	return ExportResult{}, errPending
}


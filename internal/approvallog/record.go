package approvallog

import (
	"encoding/json"
	"time"
)

// Head names the last record of a log. The zero Head is that of an empty log.
type Head struct {
	Seq  int64  `json:"seq"`
	Hash string `json:"hash"`
}

// Record is one line of the log.
type Record struct {
	Seq   int64
	TS    time.Time // UTC
	Event string
	Actor string // "human:", "agent:" or "system:" and a name
	Hash  string // 64 lower-case hex digits
	Prev  string // empty in the first record

	// Optional members; empty when absent.
	Task      string
	ActionKey string
	Channel   string

	// Payload is the canonical text of an object, nil when absent.
	Payload json.RawMessage
	// Raw is the stored line without its LF.
	Raw []byte

	offset int64 // of the line in its file
}

// Head returns the head of a log that ends with this record.
func (r Record) Head() Head { return Head{Seq: r.Seq, Hash: r.Hash} }

// Draft is what a writer says of a record; sequence number, time and chain are the log's.
type Draft struct {
	Event string
	Actor string

	// Optional members; left out when empty.
	Task      string
	ActionKey string
	Channel   string

	// Payload is nil, a [json.RawMessage], or anything that [json.Marshal] makes an object of. It
	// is brought into canonical form and refused with [ErrInvalid] when it has none.
	Payload any
}

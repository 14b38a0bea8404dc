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
	// Seq counts the records of all segments, from the first of the archive on. In the file of its
	// segment the record has the number Head().Seq, which is the same in a log that was never cut.
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
	base   int64 // how many records the segments before this one hold
}

// Head returns the head of a segment that ends with this record.
func (r Record) Head() Head { return Head{Seq: r.Seq - r.base, Hash: r.Hash} }

// above counts the record, so far by its segment alone, behind the base records of those before.
func (r Record) above(base int64) Record {
	r.Seq += base
	r.base += base
	return r
}

// Draft is what a writer says of a record; sequence number, time and chain are the log's.
type Draft struct {
	Event string
	Actor string

	// TS is the time that the record bears when it is not the log's: a record that is carried over
	// from an archived segment keeps its own.
	TS time.Time

	// Optional members; left out when empty.
	Task      string
	ActionKey string
	Channel   string

	// Payload is nil, a [json.RawMessage], or anything that [json.Marshal] makes an object of. It
	// is brought into canonical form and refused with [ErrInvalid] when it has none.
	Payload any
}

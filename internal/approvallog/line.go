package approvallog

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"
)

const (
	// algorithm is the only one of the format.
	algorithm = "sha256/jcs"
	// TimeLayout is how every time stands in a record and in JSON for programs: RFC 3339, UTC, milliseconds, all digits. Texts of
	// one length can be compared and cut by programs that know no times.
	TimeLayout = "2006-01-02T15:04:05.000Z"
	// maxLine bounds a stored line, and with it what reading a log can make a process hold. Records
	// that approvald writes are smaller by far: payloads stand in files of their own.
	maxLine = 16 << 20
	// hashDigits is the length of a hash as it is written.
	hashDigits = 2 * sha256.Size
)

// fault is what is wrong with one line.
type fault struct {
	reason Reason
	detail string
	// unfinished: the line is the beginning of a record and no more.
	unfinished bool
}

// field is one top-level member's value, as its bytes stand in the line; a string without its
// quotes. The zero field is absent.
type field struct {
	text []byte
	kind byte // the first byte of the value: '"', '{', a digit, ...
}

func (m field) str() string { return unquote(m.text) }

// line is a stored line, taken apart and found sound in itself: canonical, of the right shape, and
// with the digest that it claims. Its slices are parts of the line.
type line struct {
	actionKey, actor, alg, channel, event, hash, payload, prev, seqText, task, ts field

	unknown bool // a member that the format does not have
	cutFrom int  // where the hash member begins, and
	cutTo   int  // where what follows it and its comma begins
	seq     int64
	time    time.Time
}

// lineChecker checks lines one after the other, without allocating for each.
type lineChecker struct {
	line    line
	scratch []byte // the digest's input
	// The strings of the record that was made last, which the next often has too.
	lastHash, lastActor, otherActor, lastKey, lastTask, lastChannel string
}

// check takes the line b (without its LF) apart. The fault is the first in the order that the
// format prescribes; nil means that c.line holds a record that is sound in itself.
func (c *lineChecker) check(b []byte) *fault {
	c.line = line{}
	if !c.scan(b) {
		return explain(b)
	}
	l := &c.line
	if l.alg.kind != '"' || string(l.alg.text) != algorithm {
		return &fault{reason: ReasonBadAlg, detail: "the member alg is not " + algorithm}
	}
	if detail := l.shape(); detail != "" {
		return &fault{reason: ReasonSchema, detail: detail}
	}
	c.scratch = append(append(c.scratch[:0], b[:l.cutFrom]...), b[l.cutTo:]...)
	sum := sha256.Sum256(c.scratch)
	var digits [hashDigits]byte
	hex.Encode(digits[:], sum[:])
	if string(digits[:]) != string(l.hash.text) {
		return &fault{reason: ReasonHashMismatch, detail: "the record's digest is " + string(digits[:]) + ", its hash says otherwise"}
	}
	return nil
}

// scan reports whether b is the canonical text of an object, and notes its top-level members.
func (c *lineChecker) scan(b []byte) bool {
	if len(b) == 0 || b[0] != '{' {
		return false
	}
	l := &c.line
	s := canonicalScanner{b: b}
	ok := s.object(0, func(name []byte, nameStart, from, to int) {
		m := field{text: b[from:to], kind: b[from]}
		if m.kind == '"' {
			m.text = b[from+1 : to-1]
		}
		switch string(name) {
		case "action_key":
			l.actionKey = m
		case "actor":
			l.actor = m
		case "alg":
			l.alg = m
		case "channel":
			l.channel = m
		case "event":
			l.event = m
		case "hash":
			// Never the last member of a sound record: prev, seq and ts come after it.
			l.hash, l.cutFrom, l.cutTo = m, nameStart, min(to+1, len(b))
		case "payload":
			l.payload = m
		case "prev":
			l.prev = m
		case "seq":
			l.seqText = m
		case "task":
			l.task = m
		case "ts":
			l.ts = m
		default:
			l.unknown = true
		}
	})
	return ok && s.i == len(b)
}

// explain says why a line is not the canonical text of an object.
func explain(b []byte) *fault {
	if err := checkStrict(b); err != nil {
		return &fault{reason: err.Reason, detail: err.Error(), unfinished: err.unfinished}
	}
	if trimmed := bytes.TrimSpace(b); trimmed[0] != '{' {
		return &fault{reason: ReasonMalformed, detail: "a JSON value, but no object"}
	}
	return &fault{reason: ReasonNotCanonical, detail: "the line is not the canonical text (RFC 8785) of its record"}
}

// shape says what the record lacks, "" when nothing. It sets the sequence number.
func (l *line) shape() string {
	if l.unknown {
		return "a member that the format does not have"
	}
	seq, err := strconv.ParseInt(string(l.seqText.text), 10, 64)
	if l.seqText.kind == '"' || err != nil || seq < 1 {
		return "seq is not an integer from 1"
	}
	l.seq = seq
	at, ok := parseTime(l.ts)
	if !ok {
		return "ts is not an RFC 3339 time"
	}
	l.time = at
	if l.event.kind != '"' || len(l.event.text) == 0 {
		return "event is not a non-empty string"
	}
	if l.actor.kind != '"' || !validActor(l.actor.text) {
		return "actor is not human:, agent: or system: and a name"
	}
	if l.hash.kind != '"' || !isHash(l.hash.text) {
		return "hash is not 64 lower-case hex digits"
	}
	if l.prev.kind == '"' && !isHash(l.prev.text) || l.prev.kind != '"' && string(l.prev.text) != "null" {
		return "prev is neither null nor 64 lower-case hex digits"
	}
	for _, optional := range [...]struct {
		name string
		m    field
	}{{"task", l.task}, {"action_key", l.actionKey}, {"channel", l.channel}} {
		if optional.m.kind != 0 && (optional.m.kind != '"' || len(optional.m.text) == 0) {
			return optional.name + " is not a non-empty string"
		}
	}
	if l.payload.kind != 0 && l.payload.kind != '{' {
		return "payload is not an object"
	}
	return ""
}

// previous returns the hash that the record follows, "" for a first one.
func (l *line) previous() []byte {
	if l.prev.kind != '"' {
		return nil
	}
	return l.prev.text
}

// record makes the Record of the line that was found sound. raw is the line; payload and Raw are
// parts of it.
func (c *lineChecker) record(raw []byte, offset int64) Record {
	l := &c.line
	if string(l.actor.text) != c.lastActor {
		c.lastActor, c.otherActor = c.otherActor, c.lastActor // the asker and the approver, in turns
	}
	c.lastActor = again(c.lastActor, l.actor)
	r := Record{
		Seq: l.seq, TS: l.time, Event: eventName(l.event), Actor: c.lastActor, Hash: string(l.hash.text),
		Prev: again(c.lastHash, l.prev), Raw: raw, offset: offset,
	}
	c.lastHash = r.Hash
	if l.actionKey.kind != 0 {
		c.lastKey = again(c.lastKey, l.actionKey)
		r.ActionKey = c.lastKey
	}
	if l.task.kind != 0 {
		if string(l.task.text) == c.lastKey {
			c.lastTask = c.lastKey // who names no task has the action key for it
		}
		c.lastTask = again(c.lastTask, l.task)
		r.Task = c.lastTask
	}
	if l.channel.kind != 0 {
		c.lastChannel = again(c.lastChannel, l.channel)
		r.Channel = c.lastChannel
	}
	if l.payload.kind != 0 {
		r.Payload = l.payload.text
	}
	return r
}

// again gives the text of a string, last itself when it is the same; "" for null.
func again(last string, m field) string {
	switch {
	case m.kind != '"':
		return ""
	case string(m.text) == last && bytes.IndexByte(m.text, '\\') < 0:
		return last
	}
	return m.str()
}

// eventName gives the frequent names without allocating.
func eventName(m field) string {
	switch string(m.text) {
	case EventRequested:
		return EventRequested
	case EventGranted:
		return EventGranted
	case EventRejected:
		return EventRejected
	case EventExpired:
		return EventExpired
	case EventWithdrawn:
		return EventWithdrawn
	case EventRevoked:
		return EventRevoked
	case EventExecutionStarted:
		return EventExecutionStarted
	case EventExecutionCompleted:
		return EventExecutionCompleted
	case EventExecutionFailed:
		return EventExecutionFailed
	}
	return m.str()
}

func isHash(b []byte) bool {
	if len(b) != hashDigits {
		return false
	}
	for _, c := range b {
		if !hexDigit[c] {
			return false
		}
	}
	return true
}

// hexDigit tells the lower-case hex digits: a look-up costs less than comparisons that the
// processor cannot predict.
var hexDigit = func() (table [256]bool) {
	for _, c := range "0123456789abcdef" {
		table[c] = true
	}
	return table
}()

func validActor(b []byte) bool {
	for _, kind := range [...]string{"human:", "agent:", "system:"} {
		if len(b) > len(kind) && string(b[:len(kind)]) == kind {
			return true
		}
	}
	return false
}

// parseTime reads a time stamp: fast in the form that is written, else any RFC 3339 time.
func parseTime(m field) (time.Time, bool) {
	if m.kind != '"' {
		return time.Time{}, false
	}
	b := m.text
	if len(b) == len(TimeLayout) && b[4] == '-' && b[7] == '-' && b[10] == 'T' && b[13] == ':' && b[16] == ':' && b[19] == '.' && b[23] == 'Z' {
		year, month, day := digits(b[0:4]), digits(b[5:7]), digits(b[8:10])
		hour, minute, second, milli := digits(b[11:13]), digits(b[14:16]), digits(b[17:19]), digits(b[20:23])
		if year >= 0 && month >= 1 && month <= 12 && day >= 1 && day <= 31 && hour >= 0 && hour < 24 &&
			minute >= 0 && minute < 60 && second >= 0 && second < 60 && milli >= 0 {
			t := time.Date(year, time.Month(month), day, hour, minute, second, milli*1e6, time.UTC)
			return t, day <= 28 || t.Day() == day // not the 31st of a month with fewer days
		}
	}
	t, err := time.Parse(time.RFC3339Nano, strings.ToUpper(string(b)))
	return t.UTC(), err == nil
}

// digits reads a decimal number; a byte that is no digit makes it negative.
func digits(b []byte) int {
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return -1
		}
		n = n*10 + int(c-'0')
	}
	return n
}

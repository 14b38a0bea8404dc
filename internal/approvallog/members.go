package approvallog

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"github.com/approvald/approvald/internal/procid"
)

// members are those members of a record's payload that the fold reads, as their bytes stand. Any
// writer may have written it: a member that is missing or of another type than asked for reads as
// the zero value.
type members struct {
	class, summary, payloadHash, reversible, estCostUSD, waitUntil field
	note, reason, exitCode                                         field
	own                                                            ownMembers    // of the member approvald
	sender                                                         senderMembers // of the member sender
}

type ownMembers struct {
	expiresAt, quorum, exclusive, followUp, digest, uid, pid, writerUID, onBehalfOf, approvals field
	runner, attempt, reason                                                                    field
	epoch                                                                                      field
	carried, follows                                                                           field // see carry.go
}

type senderMembers struct{ channel field }

// membersOf reads a payload in one pass when it is canonical, as the log's are. What is no object
// has no members. It is small enough to be inlined: then what it makes stays on the caller's stack.
func membersOf(payload []byte) *members {
	m := new(members)
	m.read(payload)
	return m
}

func (m *members) read(payload []byte) {
	if m.readCanonical(payload) || len(payload) == 0 {
		return
	}
	*m = members{}
	if payload, err := Canonicalize(payload); err == nil {
		m.readCanonical(payload)
	}
}

func (m *members) readCanonical(payload []byte) bool {
	return eachMember(payload, func(name, value []byte) {
		f := fieldOf(value)
		switch string(name) {
		case "class":
			m.class = f
		case "summary":
			m.summary = f
		case "payload_hash":
			m.payloadHash = f
		case "reversible":
			m.reversible = f
		case "est_cost_usd":
			m.estCostUSD = f
		case "wait_until":
			m.waitUntil = f
		case "note":
			m.note = f
		case "reason":
			m.reason = f
		case "exit_code":
			m.exitCode = f
		case "approvald":
			m.own.read(value)
		case "sender":
			eachMember(value, func(name, value []byte) {
				if string(name) == "channel" {
					m.sender.channel = fieldOf(value)
				}
			})
		}
	})
}

func (m *ownMembers) read(object []byte) {
	eachMember(object, func(name, value []byte) {
		f := fieldOf(value)
		switch string(name) {
		case "expires_at":
			m.expiresAt = f
		case "quorum":
			m.quorum = f
		case "exclusive":
			m.exclusive = f
		case "follow_up":
			m.followUp = f
		case "request_digest":
			m.digest = f
		case "uid":
			m.uid = f
		case "writer_uid":
			m.writerUID = f
		case "on_behalf_of":
			m.onBehalfOf = f
		case "pid":
			m.pid = f
		case "approvals":
			m.approvals = f
		case "runner":
			m.runner = f
		case "attempt":
			m.attempt = f
		case "reason":
			m.reason = f
		case "epoch":
			m.epoch = f
		case "carried":
			m.carried = f
		case "follows":
			m.follows = f
		}
	})
}

// eachMember tells the members of a canonical object, the names without their quotes. It reports
// whether the text was one as far as it looked: values are told apart, not checked.
func eachMember(object []byte, member func(name, value []byte)) bool {
	if len(object) < 2 || object[0] != '{' {
		return false
	}
	if object[1] == '}' {
		return len(object) == 2
	}
	for i := 1; ; i++ {
		nameEnd := valueEnd(object, i)
		if nameEnd < i+2 || object[i] != '"' || nameEnd >= len(object) || object[nameEnd] != ':' {
			return false
		}
		end := valueEnd(object, nameEnd+1)
		if end <= nameEnd+1 || end >= len(object) {
			return false
		}
		member(object[i+1:nameEnd-1], object[nameEnd+1:end])
		switch i = end; object[i] {
		case ',':
		case '}':
			return i == len(object)-1
		default:
			return false
		}
	}
}

// valueEnd returns where the canonical value ends that begins at i; i itself, or the text's length,
// when there is none.
func valueEnd(b []byte, i int) int {
	for depth := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = stringEnd(b, i)
			if depth == 0 {
				return min(i+1, len(b))
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
			if depth < 0 {
				return i // of a number or a literal that was the last
			}
		case ',', ':':
			if depth == 0 {
				return i
			}
		}
	}
	return len(b)
}

// stringEnd returns where the quote stands that ends the string that begins at i, or the text's length.
func stringEnd(b []byte, i int) int {
	for i++; i < len(b); i++ {
		at := bytes.IndexByte(b[i:], '"')
		if at < 0 {
			return len(b)
		}
		i += at
		backslashes := 0
		for b[i-1-backslashes] == '\\' {
			backslashes++
		}
		if backslashes%2 == 0 {
			return i
		}
	}
	return len(b)
}

// fieldOf is the field of a value's canonical text.
func fieldOf(value []byte) field {
	f := field{text: value, kind: value[0]}
	if f.kind == '"' {
		f.text = value[1 : len(value)-1]
	}
	return f
}

// string is a string's text, "" for any other value.
func (m field) string() string {
	if m.kind != '"' {
		return ""
	}
	return m.str()
}

// textsOf gives what [field.string] gives of each field, as parts of one string: one allocation holds all
// that a request keeps of its payload, and nothing of what it does not.
func textsOf(fields ...*field) (texts [7]string) {
	var room [512]byte
	var ends [len(texts)]int
	all := room[:0]
	for i, m := range fields {
		if m.kind == '"' {
			if bytes.IndexByte(m.text, '\\') < 0 {
				all = append(all, m.text...)
			} else {
				all = append(all, m.str()...)
			}
		}
		ends[i] = len(all)
	}
	text, from := string(all), 0
	for i, to := range ends[:len(fields)] {
		texts[i], from = text[from:to], to
	}
	return texts
}

func (m field) isTrue() bool { return m.kind == 't' }

// integer reads a number without a fraction; it reports false for anything else.
func (m field) integer(bits int) (int64, bool) {
	if m.kind != '-' && (m.kind < '0' || m.kind > '9') {
		return 0, false
	}
	n, err := strconv.ParseInt(string(m.text), 10, bits)
	return n, err == nil
}

func (m field) time() time.Time {
	t, ok := parseTime(m)
	if !ok {
		return time.Time{}
	}
	return t
}

// amount reads a JSON number or a decimal string, as spelt.
func (m field) amount() string {
	switch {
	case m.kind == '-' || m.kind >= '0' && m.kind <= '9':
		return string(m.text)
	case m.kind != '"' || len(m.text) == 0 || m.text[0] != '-' && (m.text[0] < '0' || m.text[0] > '9') || !json.Valid(m.text):
		return ""
	default:
		return string(m.text)
	}
}

// contradicts reports whether the member is there and says something else than want.
func (m field) contradicts(want string) bool {
	switch {
	case m.kind == 0:
		return false
	case m.kind == '"' && bytes.IndexByte(m.text, '\\') < 0:
		return string(m.text) != want
	}
	return m.kind != '"' || m.str() != want
}

func (m *ownMembers) quorumOrOne() int {
	n, _ := m.quorum.integer(strconv.IntSize)
	return int(max(1, n))
}

func (m *ownMembers) peer() *Peer {
	uid := m.uid.userID()
	if uid == nil {
		return nil
	}
	pid, _ := m.pid.integer(32)
	return &Peer{UID: *uid, PID: int32(pid)}
}

// userID reads a user id; nil for anything else.
func (m field) userID() *uint32 {
	n, ok := m.integer(64)
	if !ok || n < 0 || n > 1<<32-1 {
		return nil
	}
	uid := uint32(n)
	return &uid
}

// approvalList are the approvals that name a person; an element with a time that is none does not
// count.
func (m *ownMembers) approvalList() (list []Approval) {
	if m.approvals.kind != '[' {
		return nil
	}
	for b := m.approvals.text[1:]; len(b) > 0 && b[0] != ']'; {
		end := valueEnd(b, 0)
		if end == 0 {
			return nil
		}
		if a, ok := approvalOf(b[:end]); ok {
			list = append(list, a)
		}
		if b = b[end:]; len(b) > 0 && b[0] == ',' {
			b = b[1:]
		}
	}
	return list
}

func approvalOf(object []byte) (a Approval, ok bool) {
	var at field
	ok = eachMember(object, func(name, value []byte) {
		switch string(name) {
		case "by":
			a.By = fieldOf(value).string()
		case "at":
			at = fieldOf(value)
		}
	})
	if at.kind != 0 && at.kind != 'n' {
		var isTime bool
		a.At, isTime = parseTime(at)
		ok = ok && isTime
	}
	return a, ok && a.By != ""
}

// identity reads the process that a record names; what is not there stays unknown.
func (m field) identity() (id procid.Identity) {
	if m.kind != '{' {
		return id
	}
	eachMember(m.text, func(name, value []byte) {
		f := fieldOf(value)
		switch string(name) {
		case "boot":
			id.BootID = f.string()
		case "pidns":
			id.PIDNS = f.string()
		case "timens":
			id.TimeNS = f.string()
		case "pid":
			n, _ := f.integer(32)
			id.PID = int(n)
		case "start":
			n, _ := f.integer(64)
			id.StartTicks = uint64(max(0, n))
		}
	})
	return id
}

package approvallog

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"
)

// encode makes the record that follows head out of a draft. It fails with [ErrInvalid].
func encode(head Head, now time.Time, d Draft) (Record, error) {
	payload, err := d.payload()
	if err != nil {
		return Record{}, err
	}
	if err := d.validate(); err != nil {
		return Record{}, err
	}
	if !d.TS.IsZero() {
		now = d.TS
	}
	r := Record{
		Seq: head.Seq + 1, TS: now.UTC().Truncate(time.Millisecond), Event: d.Event, Actor: d.Actor, Prev: head.Hash,
		Task: d.Task, ActionKey: d.ActionKey, Channel: d.Channel,
	}
	if year := r.TS.Year(); year < 0 || year > 9999 {
		return Record{}, fmt.Errorf("%w: the year %d has no RFC 3339 form", ErrInvalid, year)
	}
	text, cut := r.text(payload)
	sum := sha256.Sum256(text)
	r.Hash = hex.EncodeToString(sum[:])

	const name = `"hash":"`
	raw := make([]byte, 0, len(text)+len(name)+hashDigits+2)
	raw = append(raw, text[:cut]...)
	raw = append(raw, name...)
	raw = append(raw, r.Hash...)
	raw = append(raw, '"', ',')
	start := len(raw)
	raw = append(raw, text[cut:]...)
	if len(raw) > maxLine {
		return Record{}, fmt.Errorf("%w: %d bytes; a record has at most %d", ErrInvalid, len(raw), maxLine)
	}
	r.Raw = raw
	if payload != nil {
		from := start + len(`"payload":`)
		r.Payload = raw[from : from+len(payload) : from+len(payload)]
	}
	return r, nil
}

// text gives the canonical text of the record without its hash, and where in it the hash member has its
// place.
func (r *Record) text(payload []byte) (text []byte, cut int) {
	b := append(make([]byte, 0, 384+len(r.ActionKey)+len(r.Task)+len(payload)), '{')
	if r.ActionKey != "" {
		b = append(b, `"action_key":`...)
		b = append(appendString(b, r.ActionKey), ',')
	}
	b = append(b, `"actor":`...)
	b = appendString(b, r.Actor)
	b = append(b, `,"alg":"`+algorithm+`",`...)
	if r.Channel != "" {
		b = append(b, `"channel":`...)
		b = append(appendString(b, r.Channel), ',')
	}
	b = append(b, `"event":`...)
	b = append(appendString(b, r.Event), ',')
	cut = len(b)
	if payload != nil {
		b = append(b, `"payload":`...)
		b = append(append(b, payload...), ',')
	}
	b = append(b, `"prev":`...)
	if r.Prev == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, r.Prev)
	}
	b = append(b, `,"seq":`...)
	b = strconv.AppendInt(b, r.Seq, 10)
	if r.Task != "" {
		b = append(b, `,"task":`...)
		b = appendString(b, r.Task)
	}
	b = append(b, `,"ts":"`...)
	b = r.TS.AppendFormat(b, TimeLayout)
	return append(b, '"', '}'), cut
}

func (d Draft) validate() error {
	if d.Event == "" {
		return fmt.Errorf("%w: no event", ErrInvalid)
	}
	if !ValidActor(d.Actor) {
		return fmt.Errorf("%w: the actor is not human:, agent: or system: and a name", ErrInvalid)
	}
	for _, text := range [...]string{d.Event, d.Actor, d.Task, d.ActionKey, d.Channel} {
		if !utf8.ValidString(text) {
			return fmt.Errorf("%w: a member is not valid UTF-8", ErrInvalid)
		}
	}
	return nil
}

// payload gives the canonical text of the draft's payload, nil for none.
func (d Draft) payload() ([]byte, error) {
	var text []byte
	switch p := d.Payload.(type) {
	case nil:
		return nil, nil
	case json.RawMessage:
		if p == nil {
			return nil, nil
		}
		text = p
	default:
		var err error
		if text, err = json.Marshal(p); err != nil {
			return nil, fmt.Errorf("%w: payload: %w", ErrInvalid, err)
		}
		if string(text) == "null" {
			return nil, nil // a nil map or pointer
		}
		if replacedUTF8(text) {
			return nil, fmt.Errorf("%w: the payload has invalid UTF-8", ErrInvalid)
		}
	}
	canonical, err := Canonicalize(text)
	if err != nil {
		return nil, fmt.Errorf("payload: %w", err)
	}
	if canonical[0] != '{' {
		return nil, fmt.Errorf("%w: the payload is not an object", ErrInvalid)
	}
	return canonical, nil
}

// replacedUTF8 reports whether json.Marshal met invalid UTF-8 while it made text. It cannot be told
// to refuse, and writes the escape \ufffd in its place, which it never does for a real U+FFFD: the
// record would say something else than its writer.
func replacedUTF8(text []byte) bool {
	for i := 0; i+1 < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		if bytes.HasPrefix(text[i:], []byte(`\ufffd`)) {
			return true
		}
		i++ // the escaped character is no start of an escape
	}
	return false
}

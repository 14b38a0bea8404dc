package approvallog

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// carried says of a record that it repeats one of an archived segment, so that the request goes on in
// this one: what a request is told by, is its first record.
type carried struct {
	Seq    int64  `json:"seq"` // counted over all segments
	Digest string `json:"digest"`
}

// followed names the last record of the segment before, as it stands there. Not hash: that word is the
// record's own.
type followed struct {
	Seq    int64  `json:"seq"`
	Digest string `json:"digest"`
}

// carry makes the draft of a record that repeats r of an earlier segment: with the same time and
// payload, and in payload.approvald.carried what it repeats.
func carry(r Record) (Draft, error) {
	origin := carried{Seq: r.Seq, Digest: r.Hash}
	own := membersOf(r.Payload).own
	if !own.carried.object(&origin) {
		origin = carried{Seq: r.Seq, Digest: r.Hash}
	}
	payload, err := withOwn(r.Payload, "carried", origin)
	if err != nil {
		return Draft{}, fmt.Errorf("carry record %d over: %w", r.Seq, err)
	}
	return Draft{
		Event: r.Event, Actor: r.Actor, TS: r.TS, Task: r.Task, ActionKey: r.ActionKey, Channel: r.Channel, Payload: payload,
	}, nil
}

// withOwn sets a member of the object approvald in a payload. What the first record of a segment
// follows is not taken over from another segment.
func withOwn(payload json.RawMessage, name string, value any) (json.RawMessage, error) {
	all, own := map[string]json.RawMessage{}, map[string]json.RawMessage{}
	if payload != nil {
		if err := json.Unmarshal(payload, &all); err != nil {
			return nil, fmt.Errorf("%w: payload: %w", ErrInvalid, err)
		}
	}
	if raw, ok := all["approvald"]; ok {
		if err := json.Unmarshal(raw, &own); err != nil {
			return nil, fmt.Errorf("%w: payload.approvald: %w", ErrInvalid, err)
		}
	}
	delete(own, "follows")
	var err error
	if own[name], err = json.Marshal(value); err != nil {
		return nil, err
	}
	if all["approvald"], err = json.Marshal(own); err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

// linkedTo names in the payload of a segment's first record the segment that it follows.
func (d Draft) linkedTo(head Head) (Draft, error) {
	text, err := d.payload()
	if err == nil {
		text, err = withOwn(text, "follows", followed{Seq: head.Seq, Digest: head.Hash})
	}
	d.Payload = json.RawMessage(text)
	return d, err
}

// originalSeq is the record's number, and that of the one that it repeats when it was carried over.
func originalSeq(rec *Record, p *members) int64 {
	if p.own.carried.kind != '{' {
		return rec.Seq // nearly all: what follows takes its variable from the heap
	}
	var of carried
	if p.own.carried.object(&of) && of.Seq > 0 {
		return of.Seq
	}
	return rec.Seq
}

// originalHash is the hash of the record with that number.
func originalHash(rec *Record, p *members) string {
	if p.own.carried.kind != '{' {
		return rec.Hash
	}
	var of carried
	if p.own.carried.object(&of) && of.Seq > 0 {
		return of.Digest
	}
	return rec.Hash
}

// object reads a JSON object into v, and reports whether it is one that fits.
func (m field) object(v any) bool {
	return m.kind == '{' && json.Unmarshal(m.text, v) == nil
}

// BeginSegment makes q the fold of a log that goes on from archived segments. recent and epoch are what the seal of
// the last one holds of it.
func (q *Requests) BeginSegment(recent map[string][]time.Time, epoch int64) {
	q.epoch = max(q.epoch, epoch)
	for asker, times := range recent {
		if len(times) > 0 {
			q.created[asker] = slices.Clone(times)
		}
	}
}

// Recent are the times within the hour before now at which each asker opened cycles.
func (q *Requests) Recent(now time.Time) map[string][]time.Time {
	recent := make(map[string][]time.Time)
	for asker, times := range q.created {
		for _, t := range times {
			if t.After(now.Add(-creationWindow)) {
				recent[asker] = append(recent[asker], t)
			}
		}
	}
	return recent
}

// CarryOver gives the records that a request consists of as drafts for another segment: the one that
// opened its cycle, and those that changed its state. It is nil for a key that nobody asked for.
func (q *Requests) CarryOver(key string) ([]Draft, error) {
	records, _ := q.cycle(key)
	var drafts []Draft
	for _, r := range records {
		d, err := carry(r)
		if err != nil {
			return nil, err
		}
		drafts = append(drafts, d)
	}
	return drafts, nil
}

// Bring gives what has to be appended before a record that changes the request under key: nothing when
// the request is part of this segment, else what CarryOver gives. So each segment is complete in itself.
func (q *Requests) Bring(key string) ([]Draft, error) {
	e := q.entry(key)
	if e == nil || q.finder == nil || e.cycle.Seq > q.finder.log.base {
		return nil, nil
	}
	if _, here := q.cycle(key); here {
		return nil, nil
	}
	return q.CarryOver(key)
}

// cycle finds the records that the key's present cycle consists of, each once, and whether the present
// segment has the first of them.
func (q *Requests) cycle(key string) (records []Record, here bool) {
	if q.finder == nil {
		return nil, false
	}
	var e entry
	for _, r := range q.finder.Find(key, func(r Record) bool { return r.ActionKey == key }) {
		p := membersOf(r.Payload)
		if r.Event != EventRequested {
			before := e.cycle.Revision
			if e.apply(&r, p); e.cycle.Revision != before {
				records = append(records, r)
			}
			continue
		}
		before := e.cycle.Seq
		if e.open(&r, p); e.cycle.Seq != before {
			records, here = []Record{r}, false
		}
		here = here || r.base == q.finder.log.base
	}
	return records, here
}

package approvallog

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxKeyBytes is the longest action key that approvald makes or takes.
const maxKeyBytes = 256

// FollowUpKey is the action key of the request that follows the cycle with that number of the request under parent: PARENT/then-CYCLE,
// or with the SHA-256 of a parent's key that is too long for that. One cycle has one follow-up, so that opening it twice is the same
// request.
func FollowUpKey(parent string, cycle int64) string {
	if key := fmt.Sprintf("%s/then-%d", parent, cycle); len(key) <= maxKeyBytes {
		return key
	}
	sum := sha256.Sum256([]byte(parent))
	return fmt.Sprintf("then-%s-%d", hex.EncodeToString(sum[:]), cycle)
}

// ParseFollowUpKey reports whether key is one that FollowUpKey makes, and of what. Of a parent with a long key it does not tell: parent is
// empty and cycle 0 then.
func ParseFollowUpKey(key string) (parent string, cycle int64, ok bool) {
	if i := strings.LastIndex(key, "/then-"); i > 0 {
		if cycle, ok := cycleNumber(key[i+len("/then-"):]); ok {
			return key[:i], cycle, true
		}
	}
	const digits = 2 * sha256.Size
	if rest, found := strings.CutPrefix(key, "then-"); found && len(rest) > digits && rest[digits] == '-' && isHash([]byte(rest[:digits])) {
		_, ok = cycleNumber(rest[digits+1:])
	}
	return "", 0, ok
}

func cycleNumber(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n > 0 && strconv.FormatInt(n, 10) == s
}

// Due returns the requests that have a follow-up which is to be opened: they were granted, their execution has completed, and nobody has
// asked for the follow-up yet. Those that completed first come first. They are few, and what there is of them stays in memory.
func (q *Requests) Due() []Request {
	list := make([]Request, 0, len(q.due))
	for _, r := range q.due {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b Request) int { return cmp.Compare(a.Execution.EndedSeq, b.Execution.EndedSeq) })
	return list
}

// DueFor returns the request whose follow-up is to be opened under key, if there is one.
func (q *Requests) DueFor(key string) (parent Request, ok bool) {
	parent, ok = q.due[key]
	return parent, ok
}

// noteCompletion makes a follow-up due when rec completed the execution that it follows. hidden is the earlier cycle whose execution was
// running before rec, nil for none.
func (q *Requests) noteCompletion(rec *Record, p *members, e *entry, hidden *Request) {
	done, ok := e.completedBy(rec, p, hidden)
	if !ok || done.FollowUpKey == "" {
		return
	}
	// Somebody else may have asked under that key before, and in a log that goes on from an archive it may be in there.
	if q.entry(done.FollowUpKey) == nil {
		q.due[done.FollowUpKey] = done
	}
}

// completedBy is the cycle whose execution rec has completed: the hidden one, or the current one. It is also told for a record that was
// carried over from an archive.
func (e *entry) completedBy(rec *Record, p *members, hidden *Request) (Request, bool) {
	if rec.Event != EventExecutionCompleted {
		return Request{}, false
	}
	if hidden != nil {
		done := *hidden
		done.finish(rec, originalSeq(rec, p), p)
		return done, e.running == nil
	}
	done := e.cycle
	return done, done.State == StateCompleted && done.Execution.EndedSeq == originalSeq(rec, p)
}

// findDue looks for the cycle of that number of the key, as its completion left it.
func (q *Requests) findDue(key string, cycle int64) (Request, bool) {
	var e entry
	records := q.finder.Find(key, func(r Record) bool { return r.ActionKey == key })
	for i := range records {
		rec := &records[i]
		p := membersOf(rec.Payload)
		if rec.Event == EventRequested {
			e.open(rec, p)
			continue
		}
		hidden := e.running
		e.apply(rec, p)
		if done, ok := e.completedBy(rec, p, hidden); ok && done.Seq == cycle && done.FollowUpKey != "" {
			return done, true
		}
	}
	return Request{}, false
}

// dueState is what a snapshot holds of a follow-up that is to be opened: which cycle it follows.
type dueState struct {
	Key string `json:"key"`
	Seq int64  `json:"seq"`
}

func (q *Requests) saveDue() (list []dueState) {
	for _, r := range q.Due() {
		list = append(list, dueState{Key: r.Key, Seq: r.Seq})
	}
	return list
}

// restoreDue takes up what saveDue gave.
func (q *Requests) restoreDue(list []dueState) error {
	for _, s := range list {
		done, ok := q.findDue(s.Key, s.Seq)
		if !ok {
			return fmt.Errorf("the log has no completed request %q with a follow-up", s.Key)
		}
		q.due[done.FollowUpKey] = done
	}
	return nil
}

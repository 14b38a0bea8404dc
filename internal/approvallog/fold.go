package approvallog

import (
	"cmp"
	"encoding/json"
	"iter"
	"maps"
	"slices"
	"time"
)

// creationWindow is how far back Requests remembers when a requester opened cycles.
const creationWindow = time.Hour

// Requests folds the records of an approval log into requests, one for each action key.
//
// It trusts nothing but the frame that the engine has verified: payloads of other writers may
// lack members or hold them in other types, and events that it does not know are passed over.
// Where a record could release somebody and contradicts itself, it counts for nothing: a grant
// needs a human actor, the payload hash of its request where it names one, and a time before the
// deadline.
//
// A Requests has no lock of its own. Read it inside Log.View or Log.Update of the log that feeds it.
type Requests struct {
	byKey     map[string]*entry
	pending   map[string]*entry            // keys whose state is StatePending, past their deadline or not
	exclusive map[string]map[string]*entry // exclusive key -> its pending requests by action key
	created   map[string][]time.Time       // requester -> times of the cycles it opened within creationWindow
	sweepAt   int                          // how many requesters created may hold before it is swept
}

// entry is one action key. The execution of an earlier cycle that has not ended hides the current
// cycle: what runs, runs.
type entry struct {
	cycle   Request
	running *Request // the earlier cycle whose execution is still running, nil for none
}

// shown is the cycle that the key's state is that of. Nobody but the entry writes through it.
func (e *entry) shown() *Request {
	if e.running != nil {
		return e.running
	}
	return &e.cycle
}

func (e *entry) request() Request { return *e.shown() }

// NewRequests returns the fold of an empty log.
func NewRequests() *Requests {
	return &Requests{
		byKey:     make(map[string]*entry),
		pending:   make(map[string]*entry),
		exclusive: make(map[string]map[string]*entry),
		created:   make(map[string][]time.Time),
	}
}

// Get returns the request under key, of its current cycle.
func (q *Requests) Get(key string) (Request, bool) {
	e, ok := q.byKey[key]
	if !ok {
		return Request{}, false
	}
	return e.request(), true
}

// Len is the number of action keys that were ever asked for.
func (q *Requests) Len() int { return len(q.byKey) }

// All yields the requests of all keys in no particular order.
func (q *Requests) All() iter.Seq[Request] {
	return func(yield func(Request) bool) {
		for e := range maps.Values(q.byKey) {
			if !yield(e.request()) {
				return
			}
		}
	}
}

// Pending returns the requests whose state is StatePending, oldest first. Requests past their
// deadline are among them until their end is recorded; StateAt tells them apart.
func (q *Requests) Pending() []Request {
	list := make([]Request, 0, len(q.pending))
	for e := range maps.Values(q.pending) {
		list = append(list, e.request())
	}
	slices.SortFunc(list, func(a, b Request) int { return cmp.Compare(a.Seq, b.Seq) })
	return list
}

// PendingCount is the number of requests that can still be decided at now: of all requesters, or
// of the one named.
func (q *Requests) PendingCount(now time.Time, requester string) int {
	n := 0
	for e := range maps.Values(q.pending) {
		r := e.shown()
		if !r.PastDeadline(now) && (requester == "" || r.Requester == requester) {
			n++
		}
	}
	return n
}

// ExclusiveHolder returns the request that holds the exclusive key at now, if any. Of several,
// which only other writers can cause, it is the oldest.
func (q *Requests) ExclusiveHolder(exclusive string, now time.Time) (Request, bool) {
	var holder Request
	for e := range maps.Values(q.exclusive[exclusive]) {
		r := e.shown()
		if !r.PastDeadline(now) && (holder.Seq == 0 || r.Seq < holder.Seq) {
			holder = *r
		}
	}
	return holder, holder.Seq != 0
}

// CreatedSince is how many cycles the requester opened at or after since, which must lie within
// the last hour of the log.
func (q *Requests) CreatedSince(requester string, since time.Time) int {
	n := 0
	for _, t := range q.created[requester] {
		if !t.Before(since) {
			n++
		}
	}
	return n
}

// Apply folds one more record, which must be the next of the log. It never fails: a record that
// says nothing about a request changes nothing.
func (q *Requests) Apply(rec Record) error {
	if rec.ActionKey == "" {
		return nil
	}
	e, known := q.byKey[rec.ActionKey]
	if rec.Event == EventRequested {
		if !known {
			e = &entry{}
			q.byKey[rec.ActionKey] = e
		}
		q.unindex(rec.ActionKey, e)
		e.open(rec)
		q.index(rec.ActionKey, e)
		q.noteCreation(e.cycle)
		return nil
	}
	if !known {
		return nil
	}
	q.unindex(rec.ActionKey, e)
	e.apply(rec)
	q.index(rec.ActionKey, e)
	return nil
}

func (q *Requests) index(key string, e *entry) {
	r := e.shown()
	if r.State != StatePending {
		return
	}
	q.pending[key] = e
	if r.Exclusive == "" {
		return
	}
	holders := q.exclusive[r.Exclusive]
	if holders == nil {
		holders = make(map[string]*entry)
		q.exclusive[r.Exclusive] = holders
	}
	holders[key] = e
}

func (q *Requests) unindex(key string, e *entry) {
	delete(q.pending, key)
	exclusive := e.shown().Exclusive
	if holders, ok := q.exclusive[exclusive]; ok {
		delete(holders, key)
		if len(holders) == 0 {
			delete(q.exclusive, exclusive)
		}
	}
}

// noteCreation remembers a creation and forgets those that have left the window, so that memory
// does not grow with history. Requesters that ask no more are looked for only when their number
// has doubled: each creation costs a constant amount on average.
func (q *Requests) noteCreation(r Request) {
	oldest := r.RequestedAt.Add(-creationWindow)
	times := q.created[r.Requester]
	for len(times) > 0 && times[0].Before(oldest) {
		times = times[1:]
	}
	q.created[r.Requester] = append(times, r.RequestedAt)
	if len(q.created) <= q.sweepAt {
		return
	}
	maps.DeleteFunc(q.created, func(_ string, times []time.Time) bool {
		return times[len(times)-1].Before(oldest)
	})
	q.sweepAt = 2*len(q.created) + 16
}

// open begins a fresh cycle.
func (e *entry) open(rec Record) {
	p := membersOf(rec.Payload)
	own := p.object("approvald")
	r := Request{
		Key:         rec.ActionKey,
		Task:        cmp.Or(rec.Task, rec.ActionKey),
		Class:       p.str("class"),
		Summary:     p.str("summary"),
		Requester:   rec.Actor,
		State:       StatePending,
		PayloadHash: p.str("payload_hash"),
		Seq:         rec.Seq,
		RequestedAt: rec.TS,
		ExpiresAt:   own.time("expires_at"),
		WaitUntil:   p.time("wait_until"),
		Quorum:      max(1, own.integer("quorum")),
		Reversible:  p.boolean("reversible"),
		EstCostUSD:  p.amount("est_cost_usd"),
		Exclusive:   own.str("exclusive"),
		FollowUp:    own.str("follow_up"),
		Digest:      own.str("request_digest"),
		Peer:        own.peer(),
		OnBehalfOf:  own.str("on_behalf_of"),
		Previous:    e.cycle.State,
	}
	if r.ExpiresAt.IsZero() {
		r.ExpiresAt = r.WaitUntil
	}
	if e.running == nil && e.cycle.State == StateStarted {
		running := e.cycle
		e.running = &running
	}
	e.cycle = r
}

// apply walks one record of the key on, by the rules of the format: the first end of a pending
// request wins, only a revocation replaces a grant, and only a grant can be used.
func (e *entry) apply(rec Record) {
	p := membersOf(rec.Payload)
	switch rec.Event {
	case EventGranted, EventRejected, EventExpired, EventWithdrawn:
		e.cycle.end(rec, p)
	case EventRevoked:
		if e.cycle.State == StateGranted {
			e.cycle.State = StateRevoked
			e.cycle.Ending = &Ending{By: rec.Actor, At: rec.TS, Reason: p.str("note"), Seq: rec.Seq}
			e.cycle.Revision++
		}
	case EventExecutionStarted:
		// While an earlier cycle's execution runs, nothing else of this key may start.
		if e.running == nil && e.cycle.State == StateGranted {
			e.cycle.State = StateStarted
			e.cycle.Execution = &Execution{By: rec.Actor, StartedAt: rec.TS, StartedSeq: rec.Seq}
			e.cycle.Revision++
		}
	case EventExecutionCompleted, EventExecutionFailed:
		switch {
		case e.running != nil:
			e.running = nil
		case e.cycle.State == StateStarted, e.cycle.State == StateGranted:
			e.cycle.finish(rec, p)
		}
	}
}

// end closes a pending request. Except for the record of its expiry, what comes at or after the
// deadline comes too late and counts for nothing.
func (r *Request) end(rec Record, p members) {
	if r.State != StatePending || (rec.Event != EventExpired && r.PastDeadline(rec.TS)) {
		return
	}
	switch rec.Event {
	case EventGranted:
		if !humanActor(rec.Actor) || p.contradicts("payload_hash", r.PayloadHash) {
			return
		}
		r.State = StateGranted
		r.Decision = decisionOf(rec, p)
		r.Approvals = p.object("approvald").approvals()
		if len(r.Approvals) == 0 {
			r.Approvals = []Approval{{By: rec.Actor, At: rec.TS}}
		}
	case EventRejected:
		r.State = StateRejected
		r.Decision = decisionOf(rec, p)
	case EventExpired:
		r.State = StateExpired
		r.Ending = &Ending{By: rec.Actor, At: rec.TS, Seq: rec.Seq}
	case EventWithdrawn:
		r.State = StateWithdrawn
		r.Ending = &Ending{By: rec.Actor, At: rec.TS, Reason: p.str("reason"), Seq: rec.Seq}
	}
	r.Revision++
}

// finish ends the execution. A writer that records only the end has used the grant all the same.
func (r *Request) finish(rec Record, p members) {
	done := Execution{By: rec.Actor, StartedAt: rec.TS, StartedSeq: rec.Seq}
	if r.Execution != nil {
		done = *r.Execution
	}
	done.EndedAt, done.EndedSeq = rec.TS, rec.Seq
	if code, ok := p.integerOK("exit_code"); ok {
		done.ExitCode = &code
	}
	r.Execution = &done
	r.State = StateCompleted
	if rec.Event == EventExecutionFailed {
		r.State = StateFailed
	}
	r.Revision++
}

func decisionOf(rec Record, p members) *Decision {
	return &Decision{
		By:      rec.Actor,
		At:      rec.TS,
		Note:    p.str("note"),
		Seq:     rec.Seq,
		Channel: cmp.Or(rec.Channel, p.object("sender").str("channel")),
	}
}

func humanActor(s string) bool { return len(s) > len("human:") && s[:len("human:")] == "human:" }

// members reads the payload of any writer. A member that is missing or of another type than asked
// for reads as the zero value.
type members map[string]json.RawMessage

func membersOf(raw json.RawMessage) members {
	var m members
	if len(raw) == 0 || json.Unmarshal(raw, &m) != nil {
		return nil
	}
	return m
}

// member decodes one member; its zero value and false when it is missing or of another type.
func member[T any](m members, name string) (T, bool) {
	var v, zero T
	raw, ok := m[name]
	if !ok || string(raw) == "null" || json.Unmarshal(raw, &v) != nil {
		return zero, false
	}
	return v, true
}

func (m members) str(name string) string {
	s, _ := member[string](m, name)
	return s
}

func (m members) boolean(name string) bool {
	b, _ := member[bool](m, name)
	return b
}

func (m members) integerOK(name string) (int, bool) { return member[int](m, name) }

func (m members) integer(name string) int {
	n, _ := m.integerOK(name)
	return n
}

func (m members) object(name string) members {
	o, _ := member[members](m, name)
	return o
}

func (m members) time(name string) time.Time {
	t, _ := member[time.Time](m, name)
	return t.UTC()
}

// amount reads a JSON number or a decimal string, as spelt.
func (m members) amount(name string) string {
	if n, ok := member[json.Number](m, name); ok {
		return n.String()
	}
	return ""
}

// contradicts reports whether the member is there and says something else than want.
func (m members) contradicts(name, want string) bool {
	raw, ok := m[name]
	if !ok {
		return false
	}
	var got string
	return json.Unmarshal(raw, &got) != nil || got != want
}

func (m members) peer() *Peer {
	uid, ok := member[uint32](m, "uid")
	if !ok {
		return nil
	}
	pid, _ := member[int32](m, "pid")
	return &Peer{UID: uid, PID: pid}
}

func (m members) approvals() []Approval {
	raw, _ := member[[]json.RawMessage](m, "approvals")
	var list []Approval
	for _, one := range raw {
		var a Approval
		if json.Unmarshal(one, &a) == nil && a.By != "" {
			list = append(list, a)
		}
	}
	return list
}

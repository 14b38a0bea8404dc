package approvallog

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"
)

// creationWindow is how far back Requests remembers when a requester opened cycles.
const creationWindow = time.Hour

// maxResting is how many requests that wait for nobody stay in memory: most of what is still to come
// for them comes soon after.
const maxResting = 1024

// Requests folds the records of an approval log into requests, one for each action key.
//
// It trusts nothing but the frame that the engine has verified: payloads of other writers may
// lack members or hold them in other types, and events that it does not know are passed over.
// Where a record could release somebody and contradicts itself, it counts for nothing: a grant
// needs a human actor, the payload hash of its request where it names one, and a time before the
// deadline.
//
// Fed by a Log it is [Indexed]: in memory are the requests that are pending, some that were decided of
// late, and what the limit for each requester needs. The others are found in the log when they are
// asked for. By itself it keeps them all.
//
// A Requests has no lock of its own. Read it inside Log.View or Log.Update of the log that feeds it.
type Requests struct {
	finder    *Finder
	entries   map[string]*entry            // by action key: all that are pending, and others
	resting   []*entry                     // in entries and not pending, those that rest longest first
	pending   map[string]*entry            // keys whose state is StatePending, past their deadline or not
	exclusive map[string]map[string]*entry // exclusive key -> its pending requests by action key
	created   map[string][]time.Time       // asker -> times of the cycles it opened within creationWindow
	due       map[string]Request           // follow-up key -> the completed cycle that it follows, while nobody has asked for it
	sweepAt   int                          // how many askers created may hold before it is swept
	room      int                          // how many entries may rest
	spare     *entry                       // one that was let go of, to be used again; nil for none
	epoch     int64                        // the highest that a decision names
}

// entry is one action key. The execution of an earlier cycle that has not ended hides the current
// cycle: what runs, runs.
type entry struct {
	cycle   Request
	running *Request // the earlier cycle whose execution is still running, nil for none
	held    bool     // it stands in Requests.entries
	resting bool     // it stands in Requests.resting
}

// shown is the cycle that the key's state is that of. Nobody but the entry writes through it.
func (e *entry) shown() *Request {
	if e.running != nil {
		return e.running
	}
	return &e.cycle
}

func (e *entry) request() Request { return *e.shown() }

// needed reports whether the entry has to stay in memory: a look-up must not be needed to see that a
// record of this key ends a pending cycle, be it hidden or not.
func (e *entry) needed() bool { return e.cycle.State == StatePending }

// NewRequests returns the fold of an empty log.
func NewRequests() *Requests {
	q := &Requests{room: maxResting}
	q.reset()
	return q
}

func (q *Requests) reset() {
	*q = Requests{
		finder:    q.finder,
		room:      q.room,
		entries:   make(map[string]*entry),
		pending:   make(map[string]*entry),
		exclusive: make(map[string]map[string]*entry),
		created:   make(map[string][]time.Time),
		due:       make(map[string]Request),
	}
}

// Get returns the request under key, of its current cycle.
func (q *Requests) Get(key string) (Request, bool) {
	e := q.entry(key)
	if e == nil {
		return Request{}, false
	}
	return e.request(), true
}

// entry returns the key's entry, nil when the key was never asked for.
func (q *Requests) entry(key string) *entry {
	if e := q.entries[key]; e != nil || q.finder == nil {
		return e
	}
	return q.find(key)
}

// find folds the key's records anew.
func (q *Requests) find(key string) *entry {
	records := q.finder.Find(key, func(r Record) bool { return r.ActionKey == key })
	var e *entry
	for i := range records {
		rec := &records[i]
		switch {
		case rec.Event == EventRequested:
			if e == nil {
				e = &entry{}
			}
			e.open(rec, membersOf(rec.Payload))
		case e != nil:
			e.apply(rec, membersOf(rec.Payload))
		}
	}
	return e
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

// PendingCount is the number of requests that can still be decided at now, and how many of them are those of the asker
// ([Request.Asker]).
func (q *Requests) PendingCount(now time.Time, asker string) (all, own int) {
	for e := range maps.Values(q.pending) {
		r := e.shown()
		if r.PastDeadline(now) {
			continue
		}
		all++
		if asker != "" && r.Asker() == asker {
			own++
		}
	}
	return all, own
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

// CreatedSince is how many cycles the asker ([Request.Asker]) opened at or after since, which must lie
// within the last hour of the log.
func (q *Requests) CreatedSince(asker string, since time.Time) int {
	n := 0
	for _, t := range q.created[asker] {
		if !t.Before(since) {
			n++
		}
	}
	return n
}

// Apply folds one more record, which must be the next of the log. It never fails: a record that
// says nothing about a request changes nothing.
func (q *Requests) Apply(rec Record) error {
	if rec.ActionKey == "" || !aboutRequests(rec.Event) {
		return nil
	}
	e := q.entries[rec.ActionKey]
	if e == nil && q.finder != nil && !endsPending(rec.Event) {
		e = q.find(rec.ActionKey)
	}
	if rec.Event != EventRequested && e == nil {
		return nil
	}
	if e == nil {
		e = q.fresh()
	}
	q.unindex(rec.ActionKey, e)
	p := membersOf(rec.Payload)
	if rec.Event == EventRequested {
		delete(q.due, rec.ActionKey)
		before := e.cycle.Seq
		e.open(&rec, p)
		if e.cycle.Seq != before && e.cycle.Seq == rec.Seq {
			q.noteCreation(&e.cycle)
		}
	} else {
		hidden := e.running
		e.apply(&rec, p)
		q.noteEpoch(rec.Event, p)
		if rec.Event == EventExecutionCompleted {
			q.noteCompletion(&rec, p, e, hidden)
		}
	}
	q.index(rec.ActionKey, e)
	return nil
}

// maxEpoch bounds what is taken for the number of an epoch: far more than there can be, and low enough
// to be counted on from.
const maxEpoch = 1 << 40

func (q *Requests) noteEpoch(event string, p *members) {
	switch event {
	case EventGranted, EventRejected, EventRevoked:
		if n, ok := p.own.epoch.integer(64); ok && n <= maxEpoch {
			q.epoch = max(q.epoch, n)
		}
	}
}

// Epoch is the highest epoch in which a decision of the log was made, as far as the decisions say so. So
// epochs go on when nothing else remembers them.
func (q *Requests) Epoch() int64 { return q.epoch }

// fresh is an entry for a key that has none. Nobody has a pointer to one that was let go of.
func (q *Requests) fresh() *entry {
	e := q.spare
	if e == nil {
		return &entry{}
	}
	q.spare = nil
	*e = entry{}
	return e
}

// aboutRequests reports whether records of the event can change a request.
func aboutRequests(event string) bool {
	switch event {
	case EventRequested, EventRevoked, EventExecutionStarted, EventExecutionCompleted, EventExecutionFailed:
		return true
	}
	return endsPending(event)
}

// endsPending reports whether records of the event change pending requests and no others.
func endsPending(event string) bool {
	switch event {
	case EventGranted, EventRejected, EventExpired, EventWithdrawn:
		return true
	}
	return false
}

func (q *Requests) index(key string, e *entry) {
	if !e.held {
		q.entries[key], e.held = e, true
	}
	if !e.needed() {
		q.rest(e)
	}
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
	r := e.shown()
	if r.State != StatePending {
		return
	}
	delete(q.pending, key)
	if r.Exclusive == "" {
		return
	}
	if holders, ok := q.exclusive[r.Exclusive]; ok {
		delete(holders, key)
		if len(holders) == 0 {
			delete(q.exclusive, r.Exclusive)
		}
	}
}

// rest lets go of the entry once others have come to rest after it, if it can be found again.
func (q *Requests) rest(e *entry) {
	if q.finder == nil || e.resting {
		return
	}
	e.resting = true
	q.resting = append(q.resting, e)
	for len(q.resting) > q.room {
		oldest := q.resting[0]
		q.resting[0] = nil
		q.resting = q.resting[1:]
		oldest.resting = false
		if !oldest.needed() {
			delete(q.entries, oldest.cycle.Key)
			oldest.held = false
			q.spare = oldest
		}
	}
}

// noteCreation remembers a creation and forgets those that have left the window, so that memory
// does not grow with history. Askers that ask no more are looked for only when their number
// has doubled: each creation costs a constant amount on average.
func (q *Requests) noteCreation(r *Request) {
	oldest := r.RequestedAt.Add(-creationWindow)
	asker := r.Asker()
	times := q.created[asker]
	for len(times) > 0 && times[0].Before(oldest) {
		times = times[1:]
	}
	q.created[asker] = append(times, r.RequestedAt)
	if len(q.created) <= q.sweepAt {
		return
	}
	maps.DeleteFunc(q.created, func(_ string, times []time.Time) bool {
		return times[len(times)-1].Before(oldest)
	})
	q.sweepAt = 2*len(q.created) + 16
}

// open begins a fresh cycle with the record, whose payload has the members p.
func (e *entry) open(rec *Record, p *members) {
	seq := originalSeq(rec, p)
	if seq == e.cycle.Seq {
		return // carried over into another segment: the cycle goes on
	}
	kept := textsOf(&p.class, &p.summary, &p.payloadHash, &p.own.exclusive, &p.own.followUp, &p.own.digest, &p.own.onBehalfOf)
	r := Request{
		Key:         rec.ActionKey,
		Task:        cmp.Or(rec.Task, rec.ActionKey),
		Class:       kept[0],
		Summary:     kept[1],
		Requester:   rec.Actor,
		State:       StatePending,
		PayloadHash: kept[2],
		Seq:         seq,
		RecordHash:  originalHash(rec, p),
		RequestedAt: rec.TS,
		ExpiresAt:   p.own.expiresAt.time(),
		WaitUntil:   p.waitUntil.time(),
		Quorum:      p.own.quorumOrOne(),
		Reversible:  p.reversible.isTrue(),
		EstCostUSD:  p.estCostUSD.amount(),
		Exclusive:   kept[3],
		FollowUp:    kept[4],
		Digest:      kept[5],
		Peer:        p.own.peer(),
		WriterUID:   p.own.writerUID.userID(),
		OnBehalfOf:  kept[6],
		Previous:    e.cycle.State,
	}
	if r.ExpiresAt.IsZero() {
		r.ExpiresAt = r.WaitUntil
	}
	if r.FollowUp != "" {
		r.FollowUpKey = FollowUpKey(r.Key, r.Seq)
	}
	if e.running == nil && e.cycle.State == StateStarted {
		running := e.cycle
		e.running = &running
	}
	e.cycle = r
}

// apply walks one record of the key on, by the rules of the format: the first end of a pending
// request wins, only a revocation replaces a grant, and only a grant can be used. The record's payload has
// the members p.
func (e *entry) apply(rec *Record, p *members) {
	seq := originalSeq(rec, p)
	switch rec.Event {
	case EventGranted, EventRejected, EventExpired, EventWithdrawn:
		e.cycle.end(rec, seq, p)
	case EventRevoked:
		if e.cycle.State == StateGranted {
			e.cycle.State = StateRevoked
			e.cycle.Ending = &Ending{By: rec.Actor, At: rec.TS, Reason: p.note.string(), Seq: seq}
			e.cycle.Revision++
		}
	case EventExecutionStarted:
		// While an earlier cycle's execution runs, nothing else of this key may start.
		if e.running == nil && e.cycle.State == StateGranted {
			e.cycle.State = StateStarted
			e.cycle.Execution = &Execution{By: rec.Actor, StartedAt: rec.TS, StartedSeq: seq, Runner: p.own.runner.identity(), Attempt: p.own.attempt.string()}
			e.cycle.Revision++
		}
	case EventExecutionCompleted, EventExecutionFailed:
		switch {
		case e.running != nil:
			e.running = nil
		case e.cycle.State == StateStarted, e.cycle.State == StateGranted:
			e.cycle.finish(rec, seq, p)
		}
	}
}

// end closes a pending request. Except for the record of its expiry, what comes at or after the
// deadline comes too late and counts for nothing.
func (r *Request) end(rec *Record, seq int64, p *members) {
	if r.State != StatePending || (rec.Event != EventExpired && r.PastDeadline(rec.TS)) {
		return
	}
	switch rec.Event {
	case EventGranted:
		if !humanActor(rec.Actor) || p.payloadHash.contradicts(r.PayloadHash) {
			return
		}
		r.State = StateGranted
		r.Decision = decisionOf(rec, seq, p)
		r.Approvals = p.own.approvalList()
		if len(r.Approvals) == 0 {
			r.Approvals = []Approval{{By: rec.Actor, At: rec.TS}}
		}
	case EventRejected:
		r.State = StateRejected
		r.Decision = decisionOf(rec, seq, p)
	case EventExpired:
		r.State = StateExpired
		r.Ending = &Ending{By: rec.Actor, At: rec.TS, Seq: seq}
	case EventWithdrawn:
		r.State = StateWithdrawn
		r.Ending = &Ending{By: rec.Actor, At: rec.TS, Reason: p.reason.string(), Seq: seq}
	}
	r.Revision++
}

// finish ends the execution. A writer that records only the end has used the grant all the same.
func (r *Request) finish(rec *Record, seq int64, p *members) {
	done := Execution{By: rec.Actor, StartedAt: rec.TS, StartedSeq: seq}
	if r.Execution != nil {
		done = *r.Execution
	}
	done.EndedAt, done.EndedSeq = rec.TS, seq
	if n, ok := p.exitCode.integer(strconv.IntSize); ok {
		code := int(n)
		done.ExitCode = &code
	}
	r.Execution = &done
	r.State = StateCompleted
	if rec.Event == EventExecutionFailed {
		r.State = StateFailed
		done.Lost = p.own.reason.string() == ReasonRunnerGone
	}
	r.Revision++
}

func decisionOf(rec *Record, seq int64, p *members) *Decision {
	d := &Decision{By: rec.Actor, At: rec.TS, Note: p.note.string(), Seq: seq, Channel: rec.Channel}
	if d.Channel == "" {
		d.Channel = p.sender.channel.string()
	}
	return d
}

func humanActor(s string) bool { return len(s) > len("human:") && s[:len("human:")] == "human:" }

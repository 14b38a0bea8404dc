package telegramtest

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	maxQueue     = 100_000   // updates
	maxQueueSize = 128 << 20 // bytes
	maxEventSize = 512 << 10 // bytes
	maxBatch     = 4 << 20   // bytes of one answer
)

// event is an update that nobody has confirmed yet.
type event struct {
	id      int64
	body    []byte // the whole Update object
	expires time.Time
	key     string // deliveries to a webhook keep the order within a key

	attempts int // webhook deliveries that failed
	nextTry  time.Time
	inFlight bool
}

// queue holds the updates of the bot in the order of their creation.
type queue struct {
	events  []*event
	size    int
	nextID  int64
	lastID  int64
	dropped int // refused because the queue was full
	history []*event
	replay  int // ReplayAlways

	allowed map[string]bool // nil = the default
}

// updateTypes are the names that allowed_updates knows. Those that map to false
// must be asked for.
var updateTypes = map[string]bool{
	"message": true, "edited_message": true, "channel_post": true, "edited_channel_post": true,
	"business_connection": true, "business_message": true, "edited_business_message": true, "deleted_business_messages": true,
	"inline_query": true, "chosen_inline_result": true, "callback_query": true, "shipping_query": true,
	"pre_checkout_query": true, "purchased_paid_media": true, "poll": true, "poll_answer": true, "my_chat_member": true,
	"chat_join_request": true, "chat_boost": true, "removed_chat_boost": true,
	"chat_member": false, "message_reaction": false, "message_reaction_count": false,
}

func (q *queue) init(first int64, rng *rand.Rand) {
	if first == 0 {
		first = 2_000_001 + rng.Int64N(1_000_000_000-2_000_000)
	}
	q.nextID, q.lastID = first, first-1
}

// accepts reports whether updates of that type are made at present. The filter
// works when an update is made, never on those already in the queue.
func (q *queue) accepts(kind string) bool {
	if q.allowed == nil {
		return updateTypes[kind]
	}
	return q.allowed[kind]
}

// setAllowed remembers an allowed_updates argument. What is not a JSON array of
// strings changes nothing; an array without a known name is the default.
func (q *queue) setAllowed(arg string) {
	var names []*string
	if json.Unmarshal([]byte(arg), &names) != nil || names == nil {
		return
	}
	allowed := map[string]bool{}
	for _, n := range names {
		if n == nil {
			return
		}
		if name := strings.ToLower(*n); hasKey(updateTypes, name) {
			allowed[name] = true
		}
	}
	isDefault := len(allowed) == 0
	if !isDefault {
		isDefault = true
		for name, def := range updateTypes {
			isDefault = isDefault && allowed[name] == def
		}
	}
	q.allowed = allowed
	if isDefault {
		q.allowed = nil
	}
}

// allowedNames returns the remembered list, nil for the default.
func (q *queue) allowedNames() []string {
	var names []string
	for n := range q.allowed {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// push adds an update unless the queue is full, and returns its id or 0.
func (q *queue) push(kind string, payload json.RawMessage, expires time.Time, key string) int64 {
	id := q.nextID
	var b bytes.Buffer
	b.WriteString(`{"update_id":` + strconv.FormatInt(id, 10) + `,"` + kind + `":`)
	b.Write(payload)
	b.WriteByte('}')
	if b.Len() > maxEventSize || len(q.events) >= maxQueue || q.size+b.Len() > maxQueueSize {
		q.dropped++
		return 0
	}
	q.nextID++
	q.insert(&event{id: id, body: b.Bytes(), expires: expires, key: key})
	return id
}

func (q *queue) insert(e *event) {
	q.events = append(q.events, e)
	q.size += len(e.body)
	q.lastID = e.id
	q.history = append(q.history, e)
	if len(q.history) > 1000 {
		q.history = slices.Clone(q.history[500:])
	}
}

// remove forgets the events that gone accepts.
func (q *queue) remove(gone func(*event) bool) {
	q.events = slices.DeleteFunc(q.events, func(e *event) bool {
		if gone(e) {
			q.size -= len(e.body)
			return true
		}
		return false
	})
}

func (q *queue) expire(now time.Time) {
	q.remove(func(e *event) bool { return e.expires.Before(now) })
}

// confirm applies the offset of getUpdates. An offset far outside the queue is
// taken for a mistake and ignored.
func (q *queue) confirm(offset int64) {
	head := q.lastID + 1
	if len(q.events) > 0 {
		head = q.events[0].id
	}
	switch {
	case offset > q.lastID+10, offset > 0 && offset < head-maxQueue, offset == 0:
	case offset > 0:
		q.remove(func(e *event) bool { return e.id < offset })
	default:
		keep := len(q.events) - int(min(-offset, int64(len(q.events))))
		n := 0
		q.remove(func(*event) bool { n++; return n <= keep })
	}
}

// batch returns the updates at the head of the queue, at most limit and 4 MiB.
func (q *queue) batch(limit int) []*event {
	var out []*event
	size := 0
	if q.replay > 0 {
		out = append(out, q.history[max(0, len(q.history)-q.replay):]...)
	}
	for _, e := range q.events {
		if slices.Contains(out, e) {
			continue
		}
		if len(out) >= limit && q.replay == 0 || len(out) > 0 && size+len(e.body) > maxBatch {
			break
		}
		size += len(e.body)
		out = append(out, e)
	}
	return out
}

func hasKey[K comparable, V any](m map[K]V, k K) bool {
	_, ok := m[k]
	return ok
}

package telegramtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

const (
	errOtherPoller   = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
	errWebhookActive = "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"
	errSetWebhook    = "Conflict: terminated by setWebhook request"
)

// pollState is what the server remembers of getUpdates.
type pollState struct {
	waiting      *poll
	lastOffset   int64
	lastStart    time.Time
	lastConflict time.Time
}

// poll is a long poll that waits.
type poll struct {
	wake chan struct{} // there may be updates
	end  chan *reply   // answer this instead
}

func (p *pollState) wake() {
	if p.waiting == nil {
		return
	}
	select {
	case p.waiting.wake <- struct{}{}:
	default:
	}
}

// terminate ends the waiting poll with an answer.
func (p *pollState) terminate(rep *reply) {
	if p.waiting != nil {
		p.waiting.end <- rep
		p.waiting = nil
	}
}

// endQuietly ends the waiting poll with no updates, as a server does that closes
// the bot under it.
func (p *pollState) endQuietly() { p.terminate(success(json.RawMessage("[]"), "")) }

// conflict is a 409. One that follows another within ConflictHold is held that
// long. The caller holds mu.
func (s *Server) conflict(description string) *reply {
	e := &apiError{Code: 409, Description: description}
	now := s.clock.Now()
	if s.opts.ConflictHold > 0 && !s.polls.lastConflict.IsZero() && now.Sub(s.polls.lastConflict) < s.opts.ConflictHold {
		e.Hold = now.Add(s.opts.ConflictHold)
	}
	s.polls.lastConflict = now
	return failure(e)
}

func (s *Server) getUpdates(q *request) *reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hook.active() {
		return s.conflict(errWebhookActive)
	}
	offset := q.integer("offset", 0, -1<<31, 1<<31-1)
	limit := int(q.integer("limit", 100, 1, 100))
	timeout := time.Duration(q.integer("timeout", 0, 0, 50)) * time.Second
	if arg, ok := q.args["allowed_updates"]; ok {
		s.queue.setAllowed(arg)
	}

	now := s.clock.Now()
	if s.opts.AntiHammer == On && !s.polls.lastStart.IsZero() && offset == s.polls.lastOffset {
		since := now.Sub(s.polls.lastStart)
		if since < 3*time.Second && timeout < 3*time.Second {
			timeout = 3 * time.Second
		}
		if since < 500*time.Millisecond {
			limit = 1
		}
	}
	s.polls.lastOffset, s.polls.lastStart = offset, now

	s.queue.expire(now)
	s.queue.confirm(offset)
	s.notify()
	if events := s.queue.batch(limit); len(events) > 0 || timeout == 0 {
		return updatesReply(events)
	}
	s.polls.terminate(s.conflict409IfWaiting())
	p := &poll{wake: make(chan struct{}, 1), end: make(chan *reply, 1)}
	s.polls.waiting = p
	s.notify()
	defer func() {
		if s.polls.waiting == p {
			s.polls.waiting = nil
			s.notify()
		}
	}()

	timer, stop := s.clock.After(timeout)
	defer stop()
	for {
		rep, again := s.park(q, p, timer)
		if rep != nil {
			return rep
		}
		s.queue.expire(s.clock.Now())
		if events := s.queue.batch(limit); len(events) > 0 || !again {
			return updatesReply(events)
		}
	}
}

// conflict409IfWaiting is the answer for the poll that a new one replaces; nil
// if there is none, so that the time of the last 409 is not touched.
func (s *Server) conflict409IfWaiting() *reply {
	if s.polls.waiting == nil {
		return nil
	}
	return s.conflict(errOtherPoller)
}

// park waits, without mu, for one thing to happen to a poll. again is false when
// the poll's time is up.
func (s *Server) park(q *request, p *poll, timer <-chan time.Time) (rep *reply, again bool) {
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case rep := <-p.end:
		return rep, true
	case <-p.wake:
		s.sleep(q.ctx, s.opts.WakeDelay)
		// The answer may have been decided while this goroutine woke up.
		select {
		case rep := <-p.end:
			return rep, true
		default:
			return nil, true
		}
	case <-timer:
		return nil, false
	case <-q.ctx.Done():
		return &reply{noResponse: true}, true
	case <-s.done:
		return success(json.RawMessage("[]"), ""), true
	}
}

func updatesReply(events []*event) *reply {
	var b bytes.Buffer
	b.WriteByte('[')
	for i, e := range events {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(e.body)
	}
	b.WriteByte(']')
	return success(json.RawMessage(b.Bytes()), "")
}

// enqueue makes an update for the bot if it wants that type, and wakes whoever
// fetches or delivers it. It returns the update's id, or 0. The caller holds mu.
func (s *Server) enqueue(kind, key string, life time.Duration, payload any) int64 {
	defer s.notify()
	if !s.queue.accepts(kind) {
		return 0
	}
	raw, ok := payload.(json.RawMessage)
	if !ok {
		raw = encode(payload)
	}
	id := s.queue.push(kind, raw, s.clock.Now().Add(life), key)
	s.polls.wake()
	s.hook.kick()
	return id
}

// InjectUpdate puts an update of any content into the queue, for updates that a
// bot cannot read, unknown types, forged senders. payload is the JSON text of
// the member named kind. It returns the id. The allowed_updates of the bot do
// not apply.
func (s *Server) InjectUpdate(kind, payload string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := s.queue.nextID
	s.queue.nextID++
	s.injectRaw(id, fmt.Sprintf(`{"update_id":%d,%q:%s}`, id, kind, payload))
	return id
}

// InjectRaw puts update, the text of a whole Update object, into the queue under
// an id that may repeat or go back. %d in update is replaced by the id. The text
// need not be valid JSON.
func (s *Server) InjectRaw(id int64, update string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.injectRaw(id, strings.ReplaceAll(update, "%d", fmt.Sprint(id)))
}

func (s *Server) injectRaw(id int64, body string) {
	s.queue.insert(&event{id: id, body: []byte(body), expires: s.clock.Now().Add(24 * time.Hour), key: "injected"})
	s.polls.wake()
	s.hook.kick()
	s.notify()
}

// SetNextUpdateID makes next the id of the next update: lower than the last one,
// as Telegram does after a week without updates, or higher.
func (s *Server) SetNextUpdateID(next int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.nextID = next
	if len(s.queue.events) == 0 {
		s.queue.lastID = next - 1
	}
}

// Redeliver puts updates back into the queue that were confirmed before: with
// their old ids, ahead of the others, for another day. With no ids it repeats
// all it remembers (at least the last 500).
func (s *Server) Redeliver(ids ...int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := map[int64]bool{}
	for _, id := range ids {
		want[id] = true
	}
	here := map[int64]bool{}
	for _, e := range s.queue.events {
		here[e.id] = true
	}
	var front []*event
	for _, e := range s.queue.history {
		if !here[e.id] && (len(ids) == 0 || want[e.id]) {
			again := *e
			again.expires = s.clock.Now().Add(24 * time.Hour)
			again.attempts, again.nextTry, again.inFlight = 0, time.Time{}, false
			front = append(front, &again)
			s.queue.size += len(e.body)
		}
	}
	s.queue.events = append(front, s.queue.events...)
	s.polls.wake()
	s.hook.kick()
	s.notify()
}

// ReplayAlways makes every getUpdates repeat the last n updates whatever its
// offset, like a server that lost its memory of confirmations. 0 ends that.
func (s *Server) ReplayAlways(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.replay = n
	s.polls.wake()
}

// RememberAllowedUpdates sets the list that an earlier program left behind, as
// an allowed_updates argument.
func (s *Server) RememberAllowedUpdates(arg string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.setAllowed(arg)
}

package telegramtest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fault says which calls go wrong, and how. The zero selectors match every call.
type Fault struct {
	// Method selects calls of one method, without regard to case.
	Method string
	// Chat selects calls with that chat_id.
	Chat int64
	// Match selects calls by any other property.
	Match func(Call) bool
	// Skip lets the first matching calls pass.
	Skip int
	// Count is how many matching calls are hit after that. 0 means one,
	// Always means all until the fault is removed.
	Count int
	// Probability hits a call only that often; 0 means always. It is drawn
	// from the server's seed.
	Probability float64
	// After lets the call have its effect first: the message is sent, the
	// offset is confirmed, and only the answer goes wrong.
	After bool
	// Do is what happens.
	Do Action
}

// Always as Fault.Count hits every matching call.
const Always = -1

// Action is what a fault does to a call. Make one with Drop, Reset, Hang, Delay,
// Truncate, CutShort, EmptyBody, HTML, Limited, Fail, Respond, Restarting or
// Revoked.
type Action struct {
	name string
	run  func(o *responder, inj *Injected, rep *reply) (goOn bool)
}

// String names the action, as in Call.Fault.
func (a Action) String() string { return a.name }

// Drop closes the connection without an answer. With Fault.After the call was
// carried out and only its response is lost.
func Drop() Action {
	return Action{"drop", func(o *responder, _ *Injected, _ *reply) bool {
		o.cut(nil, false)
		return false
	}}
}

// Reset answers with a TCP reset instead of a response.
func Reset() Action {
	return Action{"reset", func(o *responder, _ *Injected, _ *reply) bool {
		o.cut(nil, true)
		return false
	}}
}

// CutShort sends the headers and half of the response, then resets the
// connection.
func CutShort() Action {
	return Action{"cut short", func(o *responder, _ *Injected, rep *reply) bool {
		o.cut(orElse(rep), true)
		return false
	}}
}

// Truncate sends half of the response as if it were whole: well-formed HTTP,
// broken JSON.
func Truncate() Action {
	return Action{"truncate", func(o *responder, _ *Injected, rep *reply) bool {
		rep = orElse(rep)
		o.send(&reply{status: rep.status, header: rep.header, body: rep.body[:len(rep.body)/2]})
		return false
	}}
}

// EmptyBody answers with that status and no body.
func EmptyBody(status int) Action { return Respond(status, "application/json", "") }

// HTML answers with the error page of the front end: 413, 502, 504 ...
func HTML(status int) Action {
	return Action{fmt.Sprintf("html %d", status), func(o *responder, _ *Injected, _ *reply) bool {
		o.send(htmlPage(status))
		return false
	}}
}

// Respond answers with any status, content type and body.
func Respond(status int, contentType, body string) Action {
	return Action{fmt.Sprintf("respond %d", status), func(o *responder, _ *Injected, _ *reply) bool {
		o.send(&reply{status: status, header: http.Header{"Content-Type": {contentType}}, body: []byte(body)})
		return false
	}}
}

// Fail answers with an error of the Bot API; the description is sent as it
// is, with its prefix.
func Fail(code int, description string) Action {
	return Action{fmt.Sprintf("fail %d", code), func(o *responder, _ *Injected, _ *reply) bool {
		o.send(failure(&apiError{Code: code, Description: description}))
		return false
	}}
}

// Restarting answers 500 as a server that is shutting down.
func Restarting() Action { return Fail(500, "Internal Server Error: restart") }

// Limited answers 429 with retry_after in whole seconds, in the body and in a
// Retry-After header.
func Limited(retryAfter time.Duration) Action { return limited(retryAfter, true) }

// LimitedNoHeader is Limited without the Retry-After header.
func LimitedNoHeader(retryAfter time.Duration) Action { return limited(retryAfter, false) }

func limited(d time.Duration, header bool) Action {
	seconds := int((d + time.Second - 1) / time.Second)
	return Action{"limited " + strconv.Itoa(seconds), func(o *responder, _ *Injected, _ *reply) bool {
		rep := failure(tooMany(seconds))
		if !header {
			rep.header = nil
		}
		o.send(rep)
		return false
	}}
}

// Migrated answers as for a group that became the supergroup newChat.
func Migrated(newChat int64) Action {
	return Action{"migrated", func(o *responder, _ *Injected, _ *reply) bool {
		e := badRequest("group chat was upgraded to a supergroup chat")
		e.MigrateTo = newChat
		o.send(failure(e))
		return false
	}}
}

// Revoked revokes the token at this call; it and all later ones are answered
// 401 until Server.Unrevoke.
func Revoked() Action {
	return Action{"revoked", func(o *responder, _ *Injected, _ *reply) bool {
		o.s.Revoke("")
		o.send(failure(&apiError{Code: 401, Description: "Unauthorized"}))
		return false
	}}
}

// Delay holds the call back for d on the server's clock, then lets it go on.
func Delay(d time.Duration) Action {
	return Action{"delay " + d.String(), func(o *responder, _ *Injected, _ *reply) bool {
		if !o.s.sleep(o.r.Context(), d) {
			o.cut(nil, false)
			return false
		}
		return true
	}}
}

// Hang holds the call until Injected.Release, then lets it go on. It gives up
// when the client does.
func Hang() Action {
	return Action{"hang", func(o *responder, inj *Injected, _ *reply) bool {
		select {
		case <-inj.released:
			return true
		case <-o.r.Context().Done():
		case <-o.s.done:
		}
		o.cut(nil, false)
		return false
	}}
}

// orElse stands in for a response that does not exist before the effect.
func orElse(rep *reply) *reply {
	if rep == nil || len(rep.body) == 0 {
		return success(true, "")
	}
	return rep
}

// Injected is a fault in place.
type Injected struct {
	s        *Server
	f        Fault
	seen     int
	hits     int
	released chan struct{}
	gone     bool
}

// Fault puts a fault in place. Of several that match a call, all delays apply
// and the first other one decides. It panics if f.Do is not set.
func (s *Server) Fault(f Fault) *Injected {
	if f.Do.run == nil {
		panic("telegramtest: a Fault needs an Action in Do")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	inj := &Injected{s: s, f: f, released: make(chan struct{})}
	s.faults = append(s.faults, inj)
	return inj
}

// Hits returns how many calls were hit.
func (i *Injected) Hits() int {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	return i.hits
}

// WaitHits waits until n calls were hit.
func (i *Injected) WaitHits(ctx context.Context, n int) error {
	return i.s.WaitFor(ctx, func(State) bool { return i.hits >= n })
}

// Release lets the calls held by Hang go on and removes the fault.
func (i *Injected) Release() {
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	if !i.gone {
		i.gone = true
		close(i.released)
		i.s.faults = slices.DeleteFunc(i.s.faults, func(o *Injected) bool { return o == i })
	}
}

// Remove removes the fault; it is the same as Release.
func (i *Injected) Remove() { i.Release() }

// ClearFaults removes every fault and lets held calls go on.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	all := slices.Clone(s.faults)
	s.mu.Unlock()
	for _, i := range all {
		i.Release()
	}
}

// matching returns the faults that hit this call now.
func (s *Server) matching(c *Call, after bool) []*Injected {
	s.mu.Lock()
	defer s.mu.Unlock()
	var hit []*Injected
	for _, i := range s.faults {
		f := &i.f
		if f.After != after || f.Method != "" && !strings.EqualFold(f.Method, c.Method) || f.Chat != 0 && f.Chat != c.ChatID {
			continue
		}
		if f.Match != nil && !f.Match(*c) {
			continue
		}
		i.seen++
		count := max(f.Count, 1)
		if i.seen <= f.Skip || f.Count != Always && i.hits >= count {
			continue
		}
		if f.Probability > 0 && s.rng.Float64() >= f.Probability {
			continue
		}
		i.hits++
		if c.Fault != "" {
			c.Fault += ", "
		}
		c.Fault += f.Do.name
		hit = append(hit, i)
	}
	if len(hit) > 0 {
		s.notify()
	}
	return hit
}

// responder writes the response of one call.
type responder struct {
	s    *Server
	w    http.ResponseWriter
	r    *http.Request
	call *Call
	sent bool
}

// inject applies the faults of this stage and reports whether the call goes on.
func (o *responder) inject(after bool, rep *reply) bool {
	for _, i := range o.s.matching(o.call, after) {
		if !i.f.Do.run(o, i, rep) {
			return false
		}
	}
	return true
}

// send writes a response. The log has it before the client can, so that a test
// that saw an effect of the response also finds it in Calls.
func (o *responder) send(rep *reply) {
	o.sent = true
	if rep.noResponse {
		o.cut(nil, false)
		return
	}
	o.s.finished(o.call, rep.status, rep.body)
	write(o.w, rep)
}

// cut ends the connection after half of rep, if that is given; reset makes it a
// TCP reset.
func (o *responder) cut(rep *reply, reset bool) {
	o.sent = true
	status := 0
	var half []byte
	if rep != nil {
		status, half = rep.status, rep.body[:len(rep.body)/2]
	}
	o.s.finished(o.call, status, half)
	h, ok := o.w.(http.Hijacker)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	conn, _, err := h.Hijack()
	if err != nil {
		return
	}
	if rep != nil {
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			rep.status, http.StatusText(rep.status), len(rep.body), half)
	}
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// finish closes the books of a call whose handler ended without an answer.
func (o *responder) finish() {
	if !o.sent {
		o.s.finished(o.call, 0, nil)
	}
}

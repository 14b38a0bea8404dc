package telegramtest

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// arrived enters a request into the log of calls.
func (s *Server) arrived(q *request, conn string) *Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &Call{
		Seq: int64(len(s.calls) + 1), Time: s.clock.Now(), Method: q.name, Args: maps.Clone(q.args), Files: q.files, Conn: conn,
		ChatID: lenientInt(q.args["chat_id"]),
	}
	s.calls = append(s.calls, c)
	s.notify()
	return c
}

// finished notes what was sent in answer to a call.
func (s *Server) finished(c *Call, status int, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Done {
		return
	}
	c.Done, c.Finished, c.Status, c.Response = true, s.clock.Now(), status, body
	s.notify()
}

// Calls returns the requests seen so far in order of arrival; with methods,
// only those of these methods. Method names are compared without case.
func (s *Server) Calls(methods ...string) []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return State{s}.Calls(methods...)
}

// ForgetCalls empties the log of calls, so that a test can look at what
// happened from here on. Sequence numbers start again at 1.
func (s *Server) ForgetCalls() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = nil
}

// Result decodes the result of an answered call into v.
func (c Call) Result(v any) error {
	var r struct {
		Result json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(c.Response, &r); err != nil {
		return err
	}
	return json.Unmarshal(r.Result, v)
}

// State is the server seen at one moment. It is valid only inside the function
// it was given to, which must not call methods of the Server.
type State struct{ s *Server }

// Calls is Server.Calls.
func (st State) Calls(methods ...string) []Call {
	out := make([]Call, 0, len(st.s.calls))
	for _, c := range st.s.calls {
		if len(methods) == 0 || containsFold(methods, c.Method) {
			out = append(out, *c)
		}
	}
	return out
}

// Count returns the number of calls to a method, answered or not.
func (st State) Count(method string) int {
	n := 0
	for _, c := range st.s.calls {
		if strings.EqualFold(c.Method, method) {
			n++
		}
	}
	return n
}

// Messages is Server.Messages.
func (st State) Messages(chatID int64) []Message { return st.s.world.visible(chatID) }

// Message is Server.Message.
func (st State) Message(chatID, messageID int64) (Message, bool) {
	return st.s.world.message(chatID, messageID)
}

// Pending returns the number of updates in the queue.
func (st State) Pending() int {
	st.s.queue.expire(st.s.clock.Now())
	return len(st.s.queue.events)
}

// Polling reports whether a long poll is waiting.
func (st State) Polling() bool { return st.s.polls.waiting != nil }

// Taps returns every tap made so far, oldest first.
func (st State) Taps() []TapInfo {
	out := make([]TapInfo, 0, len(st.s.world.taps))
	for _, t := range st.s.world.taps {
		out = append(out, t.copy())
	}
	return out
}

// Webhook is Server.WebhookInfo.
func (st State) Webhook() WebhookInfo { return st.s.webhookInfo() }

// InFlight reports whether a webhook delivery waits for its answer.
func (st State) InFlight() bool {
	return slices.ContainsFunc(st.s.queue.events, func(e *event) bool { return e.inFlight })
}

// View runs f on the present state.
func (s *Server) View(f func(State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(State{s})
}

// WaitFor returns when cond holds. It looks at once and then after every change
// of the server's state; it never sleeps. The error is that of ctx.
func (s *Server) WaitFor(ctx context.Context, cond func(State) bool) error {
	for {
		s.mu.Lock()
		ok, changed := cond(State{s}), s.changed
		s.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// WaitCall waits for a call to the method, the nth one since the start (or since
// ForgetCalls), to be answered, and returns it. n counts from 1.
func (s *Server) WaitCall(ctx context.Context, method string, n int) (Call, error) {
	var found Call
	err := s.WaitFor(ctx, func(st State) bool {
		if st.Count(method) < n {
			return false
		}
		found = st.Calls(method)[n-1]
		return found.Done
	})
	return found, err
}

// WaitMessage waits for a message in a chat that match accepts, and returns the
// newest such one. A nil match accepts any message.
func (s *Server) WaitMessage(ctx context.Context, chatID int64, match func(Message) bool) (Message, error) {
	var found Message
	err := s.WaitFor(ctx, func(st State) bool {
		ms := st.Messages(chatID)
		for i := len(ms) - 1; i >= 0; i-- {
			if match == nil || match(ms[i]) {
				found = ms[i]
				return true
			}
		}
		return false
	})
	return found, err
}

// WaitPolling waits until a long poll is waiting for updates.
func (s *Server) WaitPolling(ctx context.Context) error {
	return s.WaitFor(ctx, State.Polling)
}

// notify wakes everybody in WaitFor. The caller holds mu.
func (s *Server) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func containsFold(list []string, s string) bool {
	for _, l := range list {
		if strings.EqualFold(l, s) {
			return true
		}
	}
	return false
}

package transport

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
)

// maxConns bounds the webhook's open connections. Telegram uses at most 40 and a
// reverse proxy few more than it has posts in hand, so the rest is room for
// strangers. At 10,000 connections a second one still has 50 ms for its header
// before it is the oldest.
const maxConns = 512

// connTable knows the open connections of a listener and which of them wait for
// whoever opened them. When there are too many, the one that has waited longest
// makes room: whoever opens connections and sends slowly loses their own first, and
// a new one, which may bring a tap, is never turned away for them. A connection with
// an authentic update in hand is left alone.
type connTable struct {
	limit int

	mu      sync.Mutex
	waiting list.List // of net.Conn, the longest wait in front
	open    map[net.Conn]*list.Element
	evicted int64
}

func newConnTable(limit int) *connTable {
	return &connTable{limit: limit, open: make(map[net.Conn]*list.Element)}
}

type connKey struct{}

// attach has server keep the table.
func (t *connTable) attach(server *http.Server) {
	server.ConnState = t.changed
	server.RegisterOnShutdown(t.dropWaiting)
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
}

// changed follows a connection's life. Between its first byte and the end of an
// answer it keeps its place: sending byte after byte gains nothing.
func (t *connTable) changed(c net.Conn, state http.ConnState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch state {
	case http.StateNew:
		t.open[c] = t.waiting.PushBack(c)
		for len(t.open) > t.limit && t.waiting.Len() > 1 {
			t.dropOldest()
		}
	case http.StateIdle:
		// The answer has gone out. One that was dropped meanwhile is not open any more.
		if at, ok := t.open[c]; ok {
			if at != nil {
				t.waiting.Remove(at)
			}
			t.open[c] = t.waiting.PushBack(c)
		}
	case http.StateHijacked, http.StateClosed:
		if at := t.open[c]; at != nil {
			t.waiting.Remove(at)
		}
		delete(t.open, c)
	}
}

// dropOldest closes the connection that has waited longest. The caller holds mu.
func (t *connTable) dropOldest() {
	oldest := t.waiting.Front()
	c := t.waiting.Remove(oldest).(net.Conn)
	delete(t.open, c)
	t.evicted++
	_ = c.Close()
}

// keep takes the request's connection out of those that may be dropped, until its
// answer has gone out.
func (t *connTable) keep(r *http.Request) {
	c, ok := r.Context().Value(connKey{}).(net.Conn)
	if !ok {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := t.open[c]; at != nil {
		t.waiting.Remove(at)
		t.open[c] = nil
	}
}

// dropWaiting closes every connection without an authentic update in hand, so that
// no stranger holds up a stop.
func (t *connTable) dropWaiting() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.waiting.Len() > 0 {
		t.dropOldest()
	}
}

package demopage

import (
	"context"
	"encoding/json"
	"sync"
	"time"
)

// hub sends the state to every page that is open.
type hub struct {
	play *play

	mu    sync.Mutex
	pages map[chan []byte]struct{} // each has room for one state: a slow page gets the newest
	last  []byte
}

// run encodes the state after each change, at most once in redraw, until ctx ends.
func (h *hub) run(ctx context.Context) {
	h.play.touch()
	for {
		select {
		case <-h.play.changed:
		case <-ctx.Done():
			return
		}
		text, err := json.Marshal(h.play.now())
		if err != nil {
			continue // a record that is not JSON was kept out before
		}
		h.mu.Lock()
		h.last = text
		for page := range h.pages {
			put(page, text)
		}
		h.mu.Unlock()
		select {
		case <-time.After(redraw):
		case <-ctx.Done():
			return
		}
	}
}

func put(page chan []byte, text []byte) {
	select {
	case <-page: // older than this one
	default:
	}
	page <- text
}

func (h *hub) join() chan []byte {
	page := make(chan []byte, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last != nil {
		page <- h.last
	}
	h.pages[page] = struct{}{}
	return page
}

func (h *hub) leave(page chan []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pages, page)
}

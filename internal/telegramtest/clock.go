package telegramtest

import (
	"context"
	"sort"
	"sync"
	"time"
)

// Clock is the only source of time of a Server: lifetimes, timeouts, back-off,
// rate limits and message dates all come from it. The default is RealClock;
// ManualClock moves only when told.
type Clock interface {
	// Now returns the current time.
	Now() time.Time
	// After returns a channel that receives once d has passed, and a function
	// that releases the timer early. stop may be called more than once.
	After(d time.Duration) (c <-chan time.Time, stop func())
}

// RealClock is the machine's clock.
type RealClock struct{}

// Now implements Clock.
func (RealClock) Now() time.Time { return time.Now() }

// After implements Clock.
func (RealClock) After(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

// ManualClock is a Clock that stands still until Advance or Set is called, so
// that a test of a 60 s back-off takes microseconds and always the same ones.
// It is safe for use by several goroutines.
type ManualClock struct {
	mu      sync.Mutex
	now     time.Time
	timers  []*manualTimer
	changed chan struct{}
}

type manualTimer struct {
	at   time.Time
	c    chan time.Time
	done bool
}

// NewManualClock returns a clock that shows start. The zero time stands for
// 2026-01-01 12:00 UTC, so that no test needs to invent a date.
func NewManualClock(start time.Time) *ManualClock {
	if start.IsZero() {
		start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	}
	return &ManualClock{now: start, changed: make(chan struct{})}
}

// Now implements Clock.
func (c *ManualClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// After implements Clock. A d of zero or less fires at once.
func (c *ManualClock) After(d time.Duration) (<-chan time.Time, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &manualTimer{at: c.now.Add(d), c: make(chan time.Time, 1)}
	if d <= 0 {
		t.done = true
		t.c <- c.now
		return t.c, func() {}
	}
	c.timers = append(c.timers, t)
	c.wake()
	return t.c, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !t.done {
			t.done = true
			c.drop()
		}
	}
}

// Advance moves the clock forward by d and fires the timers that fall due on
// the way, each at its own time and in order. Goroutines woken by a timer run
// concurrently with the rest of the advance; wait for what they do with
// Server.WaitFor.
func (c *ManualClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moveTo(c.now.Add(d))
}

// Set moves the clock to t, which may lie in the past: a step backwards fires
// nothing, as on a machine whose wall clock is corrected.
func (c *ManualClock) Set(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moveTo(t)
}

// AwaitTimers returns when at least n timers are waiting, so that a test can
// advance the clock knowing that the goroutine it means has gone to sleep.
func (c *ManualClock) AwaitTimers(ctx context.Context, n int) error {
	for {
		c.mu.Lock()
		have, changed := len(c.timers), c.changed
		c.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *ManualClock) moveTo(end time.Time) {
	sort.SliceStable(c.timers, func(i, j int) bool { return c.timers[i].at.Before(c.timers[j].at) })
	for _, t := range c.timers {
		if t.at.After(end) {
			break
		}
		if t.at.After(c.now) {
			c.now = t.at
		}
		t.done = true
		t.c <- c.now
	}
	c.now = end
	c.drop()
}

// drop forgets the timers that are done. The caller holds mu.
func (c *ManualClock) drop() {
	kept := c.timers[:0]
	for _, t := range c.timers {
		if !t.done {
			kept = append(kept, t)
		}
	}
	clear(c.timers[len(kept):])
	c.timers = kept
	c.wake()
}

func (c *ManualClock) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

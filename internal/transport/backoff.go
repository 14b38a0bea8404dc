package transport

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff is a growing wait with jitter, so that two processes do not march in
// step. With jitter included it stays within limit.
type backoff struct {
	first, limit time.Duration
	factor       float64
	next         time.Duration
}

func (b *backoff) reset() { b.next = 0 }

// wait returns the next wait: at least 80 % of the step, at most all of it.
func (b *backoff) wait() time.Duration {
	if b.next == 0 {
		b.next = b.first
	}
	step := b.next
	b.next = min(time.Duration(float64(b.next)*b.factor), b.limit)
	return step - time.Duration(rand.Int64N(int64(step)/5+1))
}

// sleep waits for d and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// withGrace returns a context that lives on for grace after ctx ended, for work
// that should be finished when a stop comes in the middle of it.
func withGrace(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		sleep(longer, grace)
		cancel()
	})
	return longer, func() {
		stop()
		cancel()
	}
}

package transport

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Kind is what a call is to the person who waits for it.
type Kind int

const (
	// KindCard is a new message.
	KindCard Kind = iota
	// KindSettle is an edit of a message whose request is decided. It yields to cards.
	KindSettle
	// KindAnswer is the answer to a tap. It never waits.
	KindAnswer
	// KindTap is an edit that a tap asks for. It waits for nothing but the end of a
	// pause that Telegram asked for, and is counted: what waits goes later by it.
	KindTap
)

const (
	chatBurst = 20
	chatRate  = rate.Limit(1)
	botBurst  = 30
	botRate   = rate.Limit(30)
	// A group takes groupCalls within any groupWindow.
	groupCalls  = 20
	groupWindow = time.Minute

	// settleReserve is what settling leaves in a chat's bucket, so that a card that
	// comes after many decisions goes out at once.
	settleReserve = 5
	// When this many chats were limited within botWindow, the limit is the bot's.
	botLimitChats = 2
	botWindow     = time.Minute
)

// Pacer spaces messages ahead of Telegram's limits: a burst of 20 and then one a
// second for each chat, 20 a minute for a group (edits included), 30 a second for
// the bot. A retry_after pauses its chat, or the bot when several chats got one.
// Telegram's limits are not published exactly, so 429 still happens and is obeyed.
//
// It is safe for concurrent use. It keeps a little state for each chat that it
// was asked about; those come from the configuration.
type Pacer struct {
	mu      sync.Mutex
	bot     *rate.Limiter
	paused  time.Time // nothing is sent before
	chats   map[int64]*chatPace
	changed chan struct{} // closed when a waiter may look again
}

type chatPace struct {
	limiter *rate.Limiter
	group   bool
	calls   []time.Time // within the last groupWindow, oldest first; groups only
	paused  time.Time
	limited time.Time // the last 429
	cards   []*turn
	settles []*turn
}

// turn is a waiter's place in a queue. It is not empty: pointers to empty values
// need not differ.
type turn struct{ _ byte }

// NewPacer returns a Pacer with full buckets.
func NewPacer() *Pacer {
	return &Pacer{
		bot:     rate.NewLimiter(botRate, botBurst),
		chats:   make(map[int64]*chatPace),
		changed: make(chan struct{}),
	}
}

// Wait blocks until a call of this kind to chatID may be made, and counts it. It
// returns ctx's error when that ends first; nothing is counted then. Calls of one
// kind to one chat are let go in the order in which they came.
func (p *Pacer) Wait(ctx context.Context, chatID int64, kind Kind) error {
	if err := ctx.Err(); err != nil || kind == KindAnswer {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	chat := p.chat(chatID)
	if kind == KindTap {
		return p.forTap(ctx, chat)
	}
	queue, reserve := &chat.cards, 0
	if kind == KindSettle {
		queue, reserve = &chat.settles, settleReserve
	}
	me := &turn{}
	*queue = append(*queue, me)
	defer func() {
		*queue = slices.DeleteFunc(*queue, func(t *turn) bool { return t == me })
		p.wake()
	}()
	for {
		now := time.Now()
		wait, mine := time.Duration(-1), (*queue)[0] == me && (kind == KindCard || len(chat.cards) == 0)
		if mine {
			wait = max(
				chat.paused.Sub(now), p.paused.Sub(now),
				chat.until(now, reserve), until(p.bot, now, 1),
			)
			if wait <= 0 {
				chat.count(now)
				p.bot.AllowN(now, 1)
				return nil
			}
		}
		if err := p.pause(ctx, wait); err != nil {
			return err
		}
	}
}

// forTap is Wait for KindTap. The caller holds the mutex.
func (p *Pacer) forTap(ctx context.Context, chat *chatPace) error {
	for {
		now := time.Now()
		wait := max(chat.paused.Sub(now), p.paused.Sub(now))
		if wait <= 0 {
			chat.count(now)
			p.bot.ReserveN(now, 1)
			return nil
		}
		if err := p.pause(ctx, wait); err != nil {
			return err
		}
	}
}

// Limited records a 429 for a message to chatID.
func (p *Pacer) Limited(chatID int64, retryAfter time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	chat := p.chat(chatID)
	chat.limited = now
	chat.paused = later(chat.paused, now.Add(retryAfter))
	// What the bucket still held was wrong.
	chat.limiter.AllowN(now, int(chat.limiter.TokensAt(now)))
	limited := 0
	for _, c := range p.chats {
		if !c.limited.IsZero() && now.Sub(c.limited) <= botWindow {
			limited++
		}
	}
	if limited >= botLimitChats {
		p.paused = later(p.paused, now.Add(retryAfter))
	}
	p.wake()
}

func (p *Pacer) chat(id int64) *chatPace {
	chat, known := p.chats[id]
	if !known {
		// Groups and channels have negative ids.
		chat = &chatPace{limiter: rate.NewLimiter(chatRate, chatBurst), group: id < 0}
		p.chats[id] = chat
	}
	return chat
}

// until is how long the chat's own limits take to allow one more call and keep
// reserve more in hand.
func (c *chatPace) until(now time.Time, reserve int) time.Duration {
	wait := until(c.limiter, now, float64(1+reserve))
	if !c.group {
		return wait
	}
	c.calls = slices.DeleteFunc(c.calls, func(t time.Time) bool { return now.Sub(t) >= groupWindow })
	if over := len(c.calls) - (groupCalls - reserve); over >= 0 {
		wait = max(wait, c.calls[over].Add(groupWindow).Sub(now))
	}
	return wait
}

func (c *chatPace) count(now time.Time) {
	c.limiter.ReserveN(now, 1) // also more than it holds: then the next waits for both
	if c.group {
		c.calls = append(c.calls, now)
	}
}

// pause lets go of the mutex until something changed, or for d when that is not
// negative.
func (p *Pacer) pause(ctx context.Context, d time.Duration) error {
	changed := p.changed
	p.mu.Unlock()
	defer p.mu.Lock()
	var elapsed <-chan time.Time
	if d >= 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		elapsed = timer.C
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-changed:
	case <-elapsed:
	}
	return nil
}

// wake lets every waiter look again. The caller holds the mutex.
func (p *Pacer) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// until is how long it takes the bucket to hold n.
func until(l *rate.Limiter, now time.Time, n float64) time.Duration {
	missing := n - l.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	// Rounded up: a timer that fires a moment early would find it still missing.
	return time.Duration(missing/float64(l.Limit())*float64(time.Second)) + time.Millisecond
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

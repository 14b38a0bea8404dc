package telegramtest

import (
	"math"
	"time"
)

// rateState holds the token buckets and the chats that are muted.
type rateState struct {
	bot   *bucket
	chats map[int64]*bucket
	muted map[int64]time.Time // chat id, 0 = the bot, to the end of the mute
}

type bucket struct {
	tokens float64
	at     time.Time
	debt   time.Duration // extra wait for calls made while limited
}

// take accounts for one send or edit in a chat. A call that is refused was not
// carried out.
func (r *rateState) take(s *Server, c *chat) *apiError {
	now := s.clock.Now()
	for _, id := range []int64{0, c.id} {
		if until, ok := r.muted[id]; ok && now.Before(until) {
			return tooMany(ceilSeconds(until.Sub(now)))
		}
	}
	limit := s.opts.Limits.Group
	if c.kind == Private {
		limit = s.opts.Limits.Chat
	}
	if r.chats[c.id] == nil {
		r.chats[c.id] = newBucket(limit, now)
	}
	if r.bot == nil {
		r.bot = newBucket(s.opts.Limits.Bot, now)
	}
	own, all := r.chats[c.id], r.bot
	wait := max(own.wait(limit, now), all.wait(s.opts.Limits.Bot, now))
	if wait > 0 {
		own.debt += s.opts.Limits.Penalty
		return tooMany(ceilSeconds(wait))
	}
	own.tokens--
	all.tokens--
	return nil
}

func newBucket(limit Bucket, now time.Time) *bucket {
	return &bucket{tokens: float64(max(limit.Burst, 1)), at: now}
}

// wait fills the bucket up to now and returns how long until it has a token.
func (b *bucket) wait(limit Bucket, now time.Time) time.Duration {
	if limit.Rate <= 0 {
		return 0
	}
	if d := now.Sub(b.at) - b.debt; d > 0 {
		b.tokens = min(b.tokens+d.Seconds()*limit.Rate, float64(max(limit.Burst, 1)))
		b.at, b.debt = now, 0
	}
	// A billionth of a token is rounding, not a wait.
	if b.tokens >= 1-1e-9 {
		return 0
	}
	return time.Duration((1-b.tokens)/limit.Rate*float64(time.Second)) + b.debt
}

func ceilSeconds(d time.Duration) int { return max(int(math.Ceil(d.Seconds())), 1) }

// Mute answers 429 to every send and edit in a chat until d has passed on the
// server's clock, with the time that is left. Chat 0 mutes the whole bot. A d of
// zero ends a mute.
func (s *Server) Mute(chatID int64, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rates.muted[chatID] = s.clock.Now().Add(d)
}

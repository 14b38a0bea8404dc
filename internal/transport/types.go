package transport

import (
	"context"
	"time"
)

// Handler takes one update. It returns nil once the outcome is on disk; only then
// is the update acknowledged. After an error the same update comes again. It must
// be idempotent, since Telegram repeats updates.
type Handler func(context.Context, Update) error

// Cause is what keeps updates from coming until a person does something.
type Cause string

// The causes.
const (
	CauseToken     Cause = "token"     // the bot's token is rejected
	CauseConflict  Cause = "conflict"  // another program polls with it
	CauseDisplaced Cause = "displaced" // a webhook that is not this gate's is registered
	CauseStorage   Cause = "storage"   // an update came and could not be stored
)

// Health is how a transport is doing, judged by its last success and not by a
// goroutine existing.
type Health struct {
	// Mode is "poll" or "webhook".
	Mode    string `json:"mode"`
	Healthy bool   `json:"healthy"`
	// LastSuccess is when updates could last be received for certain.
	LastSuccess time.Time `json:"last_success,omitzero"`
	// Error is what is wrong and what to do about it, "" when nothing is.
	Error string `json:"error,omitempty"`
	// Cause tells apart what a person has to mend; "" for a network that may come
	// back by itself.
	Cause Cause `json:"cause,omitempty"`
	// Patience is how old LastSuccess may become before that alone is unhealthy.
	Patience time.Duration `json:"-"`
	// ConflictSince is when another process began to compete for the updates.
	ConflictSince time.Time `json:"conflict_since,omitzero"`
	// Skipped counts updates that could not be read and were passed over.
	Skipped int64 `json:"skipped,omitempty"`
	// Due is when the receiving loop comes round next, apart from the time that its
	// calls take, which are bounded to 30 s each and 40 s for a poll. A loop that is
	// long overdue hangs; one that waits out a failure does not, so this suits a
	// watchdog. Zero before Run.
	Due time.Time `json:"-"`
}

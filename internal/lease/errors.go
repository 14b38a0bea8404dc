package lease

import (
	"errors"
	"fmt"
	"time"
)

// Codes of refusals. They are frozen: programs match on them.
const (
	// CodePollerRunning: a live holder polls. Exit 10.
	CodePollerRunning = "telegram-poller-running"
	// CodeWebhookRegistered: a live holder serves a webhook. Exit 10.
	CodeWebhookRegistered = "webhook-registered"
	// CodeUnavailable: exclusion cannot be promised, or was lost. Exit 11.
	CodeUnavailable = "telegram-lease-unavailable"
	// CodeBotOwned: another gate of this machine uses the bot. Exit 10.
	CodeBotOwned = "bot-owned-elsewhere"
)

var (
	// ErrLost is wrapped by the error of a lease that was lost while held.
	ErrLost = errors.New("lease lost")
	// ErrReleased is the error of a lease after Release.
	ErrReleased = errors.New("lease released")
)

// HeldError refuses because a live holder has the lease.
type HeldError struct {
	// Code is CodePollerRunning or CodeWebhookRegistered, by the holder's mode.
	Code string
	// Holder is who holds it, as far as that can be known.
	Holder Holder
	// Wanted is the mode that was refused.
	Wanted string
	// Path is the record's.
	Path string
	// Why says what makes us think that the holder lives.
	Why string
	// Starting: the holder has no record in its place yet.
	Starting bool
}

// Error is one line: what runs, why two are wrong, what to do, and the path.
func (e *HeldError) Error() string {
	conflict := "two of a kind would both deliver every request"
	if e.Holder.Mode != "" && e.Wanted != "" && e.Holder.Mode != e.Wanted {
		conflict = "poll and webhook exclude each other on one bot"
	}
	remedy := "stop that one first or wait for it with --standby"
	if e.Holder.Foreign {
		remedy = "stop that one first; if it is certainly gone, remove the file"
	}
	state := "is running already"
	if e.Starting {
		state = "is taking over (a standby, or another start) or putting its record back"
	}
	return fmt.Sprintf("a Telegram transport of this gate %s: %s (%s); %s; %s; lease %s",
		state, e.Holder.describe(), e.Why, conflict, remedy, e.Path)
}

// BotHeldError refuses because another gate of this machine uses the same bot.
type BotHeldError struct {
	// Code is CodeBotOwned.
	Code string
	// BotID is the bot's numeric id.
	BotID int64
	// Gate is the home of the gate that uses it; empty when it does not say.
	Gate string
	// PID is its process; 0 when it does not say.
	PID int
	// Path is the lock's.
	Path string
}

// Error is one line: which gate has the bot, why two are wrong, what to do.
func (e *BotHeldError) Error() string {
	gate, process := "another gate", ""
	if e.Gate != "" {
		gate = "the gate " + e.Gate
	}
	if e.PID != 0 {
		process = fmt.Sprintf(" (pid %d)", e.PID)
	}
	return fmt.Sprintf("bot %d is in use by %s%s; two gates on one bot take each other's updates; "+
		"stop that gate or give this one a bot of its own; lock %s", e.BotID, gate, process, e.Path)
}

// UnavailableError refuses because the lease can be neither had nor ruled out.
type UnavailableError struct {
	// Code is CodeUnavailable.
	Code string
	// Path is what could not be made, read, locked or kept.
	Path string
	// Reason says what happened.
	Reason string
	// Hint says what to do.
	Hint string
	// Err is the cause; may be nil.
	Err error
	// passing: others are at work there, and come to an end.
	passing bool
}

// Error is one line: what happened, to which path, what to do.
func (e *UnavailableError) Error() string {
	text := fmt.Sprintf("the gate's transport lease is unavailable: %s: %s", e.Path, e.Reason)
	if e.Err != nil && e.Err != ErrLost { // the reason says that it was lost
		text += ": " + e.Err.Error()
	}
	if e.Hint != "" {
		text += "; " + e.Hint
	}
	return text
}

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

func unavailable(path, reason, hint string, err error) *UnavailableError {
	return &UnavailableError{Code: CodeUnavailable, Path: path, Reason: reason, Hint: hint, Err: err}
}

// lossError is why a lease was lost: it is ErrLost as well as its cause, and
// says the cause alone.
type lossError struct{ cause error }

func (e *lossError) Error() string   { return e.cause.Error() }
func (e *lossError) Unwrap() []error { return []error{ErrLost, e.cause} }

// Kind names what an Event reports.
type Kind string

// The kinds of events.
const (
	// Reclaimed: a dead holder's record was replaced. Reason tells why it
	// counts as dead.
	Reclaimed Kind = "reclaimed"
	// TornReplaced: an unreadable record was replaced; the stop before was unclean.
	TornReplaced Kind = "torn-replaced"
	// SectionEvicted: a dead process's take-over section was removed.
	SectionEvicted Kind = "section-evicted"
	// Waiting: a standby waits for the holder.
	Waiting Kind = "waiting"
	// HostOnly: the lock's file system may not reach other hosts.
	HostOnly Kind = "host-only"
	// WatchDegraded: no inotify; the lease is checked on a timer alone.
	WatchDegraded Kind = "watch-degraded"
	// Retaken: record or lock file had gone; the holder put them back.
	Retaken Kind = "retaken"
	// Lost: the lease is somebody else's or cannot be held any longer.
	Lost Kind = "lost"
)

// Why a record counts as dead. These names are frozen.
const (
	// ReasonGone: there is no such process any more.
	ReasonGone = "gone"
	// ReasonForeign: the number belongs to a process with another owner and
	// another start.
	ReasonForeign = "foreign"
	// ReasonRecycled: the number belongs to a process with another start.
	ReasonRecycled = "recycled"
)

// Event is something about a lease that an operator should read in the log.
type Event struct {
	Kind Kind
	// Reason is one of the Reason constants for Reclaimed, else empty.
	Reason string
	// Path is the file that it is about.
	Path string
	// Text is one line for a person.
	Text string
}

// Holder is who holds a lease, as its record says.
type Holder struct {
	PID     int       `json:"pid"`
	Mode    string    `json:"mode"`
	Since   time.Time `json:"since"`
	Epoch   int64     `json:"epoch"`
	UID     *uint32   `json:"uid,omitempty"`
	Program string    `json:"program,omitempty"`
	Version string    `json:"version,omitempty"`
	// Foreign: the record is another implementation's and holds no identity.
	Foreign bool `json:"foreign"`
}

func (h Holder) describe() string {
	if h.PID == 0 {
		return "mode, pid and start unknown"
	}
	if h.Mode == "" {
		return fmt.Sprintf("pid %d, mode and start unknown", h.PID)
	}
	return fmt.Sprintf("mode %s, pid %d, since %s", h.Mode, h.PID, h.Since.UTC().Format(timeLayout))
}

func (h Holder) code() string {
	if h.Mode == ModeWebhook {
		return CodeWebhookRegistered
	}
	return CodePollerRunning
}

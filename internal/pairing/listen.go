package pairing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/approvald/approvald/internal/transport"
)

const (
	// peekEvery is the pause between two looks. Telegram holds an empty answer for up to three seconds to whoever asks so often.
	peekEvery = time.Second
	// peekLimit is how many updates Telegram shows at a time, from the oldest on.
	peekLimit = 100
)

// Errors of listening.
var (
	// ErrBacklog: more updates wait than can be looked past without taking them away.
	ErrBacklog = errors.New("a hundred or more updates of this bot wait for a daemon, and what comes behind them cannot be seen")
	// ErrExpired: nobody presented the code in time.
	ErrExpired = errors.New("nobody presented the code in time")
)

// EndedError ends an offer without a claim. Another code may be offered.
type EndedError struct{ Why string }

// Error implements error.
func (e *EndedError) Error() string { return e.Why }

// Teller is what judging a presentation needs of Telegram.
type Teller interface {
	GetChatMember(ctx context.Context, chatID, userID int64) (transport.ChatMember, error)
	SendMessage(ctx context.Context, s transport.SendMessage) (transport.Message, error)
}

// Peeker is what listening without a daemon needs of Telegram.
type Peeker interface {
	Teller
	Peek(ctx context.Context, subscribe bool) ([]json.RawMessage, error)
	GetWebhookInfo(ctx context.Context) (transport.WebhookInfo, error)
}

// Listener hears presentations where no daemon runs: it looks at what waits for the bot and leaves all of it for the daemon, so that a
// tap which waits is not lost. What was there before is never judged: nobody could know a code yet.
type Listener struct {
	telegram  Peeker
	bot       string
	subscribe bool
	seen      map[int64]bool
	now       func() time.Time
}

// Listen begins to listen for the bot of that user name. It fails where the updates go elsewhere or cannot be seen: with a
// *transport.RegistrationError, ErrBacklog, or the call's error. now is the clock.
func Listen(ctx context.Context, telegram Peeker, bot string, now func() time.Time) (*Listener, error) {
	info, err := telegram.GetWebhookInfo(ctx)
	if err != nil {
		return nil, err
	}
	if info.URL != "" {
		return nil, transport.NewRegistrationError("poll", info.URL)
	}
	l := &Listener{telegram: telegram, bot: bot, seen: map[int64]bool{}, now: now}
	// An earlier program may have told Telegram that it wants no messages; the daemon will ask for them as well.
	l.subscribe = len(info.AllowedUpdates) > 0 && !slices.Contains(info.AllowedUpdates, "message")
	before, err := l.fresh(ctx)
	for _, u := range before {
		l.seen[u.ID] = true
	}
	return l, err
}

// fresh answers the messages among the updates that were not seen yet.
func (l *Listener) fresh(ctx context.Context) ([]transport.Update, error) {
	raw, err := l.telegram.Peek(ctx, l.subscribe)
	if err != nil {
		return nil, err
	}
	var updates []transport.Update
	for _, r := range raw {
		u, err := transport.DecodeUpdate(r, l.now())
		if err == nil && u.Message != nil && !l.seen[u.ID] {
			updates = append(updates, u)
		} else if u.ID != 0 {
			l.seen[u.ID] = true
		}
	}
	if len(raw) >= peekLimit {
		return updates, ErrBacklog
	}
	for _, u := range updates {
		if Presented(u.Message, l.bot) == "" {
			l.seen[u.ID] = true
		}
	}
	return updates, nil
}

// Await waits until somebody presents the offer's code. told is called with what happens meanwhile that a person at the terminal
// should know. It ends with ErrExpired, with an *EndedError after which another offer may be made, with ErrBacklog, with
// the cause of ctx, or with a call's error that trying again does not help against.
func (l *Listener) Await(ctx context.Context, o *Offer, told func(string)) (Claim, error) {
	var trouble string
	for {
		updates, err := l.fresh(ctx)
		switch {
		case ctx.Err() != nil:
			return Claim{}, context.Cause(ctx)
		case err == nil || errors.Is(err, ErrBacklog):
			trouble = ""
		case passing(err):
			if text := err.Error(); text != trouble {
				trouble = text
				told(text + "; trying again")
			}
		default:
			return Claim{}, err
		}
		for _, u := range updates {
			if l.seen[u.ID] {
				continue
			}
			h := o.Hear(u.Message, l.bot, l.now())
			if h.Verdict == TooSoon {
				break // looked at again, in order, when its time has come
			}
			l.seen[u.ID] = true
			if claim, done, err := Judge(ctx, l.telegram, u.Message, h, o, told); done {
				return claim, err
			}
		}
		if errors.Is(err, ErrBacklog) {
			return Claim{}, err
		}
		if !l.now().Before(o.Expires) {
			return Claim{}, ErrExpired
		}
		if err := pause(ctx, min(peekEvery, o.Expires.Sub(l.now()))); err != nil {
			return Claim{}, err
		}
	}
}

// passing reports whether a call that failed is worth another try.
func passing(err error) bool {
	switch transport.ClassOf(err) {
	case transport.ClassTransient, transport.ClassUnknownOutcome, transport.ClassLimited:
		return true
	default:
		return false
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// Judge does what a judged message asks for: it looks an administrator up, answers who presented the code, and tells the
// terminal. done is set when the offer came to an end by it, with a claim or an *EndedError.
func Judge(ctx context.Context, telegram Teller, m *transport.Message, h Heard, o *Offer, told func(string)) (c Claim, done bool, err error) {
	why := h.Why
	switch h.Verdict {
	case Wrong:
		told(fmt.Sprintf("a wrong code was presented (%d of %d)", o.Wrong, MaxWrong))
		if o.Ended != "" {
			return Claim{}, true, &EndedError{fmt.Sprintf("%d wrong codes were presented, so this one is no longer good", o.Wrong)}
		}
		return Claim{}, false, nil
	case Shown:
		if h.Claim.InGroup() {
			member, err := telegram.GetChatMember(ctx, h.Claim.ChatID, h.Claim.UserID)
			if why = Admit(h.Claim, member.Status); err != nil {
				why = "whether user " + fmt.Sprint(h.Claim.UserID) + " is an administrator of the group could not be found out: " + err.Error()
			}
		}
	case Refused:
	default:
		return Claim{}, false, nil
	}
	answer := "Seen. Confirm at the terminal that showed the code."
	if why != "" {
		answer = "This code is used up and pairs nobody: " + why + "."
		h.Claim = Claim{}
		err = &EndedError{"the code was presented and is used up: " + why}
	}
	// Nothing hangs on the answer: the terminal knows.
	_, _ = telegram.SendMessage(ctx, transport.SendMessage{ChatID: m.Chat.ID, ThreadID: m.ThreadID, ReplyTo: m.ID, Text: answer})
	return h.Claim, true, err
}

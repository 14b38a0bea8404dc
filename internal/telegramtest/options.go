package telegramtest

import (
	"context"
	"net/http"
	"net/netip"
	"time"
)

// Options configures a Server. The zero value is a working cloud-like server
// with a generated token, the real clock, and no rate limits.
type Options struct {
	// Token is the bot's token, "<bot id>:<secret>". Default: made from Seed.
	Token string
	// Bot describes the bot. Its ID is taken from Token; the names have
	// defaults.
	Bot User
	// Addr is where Start listens. Default "127.0.0.1:0".
	Addr string
	// Clock is the server's time. Default RealClock.
	Clock Clock
	// Seed fixes everything random: first update id, callback ids, jitter of
	// the webhook back-off, probabilities of faults. Zero is a seed like any
	// other: two servers with equal options behave alike.
	Seed uint64

	// Frontend chooses between the answers of api.telegram.org and those of a
	// bare telegram-bot-api server where the two differ. Default Cloud.
	Frontend Frontend
	// Local is the server's --local mode: webhooks may be plain http, on any
	// port and any address, and take 100000 connections.
	Local bool

	// AntiHammer is the getUpdates rule against tight loops: the same offset
	// within 3 s raises a shorter timeout to 3 s, within 0.5 s it lowers the
	// limit to 1. Default: on with a clock other than RealClock, else off.
	AntiHammer Toggle
	// ConflictHold delays a 409 that follows another one within that time.
	// Default 3 s; negative switches it off.
	ConflictHold time.Duration
	// TapLife is how long a tap waits to be fetched. Default 150 s.
	TapLife time.Duration
	// AnswerWindow is how long a tap can be answered. Telegram does not
	// document it. Default 60 s.
	AnswerWindow time.Duration
	// WakeDelay is how long a woken long poll collects further updates before
	// it answers; Telegram takes 1-2 ms. Default 0.
	WakeDelay time.Duration
	// FirstUpdateID is the id of the first update. Default: random in
	// 2000001..1000000000, as on Telegram.
	FirstUpdateID int64
	// CallbackMode is the form of a tap on a message (setMySettings of Bot
	// API 10.5). Default CallbackDefault.
	CallbackMode CallbackMode

	// Limits are the rate limits. The zero value has none; TelegramLimits has
	// the ones Telegram documents.
	Limits Limits
	// Webhook configures delivery to a webhook.
	Webhook WebhookOptions
}

// Frontend is who answers requests that never reach the Bot API proper.
type Frontend int

// The front ends.
const (
	// Cloud answers as api.telegram.org: nginx HTML pages for 413, 501 and the
	// like, 404 for a malformed token, 50 MB of upload at most.
	Cloud Frontend = iota
	// Bare answers as a telegram-bot-api server of one's own: empty bodies,
	// 401 and 421 for malformed tokens.
	Bare
)

// Toggle is a switch with a default.
type Toggle int

// The positions of a Toggle.
const (
	Default Toggle = iota
	On
	Off
)

// CallbackMode is the form in which a tap names the message it was made on.
type CallbackMode int

// The callback modes.
const (
	// CallbackDefault always has a message, an inaccessible one if need be.
	CallbackDefault CallbackMode = iota
	// CallbackAuto has an inline_message_id when the message is inaccessible.
	CallbackAuto
	// CallbackInline always has an inline_message_id.
	CallbackInline
)

// Limits are token buckets. A bucket with a zero Rate does not limit.
type Limits struct {
	// Chat limits sends and edits to one private chat.
	Chat Bucket
	// Group limits sends and edits to one group, supergroup or channel.
	Group Bucket
	// Bot limits sends and edits of the bot over all chats.
	Bot Bucket
	// Penalty is added to the wait by every call made while limited.
	Penalty time.Duration
}

// Bucket holds Burst tokens and gains Rate tokens a second.
type Bucket struct {
	Rate  float64 // tokens a second
	Burst int     // most tokens held; at least 1
}

// TelegramLimits returns the limits that Telegram documents: one message a
// second in a chat with bursts of five, 20 a minute in a group, 30 a second for
// the bot. The true curves are not public.
func TelegramLimits() Limits {
	return Limits{
		Chat:  Bucket{Rate: 1, Burst: 5},
		Group: Bucket{Rate: 20.0 / 60, Burst: 20},
		Bot:   Bucket{Rate: 30, Burst: 30},
	}
}

// WebhookOptions configures how the server reaches a webhook.
type WebhookOptions struct {
	// Resolve maps a host name to an address at setWebhook. The default looks
	// nothing up: "localhost" is 127.0.0.1, an address is itself, names below
	// ".invalid" fail, any other name is a public address.
	Resolve func(host string) (netip.Addr, error)
	// Transport carries the deliveries. The default connects to the address
	// that was resolved, if that is on loopback, and to nothing else; it
	// verifies certificates as Telegram does. RouteTo sends everything to a
	// listener on loopback, as a reverse proxy in front of it would.
	Transport http.RoundTripper
	// VerifyDelay is how long setWebhook takes to verify an address. Default 0.
	VerifyDelay time.Duration
	// Timeout is how long a delivery waits for its answer. Default 60 s.
	Timeout time.Duration
}

func (o Options) withDefaults() Options {
	if o.Addr == "" {
		o.Addr = "127.0.0.1:0"
	}
	if o.Clock == nil {
		o.Clock = RealClock{}
	}
	if o.AntiHammer == Default {
		o.AntiHammer = On
		if _, real := o.Clock.(RealClock); real {
			o.AntiHammer = Off
		}
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.ConflictHold, 3*time.Second)
	def(&o.TapLife, 150*time.Second)
	def(&o.AnswerWindow, 60*time.Second)
	def(&o.Webhook.Timeout, 60*time.Second)
	return o
}

// sleep waits for d on the server's clock. It reports false when ctx or the
// server ended first.
func (s *Server) sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	c, stop := s.clock.After(d)
	defer stop()
	select {
	case <-c:
		return true
	case <-ctx.Done():
		return false
	case <-s.done:
		return false
	}
}

package dispatch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/transport"
	"github.com/approvald/approvald/internal/visible"
)

// ChatLimited: Telegram takes nothing for this chat for a while, as the answer to a call said that no lane made.
type ChatLimited struct {
	ChatID     int64
	RetryAfter time.Duration
	Reason     string
}

func (ChatLimited) isEvent() {}

// chatLimited keeps still the lane of a chat that was limited, and records until when: it binds the next process too.
func (c *Core) chatLimited(ev ChatLimited) {
	until := c.mute(c.lane(ev.ChatID), Result{RetryAfter: ev.RetryAfter, Reason: ev.Reason})
	c.journal(EventDeliveryFailed, "", failedPayload{Class: string(ResultLimited), Reason: ev.Reason, ChatID: ev.ChatID, RetryAt: until})
}

// obey takes note of a limit that a call beside the lanes met, and returns its error.
func (l *Loop) obey(chatID int64, err error) error {
	if r := resultOf(transport.Message{}, err); r.Kind == ResultLimited {
		l.o.Pacer.Limited(chatID, r.RetryAfter)
		l.mailbox.put(ChatLimited{ChatID: chatID, RetryAfter: r.RetryAfter, Reason: r.Reason})
	}
	return err
}

// quiet is until when answers to taps are not taken. Telegram names no chat there.
type quiet struct {
	mu    sync.Mutex
	until time.Time
}

func (q *quiet) left() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return time.Until(q.until)
}

func (q *quiet) extend(d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.until = later(q.until, time.Now().Add(d))
}

// offerCommands sets the bot's menu of commands. Where Telegram takes no such call for now it is made again when it does: nothing else
// would before the next start.
func (l *Loop) offerCommands() {
	l.beside("bot commands", func() {
		for l.entitled() == nil {
			ctx, cancel := context.WithTimeout(l.calls, answerTimeout)
			err := l.o.Sender.SetMyCommands(ctx, Commands())
			cancel()
			if r := resultOf(transport.Message{}, err); r.Kind == ResultLimited && pauseFor(l.calls, max(r.RetryAfter, time.Second)) {
				continue
			}
			if err != nil && l.calls.Err() == nil {
				l.o.Logger.Info("the bot's menu of commands could not be set", zap.Error(err))
			}
			return
		}
	})
}

// answerTap tells a person what became of their tap: at once, unless Telegram takes no answers for now. One that would come too late
// for the phone is not given.
func (l *Loop) answerTap(ctx context.Context, e Answer) error {
	if left := l.quiet.left(); left >= answerTimeout {
		return fmt.Errorf("no answers to taps are taken for %s", visible.Duration(left.Round(time.Second)))
	} else if left > 0 && !pauseFor(ctx, left) {
		return ctx.Err()
	}
	err := l.o.Sender.AnswerCallbackQuery(ctx, transport.AnswerCallbackQuery{ID: e.CallbackID, Text: e.Text, Alert: e.Alert})
	if r := resultOf(transport.Message{}, err); r.Kind == ResultLimited {
		l.quiet.extend(r.RetryAfter)
	}
	return err
}

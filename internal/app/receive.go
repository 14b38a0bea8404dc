package app

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/lease"
	"github.com/approvald/approvald/internal/rescue"
	"github.com/approvald/approvald/internal/transport"
)

// receive finds out whose bot the token is, then fetches or receives its updates.
func (a *App) receive(ctx context.Context) error {
	defer close(a.receiverEnded)
	if err := a.stages.recovered.wait(ctx); err != nil {
		return err
	}
	report, err := a.meetBot(ctx)
	if err != nil {
		return err
	}
	r, err := a.newReceiver()
	if err != nil {
		return err
	}
	ours := "" // Telegram has none any more
	if a.opts.Config.Transport.Mode == gate.ModeWebhook {
		ours = a.opts.Config.Transport.Webhook.URL
	}
	if err := a.noteWebhook(ctx, ours); err != nil {
		return a.opts.Config.Paths().JournalError(err)
	}
	a.setTrouble(nil)
	a.mu.Lock()
	a.receiver = r
	a.mu.Unlock()
	a.stages.bot.reach()
	a.announce()
	a.log.Info("the gate is open", a.openFields(report)...)

	running, beside := newHelpers(ctx)
	beside.run("transport ready", func() {
		select {
		case <-r.Ready():
			a.stages.transport.reach()
		case <-running.Done():
		}
	})
	beside.run("chat check", func() { a.lookAtChat(running) })
	desk := a.pairingDesk(report.Bot.Username, func(f func(context.Context)) { beside.run("pairing", func() { f(running) }) })
	return beside.end(running, r.Run(running, func(ctx context.Context, u transport.Update) error {
		// A post of the webhook is handled in a goroutine of net/http, which would swallow the panic.
		err := rescue.Run("update", func() error {
			if desk.Hear(u) {
				return nil
			}
			return a.loop.HandleUpdate(ctx, u)
		})
		if p, ok := errors.AsType[*rescue.Error](err); ok {
			beside.fail(p)
		}
		return err
	}))
}

// lookAtChat warns about a chat that no card can reach, before the first request finds out. It refuses nothing: the bot may be
// let into the chat at any time, which is looked for until it is.
func (a *App) lookAtChat(ctx context.Context) {
	for warned := false; ; {
		trouble := a.chatProblem(ctx, !warned)
		warned = trouble != ""
		a.mu.Lock()
		a.chatTrouble = trouble
		a.mu.Unlock()
		again := time.NewTimer(lookAtChatEvery)
		if trouble == "" {
			again.Stop()
		}
		select {
		case <-ctx.Done():
			again.Stop()
			return
		case <-a.reconfigured:
			again.Stop()
		case <-again.C:
		}
	}
}

// chatProblem looks at the gate's chats once.
func (a *App) chatProblem(ctx context.Context, warn bool) (trouble string) {
	chats := []int64{a.opts.Config.Telegram.ChatID}
	if deputy := a.config().Attention.DeputyChatID; deputy != 0 {
		chats = append(chats, deputy)
	}
	for _, chat := range chats {
		_, err := a.client.GetChat(ctx, chat)
		remedy := chatRemedy(transport.ClassOf(err))
		if remedy == "" {
			continue
		}
		if warn {
			a.log.Warn("a chat of the gate cannot be reached; requests are kept until it can", zap.Int64("chat_id", chat), zap.Error(err), zap.String("remedy", remedy))
		}
		if trouble == "" {
			trouble = fmt.Sprintf("chat %d cannot be reached: %v; %s", chat, err, remedy)
		}
	}
	return trouble
}

// lookAtChatEvery is how often a chat that could not be reached at start is looked at again.
const lookAtChatEvery = time.Minute

// chatRemedy says what helps against a chat that is closed to the bot, nothing for one that is not.
func chatRemedy(class transport.Class) string {
	switch class {
	case transport.ClassChatNotFound:
		return "check telegram.chat_id and deputy_chat_id; in a private chat the person has to write to the bot first, in a group the bot has to be a member"
	case transport.ClassForbidden:
		return "let the bot into the chat again"
	default:
		return ""
	}
}

func (a *App) openFields(report transport.StartReport) []zap.Field {
	paths := a.opts.Config.Paths()
	fields := []zap.Field{
		zap.String("gate", a.opts.Gate), zap.String("version", a.opts.Version), zap.String("home", paths.Home), zap.String("socket", paths.Socket),
		zap.String("transport", a.opts.Config.Transport.Mode), zap.String("bot", "@"+report.Bot.Username), zap.Int64("epoch", a.epoch),
	}
	if a.gate.Log().Torn() {
		fields = append(fields, zap.Bool("torn_tail", true))
	}
	if report.Removed {
		fields = append(fields, zap.Bool("own_webhook_removed", true))
	}
	return fields
}

// meetBot asks Telegram who the bot is and what is registered for it, for as long as it takes to reach Telegram. A token that is
// refused, another gate on the same bot and a registration that is not ours end the start.
func (a *App) meetBot(ctx context.Context) (transport.StartReport, error) {
	wait := a.opts.RetryMin
	for {
		report, err := transport.CheckStart(ctx, a.client, transport.StartOptions{
			Mode: a.opts.Config.Transport.Mode, URL: a.opts.Config.Transport.Webhook.URL, Replace: a.replacesWebhook(),
			Own: a.ownRegistration, Bot: a.claimBot,
		})
		if err == nil {
			return report, nil
		}
		if ctx.Err() != nil {
			return report, context.Cause(ctx)
		}
		predecessor := a.isPredecessors(err)
		if final := startEnds(err); final != nil && !predecessor {
			return report, final
		}
		pause := startPause(wait, err)
		a.setTrouble(err)
		a.announce()
		what := "Telegram cannot be reached yet; requests are taken and wait"
		if predecessor {
			what = "an earlier daemon of this gate has not let go of the bot; requests are taken and wait until it has ended"
		}
		a.log.Warn(what, zap.Error(err), zap.Duration("next_try_in", pause))
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return report, context.Cause(ctx)
		case <-timer.C:
		}
		if !predecessor {
			wait = min(2*wait, a.opts.RetryMax)
		}
	}
}

// startPause is how long a start that failed waits before it tries again. Two daemons that were started together must not come round
// together; what Telegram asked for is never cut short by that.
func startPause(wait time.Duration, err error) time.Duration {
	pause := wait/2 + rand.N(wait/2+1)
	if e, ok := errors.AsType[*transport.Error](err); ok && e.RetryAfter > 0 {
		pause = max(pause, e.RetryAfter+rand.N(min(e.RetryAfter/10, maxStartJitter)+1))
	}
	return pause
}

// maxStartJitter bounds what is added to a wait that Telegram asked for.
const maxStartJitter = 2 * time.Second

// isPredecessors tells a bot that is held by an earlier daemon of this very gate. The gate's lease is here, so that one has lost it: it
// is on its way out, or was stopped and will find out when it goes on.
func (a *App) isPredecessors(err error) bool {
	held, ok := errors.AsType[*lease.BotHeldError](err)
	if !ok || held.Gate == "" {
		return false
	}
	home, err := lease.ResolveHome(a.opts.Config.Home)
	return err == nil && home == held.Gate
}

// CodeWebhookRegistered is the code of a start that found the bot registered with a webhook that is not this gate's.
const CodeWebhookRegistered = "webhook-registered"

// startEnds returns the error with which a start ends for good, or nil when trying again can help.
func startEnds(err error) error {
	if e, ok := errors.AsType[*transport.RegistrationError](err); ok {
		return &gate.Error{Code: CodeWebhookRegistered, Message: e.Error(), Err: err}
	}
	e, ok := errors.AsType[*transport.Error](err)
	switch {
	case !ok:
		return err // the bot's own lease
	case e.Class == transport.ClassToken:
		return &gate.Error{Code: gate.CodeConfig, Message: fmt.Sprintf("Telegram refuses the bot's token (%d %s)", e.Code, e.Description),
			Hint: "ask @BotFather for the token of this bot and put it where the configuration names it", Err: err}
	case e.Class == transport.ClassBadRequest:
		return err
	default:
		return nil
	}
}

// claimBot takes the lease on the bot itself: two gates on one bot would take each other's taps.
func (a *App) claimBot(bot transport.User) error {
	if a.botLease != nil {
		return nil
	}
	held, err := lease.AcquireBot(bot.ID, a.opts.Config.Telegram.APIBase, a.opts.Config.Home)
	if err != nil {
		return err
	}
	a.botLease = held
	a.cleanups.push("release the bot", func(context.Context) error { return held.Release() })
	return nil
}

// listenSystemd is the value of transport.webhook.listen for a socket that a socket unit passes.
const listenSystemd = "systemd"

// webhookSocket is the name of that socket in the socket unit (FileDescriptorName=).
const webhookSocket = "webhook"

// replacesWebhook says whether a webhook that is not this gate's may be displaced.
func (a *App) replacesWebhook() bool {
	return a.opts.ReplaceWebhook || a.opts.Config.Transport.Webhook.Replace
}

// newReceiver makes the configured transport.
func (a *App) newReceiver() (receiver, error) {
	logger := a.log.Named("transport")
	if hook := a.opts.Config.Transport; a.opts.Sockets.Len() > 0 && (hook.Mode != gate.ModeWebhook || hook.Webhook.Listen != listenSystemd) {
		logger.Warn("systemd passed a socket that the configuration does not use, so nobody answers on it: set transport.webhook.listen to \"systemd\", or disable the socket unit")
	}
	ours := func() bool { return a.lease.Check() == nil }
	if a.opts.Config.Transport.Mode != gate.ModeWebhook {
		return transport.NewPoller(transport.PollOptions{Client: a.client, Logger: logger, Own: a.ownRegistration, ConfirmOnStop: ours}), nil
	}
	hook := a.opts.Config.Transport.Webhook
	options := transport.WebhookOptions{
		Client: a.client, URL: hook.URL, Listen: hook.Listen, Secret: a.secret, Replace: a.replacesWebhook(),
		Own: a.ownRegistration, RemoveOnStop: ours, Logger: logger,
	}
	if hook.Listen == listenSystemd {
		var err error
		if options.Listener, err = a.opts.Sockets.Listener(webhookSocket); err != nil {
			return nil, &gate.Error{Code: gate.CodeConfig, Message: fmt.Sprintf("transport.webhook.listen = %q: %v", hook.Listen, err),
				Hint: fmt.Sprintf("systemctl enable approvald-webhook@%[1]s.socket; systemctl stop approvald@%[1]s; systemctl start approvald@%[1]s; or name an address", a.opts.Gate), Err: err}
		}
	}
	return transport.NewWebhook(options)
}

// ownRegistration says whether a webhook that Telegram knows is one that this gate's last daemon registered and could not
// remove. Any other is somebody's. When polling, the journal's word is enough: the configuration may name none any more.
func (a *App) ownRegistration(url string) bool {
	if url == "" || url != a.before.WebhookURL {
		return false
	}
	return a.opts.Config.Transport.Mode != gate.ModeWebhook || url == a.opts.Config.Transport.Webhook.URL
}

func (a *App) setTrouble(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trouble = err
}

package app

import (
	"context"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/lease"
	"github.com/approvald/approvald/internal/pairing"
	"github.com/approvald/approvald/internal/transport"
)

// pairingDesk listens, for a terminal that asks for it, to who presents a code: while a daemon runs, nobody else may fetch the bot's updates. It
// makes nobody an approver; that is the terminal's, which may write the configuration.
func (a *App) pairingDesk(bot string, later func(func(context.Context))) *pairing.Desk {
	return pairing.NewDesk(pairing.DeskOptions{
		DaemonDir: a.opts.Config.Paths().Daemon, Bot: bot, Telegram: entitledTeller{a.client, a.lease}, Now: a.opts.Now, Later: later,
		Log: func(text string) { a.log.Warn("pairing", zap.String("what", text)) },
	})
}

// entitledTeller sends nothing once the lease is lost.
type entitledTeller struct {
	*transport.Client
	lease *lease.Lease
}

func (t entitledTeller) SendMessage(ctx context.Context, s transport.SendMessage) (transport.Message, error) {
	if err := t.lease.Check(); err != nil {
		return transport.Message{}, err
	}
	return t.Client.SendMessage(ctx, s)
}

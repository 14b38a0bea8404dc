package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/lease"
	"github.com/approvald/approvald/internal/pairing"
	"github.com/approvald/approvald/internal/transport"
	"github.com/approvald/approvald/internal/visible"
)

// askTelegram bounds a call that a person waits for.
const askTelegram = 10 * time.Second

// knock asks Telegram whose token this is.
func knock(ctx context.Context, token transport.Secret, apiBase string) (*transport.Client, transport.User, error) {
	client, err := transport.New(transport.Options{Token: token, APIBase: apiBase, CallTimeout: askTelegram})
	if err != nil {
		return nil, transport.User{}, err
	}
	bot, err := client.GetMe(ctx)
	if err != nil {
		client.Close()
		return nil, bot, err
	}
	return client, bot, nil
}

// tryToken refuses a token that Telegram refuses. That Telegram cannot be reached is no refusal.
func (e *env) tryToken(ctx context.Context, s *setup, text string) error {
	client, bot, err := knock(ctx, transport.NewSecret(text), s.apiBase)
	if transport.ClassOf(err) == transport.ClassToken {
		return errors.New("what was given is a token that Telegram does not know; @BotFather shows the right one under /mybots")
	}
	if err == nil {
		client.Close()
		s.bot = bot
	}
	return nil
}

// pairFirst finds the approver, and the chat unless a flag named it, by a code. On a terminal it is the first offer, and numbers that are typed
// in are the second; --pair asks nobody.
func (e *env) pairFirst(ctx context.Context, s *setup) error {
	if s.pair == "" && (!e.interactive() || len(s.approvers) > 0) {
		return nil
	}
	claim, err := e.firstClaim(ctx, s)
	byHand := s.pair == "" && ctx.Err() == nil
	switch {
	case byHand && errors.Is(err, errTyped):
		return nil
	case byHand && mayType(err):
		e.ui.say("%s", err)
		e.ui.say("so the numbers have to be typed in")
		return nil
	case err != nil:
		return err
	}
	e.describeClaim(claim)
	person := gate.Approver{ID: s.pair, TelegramUserID: claim.UserID}
	if s.pair == "" {
		if person, err = e.accept(ctx, claim, ""); err != nil {
			return err
		}
	}
	s.paired = true
	s.approvers = append(s.approvers, fmt.Sprintf("%s=%d", person.ID, person.TelegramUserID))
	if s.chatID == 0 {
		s.chatID, s.threadID = claim.ChatID, cmp.Or(s.threadID, claim.ThreadID)
	}
	return nil
}

// cannotListen is a reason for which nobody can be heard at the moment, which typed numbers do not need.
type cannotListen struct{ err error }

func (e cannotListen) Error() string { return e.err.Error() }
func (e cannotListen) Unwrap() error { return e.err }

func mayType(err error) bool {
	_, ok := errors.AsType[cannotListen](err)
	return ok
}

func (e *env) firstClaim(ctx context.Context, s *setup) (pairing.Claim, error) {
	token := transport.NewSecret(s.token)
	if s.token == "" {
		var err error
		if token, err = (gate.Config{Telegram: gate.Telegram{TokenFile: s.tokenFile, TokenEnv: s.tokenEnv}}).Token(); err != nil {
			if s.tokenEnv != "" {
				err = cannotListen{err} // it need only be set when the daemon starts
			}
			return pairing.Claim{}, err
		}
	}
	client, bot, err := knock(ctx, token, s.apiBase)
	switch {
	case transport.ClassOf(err) == transport.ClassToken:
		return pairing.Claim{}, tokenRefused(err)
	case err != nil:
		return pairing.Claim{}, cannotListen{fmt.Errorf("the bot cannot be asked: %w", err)}
	}
	defer client.Close()
	home := cmp.Or(s.home, gate.DefaultHome(e.gate), filepath.Dir(s.config))
	held, err := lease.AcquireBot(bot.ID, s.apiBase, home)
	if err != nil {
		return pairing.Claim{}, err
	}
	defer func() { _ = held.Release() }() // the kernel lets go of it anyway
	l, err := pairing.Listen(ctx, client, bot.Username, time.Now)
	if err != nil {
		return pairing.Claim{}, cannotListen{pairingError(err, 0)}
	}
	e.ui.say("the token is that of @%s; who is to approve shows it a code:", bot.Username)
	return e.awaitClaim(ctx, bot, s.pairTimeout, s.pair == "", hears(l))
}

// alreadyThere refuses to add somebody twice.
func alreadyThere(cfg gate.Config, userID int64, name string) error {
	for _, a := range cfg.Approvers {
		switch {
		case userID != 0 && a.TelegramUserID == userID:
			return &gate.Error{Code: codeAlreadyThere, Message: fmt.Sprintf("user %d is an approver already: %s; nothing was changed", userID, a.Actor())}
		case name != "" && a.ID == name:
			return &gate.Error{Code: codeAlreadyThere, Message: fmt.Sprintf("there is an approver %s already; nothing was changed", visible.Quote(name)),
				Hint: "give another name; approvers stand in " + cfg.File}
		}
	}
	return nil
}

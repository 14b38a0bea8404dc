package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/pairing"
	"github.com/approvald/approvald/internal/transport"
	"github.com/approvald/approvald/internal/visible"
)

// lines reads answers. A read of a terminal cannot be taken back, so one that was begun for a question that is no longer asked serves
// the next.
type lines struct {
	in      *bufio.Reader
	pending chan line
}

type line struct {
	text string
	err  error
}

// next delivers one line. Who takes it has to call taken.
func (l *lines) next() <-chan line {
	if l.pending == nil {
		l.pending = make(chan line, 1)
		go func(to chan<- line) {
			text, err := l.in.ReadString('\n')
			to <- line{strings.TrimSpace(text), err}
		}(l.pending)
	}
	return l.pending
}

func (l *lines) taken() { l.pending = nil }

// answers is the one reader of the terminal's lines.
func (e *env) answers() *lines {
	if e.lines == nil {
		e.lines = &lines{in: bufio.NewReader(e.stdin)}
	}
	return e.lines
}

// Ends of a pairing that are nobody's fault.
const (
	codePairingEnded   = "pairing-ended" // nobody presented the code, or somebody who may not
	codeAlreadyThere   = "already-there" // the person is an approver already
	codeDaemonDiffers  = "not-in-force"  // the daemon does not go by what was written
	defaultPairTimeout = pairing.Life
)

// errTyped ends the wait for a code because the person wants to type.
var errTyped = errors.New("the numbers are to be typed in")

// hearing is how an offer is heard: opened is called once its code can be presented, told with what happens meanwhile.
type hearing func(ctx context.Context, o *pairing.Offer, opened func(), told func(string)) (pairing.Claim, error)

// hears is the hearing of a listener, which hears from its beginning on.
func hears(l *pairing.Listener) hearing {
	return func(ctx context.Context, o *pairing.Offer, opened func(), told func(string)) (pairing.Claim, error) {
		opened()
		return l.Await(ctx, o, told)
	}
}

// awaitClaim offers codes until somebody presents one. hear is how an offer is heard. With byHand, an Enter ends it with errTyped.
func (e *env) awaitClaim(ctx context.Context, bot transport.User, limit time.Duration, byHand bool,
	hear hearing,
) (pairing.Claim, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if byHand {
		l := e.answers()
		answered, gone := l.next(), make(chan struct{})
		defer func() { cancel(nil); <-gone }()
		go func() {
			defer close(gone)
			select {
			case a := <-answered:
				l.taken()
				if a.err != nil {
					cancel(e.noAnswer(a.err))
					return
				}
				cancel(errTyped)
			case <-ctx.Done():
			}
		}()
	}
	talk := func(text string) { e.ui.say("%s", told(text)) }
	for end := time.Now().Add(limit); ; {
		offer, code := pairing.New(time.Now(), time.Until(end))
		claim, err := hear(ctx, offer, func() { e.showCode(bot, code, offer, byHand) }, talk)
		if ended, ok := errors.AsType[*pairing.EndedError](err); ok && time.Now().Before(end) {
			e.ui.say("%s", told(ended.Why))
			e.ui.say("here is another code")
			continue
		}
		return claim, pairingError(err, limit)
	}
}

// pairingError says what to do about a pairing that failed.
func pairingError(err error, limit time.Duration) error {
	switch transport.ClassOf(err) {
	case transport.ClassConflict:
		return &gate.Error{Code: codePairingEnded, Err: err, Message: "another program polls this bot: " + err.Error(),
			Hint: "stop it, or ask @BotFather for a bot of this gate's own; nothing was written"}
	case transport.ClassToken:
		return tokenRefused(err)
	}
	switch {
	case errors.Is(err, pairing.ErrBacklog):
		return &gate.Error{Code: codePairingEnded, Err: err, Message: err.Error(),
			Hint: "let a daemon take them once (approvald up), or give the numbers: --chat-id and --approver; nothing was written"}
	case errors.Is(err, pairing.ErrExpired):
		return &gate.Error{Code: codePairingEnded, Err: err, Message: fmt.Sprintf("%s (%s)", err, limit), Hint: "nothing was written; run it again for a new code"}
	}
	if e, ok := errors.AsType[*transport.RegistrationError](err); ok {
		return &gate.Error{Code: "webhook-registered", Message: e.Error(), Err: err, Hint: "nothing was written"}
	}
	return err
}

func tokenRefused(err error) error {
	return &gate.Error{Code: gate.CodeConfig, Err: err, Message: "Telegram refuses the bot's token: " + err.Error(), Hint: "ask @BotFather for the token of this bot; nothing was written"}
}

// showCode shows how to present a code. It is talk: whoever reads stderr may present it.
func (e *env) showCode(bot transport.User, code pairing.Code, offer *pairing.Offer, byHand bool) {
	if bot.Username == "" {
		e.ui.tell("  on the phone   write to the gate's bot: /start %s", code)
		e.ui.tell("  for a group    an administrator writes in it: /pair %s", code)
		e.ui.tell("  the code is good once, until %s", offer.Expires.UTC().Format("15:04:05 UTC"))
		e.ui.tell("waiting for it")
		return
	}
	private, group := code.Links(bot.Username)
	if term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb" {
		if picture, err := qrCode(private, os.Getenv("NO_COLOR") == ""); err == nil {
			for _, row := range picture {
				e.ui.tell("%s", verbatim(row))
			}
		}
	}
	e.ui.tell("  on the phone   %s", private)
	e.ui.tell("  for a group    %s", group)
	e.ui.tell("                 or add @%s to it, where an administrator then writes: /pair %s", bot.Username, code)
	e.ui.tell("  the code is good once, until %s", offer.Expires.UTC().Format("15:04:05 UTC"))
	if byHand {
		e.ui.tell("waiting for it; press Enter to type the numbers in instead")
	} else {
		e.ui.tell("waiting for it")
	}
}

// describeClaim shows who presented the code.
func (e *env) describeClaim(c pairing.Claim) {
	e.ui.say("the code came from")
	e.ui.tell("  name      %s", verbatim(visible.Quote(c.Name)))
	if c.Username != "" {
		e.ui.tell("  username  @%s (not used: it can change hands)", c.Username)
	}
	e.ui.tell("  id        %d", c.UserID)
	if c.InGroup() {
		e.ui.tell("  chat      group %s, %d", verbatim(visible.Quote(c.ChatTitle)), c.ChatID)
	} else {
		e.ui.tell("  chat      private chat with the bot, %d", c.ChatID)
	}
}

// accept asks whether the person who presented the code is to approve, and under which name.
func (e *env) accept(ctx context.Context, c pairing.Claim, name string) (gate.Approver, error) {
	yes, err := e.askLine(ctx, e.answers(), "Let this person approve? [y/N] ", "")
	if err != nil {
		return gate.Approver{}, err
	}
	if yes = strings.ToLower(yes); yes != "y" && yes != "yes" {
		return gate.Approver{}, &gate.Error{Code: codeNotConfirmed, Message: "nothing was written: the answer was not y",
			Hint: "if the code was in the wrong hands, run it again for another"}
	}
	for {
		if name == "" {
			suggestion := suggestName(c)
			if name, err = e.askLine(ctx, e.answers(), "Name for the log, as human:NAME ["+suggestion+"]: ", suggestion); err != nil {
				return gate.Approver{}, err
			}
		}
		if gate.IsApproverID(name) {
			return gate.Approver{ID: name, TelegramUserID: c.UserID}, nil
		}
		e.ui.say("%s is no approver's name: use 1 to 64 letters, digits, dots, - and _", verbatim(visible.Quote(name)))
		name = ""
	}
}

// suggestName makes a name for the log of what a person calls themselves.
func suggestName(c pairing.Claim) string {
	first, _, _ := strings.Cut(c.Name, " ")
	for _, from := range []string{first, c.Username} {
		name := strings.Map(func(r rune) rune {
			if r < 0x80 && gate.IsApproverID("a"+string(r)) {
				return r
			}
			return -1
		}, strings.ToLower(from))
		if name = strings.TrimLeft(name, "._-"); gate.IsApproverID(name) {
			return name
		}
	}
	return "approver"
}

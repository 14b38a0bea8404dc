package dispatch

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/transport"
)

// Commands are what an approver can ask the bot, for Telegram's menu. None of them decides anything.
func Commands() []transport.Command {
	return []transport.Command{
		{Name: "pending", Description: "what waits for a decision"},
		{Name: "show", Description: "bring up the card of a request: /show KEY"},
		{Name: "status", Description: "how the gate is doing"},
		{Name: "help", Description: "how to decide"},
	}
}

const helpText = "Requests appear here as cards with buttons. Approve needs the button. To reject with a reason of your own, reply to the card; " +
	"to take a grant back before it is used, reply to its card with the word revoke.\n" +
	"/pending lists what waits\n/show KEY brings up a request's card\n/status says how the gate is doing"

// handleMessage answers an approver's reply to a card and the commands. Nobody else is answered: what a stranger writes
// ends at the first look.
func (l *Loop) handleMessage(ctx context.Context, m transport.Message) error {
	if m.MigrateTo != 0 {
		l.mailbox.put(ChatMigrated{From: m.Chat.ID, To: m.MigrateTo})
		return nil
	}
	if m.From == nil || m.From.IsBot || m.SenderChat != nil || !l.policy().Rules.Known(m.From.ID) {
		return nil
	}
	text := strings.TrimSpace(m.Text)
	if m.ReplyTo != nil && text != "" && !strings.HasPrefix(text, "/") {
		if handled, err := l.handleReply(ctx, m); handled || err != nil {
			return err
		}
	}
	if m.Forwarded || !l.speaksIn(m) {
		return nil
	}
	command, argument, _ := strings.Cut(text, " ")
	command, _, _ = strings.Cut(command, "@")
	switch command {
	case "/pending":
		l.reply(m, l.pendingText())
	case "/show":
		return l.show(ctx, m, strings.TrimSpace(argument))
	case "/status":
		l.reply(m, l.statusText())
	case "/help", "/start":
		l.reply(m, helpText)
	case "/approve", "/reject", "/revoke":
		l.reply(m, "No command decides: the buttons of the card do. /show KEY brings it up; /help says more.")
	}
	return nil
}

// speaksIn reports whether the bot answers in the chat of a message: in the gate's own, and to an approver alone. What
// waits is nobody's business in other groups that the bot was put into.
func (l *Loop) speaksIn(m transport.Message) bool {
	return m.Chat.ID == l.home.Load() || m.Chat.ID == m.From.ID
}

// reply answers a message, soon and with no second try.
func (l *Loop) reply(m transport.Message, html string) {
	l.mailbox.put(replyWanted{func(ctx context.Context) error {
		return l.say(ctx, transport.SendMessage{ChatID: m.Chat.ID, ThreadID: m.ThreadID, Text: html, ReplyTo: m.ID})
	}})
}

func (l *Loop) say(ctx context.Context, s transport.SendMessage) error {
	if err := l.o.Pacer.Wait(ctx, s.ChatID, transport.KindCard); err != nil {
		return err
	}
	s.ParseMode, s.Silent = parseMode, true
	_, err := l.o.Sender.SendMessage(ctx, s)
	return l.obey(s.ChatID, err)
}

// replyWanted asks the loop to answer a message.
type replyWanted struct {
	send func(context.Context) error
}

func (replyWanted) isEvent() {}

// show brings up the card of a request: it points to the one that is in the chat, or has one sent.
func (l *Loop) show(ctx context.Context, m transport.Message, key string) error {
	if key == "" {
		l.reply(m, "Say which: /show KEY. The keys are in the list of /pending.")
		return nil
	}
	if err := l.o.Log.Refresh(ctx); err != nil {
		return fmt.Errorf("read the approval log: %w", err)
	}
	var req approvallog.Request
	var known, there bool
	var card Delivery
	if err := l.o.Log.View(func() { req, known = l.o.Requests.Get(key) }); err != nil {
		return fmt.Errorf("read the approval log: %w", err)
	}
	if !known {
		l.reply(m, (&markup{}).text("No request has the key ").code(field(key, maxKey)).text(".").String())
		return nil
	}
	err := l.o.Journal.View(func() {
		for d := range l.o.Deliveries.Of(CycleID{Key: req.Key, Seq: req.Seq}) {
			if d.Kind == KindCard && d.MessageID != 0 && !d.Gone && !d.Replaced && d.ChatID == m.Chat.ID {
				card, there = d, true
			}
		}
	})
	if err != nil {
		return fmt.Errorf("read the delivery journal: %w", err)
	}
	now := l.o.Now()
	switch {
	case there:
		l.mailbox.put(replyWanted{func(ctx context.Context) error {
			err := l.say(ctx, transport.SendMessage{
				ChatID: m.Chat.ID, ThreadID: card.ThreadID, Text: standing(req, now) + "\nIts card is the message that this one answers.",
				ReplyTo: card.MessageID, MustReply: true,
			})
			if transport.ClassOf(err) == transport.ClassGone {
				l.mailbox.put(CardGone{Delivery: card.ID})
				return nil
			}
			return err
		}})
	case req.StateAt(now) == approvallog.StatePending:
		l.mailbox.put(ShowWanted{Key: key})
		l.reply(m, standing(req, now)+"\nIts card comes, or is there already, in the gate's chat.")
	default:
		l.reply(m, standing(req, now))
	}
	return nil
}

// standing is a request in one line.
func standing(req approvallog.Request, now time.Time) string {
	m := &markup{}
	m.code(field(req.Class, 60)).text(" ").code(field(req.Key, 200)).text(" ")
	if req.StateAt(now) == approvallog.StatePending {
		return m.text("until " + deadline(req, now)).String()
	}
	m.line()
	outcome(m, req)
	return m.String()
}

const maxListed = 15

func (l *Loop) pendingText() string {
	var waiting []approvallog.Request
	now := l.o.Now()
	err := l.o.Log.View(func() {
		for _, r := range l.o.Requests.Pending() {
			if r.StateAt(now) == approvallog.StatePending {
				waiting = append(waiting, r)
			}
		}
	})
	m := &markup{}
	if err != nil {
		return m.text("The log cannot be read; see the daemon's own log.").String()
	}
	if len(waiting) == 0 {
		return m.text("Nothing waits for a decision.").String()
	}
	m.text(fmt.Sprintf("%d waiting, /show KEY brings up a card", len(waiting)))
	for _, r := range waiting[:min(len(waiting), maxListed)] {
		m.line().code(field(r.Class, 60)).text(" ").code(field(r.Key, 100)).text(" until " + deadline(r, now))
	}
	if len(waiting) > maxListed {
		m.line().text(fmt.Sprintf("and %d more", len(waiting)-maxListed))
	}
	return m.String()
}

func (l *Loop) statusText() string {
	s := l.Stats()
	m := &markup{}
	m.text(fmt.Sprintf("%d waiting, %d of them not shown yet, %d messages to be settled", s.Pending, s.Undelivered, s.Unsettled))
	if !s.MutedUntil.IsZero() {
		m.line().text("Telegram takes nothing for this chat until " + clock(s.MutedUntil))
	}
	for _, problem := range []string{s.StorageProblem, s.ChatProblem, s.Degraded} {
		if problem != "" {
			m.line().code(field(problem, 300))
		}
	}
	return m.String()
}

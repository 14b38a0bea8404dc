package dispatch

import (
	"context"
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/transport"
)

// handleTap judges a tap and records what it decides before it returns. It runs in the goroutine of whoever brought
// the update: no send and no edit is in its way.
func (l *Loop) handleTap(ctx context.Context, t transport.Tap) error {
	tap := Tap{SenderID: t.From.ID, Bot: t.From.IsBot, ChatID: t.ChatID, MessageID: t.MessageID, Data: t.Data}
	button, ruling, ok := Screen(tap, l.o.Rules)
	if ok {
		var err error
		if ruling, err = l.rule(ctx, tap, button); err != nil {
			return fmt.Errorf("a tap could not be recorded: %w", err)
		}
	}
	if ruling.Outcome.refused() {
		l.o.Logger.Info("tap refused", zap.String("reason", string(ruling.Outcome)), zap.Int64("sender", tap.SenderID))
	}
	l.mailbox.put(TapRuled{CallbackID: t.ID, Tap: tap, Ruling: ruling})
	return nil
}

// rule judges by what is known here, and once more under the append lock when that leads to a record.
func (l *Loop) rule(ctx context.Context, tap Tap, b Button) (Ruling, error) {
	ev := Evidence{Now: l.o.Now(), Epoch: l.o.Epoch, ConfigHash: l.o.ConfigHash}
	err := l.o.Journal.View(func() { l.o.lookUp(b, &ev) })
	if err != nil || !ev.Found {
		return Judge(tap, b, ev, l.o.Rules), err
	}
	if err := l.o.Log.Refresh(ctx); err != nil {
		return Ruling{}, err
	}
	if err := l.o.Log.View(func() { ev.Request, _ = l.o.Requests.Get(ev.Delivery.Cycle.Key) }); err != nil {
		return Ruling{}, err
	}
	r := Judge(tap, b, ev, l.o.Rules)
	if r.Record == nil && r.Note == nil {
		return r, nil
	}
	_, err = l.o.Log.Update(ctx, func(tx Tx) error {
		ev.Now = tx.Now()
		ev.Request, _ = l.o.Requests.Get(ev.Delivery.Cycle.Key)
		var err error
		r, err = settleQuorum(ctx, l.o.Journal, l.mine, tx, func() Ruling {
			l.o.lookUp(b, &ev)
			return Judge(tap, b, ev, l.o.Rules)
		})
		return err
	})
	return r, err
}

// lookUp finds the delivery of a button and the approvals noted for it. It is called where the journal's fold is still.
func (o Options) lookUp(b Button, ev *Evidence) {
	ev.Delivery, ev.Found = o.Deliveries.ByNonce(b.Nonce.Sum())
	ev.Notes = o.Deliveries.Notes(ev.Delivery.Cycle)
}

// settleQuorum judges under both locks, first the approval log's and then the journal's, and writes what follows: a
// decision to the log, or one approval of several to the journal. Two approvers at the same moment, in two processes,
// are so counted one after the other.
func settleQuorum(ctx context.Context, journal Log, mine func() error, tx Tx, judge func() Ruling) (Ruling, error) {
	var r Ruling
	_, err := journal.Update(ctx, func(notes Tx) error {
		if err := mine(); err != nil {
			return err
		}
		r = judge()
		if r.Note == nil {
			return nil
		}
		_, err := notes.Append(*r.Note)
		return err
	})
	if err != nil || r.Record == nil {
		return r, err
	}
	_, err = tx.Append(*r.Record)
	return r, err
}

// handleMessage answers the few commands that an approver can send. None of them decides anything.
func (l *Loop) handleMessage(m transport.Message) {
	if m.MigrateTo != 0 {
		l.o.Logger.Warn("the group became a supergroup; set telegram.chat_id to its new id",
			zap.Int64("chat", m.Chat.ID), zap.Int64("new_chat", m.MigrateTo))
		return
	}
	if m.From == nil || m.From.IsBot || m.SenderChat != nil || !l.o.Rules.Known(m.From.ID) {
		return
	}
	command, _, _ := strings.Cut(strings.TrimSpace(m.Text), " ")
	command, _, _ = strings.Cut(command, "@")
	var text string
	switch command {
	case "/pending":
		text = l.pendingText()
	case "/status":
		text = l.statusText()
	case "/help", "/start":
		text = "Requests appear here with buttons; only the buttons decide.\n/pending lists what waits\n/status says how the gate is doing"
	default:
		return
	}
	l.mailbox.put(replyWanted{func(ctx context.Context) error {
		if err := l.o.Pacer.Wait(ctx, m.Chat.ID, transport.KindCard); err != nil {
			return err
		}
		_, err := l.o.Sender.SendMessage(ctx, transport.SendMessage{
			ChatID: m.Chat.ID, ThreadID: m.ThreadID, Text: text, ParseMode: parseMode, ReplyTo: m.ID, Silent: true,
		})
		return err
	}})
}

// replyWanted asks the loop to answer a command.
type replyWanted struct {
	send func(context.Context) error
}

func (replyWanted) isEvent() {}

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
	m.text(fmt.Sprintf("%d waiting", len(waiting)))
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
	for _, problem := range []string{s.ChatProblem, s.Degraded} {
		if problem != "" {
			m.line().code(field(problem, 300))
		}
	}
	return m.String()
}

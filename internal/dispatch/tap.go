package dispatch

import (
	"context"
	"fmt"

	"github.com/approvald/approvald/internal/transport"
)

// handleTap judges a tap and records what it decides before it returns. It runs in the goroutine of whoever brought
// the update: no send and no edit is in its way.
func (l *Loop) handleTap(ctx context.Context, t transport.Tap) error {
	tap := Tap{SenderID: t.From.ID, Bot: t.From.IsBot, ChatID: t.ChatID, MessageID: t.MessageID, Data: t.Data}
	button, ruling, ok := Screen(tap, l.policy().Rules)
	if ok {
		var err error
		if ruling, err = l.rule(ctx, tap, button); err != nil {
			return fmt.Errorf("a tap could not be recorded: %w", err)
		}
	}
	l.o.Observe.Tapped(observed(ruling.Outcome), ruling.Outcome.refused())
	l.mailbox.put(TapRuled{CallbackID: t.ID, Tap: tap, Ruling: ruling})
	return nil
}

// rule judges a tap.
func (l *Loop) rule(ctx context.Context, tap Tap, b Button) (Ruling, error) {
	sum := b.Nonce.Sum()
	return l.ruleOn(ctx, tap, b, func() (Delivery, bool) { return l.o.Deliveries.ByNonce(sum) })
}

// ruleOn judges by what is known here, and once more under the append lock when that leads to a record. find looks for
// the card that the person means; it is called where the journal's fold is still.
func (l *Loop) ruleOn(ctx context.Context, tap Tap, b Button, find func() (Delivery, bool)) (Ruling, error) {
	// A policy that is put in force meanwhile waits for this decision, if there is one.
	l.deciding.RLock()
	defer l.deciding.RUnlock()
	in := l.policy()
	ev := Evidence{Now: l.o.Now(), Epoch: l.o.Epoch, ConfigHash: in.ConfigHash}
	lookUp := func() {
		ev.Delivery, ev.Found = find()
		ev.Notes = l.o.Deliveries.Notes(ev.Delivery.Cycle)
	}
	err := l.o.Journal.View(lookUp)
	if err == nil && !ev.Found {
		// A daemon that was stopped while another took over does not know what that one has sent, and must not tell a person
		// that their button is unknown.
		if err = l.entitled(); err == nil {
			err = l.o.Journal.View(lookUp)
		}
	}
	if err != nil {
		return Ruling{}, err
	}
	if !ev.Found {
		return Judge(tap, b, ev, in.Rules), nil
	}
	if err := l.o.Log.Refresh(ctx); err != nil {
		return Ruling{}, err
	}
	if err := l.o.Log.View(func() { ev.Request, _ = l.o.Requests.Get(ev.Delivery.Cycle.Key) }); err != nil {
		return Ruling{}, err
	}
	r := Judge(tap, b, ev, in.Rules)
	if r.Record == nil && r.Note == nil {
		return r, nil
	}
	_, err = l.o.Log.Update(ctx, func(tx Tx) error {
		ev.Now = tx.Now()
		ev.Request, _ = l.o.Requests.Get(ev.Delivery.Cycle.Key)
		var err error
		r, err = settleQuorum(ctx, l.o.Journal, l.o.Requests, l.mine, tx, func() Ruling {
			lookUp()
			return Judge(tap, b, ev, in.Rules)
		})
		return err
	})
	return r, err
}

// settleQuorum judges under both locks, first the approval log's and then the journal's, and writes what follows: a
// decision to the log, or one approval of several to the journal. Two approvers at the same moment, in two processes,
// are so counted one after the other.
func settleQuorum(ctx context.Context, journal Log, requests Requests, mine func() error, tx Tx, judge func() Ruling) (Ruling, error) {
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
	if err := bring(requests, tx, r.Record.ActionKey); err != nil {
		return r, err
	}
	_, err = tx.Append(*r.Record)
	return r, err
}

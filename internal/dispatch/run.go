package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/rescue"
	"github.com/approvald/approvald/internal/transport"
)

// start runs effects beside the loop. Each tells the core by the mailbox what came of it.
func (l *Loop) start(effects []Effect) {
	for _, e := range batch(effects) {
		if _, answers := e.(Menu); begins(e) && (l.draining || l.stopping && !answers) {
			continue
		}
		switch e := e.(type) {
		case Complain:
			l.o.Logger.Warn(e.Text, zap.String("key", e.Key))
		case Cancel:
			l.cancelCall(e.Call)
		case Call:
			l.startCall(e)
		case NoteContact:
			l.beside("note contact", func() { l.noteContact(e.At) })
		case Answer:
			l.answer(func(ctx context.Context) error { return l.answerTap(ctx, e) }, l.answers)
		case Menu:
			l.answer(func(ctx context.Context) error { return l.menu(ctx, e) }, l.menus)
		default:
			l.beside("dispatch effect", func() {
				events, _, err := l.runLocal(l.calls, e)
				for _, ev := range events {
					l.mailbox.put(ev)
				}
				if err != nil {
					l.fail(err)
				}
			})
		}
	}
}

// beside runs something in a goroutine of its own, whose panic ends the loop.
func (l *Loop) beside(part string, f func()) {
	l.running.Go(func() { rescue.Go(part, l.fail, f) })
}

// begins reports whether an effect begins something, where others finish or answer what was begun.
func begins(e Effect) bool {
	switch e.(type) {
	case Call, Prepare, expireAll, OpenFollowUp, Menu:
		return true
	default:
		return false
	}
}

// runLocal runs an effect that needs no network; local is false for the others. Its error ends the loop.
func (l *Loop) runLocal(ctx context.Context, e Effect) (events []Event, local bool, err error) {
	switch e := e.(type) {
	case AppendJournal:
		records, err := l.append(ctx, e.Drafts)
		if err != nil {
			return nil, true, err
		}
		return []Event{appended{records}}, true, nil
	case expireAll:
		events, err := l.expire(ctx, e.requests)
		return events, true, err
	case OpenFollowUp:
		ev, err := l.openFollowUp(ctx, e.Parent)
		return []Event{ev}, true, err
	case Prepare:
		return []Event{l.prepare(e.Request)}, true, nil
	case Complain:
		l.o.Logger.Warn(e.Text, zap.String("key", e.Key))
		return nil, true, nil
	default:
		return nil, false, nil
	}
}

// append writes to the journal. What may pass, another process in the way or a full disk, is waited for: until it is
// over nothing more is sent, and taps are left with Telegram. Its error ends the loop.
func (l *Loop) append(ctx context.Context, drafts []approvallog.Draft) ([]approvallog.Record, error) {
	for wait := appendRetry; ; wait = min(2*wait, maxAppendRetry) {
		var lost error
		records, err := l.o.Journal.Update(ctx, func(tx Tx) error {
			if lost = l.mine(); lost != nil {
				return lost
			}
			for _, d := range drafts {
				if _, err := tx.Append(d); err != nil {
					return err
				}
			}
			return nil
		})
		switch {
		case err == nil:
			l.storage("")
			return records, nil
		case lost != nil || fatal(err):
			return nil, fmt.Errorf("write the delivery journal: %w", err)
		}
		l.storage(err.Error())
		if !pauseFor(ctx, wait) {
			return nil, ctx.Err()
		}
	}
}

// storage notes whether the journal can be written, and logs when that changes.
func (l *Loop) storage(problem string) {
	l.mu.Lock()
	before := l.storageProblem
	l.storageProblem = problem
	l.mu.Unlock()
	switch {
	case problem == before:
	case problem == "":
		l.o.Logger.Info("the delivery journal can be written again")
	default:
		l.o.Logger.Error("the delivery journal cannot be written; nothing is sent until it can", zap.String("error", problem))
	}
}

// mine is asked under the journal's lock: does this process still hold the gate?
func (l *Loop) mine() error {
	if err := l.o.Check(); err != nil {
		return err
	}
	return fenced(l.o.Epoch, l.o.Deliveries.Epoch())
}

// entitled is asked right before every call to Telegram that has an effect: is the lease held, and still in the epoch of
// this loop? A lease that was found free and taken again may have been another daemon's in between.
func (l *Loop) entitled() error {
	if err := l.o.Check(); err != nil {
		return err
	}
	last, err := lastEpoch(l.o.Journal, l.o.Deliveries)
	if err != nil {
		return err
	}
	return fenced(l.o.Epoch, last)
}

func pauseFor(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// fatal reports whether no later access can succeed either.
func fatal(err error) bool {
	for _, end := range []error{approvallog.ErrPoisoned, approvallog.ErrFenced, approvallog.ErrCorrupt, approvallog.ErrClosed, approvallog.ErrInvalid} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

func (l *Loop) prepare(req approvallog.Request) Event {
	ev := Prepared{Cycle: CycleID{Key: req.Key, Seq: req.Seq}}
	card, err := l.card(req)
	if err != nil {
		ev.Err, ev.Passing = err.Error(), passing(err)
		return ev
	}
	ev.Documents = len(card.Documents())
	return ev
}

// card reads what a card shows. It is read anew for each message, so that the loop's memory does not grow with what
// waits.
func (l *Loop) card(req approvallog.Request) (Card, error) {
	card := Card{Request: req, Rule: l.policy().Rules.Rule(req.Class)}
	canonical, file, err := l.o.Payloads.Payload(req.PayloadHash)
	if err != nil {
		return card, fmt.Errorf("read the payload: %w", err)
	}
	if card.Body, err = ReadBody(canonical, file, req.PayloadHash); err != nil {
		return card, err
	}
	card.Then, err = l.classesAfter(req)
	return card, err
}

// passing reports whether a card that could not be made may be made soon, without anybody doing anything about it: no
// descriptor was free, the disk did not answer. That bytes are missing or others than were bound does not pass.
func passing(err error) bool {
	e, ok := errors.AsType[*gate.Error](err)
	return ok && e.Code == gate.CodeInternal
}

// startCall makes one call to Telegram when the pacer lets it.
func (l *Loop) startCall(e Call) {
	ctx, cancel := context.WithCancel(l.calls)
	l.mu.Lock()
	l.cancelled[e.ID] = cancel
	l.mu.Unlock()
	l.beside("dispatch call", func() {
		defer cancel()
		kind := transport.KindCard
		switch e.What.(type) {
		case EditSettled, EditRenewed, StripButtons, EditProgress, EditReminder, EditDigest:
			if !e.Fair {
				kind = transport.KindSettle
			}
		}
		err := l.o.Pacer.Wait(ctx, e.ChatID, kind)
		l.mu.Lock()
		delete(l.cancelled, e.ID)
		l.mu.Unlock()
		if err != nil {
			l.mailbox.put(CallDone{Call: e.ID, Result: Result{Kind: ResultCancelled, Reason: "no longer wanted"}})
			return
		}
		if err := l.entitled(); err != nil {
			l.fail(fmt.Errorf("nothing more is sent: %w", err))
			l.mailbox.put(CallDone{Call: e.ID, Result: Result{Kind: ResultCancelled, Reason: err.Error()}})
			return
		}
		// From here on the call may have an effect, so only the end of the drain cuts it off.
		sent, err := l.perform(l.calls, e)
		r := resultOf(sent, err)
		l.o.Observe.Delivered(messageKind(e.What), string(r.Kind))
		if r.Kind == ResultLimited {
			l.o.Pacer.Limited(e.ChatID, r.RetryAfter)
		}
		l.mailbox.put(CallDone{Call: e.ID, Result: r})
	})
}

func (l *Loop) cancelCall(id int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cancel := l.cancelled[id]; cancel != nil {
		cancel()
	}
}

const parseMode = "HTML"

// perform renders and calls.
func (l *Loop) perform(ctx context.Context, e Call) (transport.Message, error) {
	switch a := e.What.(type) {
	case SendCard:
		card, err := l.card(a.Request)
		if err != nil {
			return transport.Message{}, err
		}
		card.Approved = a.Approved
		m := card.Pending(l.o.Now(), a.Nonce)
		return l.o.Sender.SendMessage(ctx, transport.SendMessage{
			ChatID: e.ChatID, ThreadID: a.ThreadID, Text: m.HTML, ParseMode: parseMode, Keyboard: m.Keyboard, ReplyTo: a.ReplyTo,
		})
	case SendDocument:
		card, err := l.card(a.Request)
		if err != nil {
			return transport.Message{}, err
		}
		docs := card.Documents()
		if a.Index >= len(docs) {
			return transport.Message{}, fmt.Errorf("document %d of %d: the payload has changed", a.Index+1, len(docs))
		}
		m := card.Caption(docs[a.Index])
		return l.o.Sender.SendDocument(ctx, transport.SendDocument{
			ChatID: e.ChatID, ThreadID: a.ThreadID, FileName: docs[a.Index].Name, Data: docs[a.Index].Data, Caption: m.HTML, ParseMode: parseMode,
		})
	case EditProgress:
		card, err := l.card(a.Request)
		if err != nil {
			return transport.Message{}, err
		}
		card.Approved = a.Approved
		m := card.Pending(l.o.Now(), a.Nonce)
		return transport.Message{}, l.o.Sender.EditMessageText(ctx, transport.EditMessageText{
			ChatID: e.ChatID, MessageID: a.MessageID, Text: m.HTML, ParseMode: parseMode, Keyboard: m.Keyboard,
		})
	case EditSettled:
		if a.Plain {
			return transport.Message{}, l.o.Sender.EditMessageText(ctx, transport.EditMessageText{
				ChatID: e.ChatID, MessageID: a.MessageID, Text: Card{Request: a.Request}.SettledPlain(),
			})
		}
		card, err := l.card(a.Request)
		if passing(err) {
			return transport.Message{}, err
		}
		if err != nil {
			// The end has to be shown even when the payload is no longer there.
			card.Body = Body{Note: "its payload can no longer be read"}
		}
		return transport.Message{}, l.o.Sender.EditMessageText(ctx, transport.EditMessageText{
			ChatID: e.ChatID, MessageID: a.MessageID, Text: card.Settled().HTML, ParseMode: parseMode,
		})
	case EditRenewed:
		return transport.Message{}, l.o.Sender.EditMessageText(ctx, transport.EditMessageText{
			ChatID: e.ChatID, MessageID: a.MessageID, Text: Card{Request: a.Request}.Renewed().HTML, ParseMode: parseMode,
		})
	case SendReminder:
		m := Card{Request: a.Request, Rule: l.policy().Rules.Rule(a.Request.Class), Approved: a.Approved}.Reminder(l.o.Now())
		return l.o.Sender.SendMessage(ctx, transport.SendMessage{
			ChatID: e.ChatID, ThreadID: a.ThreadID, Text: m.HTML, ParseMode: parseMode, ReplyTo: a.ReplyTo,
		})
	case EditReminder:
		return transport.Message{}, l.o.Sender.EditMessageText(ctx, transport.EditMessageText{
			ChatID: e.ChatID, MessageID: a.MessageID, Text: Card{Request: a.Request}.ReminderSettled().HTML, ParseMode: parseMode,
		})
	case SendAbsence:
		return l.o.Sender.SendMessage(ctx, transport.SendMessage{
			ChatID: e.ChatID, ThreadID: a.ThreadID, Text: absenceText(a.From, a.Until, a.Waiting), ParseMode: parseMode,
		})
	case SendDigest:
		m := Digest{Asker: a.Asker, Class: a.Class, Count: a.Count, Listed: a.Listed}.Message(l.o.Now(), a.Nonce)
		return l.o.Sender.SendMessage(ctx, transport.SendMessage{
			ChatID: e.ChatID, ThreadID: a.ThreadID, Text: m.HTML, ParseMode: parseMode, Keyboard: m.Keyboard,
		})
	case RemindDigest:
		m := Digest{Asker: a.Asker, Class: a.Class, Count: a.Count}.Reminder()
		return l.o.Sender.SendMessage(ctx, transport.SendMessage{
			ChatID: e.ChatID, ThreadID: a.ThreadID, Text: m.HTML, ParseMode: parseMode, ReplyTo: a.ReplyTo,
		})
	case EditDigest:
		digest := Digest{Asker: a.Asker, Class: a.Class, Count: a.Count, Listed: a.Listed}
		m := digest.Settled(a.Replaced)
		if a.Count > 0 {
			m = digest.Message(l.o.Now(), a.Nonce)
		}
		return transport.Message{}, l.o.Sender.EditMessageText(ctx, transport.EditMessageText{
			ChatID: e.ChatID, MessageID: a.MessageID, Text: m.HTML, ParseMode: parseMode, Keyboard: m.Keyboard,
		})
	case StripButtons:
		return transport.Message{}, l.o.Sender.EditMessageReplyMarkup(ctx, transport.EditMessageReplyMarkup{ChatID: e.ChatID, MessageID: a.MessageID})
	default:
		return transport.Message{}, fmt.Errorf("no such action: %T", a)
	}
}

// resultOf translates what the transport says.
func resultOf(sent transport.Message, err error) Result {
	if err == nil {
		return Result{Kind: ResultDone, MessageID: sent.ID, ThreadID: sent.ThreadID}
	}
	r := Result{Kind: ResultRefused, Reason: err.Error(), Class: "local"}
	e, ok := errors.AsType[*transport.Error](err)
	if !ok {
		// Nothing was called: the message could not be made.
		if passing(err) {
			r.Kind = ResultLocal
		}
		return r
	}
	r.Class, r.RetryAfter, r.MigrateTo = string(e.Class), e.RetryAfter, e.MigrateTo
	switch e.Class {
	case transport.ClassNotModified:
		r.Kind = ResultDone
	case transport.ClassUnparsable:
		r.Kind = ResultUnparsed
	case transport.ClassGone:
		r.Kind = ResultGone
	case transport.ClassLimited:
		r.Kind = ResultLimited
	case transport.ClassMigrated:
		r.Kind = ResultMigrated
	case transport.ClassThreadNotFound:
		r.Kind = ResultThread
	case transport.ClassToken:
		r.Kind = ResultToken
	case transport.ClassForbidden, transport.ClassChatNotFound:
		r.Kind = ResultClosed
	case transport.ClassUnknownOutcome:
		r.Kind = ResultUnknown
	case transport.ClassTransient, transport.ClassConflict:
		r.Kind = ResultTransient
	}
	return r
}

// answer runs something that a person waits for: apart from all sends, soon, and with no second try.
func (l *Loop) answer(do func(context.Context) error, slots chan struct{}) {
	l.beside("dispatch answer", func() {
		select {
		case slots <- struct{}{}:
		case <-l.calls.Done():
			return
		}
		defer func() { <-slots }()
		if l.entitled() != nil {
			return
		}
		ctx, cancel := context.WithTimeout(l.calls, answerTimeout)
		defer cancel()
		if err := do(ctx); err != nil {
			l.o.Logger.Info("a person could not be answered; what was decided stands", zap.Error(err))
		}
	})
}

func (l *Loop) menu(ctx context.Context, e Menu) error {
	card := Card{Request: e.Request, Rule: l.policy().Rules.Rule(e.Request.Class)}
	keys := card.Keyboard(e.Nonce)
	if e.Reasons {
		keys = ReasonKeyboard(card.Rule.RejectReasons, e.Nonce)
	}
	if err := l.o.Pacer.Wait(ctx, e.ChatID, transport.KindTap); err != nil {
		return err
	}
	err := l.obey(e.ChatID, l.o.Sender.EditMessageReplyMarkup(ctx, transport.EditMessageReplyMarkup{ChatID: e.ChatID, MessageID: e.MessageID, Keyboard: keys}))
	if transport.ClassOf(err) == transport.ClassGone {
		l.mailbox.put(CardGone{Delivery: e.Delivery})
		return nil
	}
	return err
}

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/approvald/approvald/internal/approvallog"
)

// load tells the core what log and journal hold now.
func (l *Loop) load(ctx context.Context) error {
	for _, log := range []Log{l.o.Journal, l.o.Log} {
		if err := log.Refresh(ctx); err != nil {
			return err
		}
	}
	var deliveries *Deliveries
	if err := l.o.Journal.View(func() { deliveries = l.o.Deliveries.clone() }); err != nil {
		return fmt.Errorf("read the delivery journal: %w", err)
	}
	l.journalSeq = deliveries.last
	l.core.Step(l.o.Now(), Loaded{Deliveries: deliveries, LastContact: l.o.LastContact})

	// Records that come in between are told again by catchUp, which does no harm.
	l.logSeq = l.o.Log.Last()
	// What is not pending and has no card on a phone that is owed an end needs nothing until a record comes for it. Of what
	// came since the last daemon noted how far it was, it may have shown nothing yet.
	changes, err := l.unseen(deliveries.followed)
	if err != nil {
		return fmt.Errorf("read the approval log: %w", err)
	}
	err = l.o.Log.View(func() {
		for _, r := range l.o.Requests.Pending() {
			changes = append(changes, RequestChanged{Request: r})
		}
		for key := range l.core.owing {
			if r, known := l.o.Requests.Get(key); known && r.State != approvallog.StatePending {
				changes = append(changes, RequestChanged{Request: r})
			}
		}
	})
	if err != nil {
		return fmt.Errorf("read the approval log: %w", err)
	}
	if err := l.recall(changes); err != nil {
		return err
	}
	for _, change := range changes {
		l.core.Step(l.o.Now(), change)
	}
	l.core.Step(l.o.Now(), LogRead{Seq: l.logSeq})
	_, err = l.tellFollowUps() // the core acts on nothing before it is told that it has recovered
	return err
}

// unseen are the requests of which a grant was used or taken back after this record of the log.
func (l *Loop) unseen(after int64) ([]RequestChanged, error) {
	t := newTouched()
	err := follow(l.o.Log, after, func(rec approvallog.Record) {
		switch rec.Event {
		case approvallog.EventRevoked, approvallog.EventExecutionCompleted, approvallog.EventExecutionFailed:
			t.add(rec)
		}
	})
	if err != nil {
		return nil, err
	}
	return t.changes(l)
}

// touched are the keys of records, in the order of their first.
type touched struct {
	keys  []string
	first map[string]int64
}

func newTouched() *touched { return &touched{first: make(map[string]int64)} }

func (t *touched) add(rec approvallog.Record) {
	if rec.ActionKey != "" && t.first[rec.ActionKey] == 0 {
		t.first[rec.ActionKey] = rec.Seq
		t.keys = append(t.keys, rec.ActionKey)
	}
}

// changes are the requests under the keys as the log has them now.
func (t *touched) changes(l *Loop) (changes []RequestChanged, err error) {
	err = l.o.Log.View(func() {
		for _, key := range t.keys {
			if r, ok := l.o.Requests.Get(key); ok {
				changes = append(changes, RequestChanged{Request: r, LogSeq: t.first[key]})
			}
		}
	})
	return changes, err
}

// recall adds what the journal says about the requests that the core has let go of. Its fold is never behind what the core
// was told.
func (l *Loop) recall(changes []RequestChanged) error {
	err := l.o.Journal.View(func() {
		for i := range changes {
			ev := &changes[i]
			id := CycleID{Key: ev.Request.Key, Seq: ev.Request.Seq}
			if l.core.lacks(id) {
				if cycle := l.o.Deliveries.Cycle(id); cycle.log != nil {
					ev.Cycles = append(ev.Cycles, cycle)
				}
			}
			if ev.LogSeq > 0 && l.core.ops[id] == nil {
				ev.Cycles = append(ev.Cycles, l.o.Deliveries.unfinalBefore(id)...)
			}
		}
	})
	if err != nil {
		return fmt.Errorf("read the delivery journal: %w", err)
	}
	return nil
}

// recallTapped adds what the core has let go of to a tap on a message of which nobody knew that it exists.
func (l *Loop) recallTapped(ev TapRuled) (TapRuled, error) {
	d := ev.Ruling.Delivery
	if d.ID == "" || d.MessageID != 0 || ev.Tap.MessageID == 0 || ev.Ruling.Outcome.refused() || !l.core.lacks(d.Cycle) {
		return ev, nil
	}
	err := l.o.Journal.View(func() { ev.Cycle = l.o.Deliveries.Cycle(d.Cycle) })
	if err == nil {
		err = l.o.Log.View(func() { ev.Request, _ = l.o.Requests.Get(d.Cycle.Key) })
	}
	if err != nil {
		return ev, fmt.Errorf("look for a card that was tapped: %w", err)
	}
	return ev, nil
}

// catchUp tells the core what was appended to log and journal since the last time, by whomever.
func (l *Loop) catchUp(ctx context.Context) error {
	if err := l.catchUpJournal(); err != nil {
		return fmt.Errorf("follow the delivery journal: %w", err)
	}
	if err := l.catchUpLog(ctx); err != nil {
		return fmt.Errorf("follow the approval log: %w", err)
	}
	return nil
}

func (l *Loop) catchUpJournal() error {
	effects, err := l.readJournal()
	l.start(effects)
	return err
}

// readJournal tells the core the records of the journal that it was not told yet.
func (l *Loop) readJournal() (effects []Effect, err error) {
	err = follow(l.o.Journal, l.journalSeq, func(rec approvallog.Record) {
		l.journalSeq = rec.Seq
		effects = append(effects, l.core.Step(l.o.Now(), Journaled{Record: rec})...)
	})
	return effects, err
}

func (l *Loop) catchUpLog(ctx context.Context) error {
	t := newTouched()
	err := follow(l.o.Log, l.logSeq, func(rec approvallog.Record) {
		l.logSeq = rec.Seq
		t.add(rec)
	})
	if err != nil || len(t.keys) == 0 {
		return err
	}
	// The fold has to be as far as the records just read.
	if err := l.o.Log.Refresh(ctx); err != nil {
		return err
	}
	changes, err := t.changes(l)
	if err == nil {
		err = l.recall(changes)
	}
	if err != nil {
		return err
	}
	for _, change := range changes {
		l.step(change)
	}
	l.step(LogRead{Seq: l.logSeq})
	effects, err := l.tellFollowUps()
	l.start(effects)
	return err
}

func follow(log Log, after int64, tell func(approvallog.Record)) error {
	r := log.NewReader(after)
	if c, ok := r.(io.Closer); ok {
		defer c.Close()
	}
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		tell(rec)
	}
}

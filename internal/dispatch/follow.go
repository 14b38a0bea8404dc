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
	// What is not pending and has no card on a phone needs nothing until a record comes for it.
	var requests []approvallog.Request
	err := l.o.Log.View(func() {
		requests = l.o.Requests.Pending()
		for key := range l.core.owing {
			if r, known := l.o.Requests.Get(key); known && r.State != approvallog.StatePending {
				requests = append(requests, r)
			}
		}
	})
	if err != nil {
		return fmt.Errorf("read the approval log: %w", err)
	}
	for _, r := range requests {
		l.core.Step(l.o.Now(), RequestChanged{Request: r})
	}
	_, err = l.tellFollowUps() // the core acts on nothing before it is told that it has recovered
	return err
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
	var keys []string
	touched := make(map[string]bool)
	err := follow(l.o.Log, l.logSeq, func(rec approvallog.Record) {
		l.logSeq = rec.Seq
		if rec.ActionKey != "" && !touched[rec.ActionKey] {
			touched[rec.ActionKey] = true
			keys = append(keys, rec.ActionKey)
		}
	})
	if err != nil || len(keys) == 0 {
		return err
	}
	// The fold has to be as far as the records just read.
	if err := l.o.Log.Refresh(ctx); err != nil {
		return err
	}
	var changed []approvallog.Request
	err = l.o.Log.View(func() {
		for _, key := range keys {
			if r, ok := l.o.Requests.Get(key); ok {
				changed = append(changed, r)
			}
		}
	})
	if err != nil {
		return err
	}
	for _, r := range changed {
		l.step(RequestChanged{Request: r})
	}
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

package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// memLog is a Log in memory: what is in it is on disk, what is not yet applied to its fold does not exist.
type memLog struct {
	mu      sync.Mutex
	now     func() time.Time
	fold    approvallog.Folder
	records []approvallog.Record
	subs    []chan struct{}
	fail    error // refuses appends
}

var _ Log = (*memLog)(nil)

type memTx struct {
	log   *memLog
	added []approvallog.Record
}

func (tx *memTx) Now() time.Time { return tx.log.now().UTC().Truncate(time.Millisecond) }

func (tx *memTx) Append(d approvallog.Draft) (approvallog.Record, error) {
	raw, err := json.Marshal(d.Payload)
	if err != nil {
		return approvallog.Record{}, err
	}
	rec := approvallog.Record{
		Seq: int64(len(tx.log.records) + len(tx.added) + 1), TS: tx.Now(), Event: d.Event, Actor: d.Actor, Task: d.Task,
		ActionKey: d.ActionKey, Channel: d.Channel, Payload: raw,
	}
	if !approvallog.ValidActor(d.Actor) {
		return rec, errors.New("bad actor " + d.Actor)
	}
	tx.added = append(tx.added, rec)
	return rec, tx.log.fold.Apply(rec)
}

func (l *memLog) Update(_ context.Context, decide func(Tx) error) ([]approvallog.Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return nil, l.fail
	}
	tx := &memTx{log: l}
	if err := decide(tx); err != nil {
		return nil, err
	}
	l.records = append(l.records, tx.added...)
	if len(tx.added) > 0 {
		for _, c := range l.subs {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
	return tx.added, nil
}

func (l *memLog) View(read func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	read()
	return nil
}

func (l *memLog) Refresh(context.Context) error { return nil }

func (l *memLog) Changed() (<-chan struct{}, func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := make(chan struct{}, 1)
	l.subs = append(l.subs, c)
	return c, func() {}
}

func (l *memLog) Last() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(len(l.records))
}

func (l *memLog) NewReader(after int64) Reader { return &memReader{log: l, at: after} }

type memReader struct {
	log *memLog
	at  int64
}

func (r *memReader) Next() (approvallog.Record, error) {
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	if r.at >= int64(len(r.log.records)) {
		return approvallog.Record{}, io.EOF
	}
	r.at++
	return r.log.records[r.at-1], nil
}

// testRules are rules in a map; every class has the same unless it is named.
type testRules struct {
	rule    Rule
	byClass map[string]Rule
}

func (r testRules) Rule(class string) Rule {
	if rule, ok := r.byClass[class]; ok {
		return rule
	}
	return r.rule
}

func (r testRules) Known(id int64) bool {
	if _, ok := r.rule.approver(id); ok {
		return true
	}
	for _, rule := range r.byClass {
		if _, ok := rule.approver(id); ok {
			return true
		}
	}
	return false
}

var (
	alice = Approver{ID: "alice", TelegramID: 111}
	bob   = Approver{ID: "bob", TelegramID: 222}
	carol = Approver{ID: "carol", TelegramID: 333}
)

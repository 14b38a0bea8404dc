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

// memDisk is a file: what is in it is on disk, for every process that has it open.
type memDisk struct {
	mu      sync.Mutex
	records []approvallog.Record
	subs    []chan struct{}
	fail    error // refuses appends
}

// memLog is one process' handle on a memDisk. Its fold knows what was there when the process last looked, which Update
// and Refresh do and View does not.
type memLog struct {
	*memDisk
	now   func() time.Time
	fold  approvallog.Folder
	guard func() error // asked under the lock before each decision; nil for none
	at    int          // records that the fold knows
}

var _ Log = (*memLog)(nil)

func newMemLog(now func() time.Time, fold approvallog.Folder) *memLog {
	return &memLog{memDisk: &memDisk{}, now: now, fold: fold}
}

// open is another process' handle on the same file.
func (l *memLog) open(fold approvallog.Folder, guard func() error) *memLog {
	return &memLog{memDisk: l.memDisk, now: l.now, fold: fold, guard: guard}
}

// catchUp is called with the lock held.
func (l *memLog) catchUp() error {
	for ; l.at < len(l.records); l.at++ {
		if err := l.fold.Apply(l.records[l.at]); err != nil {
			return err
		}
	}
	return nil
}

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
	if l.guard != nil {
		if err := l.guard(); err != nil {
			return nil, err
		}
	}
	if err := l.catchUp(); err != nil {
		return nil, err
	}
	tx := &memTx{log: l}
	if err := decide(tx); err != nil {
		return nil, err
	}
	l.records = append(l.records, tx.added...)
	l.at = len(l.records)
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

func (l *memLog) Refresh(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.catchUp()
}
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

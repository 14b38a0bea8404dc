package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// memDisk is a file: what is in it is on disk, for every process that has it open.
type memDisk struct {
	mu      sync.Mutex
	records []approvallog.Record
	cuts    []int // how many records stood before the segments that were begun
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
	found *memFinder   // of a fold that keeps only a part in memory; nil for one that keeps all
}

var _ Log = (*memLog)(nil)

func newMemLog(now func() time.Time, fold approvallog.Folder) *memLog {
	return &memLog{memDisk: &memDisk{}, now: now, fold: fold}
}

// open is another process' handle on the same file.
func (l *memLog) open(fold approvallog.Folder, guard func() error) *memLog {
	return &memLog{memDisk: l.memDisk, now: l.now, fold: fold, guard: guard}
}

// openIndexed is another process' handle, whose fold keeps only few in memory and finds the others. It takes the state up
// from a snapshot of the place snapshot of the present segment.
func (l *memLog) openIndexed(fold *Deliveries, room, snapshot int) (*memLog, error) {
	begin := 0
	if n := len(l.cuts); n > 0 {
		begin = l.cuts[n-1]
	}
	snapshot = max(snapshot, begin)
	fold.room = room
	made := &memLog{memDisk: l.memDisk, now: l.now, fold: fold, found: &memFinder{}, at: begin}
	for _, rec := range l.records[:begin] {
		made.found.add(fold, rec)
	}
	fold.attach(made.found)
	for ; made.at < snapshot; made.at++ {
		if err := made.apply(l.records[made.at]); err != nil {
			return nil, err
		}
	}
	if snapshot == begin {
		return made, nil
	}
	state, err := fold.Save()
	if err == nil {
		fold.attach(made.found)
		err = fold.Restore(state)
	}
	return made, err
}

// catchUp is called with the lock held.
func (l *memLog) catchUp() error {
	for ; l.at < len(l.records); l.at++ {
		if l.found != nil && slices.Contains(l.cuts, l.at) {
			l.fold.(*Deliveries).attach(l.found)
		}
		if err := l.apply(l.records[l.at]); err != nil {
			return err
		}
	}
	return nil
}

func (l *memLog) apply(rec approvallog.Record) error {
	err := l.fold.Apply(rec)
	if err == nil && l.found != nil {
		l.found.add(l.fold.(*Deliveries), rec)
	}
	return err
}

// memFinder is what an index finds.
type memFinder struct {
	byKey map[string][]approvallog.Record
	fresh map[string][]int // places in byKey
}

func (f *memFinder) add(fold *Deliveries, rec approvallog.Record) {
	if f.byKey == nil {
		f.byKey, f.fresh = map[string][]approvallog.Record{}, map[string][]int{}
	}
	fold.Index(rec, func(key string, fresh bool) {
		if fresh {
			f.fresh[key] = append(f.fresh[key], len(f.byKey[key]))
		}
		f.byKey[key] = append(f.byKey[key], rec)
	})
}

func (f *memFinder) Find(key string, mine func(approvallog.Record) bool) (records []approvallog.Record) {
	from := 0
	if places := f.fresh[key]; len(places) > 1 {
		from = places[len(places)-2]
	}
	for _, rec := range f.byKey[key][from:] {
		if mine(rec) {
			records = append(records, rec)
		}
	}
	return records
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
	return rec, tx.log.apply(rec)
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

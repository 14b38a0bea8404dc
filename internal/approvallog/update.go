package approvallog

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// maxBatch bounds how many calls share one tenure of the append lock, which other processes wait
// for at most 2 seconds.
const maxBatch = 256

// Tx is one decider's view of the log: the exact head, and what it appends.
type Tx struct {
	head    Head
	now     time.Time
	base    int64 // records in the segments before
	follows *Head // the head of the segment before, which a first record names; nil in the first
	records []Record
}

// Head returns the head, with what this decider has appended.
func (tx *Tx) Head() Head { return tx.head }

// Now is the time that this decider's records bear: UTC, whole milliseconds, the same at each call.
func (tx *Tx) Now() time.Time { return tx.now }

// Append adds a record to what is written when the decider returns nil. It fails with [ErrInvalid].
// The fold has the decider's records only after it returned.
func (tx *Tx) Append(d Draft) (Record, error) {
	if tx.head.Seq == 0 && tx.follows != nil {
		var err error
		if d, err = d.linkedTo(*tx.follows); err != nil {
			return Record{}, err
		}
	}
	r, err := encode(tx.head, tx.now, d)
	if err != nil {
		return Record{}, err
	}
	tx.records = append(tx.records, r)
	tx.head = r.Head()
	return r.above(tx.base), nil
}

// call is one Update on its way.
type call struct {
	decide   func(*Tx) error
	records  []Record
	err      error
	panicked any
	taken    bool          // by a leader; guarded by callQueue.mu
	done     chan struct{} // closed when the outcome is known
}

// callQueue gathers the Updates of one process into batches. One caller at a time leads: it takes
// the append lock, then all calls that wait by then, and answers them together.
type callQueue struct {
	mu      sync.Mutex
	waiting []*call
	token   chan struct{} // holds one element while nobody leads
	once    sync.Once
}

func (q *callQueue) leadership() chan struct{} {
	q.once.Do(func() {
		q.token = make(chan struct{}, 1)
		q.token <- struct{}{}
	})
	return q.token
}

func (q *callQueue) lead()     { <-q.leadership() }
func (q *callQueue) handOver() { q.leadership() <- struct{}{} }

func (q *callQueue) add(c *call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, c)
}

// take gives at most n of the waiting calls, own first and the others in their order.
func (q *callQueue) take(own *call, n int) []*call {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch := []*call{own}
	rest := q.waiting[:0:0]
	for _, c := range q.waiting {
		switch {
		case c == own:
		case len(batch) < n:
			batch = append(batch, c)
		default:
			rest = append(rest, c)
		}
	}
	q.waiting = rest
	for _, c := range batch {
		c.taken = true
	}
	return batch
}

// length is how many calls wait.
func (q *callQueue) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

// leave takes a call back out. False means that a leader has it already.
func (q *callQueue) leave(c *call) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.taken {
		return false
	}
	for i, other := range q.waiting {
		if other == c {
			q.waiting = append(q.waiting[:i], q.waiting[i+1:]...)
			break
		}
	}
	return true
}

// Update takes the append lock, asks the guard, reads the fold up to the file's end and runs decide
// against exactly that head. What decide appends is written, made durable and folded before Update
// returns it. Updates that meet share one tenure of the lock and one fdatasync: each decider sees
// the fold with the records of those before it, and none is answered before all are on the disk.
//
// decide must be quick, without side effects and without any call to this log but through tx. Its
// error is returned as it is, and nothing of it is appended. A decider that appends nothing causes
// no write.
//
// Errors: [ErrLocked], the guard's, [ErrCorrupt], ctx's while the call still waited for its turn.
// When the disk is full the error is [syscall.ENOSPC], the record is not in the log, and later
// calls may succeed. After any other failed write or fsync it is [ErrPoisoned], now and for every
// later call: what the disk holds is not known, and nobody may act on it.
func (l *Log) Update(ctx context.Context, decide func(tx *Tx) error) ([]Record, error) {
	c := &call{decide: decide, done: make(chan struct{})}
	l.calls.add(c)
	select {
	case <-c.done:
	case <-l.calls.leadership():
		l.leadBatch(ctx, c)
		l.calls.handOver()
	case <-ctx.Done():
		if l.calls.leave(c) {
			return nil, context.Cause(ctx)
		}
	}
	<-c.done // a leader has the call; it is answered within the lock's wait and one fsync
	if c.panicked != nil {
		panic(c.panicked)
	}
	return c.records, c.err
}

// Append appends drafts behind expect, all or none. It fails with [ErrHeadMoved] when the log's head
// is another one by now.
func (l *Log) Append(ctx context.Context, expect Head, drafts ...Draft) ([]Record, error) {
	return l.Update(ctx, func(tx *Tx) error {
		if tx.Head() != expect {
			return fmt.Errorf("%w: from record %d to %d", ErrHeadMoved, expect.Seq, tx.Head().Seq)
		}
		for _, d := range drafts {
			if _, err := tx.Append(d); err != nil {
				return err
			}
		}
		return nil
	})
}

// Ensure makes the log's file when it does not exist and the home is fresh, so that files made
// afterwards are no sign of a lost log.
func (l *Log) Ensure(ctx context.Context) error {
	l.mu.RLock()
	exists := l.file != nil
	l.mu.RUnlock()
	if exists {
		return nil
	}
	_, err := l.Update(ctx, func(*Tx) error { return nil })
	return err
}

// leadBatch answers own and the calls that wait beside it. It answers own in any case.
func (l *Log) leadBatch(ctx context.Context, own *call) {
	if !l.calls.waits(own) {
		return // answered by the leader before
	}
	waiting, began := l.calls.length(), time.Now()
	if err := l.lockForAppend(ctx); err != nil {
		if ctx.Err() != nil {
			// Only this caller has no time left; the next one leads.
			if l.calls.leave(own) {
				own.err = err
				close(own.done)
			}
			return
		}
		// Those who waited as long as this one have the same answer; later ones try again.
		answer(l.calls.take(own, waiting), err)
		return
	}
	batch := l.calls.take(own, maxBatch)
	l.mu.Lock()
	before := l.at.head
	err := l.runBatch(ctx, batch)
	grown := l.at.head != before
	l.mu.Unlock()
	if rerr := l.lock.release(); rerr != nil {
		l.opts.Logf("%v", rerr)
	}
	answer(batch, err)
	if grown || err != nil {
		l.opts.took(OpAppend, began)
	}
	if grown {
		l.watch.notify()
	}
}

// waits reports whether the call still waits for a leader.
func (q *callQueue) waits(c *call) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !c.taken
}

// answer ends the calls; err, when not nil, is the outcome of all.
func answer(batch []*call, err error) {
	for _, c := range batch {
		if err != nil {
			c.records, c.err = nil, err
		}
		close(c.done)
	}
}

// lockForAppend takes the append lock, in a directory that it makes when there is none.
func (l *Log) lockForAppend(ctx context.Context) error {
	l.mu.RLock()
	err := l.usable()
	if err == nil && l.damage != nil {
		err = l.damage
	}
	fresh := l.file == nil
	l.mu.RUnlock()
	if err != nil {
		return err
	}
	if fresh {
		if err := l.opts.FS.MkdirAll("log.dir", filepath.Dir(l.opts.Path), 0o700); err != nil {
			return err
		}
	}
	return l.lock.acquire(ctx)
}

// runBatch decides and writes the calls of a batch, inside the append lock and l.mu. The error is
// the outcome of all of them.
func (l *Log) runBatch(ctx context.Context, batch []*call) error {
	if l.opts.Guard != nil {
		if err := l.opts.Guard(); err != nil {
			return err
		}
	}
	// A caller who gives up must not take the answer from those who share the batch.
	if err := l.catchUp(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	if err := l.openAppender(); err != nil {
		return err
	}
	ready, wrote := false, false
	for _, c := range batch {
		tx := &Tx{head: l.at.head, now: l.opts.Now().UTC().Truncate(time.Millisecond), base: l.base, follows: l.follows()}
		c.err = c.run(tx)
		if err := l.usable(); err != nil {
			return err // a look-up failed: what was decided was decided on too little
		}
		if c.err != nil || c.panicked != nil || len(tx.records) == 0 {
			continue
		}
		if !ready {
			if err := l.readyToWrite(); err != nil {
				return err
			}
			ready = true
		}
		if c.err = l.write(tx.records); c.err != nil {
			if l.poison != nil {
				return l.poison
			}
			continue
		}
		wrote = true
		for _, r := range tx.records {
			r = r.above(l.base)
			c.records = append(c.records, r)
			if err := l.apply(&r); err != nil {
				return err
			}
		}
	}
	if !wrote {
		return nil
	}
	return l.commit()
}

// run runs the decider. Its panic belongs to its own caller.
func (c *call) run(tx *Tx) error {
	defer func() { c.panicked = recover() }()
	return c.decide(tx)
}

// openAppender opens the file for appending, and makes it on a fresh home.
func (l *Log) openAppender() error {
	if l.appender != nil {
		return nil
	}
	flag := os.O_RDWR | os.O_APPEND
	created := l.file == nil
	if created {
		flag |= os.O_CREATE | os.O_EXCL
	}
	f, err := l.opts.FS.OpenFile("append", l.opts.Path, flag, 0o600)
	if err != nil {
		return err
	}
	if !created {
		err = l.isSame(f.File)
	}
	if err == nil && l.at.offset == 0 {
		// Also when the file was there: who made it may not have come this far.
		err = l.opts.FS.SyncDir("append", filepath.Dir(l.opts.Path))
	}
	if err == nil {
		err = l.finishCut()
	}
	if err == nil && created {
		err = l.openFile()
	}
	if err != nil {
		f.Close()
		return err
	}
	l.appender = f
	return nil
}

// isSame makes sure that f is the file that was read.
func (l *Log) isSame(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(info, l.identity) {
		return l.drifted(ReasonLogReplaced, "another file came in its place while it was opened")
	}
	return nil
}

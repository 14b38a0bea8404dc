package dispatch

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// simDaemon is one life of a daemon: its core, its handles on the files, and what is on its way.
type simDaemon struct {
	core     *Core
	loop     *Loop
	journal  *memLog
	fold     *Deliveries
	requests *approvallog.Requests
	effects  []Effect
	wire     []Call  // calls that have left for Telegram
	inbox    []Event // results that are on their way to the core
	answered map[string]int
	epoch    int64
	rules    testRules // that it was started with, or told of since

	logSeq, journalSeq int64
}

// startUp starts a daemon. One that lives goes on: its machine was stopped while this one took over, and it finds out
// when it looks.
func (s *sim) startUp() {
	s.cutOff()
	if len(s.daemons) > 2 {
		s.end(s.daemons[0])
	}
	d := &simDaemon{fold: NewDeliveries(), requests: approvallog.NewRequests(), answered: map[string]int{}}
	var err error
	s.sync()
	if d.journal, err = s.journal.openIndexed(d.fold, s.rng.IntN(3), s.rng.IntN(len(s.journal.records)+1)); err != nil {
		s.failf("open the journal: %v", err)
	}
	fence := NewFence(func() error { return nil }, d.journal, d.fold)
	log := s.log.open(d.requests, fence.Guard)
	if d.epoch, err = OpenEpoch(context.Background(), log, d.journal, d.fold, EpochInfo{Program: "sim"}); err != nil {
		s.failf("epoch: %v", err)
	}
	fence.Bind(d.epoch)
	s.epochs = d.epoch
	if s.faults && s.chance(30) {
		s.reconfigure()
	}
	d.rules = s.rules
	nonces := rand.New(rand.NewPCG(s.o.seed, uint64(d.epoch)+1000))
	d.loop = New(Options{
		Log: log, Journal: d.journal, Requests: d.requests, Deliveries: d.fold, Rules: s.rules, LastContact: s.noted,
		FollowUps: simFollowUps{log, d.requests}, Chat: Chat{ID: simChat}, Epoch: d.epoch, Check: func() error { return nil }, Now: func() time.Time { return s.now },
	})
	d.core = NewCore(CoreOptions{
		Chat: Chat{ID: simChat}, Deputy: Chat{ID: simDeputy}, Reminder: 0.5, Rules: s.rules, Epoch: d.epoch,
		Nonce: func() Nonce {
			var n Nonce
			binary.BigEndian.PutUint64(n[:8], nonces.Uint64())
			binary.BigEndian.PutUint64(n[8:], nonces.Uint64())
			return n
		},
	})
	if s.o.seed%2 == 1 {
		d.core.maxSingles, d.core.minDigest = 2, 2 // so that there are digests
	}
	d.core.follows.every = 5
	d.loop.core = d.core
	if err := d.loop.load(context.Background()); err != nil {
		s.failf("load: %v", err)
	}
	d.logSeq, d.journalSeq = d.loop.logSeq, d.loop.journalSeq
	s.daemons = append(s.daemons, d)
	s.stepCore(d, Recovered{})
}

// cutOff excuses what an end or a take-over may make twice: a send that was recorded as intended and may have been made
// is what the next daemon repeats once.
func (s *sim) cutOff() {
	s.sync()
	for _, p := range s.deliveries.byID {
		if p.Phase == PhaseIntended {
			s.excused[place{p.Cycle, p.ChatID}]++
		}
	}
}

// crash ends a daemon at once. What it had sent off may still arrive.
func (s *sim) crash() {
	if d := s.anyDaemon(); d != nil {
		s.cutOff()
		if s.chance(50) {
			for len(d.wire) > 0 {
				s.carry(d)
			}
		}
		s.end(d)
	}
}

func (s *sim) end(d *simDaemon) {
	s.daemons = slices.DeleteFunc(s.daemons, func(other *simDaemon) bool { return other == d })
}

// anyDaemon is one that lives, mostly the rightful one; nil for none.
func (s *sim) anyDaemon() *simDaemon {
	switch n := len(s.daemons); {
	case n == 0:
		return nil
	case s.chance(70):
		return s.daemons[n-1]
	default:
		return s.daemons[s.rng.IntN(n)]
	}
}

// survives ends a daemon that found out that it no longer holds the gate, and holds that only such a one finds out.
func (s *sim) survives(d *simDaemon, what string, err error) bool {
	switch {
	case err == nil:
		return true
	case d.epoch < s.epochs && errors.Is(err, approvallog.ErrFenced):
		s.end(d)
		return false
	default:
		s.failf("%s: %v", what, err)
		return false
	}
}

func (s *sim) stepCore(d *simDaemon, ev Event) {
	d.effects = append(d.effects, d.core.Step(s.now, ev)...)
}

// tell lets a core know something that has happened.
func (s *sim) tell(d *simDaemon) {
	if d == nil {
		return
	}
	news := []bool{len(d.inbox) > 0, d.journalSeq < s.journal.Last(), d.logSeq < s.log.Last()}
	from := s.rng.IntN(len(news))
	for n := 0; n < len(news) && !news[from]; n++ {
		from = (from + 1) % len(news)
	}
	switch {
	case !news[from]:
	case from == 0:
		i := s.rng.IntN(len(d.inbox))
		ev := d.inbox[i]
		d.inbox = slices.Delete(d.inbox, i, i+1)
		if tap, ok := ev.(TapRuled); ok {
			var err error
			if ev, err = d.loop.recallTapped(tap); err != nil {
				s.failf("recall: %v", err)
			}
		}
		s.stepCore(d, ev)
	case from == 1:
		d.journalSeq++
		s.stepCore(d, Journaled{Record: s.journal.records[d.journalSeq-1]})
	default:
		d.logSeq++
		s.sync()
		if req, ok := s.requests.Get(s.log.records[d.logSeq-1].ActionKey); ok {
			change := []RequestChanged{{Request: req, LogSeq: d.logSeq}}
			err := d.journal.Refresh(context.Background())
			if err == nil {
				err = d.loop.recall(change)
			}
			if err != nil {
				s.failf("recall: %v", err)
			}
			s.stepCore(d, change[0])
			s.stepCore(d, LogRead{Seq: d.logSeq})
		}
		s.tellChains(d)
	}
}

// runEffect runs one effect that a core has asked for, in any order.
func (s *sim) runEffect(d *simDaemon) {
	if d == nil || len(d.effects) == 0 {
		return
	}
	i := s.rng.IntN(len(d.effects))
	e := d.effects[i]
	d.effects = slices.Delete(d.effects, i, i+1)
	switch e := e.(type) {
	case AppendJournal:
		_, err := d.loop.append(context.Background(), e.Drafts)
		s.survives(d, "append", err)
	case Expire:
		events, err := d.loop.expire(context.Background(), []approvallog.Request{e.Request})
		if s.survives(d, "expire", err) {
			d.inbox = append(d.inbox, events...)
		}
	case OpenFollowUp:
		if s.faults && s.chance(15) {
			d.inbox = append(d.inbox, FollowUpOpened{Key: e.Parent.FollowUpKey, Err: "the queue is full"})
			break
		}
		ev, err := d.loop.openFollowUp(context.Background(), e.Parent)
		if s.survives(d, "follow-up", err) {
			d.inbox = append(d.inbox, ev)
		}
	case Prepare:
		ev := Prepared{Cycle: CycleID{e.Request.Key, e.Request.Seq}, Documents: documentsOf(e.Request.Seq)}
		if s.faults && s.chance(5) {
			ev = Prepared{Cycle: ev.Cycle, Err: "the payload cannot be read"}
		}
		d.inbox = append(d.inbox, ev)
	case Cancel:
		for i, other := range d.effects {
			if call, ok := other.(Call); ok && call.ID == e.Call {
				d.effects = slices.Delete(d.effects, i, i+1)
				d.inbox = append(d.inbox, CallDone{Call: e.Call, Result: Result{Kind: ResultCancelled}})
				break
			}
		}
	case Call:
		if s.survives(d, "call", d.loop.entitled()) {
			if d.epoch < s.epochs {
				s.failf("the daemon of epoch %d sends %T in epoch %d", d.epoch, e.What, s.epochs)
			}
			d.wire = append(d.wire, e)
		}
	case NoteContact:
		s.noted = e.At
	case Answer:
		if d.answered[e.CallbackID]++; d.answered[e.CallbackID] > 1 {
			s.failf("tap %s answered twice", e.CallbackID)
		}
	}
}

// carry brings a call to Telegram, and what Telegram says on its way back.
func (s *sim) carry(d *simDaemon) {
	if d == nil || len(d.wire) == 0 {
		return
	}
	i := s.rng.IntN(len(d.wire))
	e := d.wire[i]
	d.wire = slices.Delete(d.wire, i, i+1)
	d.inbox = append(d.inbox, CallDone{Call: e.ID, Result: s.telegram(d, e)})
}

// makeContact is a poll that was answered.
func (s *sim) makeContact() {
	if d := s.anyDaemon(); d != nil && !s.offline {
		s.stepCore(d, Contacted{At: s.now})
	}
}

// documentsOf is how many documents go before the card of an asking.
func documentsOf(seq int64) int { return []int{0, 1, 0, 2, 0, 0, 0}[seq%7] }

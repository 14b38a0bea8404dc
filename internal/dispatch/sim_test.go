package dispatch

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

const (
	simChat   = -1001
	simDeputy = -2002
)

// simOptions name a history.
type simOptions struct {
	seed     uint64
	steps    int
	requests int             // at most so many keys, 0 for any number
	without  map[string]bool // kinds of acts that are left out
	// also is a claim that a test adds to what must hold; empty when it does.
	also func(*sim) string
}

// simFailure is what a history was found out with.
type simFailure struct {
	step int
	text string
}

// sim is a world around the real core, the real judge and the real folds: a disk that keeps what was appended, a
// Telegram that keeps what was sent, people who tap, and daemons that die between any two effects, or go on although
// another has taken over. Nothing in it depends on anything but its options.
type sim struct {
	o     simOptions
	rng   *rand.Rand
	now   time.Time
	step  int
	trace func(string)

	// The files, and the world's own view of them.
	requests   *approvallog.Requests
	log        *memLog
	deliveries *Deliveries
	journal    *memLog
	rules      testRules

	daemons []*simDaemon // those that live, the rightful one last
	epochs  int64
	noted   time.Time // the note of the last contact with Telegram

	simTelegram
	simPeople
	simChains
	simClaims
	faults bool
	// reloaded: the configuration changed under a daemon that went on.
	reloaded bool
}

func newSim(o simOptions) *sim {
	s := &sim{
		o: o, rng: rand.New(rand.NewPCG(o.seed, 1)), now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC), trace: func(string) {},
		requests: approvallog.NewRequests(), deliveries: NewDeliveries(), faults: true,
		simTelegram: newSimTelegram(), simChains: newSimChains(), simClaims: newSimClaims(),
		rules: testRules{
			rule:    Rule{Quorum: 1, Approvers: []Approver{alice, bob, carol}, RejectReasons: []string{"not now"}},
			byClass: map[string]Rule{"two": {Quorum: 2, Approvers: []Approver{alice, bob}}},
		},
	}
	s.simPeople.made = map[string]bool{}
	clock := func() time.Time { return s.now }
	s.log, s.journal = newMemLog(clock, s.requests), newMemLog(clock, s.deliveries)
	return s
}

// play plays a history to its end, or until it is found out.
func play(o simOptions) (f *simFailure) {
	s := newSim(o)
	return s.play()
}

func (s *sim) play() (f *simFailure) {
	defer func() {
		if v := recover(); v != nil {
			failed, ok := v.(simFailure)
			if !ok {
				panic(v)
			}
			f = &failed
		}
	}()
	for s.step = range s.o.steps {
		s.act()
		s.check()
	}
	s.quiesce()
	return nil
}

func (s *sim) failf(format string, args ...any) {
	panic(simFailure{step: s.step, text: fmt.Sprintf(format, args...)})
}

func (s *sim) chance(percent int) bool { return s.rng.IntN(100) < percent }

// acts are what may happen, and how often.
var acts = []struct {
	name   string
	weight int
	do     func(*sim)
}{
	{"effect", 600, func(s *sim) { s.runEffect(s.anyDaemon()) }},
	{"wire", 300, func(s *sim) { s.carry(s.anyDaemon()) }},
	{"tell", 600, func(s *sim) { s.tell(s.anyDaemon()) }},
	{"update", 90, (*sim).bringUpdate},
	{"ask", 25, (*sim).ask},
	{"withdraw", 5, (*sim).withdraw},
	{"execute", 40, (*sim).execute},
	{"terminal", 20, (*sim).decideAtTerminal},
	{"revoke", 10, (*sim).revoke},
	{"cut", 2, (*sim).cutJournal},
	{"tap", 40, (*sim).tap},
	{"open", 20, (*sim).open},
	{"repeat", 20, (*sim).repeatUpdate},
	{"seconds", 60, func(s *sim) { s.pass(time.Duration(s.rng.Int64N(int64(20 * time.Second)))) }},
	{"minutes", 10, func(s *sim) { s.pass(time.Duration(s.rng.Int64N(int64(15 * time.Minute)))) }},
	{"contact", 30, (*sim).makeContact},
	{"offline", 4, func(s *sim) { s.offline = s.faults && !s.offline }},
	{"block", 2, (*sim).block},
	{"delete", 6, (*sim).deleteMessage},
	{"configure", 3, (*sim).configure},
	{"crash", 10, (*sim).crash},
	{"fight", 4, (*sim).startUp},
}

var totalWeight = func() (n int) {
	for _, a := range acts {
		n += a.weight
	}
	return n
}()

// act does one random thing.
func (s *sim) act() {
	if len(s.daemons) == 0 && s.chance(40) {
		s.startUp()
		return
	}
	n := s.rng.IntN(totalWeight)
	for _, a := range acts {
		if n -= a.weight; n < 0 {
			if !s.o.without[a.name] {
				s.trace(a.name)
				a.do(s)
			}
			return
		}
	}
}

func (s *sim) pass(d time.Duration) {
	s.now = s.now.Add(d)
	for _, d := range slices.Clone(s.daemons) {
		s.stepCore(d, Ticked{})
	}
}

// sync brings the world's own view of the files up to date.
func (s *sim) sync() {
	for _, l := range []*memLog{s.log, s.journal} {
		if err := l.Refresh(context.Background()); err != nil {
			s.failf("the files contradict each other: %v", err)
		}
	}
}

// quiesce lets the world be kind for a while and then holds what must come true in the end.
func (s *sim) quiesce() {
	s.faults, s.offline = false, false
	clear(s.blocked)
	s.startUp() // what was closed to an earlier daemon is tried at once
	end := s.now.Add(10 * time.Minute)
	for range 20000 {
		s.step++
		d := s.daemons[len(s.daemons)-1]
		busy := len(d.effects)+len(d.inbox)+len(d.wire)+len(s.updates) > 0 || d.journalSeq < s.journal.Last() || d.logSeq < s.log.Last()
		if busy {
			s.runEffect(d)
			s.carry(d)
			s.tell(d)
			s.bringUpdate()
			s.check()
			continue
		}
		next, ok := d.core.Next()
		if !ok || next.After(end) {
			break
		}
		if next.After(s.now) {
			s.now = next
		}
		s.stepCore(d, Ticked{})
	}
	s.checkEnd(s.daemons[len(s.daemons)-1])
}

// fingerprint is a history as a number, for a comparison.
func fingerprint(o simOptions) uint64 {
	s := newSim(o)
	h := fnv.New64a()
	s.trace = func(act string) { fmt.Fprintln(h, s.step, act, s.now) }
	f := s.play()
	text, _ := json.Marshal([]any{s.log.records, s.journal.records, f != nil})
	h.Write(text)
	return h.Sum64()
}

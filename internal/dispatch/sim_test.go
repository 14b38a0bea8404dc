package dispatch

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

const simChat = -1001

// sim is a world around the real core, the real judge and the real folds: a disk that keeps what was appended, a
// Telegram that keeps what was sent, people who tap, and a daemon that dies between any two effects.
type sim struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	now  time.Time
	step int

	requests   *approvallog.Requests
	log        *memLog
	deliveries *Deliveries
	journal    *memLog
	rules      testRules

	// Of the daemon that runs; nil core for none.
	core       *Core
	loop       *Loop
	effects    []Effect
	inbox      []Event // results that are on their way to the core
	logSeq     int64
	journalSeq int64
	answered   map[string]int
	epoch      int64

	// Telegram.
	messages map[int64]*simMessage
	lastID   int64
	muted    time.Time
	mutedIn  int64 // the epoch that was told

	taps        []simTap
	made        map[string]bool // delivered verdicts: cycle/person/verdict
	sentOnce    map[string]bool // deliveries recorded as sent
	excused     map[CycleID]int // sends whose answer was lost
	keys        int
	faults      bool
	lastTap     int
	seen        int // records of the log that were checked
	seenJournal int
}

type simMessage struct {
	id      int64
	cycle   CycleID
	kind    Kind
	nonce   Nonce
	buttons bool
	state   approvallog.State
	deleted bool
	missed  bool // the daemon has found out
	hash    string
}

type simTap struct {
	callback string
	tap      Tap
	cycle    CycleID
}

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC),
		requests: approvallog.NewRequests(), deliveries: NewDeliveries(), messages: map[int64]*simMessage{},
		made: map[string]bool{}, sentOnce: map[string]bool{}, excused: map[CycleID]int{}, faults: true,
		rules: testRules{
			rule:    Rule{Quorum: 1, Approvers: []Approver{alice, bob, carol}, RejectReasons: []string{"not now"}},
			byClass: map[string]Rule{"two": {Quorum: 2, Approvers: []Approver{alice, bob}}},
		},
	}
	clock := func() time.Time { return s.now }
	s.log = &memLog{now: clock, fold: s.requests}
	s.journal = &memLog{now: clock, fold: s.deliveries}
	return s
}

func (s *sim) failf(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("seed %d, step %d: %s", s.seed, s.step, fmt.Sprintf(format, args...))
}

func (s *sim) chance(percent int) bool { return s.rng.IntN(100) < percent }

func (s *sim) run(steps int) {
	for s.step = range steps {
		s.act()
		s.check()
	}
	s.quiesce()
}

// act does one random thing.
func (s *sim) act() {
	if s.core == nil && s.chance(40) {
		s.startUp()
		return
	}
	switch n := s.rng.IntN(100); {
	case n < 40:
		s.runEffect()
	case n < 60:
		s.tell()
	case n < 68:
		s.ask()
	case n < 71:
		s.withdraw()
	case n < 74:
		s.decideAtTerminal()
	case n < 86:
		s.person()
	case n < 94:
		s.pass(time.Duration(s.rng.Int64N(int64(40 * time.Second))))
	case n < 95:
		s.pass(time.Duration(s.rng.Int64N(int64(40 * time.Minute))))
	case n < 97:
		s.deleteMessage()
	default:
		s.crash()
	}
}

func (s *sim) pass(d time.Duration) {
	s.now = s.now.Add(d)
	s.stepCore(Ticked{})
}

func (s *sim) stepCore(ev Event) {
	if s.core != nil {
		s.effects = append(s.effects, s.core.Step(s.now, ev)...)
	}
}

func (s *sim) crash() {
	if s.core == nil {
		return
	}
	// A send that was recorded as intended and may have been made is what the next daemon repeats once.
	for d := range s.allDeliveries() {
		if d.Phase == PhaseIntended {
			s.excused[d.Cycle]++
		}
	}
	s.core, s.effects, s.inbox = nil, nil, nil
}

func (s *sim) allDeliveries() func(func(Delivery) bool) {
	return func(yield func(Delivery) bool) {
		for _, d := range s.deliveries.byID {
			if !yield(*d) {
				return
			}
		}
	}
}

func (s *sim) startUp() {
	var err error
	s.epoch, err = OpenEpoch(context.Background(), s.log, s.journal, s.deliveries, EpochInfo{Program: "sim"})
	if err != nil {
		s.failf("epoch: %v", err)
	}
	nonces := rand.New(rand.NewPCG(s.seed, uint64(s.epoch)+1000))
	s.loop = New(Options{
		Log: s.log, Journal: s.journal, Requests: s.requests, Deliveries: s.deliveries, Rules: s.rules,
		Chat: Chat{ID: simChat}, Epoch: s.epoch, Check: func() error { return nil }, Now: func() time.Time { return s.now },
	})
	s.core = NewCore(CoreOptions{Chat: Chat{ID: simChat}, Rules: s.rules, Epoch: s.epoch, Nonce: func() Nonce {
		var n Nonce
		binary.BigEndian.PutUint64(n[:8], nonces.Uint64())
		binary.BigEndian.PutUint64(n[8:], nonces.Uint64())
		return n
	}})
	s.loop.core = s.core
	if s.seed%2 == 1 {
		s.core.maxSingles, s.core.minDigest = 2, 2 // so that there are digests
	}
	s.answered = map[string]int{}
	if err := s.loop.load(context.Background()); err != nil {
		s.failf("load: %v", err)
	}
	s.logSeq, s.journalSeq = s.loop.logSeq, s.loop.journalSeq
	s.stepCore(Recovered{})
}

// tell lets the core know something that has happened.
func (s *sim) tell() {
	if s.core == nil {
		return
	}
	switch s.rng.IntN(3) {
	case 0:
		if len(s.inbox) > 0 {
			i := s.rng.IntN(len(s.inbox))
			ev := s.inbox[i]
			s.inbox = slices.Delete(s.inbox, i, i+1)
			s.stepCore(ev)
		}
	case 1:
		s.tellJournal()
	default:
		s.tellLog()
	}
}

func (s *sim) tellJournal() {
	if s.core != nil && s.journalSeq < int64(len(s.journal.records)) {
		s.journalSeq++
		s.stepCore(Journaled{Record: s.journal.records[s.journalSeq-1]})
	}
}

func (s *sim) tellLog() {
	if s.core == nil || s.logSeq >= int64(len(s.log.records)) {
		return
	}
	s.logSeq++
	if req, ok := s.requests.Get(s.log.records[s.logSeq-1].ActionKey); ok {
		s.stepCore(RequestChanged{Request: req})
	}
}

func (s *sim) runEffect() {
	if s.core == nil || len(s.effects) == 0 {
		return
	}
	i := s.rng.IntN(len(s.effects))
	e := s.effects[i]
	s.effects = slices.Delete(s.effects, i, i+1)
	switch e := e.(type) {
	case AppendJournal:
		if _, err := s.loop.append(context.Background(), e.Drafts); err != nil {
			s.failf("append: %v", err)
		}
	case Expire:
		events, err := s.loop.expire(context.Background(), []approvallog.Request{e.Request})
		if err != nil {
			s.failf("expire: %v", err)
		}
		s.inbox = append(s.inbox, events...)
	case Prepare:
		ev := Prepared{Cycle: CycleID{e.Request.Key, e.Request.Seq}, Documents: int(e.Request.Seq % 3)}
		if s.faults && s.chance(5) {
			ev = Prepared{Cycle: ev.Cycle, Err: "the payload cannot be read"}
		}
		s.inbox = append(s.inbox, ev)
	case Cancel:
		for i, other := range s.effects {
			if call, ok := other.(Call); ok && call.ID == e.Call {
				s.effects = slices.Delete(s.effects, i, i+1)
				s.inbox = append(s.inbox, CallDone{Call: e.Call, Result: Result{Kind: ResultCancelled}})
				break
			}
		}
	case Call:
		s.inbox = append(s.inbox, CallDone{Call: e.ID, Result: s.telegram(e)})
	case Answer:
		if s.answered[e.CallbackID]++; s.answered[e.CallbackID] > 1 {
			s.failf("tap %s answered twice", e.CallbackID)
		}
	}
}

// check holds what must be true at every moment.
func (s *sim) check() {
	cards := map[CycleID]int{}
	for _, m := range s.messages {
		if m.kind == KindCard {
			cards[m.cycle]++
		}
	}
	for id, n := range cards {
		if n > 1+s.excused[id] {
			s.failf("%v was sent %d times, %d answers were lost", id, n, s.excused[id])
		}
	}
	for ; s.seenJournal < len(s.journal.records); s.seenJournal++ {
		rec := s.journal.records[s.seenJournal]
		if rec.Event != EventDeliverySent {
			continue
		}
		p, err := decode[sentPayload](rec)
		if err != nil || s.sentOnce[p.Delivery] {
			s.failf("delivery %s was recorded as sent twice in one life, or %v", p.Delivery, err)
		}
		s.sentOnce[p.Delivery] = true
	}
	for ; s.seen < len(s.log.records); s.seen++ {
		s.checkRecord(s.log.records[s.seen])
	}
}

// checkRecord holds that a decision was made by people who may make it.
func (s *sim) checkRecord(rec approvallog.Record) {
	if rec.Event != approvallog.EventGranted && rec.Event != approvallog.EventRejected {
		return
	}
	req, _ := s.requests.Get(rec.ActionKey)
	if req.Decision == nil || req.Decision.Seq != rec.Seq {
		s.failf("record %d decides nothing", rec.Seq)
	}
	id := CycleID{req.Key, req.Seq}
	verdict, need := Reject, 1
	by := []string{req.Decision.By}
	if rec.Event == approvallog.EventGranted {
		verdict, need, by = Approve, map[string]int{"one": 1, "two": 2}[req.Class], nil
		for _, a := range req.Approvals {
			by = append(by, a.By)
		}
	}
	slices.Sort(by)
	if len(slices.Compact(by)) < need {
		s.failf("record %d: %v, needs %d", rec.Seq, by, need)
	}
	for _, who := range by {
		if !s.made[voice(id, person(who), verdict)] {
			s.failf("record %d: %s never said %c of %v", rec.Seq, who, verdict, id)
		}
	}
}

// quiesce lets the world be kind for a while and then holds what must come true in the end.
func (s *sim) quiesce() {
	s.faults = false
	if s.core == nil {
		s.startUp()
	}
	for range 20000 {
		s.step++
		busy := len(s.effects) > 0 || len(s.inbox) > 0 || s.journalSeq < int64(len(s.journal.records)) || s.logSeq < int64(len(s.log.records))
		if busy {
			s.runEffect()
			s.tell()
			s.check()
			continue
		}
		next, ok := s.core.Next()
		if !ok || next.Sub(s.now) > 16*time.Minute {
			break
		}
		if next.After(s.now) {
			s.now = next
		}
		s.stepCore(Ticked{})
	}
	for key := range s.keys {
		req, ok := s.requests.Get(fmt.Sprintf("k%d", key))
		if !ok {
			continue
		}
		id := CycleID{req.Key, req.Seq}
		if req.State == approvallog.StatePending {
			if req.PastDeadline(s.now) {
				s.failf("%v is past its deadline and not recorded as expired", id)
			}
			if o := s.core.ops[id]; !s.core.shown(id) && (o == nil || !o.heldByMessage()) {
				s.failf("%v is pending and nobody was shown it; the core: %+v", id, s.core.Stats())
			}
		}
	}
	for d := range s.allDeliveries() {
		m := s.messages[d.MessageID]
		if d.Kind != KindCard || m == nil || m.deleted {
			continue
		}
		switch state := s.stateOf(d.Cycle); {
		case state == approvallog.StatePending:
			if !m.buttons {
				s.failf("%v is pending and message %d has no buttons", d.Cycle, m.id)
			}
		case m.buttons && d.Settled == "":
			s.failf("%v is %s and message %d still has buttons (%+v)", d.Cycle, state, m.id, d)
		}
	}
	if st := s.core.Stats(); st.Unsettled != 0 {
		s.failf("%d messages are unsettled in the end", st.Unsettled)
	}
}

var (
	simSeed      = flag.Int64("sim.seed", -1, "run only the history of this seed")
	simHistories = flag.Int("sim.histories", 300, "how many random histories to run")
	simSteps     = flag.Int("sim.steps", 400, "steps of a history before it is let come to rest")
)

// TestSimulation runs random histories. A failing one names its seed: go test -run Simulation -sim.seed=N runs it
// again, step for step; -sim.steps=M with a smaller M shortens it.
func TestSimulation(t *testing.T) {
	if *simSeed >= 0 {
		newSim(t, uint64(*simSeed)).run(*simSteps)
		return
	}
	histories := *simHistories
	if testing.Short() {
		histories = min(histories, 50)
	}
	for seed := range histories {
		newSim(t, uint64(seed)).run(*simSteps)
	}
}

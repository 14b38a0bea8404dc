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
		ev, err := s.loop.expire(context.Background(), e.Request)
		if err != nil {
			s.failf("expire: %v", err)
		}
		s.inbox = append(s.inbox, ev)
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

// telegram does what is asked, or not, and says what the daemon hears of it.
func (s *sim) telegram(e Call) Result {
	if s.now.Before(s.muted) && s.mutedIn != s.epoch {
		s.mutedIn = s.epoch // this daemon has not been told yet
		return Result{Kind: ResultLimited, RetryAfter: s.muted.Sub(s.now)}
	}
	if s.now.Before(s.muted) {
		s.failf("%T sent %v before the 429 was over", e.What, s.muted.Sub(s.now))
	}
	lost := false
	if s.faults {
		switch n := s.rng.IntN(100); {
		case n < 8:
			d := time.Duration(1+s.rng.IntN(90)) * time.Second
			s.muted, s.mutedIn = s.now.Add(d), s.epoch
			return Result{Kind: ResultLimited, RetryAfter: d}
		case n < 14:
			return Result{Kind: ResultTransient, Reason: "connection refused"}
		case n < 16:
			return Result{Kind: ResultClosed, Reason: "bot was kicked", Class: "forbidden"}
		case n < 19:
			return Result{Kind: ResultRefused, Reason: "Bad Request", Class: "bad-request"}
		case n < 24:
			lost = true
		}
	}
	switch a := e.What.(type) {
	case SendCard:
		id := CycleID{a.Request.Key, a.Request.Seq}
		d, ok := s.deliveries.ByNonce(a.Nonce.Sum())
		if !ok || d.Cycle != id || d.Kind != KindCard {
			s.failf("card for %v sent without a recorded intent", id)
		}
		return s.deliver(simMessage{cycle: id, kind: KindCard, nonce: a.Nonce, buttons: true, hash: a.Request.PayloadHash}, lost)
	case SendDocument:
		return s.deliver(simMessage{cycle: CycleID{a.Request.Key, a.Request.Seq}, kind: KindDocument}, lost)
	case EditSettled:
		return s.edit(a.MessageID, lost, func(m *simMessage) { m.buttons, m.state = false, settledState(a.Request) })
	case StripButtons:
		return s.edit(a.MessageID, lost, func(m *simMessage) { m.buttons = false; m.state = "stripped" })
	case EditProgress:
		return s.edit(a.MessageID, lost, func(m *simMessage) {
			if m.nonce != a.Nonce {
				s.failf("an edit gave message %d the buttons of another", m.id)
			}
		})
	default:
		s.failf("unknown action %T", a)
		return Result{}
	}
}

func (s *sim) deliver(m simMessage, lost bool) Result {
	if m.kind == KindCard {
		docs := 0
		for _, other := range s.messages {
			if other.cycle == m.cycle && other.kind == KindDocument {
				docs++
			}
		}
		if docs < int(m.cycle.Seq%3) {
			s.failf("card of %v sent after %d of %d documents", m.cycle, docs, m.cycle.Seq%3)
		}
	}
	if lost {
		s.excused[m.cycle]++
		if s.chance(50) {
			return Result{Kind: ResultUnknown, Reason: "timeout"}
		}
	}
	s.lastID++
	m.id = s.lastID
	s.messages[m.id] = &m
	if lost {
		return Result{Kind: ResultUnknown, Reason: "timeout"}
	}
	return Result{Kind: ResultDone, MessageID: m.id}
}

func (s *sim) edit(id int64, lost bool, change func(*simMessage)) Result {
	m := s.messages[id]
	if m == nil || m.deleted {
		return Result{Kind: ResultGone, Reason: "message to edit not found"}
	}
	change(m)
	if lost {
		return Result{Kind: ResultTransient, Reason: "timeout"}
	}
	return Result{Kind: ResultDone}
}

// ask makes a request, sometimes the same key again.
func (s *sim) ask() {
	key := fmt.Sprintf("k%d", s.keys)
	if s.keys > 0 && s.chance(20) {
		key = fmt.Sprintf("k%d", s.rng.IntN(s.keys))
	} else {
		s.keys++
	}
	class := "one"
	if s.chance(30) {
		class = "two"
	}
	_, err := s.log.Update(context.Background(), func(tx Tx) error {
		if r, ok := s.requests.Get(key); ok && !r.StateAt(tx.Now()).Final() {
			return nil
		}
		ttl := time.Duration(1+s.rng.IntN(3600)) * time.Second
		_, err := tx.Append(approvallog.Draft{Event: approvallog.EventRequested, Actor: "agent:ci", Task: key, ActionKey: key, Payload: map[string]any{
			"class": class, "summary": "s", "payload_hash": fmt.Sprintf("hash-%s-%d", key, s.step), "reversible": true,
			"approvald": map[string]any{"quorum": 1, "expires_at": tx.Now().Add(ttl).Format(time.RFC3339Nano)},
		}})
		return err
	})
	if err != nil {
		s.failf("ask: %v", err)
	}
}

func (s *sim) anyRequest() (approvallog.Request, bool) {
	if s.keys == 0 {
		return approvallog.Request{}, false
	}
	return s.requests.Get(fmt.Sprintf("k%d", s.rng.IntN(s.keys)))
}

func (s *sim) withdraw() {
	req, ok := s.anyRequest()
	if !ok || req.StateAt(s.now) != approvallog.StatePending {
		return
	}
	_, _ = s.log.Update(context.Background(), func(tx Tx) error {
		_, err := tx.Append(approvallog.Draft{Event: approvallog.EventWithdrawn, Actor: req.Requester, Task: req.Task, ActionKey: req.Key,
			Payload: map[string]any{"action_key": req.Key, "reason": "cancelled"}})
		return err
	})
}

func (s *sim) decideAtTerminal() {
	req, ok := s.anyRequest()
	if !ok {
		return
	}
	who := []Approver{alice, bob}[s.rng.IntN(2)]
	verdict := []Verdict{Approve, Reject}[s.rng.IntN(2)]
	pending := req.StateAt(s.now) == approvallog.StatePending
	d := Desk{Log: s.log, Journal: s.journal, Requests: s.requests, Deliveries: s.deliveries, Rules: s.rules, Person: who.ID}
	if pending {
		s.made[voice(CycleID{req.Key, req.Seq}, who.ID, verdict)] = true
	}
	_, _ = DecideAtTerminal(context.Background(), d, req.Key, verdict, "")
}

func voice(id CycleID, who string, v Verdict) string {
	return fmt.Sprintf("%s/%d/%s/%c", id.Key, id.Seq, who, v)
}

// person taps a button: of a card that shows buttons, or of one that did, or a forged one; or a tap is repeated.
func (s *sim) person() {
	if len(s.taps) > 0 && s.chance(25) {
		t := s.taps[s.rng.IntN(len(s.taps))]
		if s.chance(50) {
			s.lastTap++
			t.callback = fmt.Sprint("c", s.lastTap) // the client repeats it under a new id
		}
		s.handle(t)
		return
	}
	var cards []*simMessage
	for id := int64(1); id <= s.lastID; id++ {
		if m := s.messages[id]; m.kind == KindCard && !m.deleted {
			cards = append(cards, m)
		}
	}
	if len(cards) == 0 {
		return
	}
	m := cards[s.rng.IntN(len(cards))]
	who := []int64{111, 222, 333, 444, 1087968824}[s.rng.IntN(5)]
	b := Button{Verdict: []Verdict{Approve, Approve, Reject, Because}[s.rng.IntN(4)], Nonce: m.nonce}
	t := simTap{cycle: m.cycle, tap: Tap{SenderID: who, ChatID: simChat, MessageID: m.id, Data: b.Data()}}
	switch s.rng.IntN(20) {
	case 0:
		t.tap.ChatID = 5
	case 1:
		t.tap.MessageID += 1000
	case 2:
		t.tap.Data = Button{Verdict: Approve}.Data()
	case 3:
		t.tap.Data = "1a:" // nothing
	case 4:
		t.tap.ChatID, t.tap.MessageID = 0, 0 // inline
	}
	s.lastTap++
	t.callback = fmt.Sprint("c", s.lastTap)
	s.taps = append(s.taps, t)
	s.handle(t)
}

// handle brings an update to the daemon. It is told to be done only after the judgement is on disk.
func (s *sim) handle(t simTap) {
	if s.core == nil {
		return
	}
	b, ruling, ok := Screen(t.tap, s.rules)
	if ok {
		before := s.stateOf(t.cycle)
		for _, a := range []Approver{alice, bob, carol} {
			_, allowed := s.rules.Rule(s.classOf(t.cycle)).named(a.ID)
			if a.TelegramID == t.tap.SenderID && allowed && before == approvallog.StatePending && (t.tap.ChatID == simChat || t.tap.ChatID == 0) {
				s.made[voice(t.cycle, a.ID, b.Verdict)] = true
			}
		}
		var err error
		if ruling, err = s.loop.rule(context.Background(), t.tap, b); err != nil {
			s.failf("rule: %v", err)
		}
		after := s.stateOf(t.cycle)
		if (ruling.Outcome == OutcomeGranted || ruling.Outcome == OutcomeRejected) && string(after) != string(ruling.Outcome) {
			s.failf("the tap was told %s and the log says %s", ruling.Outcome, after)
		}
		if ruling.Outcome.refused() && before != after && after != approvallog.StateExpired {
			s.failf("a refused tap changed %v from %s to %s", t.cycle, before, after)
		}
	}
	s.inbox = append(s.inbox, TapRuled{CallbackID: t.callback, Tap: t.tap, Ruling: ruling})
}

func (s *sim) stateOf(id CycleID) approvallog.State {
	req, ok := s.requests.Get(id.Key)
	if !ok || req.Seq != id.Seq {
		return "superseded"
	}
	return req.StateAt(s.now)
}

func (s *sim) classOf(id CycleID) string {
	req, _ := s.requests.Get(id.Key)
	return req.Class
}

func (s *sim) deleteMessage() {
	if s.lastID > 0 && s.chance(30) {
		s.messages[1+s.rng.Int64N(s.lastID)].deleted = true
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
			if !s.core.shown(id) {
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

//go:build all

package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

// The long run by hand: APPROVALD_KILL_CYCLES=500 go test -tags all -run TestKillsAmongFaults -v ./internal/e2e
const (
	cyclesVariable = "APPROVALD_KILL_CYCLES" // how often the daemon is killed
	seedVariable   = "APPROVALD_KILL_SEED"   // repeats the choices of an earlier run; the moments at which processes act stay their own
	// calmEvery is after how many cycles a daemon may work in peace until nothing is left to do.
	calmEvery = 10
)

// TestKillsAmongFaults kills real daemons at random moments while requests are filed, tapped, taken back and run out of time, and
// while Telegram loses answers, breaks connections, sets limits and repeats updates. After each kill the log must be sound and agree
// with everything that a person or a program was told; at the end nothing was lost, doubled or left unseen.
func TestKillsAmongFaults(t *testing.T) {
	t.Parallel()
	cycles := int(number(t, cyclesVariable, 40))
	seed := number(t, seedVariable, rand.Uint64()>>1)
	t.Logf("%s=%d %s=%d", cyclesVariable, cycles, seedVariable, seed)
	began := time.Now()
	w := newWorldWith(t, telegramtest.Options{Seed: seed}, top("[requests]\nper_requester_per_hour = 100000\n"))
	s := &storm{w: w, rng: rand.New(rand.NewPCG(seed, 0)), phone: w.telegram.Phone(alice), byKey: map[string]*asking{}}
	start := time.Now()
	w.up().kill() // now there is a log to verify
	s.unit = max(50*time.Millisecond, time.Since(start))

	for i := range cycles {
		s.cycle(i)
		s.check()
		if t.Failed() {
			t.Fatalf("after cycle %d", i)
		}
		if (i+1)%calmEvery == 0 && i+1 < cycles {
			s.calm(i).kill()
			s.check()
		}
	}
	for _, a := range s.open {
		a.due = 0
	}
	daemon := s.calm(cycles)
	s.finish(daemon)
	t.Logf("%d kills (%d aimed at) in %v, %d faults that hit, %d taps, %d redeliveries; %s", cycles, s.aimed, time.Since(began).Round(time.Second), s.faults,
		len(s.taps), s.redelivered, s.summary())
}

func number(t *testing.T, variable string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// plan is what people and programs intend with a request.
type plan string

const (
	planApprove  plan = "approve"  // one press of Approve, which must not be lost
	planReject   plan = "reject"   // likewise
	planBoth     plan = "both"     // both buttons, several times
	planWithdraw plan = "withdraw" // taken back by its asker, perhaps tapped meanwhile
	planExpire   plan = "expire"   // has little time, perhaps tapped meanwhile
	planStay     plan = "stay"     // waits through many kills, then Approve
)

var plans = []plan{planApprove, planApprove, planApprove, planReject, planReject, planBoth, planWithdraw, planExpire, planStay}

// asking is one request with what was done about it.
type asking struct {
	key        string
	asker      string
	plan       plan
	restless   bool // tapped again although that was done, or although the plan is another
	due        int  // the cycle from which one that stays is tapped
	waiter     *process
	withdrawal *process
	withdrawn  int // how often its asker tried to take it back
	taps       []*telegramtest.Tap
}

// storm is the run as a whole. Everything random comes from rng, which only the test's own goroutine uses.
type storm struct {
	w     *world
	rng   *rand.Rand
	phone *telegramtest.Phone
	// unit is how long an undisturbed start takes here: lives are measured in it, so that a slow machine kills at the same points.
	unit        time.Duration
	open        []*asking // whose waiting program was not seen to end
	all         []*asking
	byKey       map[string]*asking
	taps        []*telegramtest.Tap
	repeatable  []*telegramtest.Tap // without those that are on their own until the request has ended
	log         []byte              // as of the last check
	faults      int
	redelivered int
	aimed       int
	torn        int
}

// oneIn is true once in n times.
func (s *storm) oneIn(n int) bool { return s.rng.IntN(n) == 0 }

// within draws a duration between two multiples of the unit.
func (s *storm) within(from, to float64) time.Duration {
	return time.Duration((from + s.rng.Float64()*(to-from)) * float64(s.unit))
}

// lifetime draws how long a daemon lives that is not aimed at: most die while they start or soon after.
func (s *storm) lifetime() time.Duration {
	switch n := s.rng.IntN(20); {
	case n < 9:
		return s.within(0, 2)
	case n < 17:
		return s.within(2, 6)
	default:
		return s.within(6, 15)
	}
}

// cycle is the life of one daemon.
func (s *storm) cycle(i int) {
	var injected []*telegramtest.Injected
	for range s.rng.IntN(5) {
		injected = append(injected, s.w.telegram.Fault(s.fault()))
	}
	life, aimed := s.lifetime(), s.oneIn(2)
	if aimed {
		life = s.within(6, 15) // unless it is hit before
	}
	var filings []time.Duration // negative: before the daemon starts, so through the files
	for range 1 + s.rng.IntN(2) {
		filings = append(filings, time.Duration((s.rng.Float64()*1.3-0.3)*float64(life)))
	}
	slices.Sort(filings)
	for ; len(filings) > 0 && filings[0] < 0; filings = filings[1:] {
		s.file(i)
	}
	s.w.telegram.ForgetCalls() // a daemon's aim counts its own
	daemon := s.w.start("up")
	dead := func() bool { return false }
	if aimed {
		dead = s.aim(daemon)
	}
	died := false
	for began := time.Now(); time.Since(began) < life && !died; died = dead() {
		for ; len(filings) > 0 && filings[0] < time.Since(began); filings = filings[1:] {
			s.file(i)
		}
		s.step(i)
		time.Sleep(min(s.within(0, 0.1), life-time.Since(began)))
	}
	if died {
		s.aimed++
	}
	daemon.kill()
	if code := daemon.code(); code != 128+int(syscall.SIGKILL) {
		s.w.t.Errorf("the daemon ended by itself, with %d\n%s", code, daemon.stderr.String())
	}
	for range filings {
		s.file(i)
	}
	for _, fault := range injected {
		s.faults += fault.Hits()
	}
	s.w.telegram.ClearFaults()
}

// aim lets a daemon die a moment after something that is on its way to be recorded: a call to Telegram arrived or was answered, or
// somebody tapped. The function that it returns tells whether the daemon is, or should be, dead.
func (s *storm) aim(daemon *process) (dead func() bool) {
	nth, after := 1+s.rng.IntN(3), time.Duration(s.rng.IntN(6000))*time.Microsecond
	if s.oneIn(4) {
		goal := len(s.taps) + nth
		return func() bool {
			if len(s.taps) < goal {
				return false
			}
			time.Sleep(after)
			return true
		}
	}
	method := []string{"sendMessage", "editMessageText", "answerCallbackQuery", "getUpdates"}[s.rng.IntN(4)]
	answered := s.oneIn(2)
	go func() {
		ctx, cancel := context.WithCancel(s.w.t.Context())
		defer cancel()
		go func() {
			<-daemon.done
			cancel()
		}()
		err := s.w.telegram.WaitFor(ctx, func(st telegramtest.State) bool {
			n := 0
			for _, c := range st.Calls(method) {
				if c.Done || !answered {
					n++
				}
			}
			return n >= nth
		})
		if err == nil {
			time.Sleep(after)
			daemon.cmd.Process.Kill() //nolint:errcheck // it may have been killed meanwhile
		}
	}()
	return func() bool {
		select {
		case <-daemon.done:
			return true
		default:
			return false
		}
	}
}

// fault draws something that goes wrong at Telegram.
func (s *storm) fault() telegramtest.Fault {
	methods := []string{"", "sendMessage", "sendMessage", "sendMessage", "editMessageText", "editMessageText", "answerCallbackQuery",
		"getUpdates", "getUpdates", "getMe", "getWebhookInfo"}
	f := telegramtest.Fault{Method: methods[s.rng.IntN(len(methods))], Skip: s.rng.IntN(3), Count: 1 + s.rng.IntN(3), After: s.oneIn(2)}
	actions := []telegramtest.Action{telegramtest.Drop(), telegramtest.Reset(), telegramtest.HTML(502), telegramtest.Delay(s.within(0, 4))}
	if f.After {
		actions = append(actions, telegramtest.CutShort(), telegramtest.Truncate(), telegramtest.EmptyBody(502))
	} else {
		actions = append(actions, telegramtest.Limited(time.Second), telegramtest.LimitedNoHeader(time.Second), telegramtest.Restarting())
	}
	f.Do = actions[s.rng.IntN(len(actions))]
	return f
}

// file makes a request: one class for a few cycles, so that no flood of one asker becomes a digest.
func (s *storm) file(i int) {
	a := &asking{
		key: fmt.Sprintf("kill:%05d", len(s.all)), asker: fmt.Sprintf("ci-%d", i/3), plan: plans[s.rng.IntN(len(plans))],
		restless: s.oneIn(2), due: i + 10 + s.rng.IntN(30),
	}
	args := []string{"request", a.key, "--class", "deploy." + a.asker, "--summary", "a storm", "--as", a.asker, "--wait"}
	if a.plan == planExpire {
		args = append(args, "--ttl", fmt.Sprintf("%dms", 1000+s.rng.IntN(2000)))
	}
	if s.oneIn(3) {
		args = append(args, "--irreversible")
	}
	a.waiter = s.w.start(args...)
	s.all, s.open, s.byKey[a.key] = append(s.all, a), append(s.open, a), a
}

var keyInCard = regexp.MustCompile(`kill:\d{5}`)

// shown are the messages about each request, oldest first.
func (s *storm) shown() map[string][]telegramtest.Message {
	found := map[string][]telegramtest.Message{}
	for _, m := range s.w.telegram.Messages(alice) {
		if key := keyInCard.FindString(m.Body()); key != "" {
			found[key] = append(found[key], m)
		}
	}
	return found
}

// step lets everybody act once, or not.
func (s *storm) step(i int) {
	shown := s.shown()
	for _, a := range s.open {
		s.act(a, shown[a.key], i)
	}
	if len(s.repeatable) == 0 {
		return
	}
	if s.oneIn(40) {
		var ids []int64
		for range 1 + s.rng.IntN(3) {
			ids = append(ids, s.repeatable[s.rng.IntN(len(s.repeatable))].Info().UpdateID)
		}
		s.w.telegram.Redeliver(ids...)
		s.redelivered += len(ids)
	}
	if s.oneIn(80) {
		s.taps = append(s.taps, s.repeatable[s.rng.IntN(len(s.repeatable))].Resend())
	}
	if s.oneIn(120) {
		s.phone.TapData("1a:AAAAAAAAAAAAAAAAAAAAAA") //nolint:errcheck // there may be no message yet
	}
}

// act does for one request what its plan says, by and by.
func (s *storm) act(a *asking, messages []telegramtest.Message, i int) {
	switch a.plan {
	case planApprove:
		s.press(a, messages, "Approve", 4, 1)
	case planReject:
		s.press(a, messages, "Reject", 4, 1)
	case planStay:
		if i >= a.due {
			s.press(a, messages, "Approve", 4, 1)
		}
	case planBoth:
		s.press(a, messages, []string{"Approve", "Reject"}[s.rng.IntN(2)], 6, 4)
	case planExpire:
		if a.restless {
			s.press(a, messages, "Approve", 60, 1)
		}
	case planWithdraw:
		if a.restless {
			s.press(a, messages, "Approve", 30, 1)
		}
		if p := a.withdrawal; p != nil {
			select {
			case <-p.done:
				if p.code() != 0 {
					a.withdrawal = nil // too early, or too late
				}
			default:
			}
		} else if s.oneIn(15) {
			a.withdrawal = s.w.start("withdraw", a.key, "--reason", "cancelled", "--as", a.asker)
			a.withdrawn++
		}
	}
	if a.restless && len(a.taps) > 0 && s.oneIn(40) {
		s.note(a, a.taps[len(a.taps)-1].Resend())
	}
}

// press taps any copy of a card once in n times, at most so often.
func (s *storm) press(a *asking, messages []telegramtest.Message, button string, n, most int) {
	if len(messages) == 0 || len(a.taps) >= most || !s.oneIn(n) {
		return
	}
	tap, err := s.phone.TapMessage(messages[s.rng.IntN(len(messages))], button)
	if err != nil {
		return // its buttons are gone
	}
	s.note(a, tap)
	if a.restless && s.oneIn(4) {
		s.note(a, tap.Resend())
	}
}

func (s *storm) note(a *asking, tap *telegramtest.Tap) {
	s.taps, a.taps = append(s.taps, tap), append(a.taps, tap)
	if a.restless {
		s.repeatable = append(s.repeatable, tap)
	}
}

// calm starts a daemon that nothing disturbs and waits until everything that can end has ended, and the rest is shown.
func (s *storm) calm(i int) *process {
	s.w.t.Helper()
	daemon := s.w.start("up")
	var left []string
	defer func() {
		if len(left) > 0 {
			s.w.t.Logf("neither shown nor done: %v", left)
		}
	}()
	s.w.until("everything to be shown and done", func() bool {
		select {
		case <-daemon.done:
			s.w.t.Fatalf("the daemon ended: %d", daemon.code())
		default:
		}
		s.step(i)
		shown := s.shown()
		s.open = slices.DeleteFunc(s.open, func(a *asking) bool {
			select {
			case <-a.waiter.done:
				if !a.restless {
					a.restless = true
					s.repeatable = append(s.repeatable, a.taps...)
				}
				return a.withdrawal == nil || a.withdrawal.code() >= 0
			default:
				return false
			}
		})
		left = nil
		for _, a := range s.open {
			if a.plan != planStay || i >= a.due || len(shown[a.key]) == 0 {
				left = append(left, fmt.Sprintf("%s (%s, %d cards, %d taps)", a.key, a.plan, len(shown[a.key]), len(a.taps)))
			}
		}
		return len(left) == 0
	})
	return daemon
}

// summary counts the ends.
func (s *storm) summary() string {
	ends := map[string]int{}
	for _, r := range s.w.records() {
		ends[r.Event]++
	}
	text := ""
	for _, event := range slices.Sorted(maps.Keys(ends)) {
		text += fmt.Sprintf("%s %d, ", event, ends[event])
	}
	messages := 0
	for _, m := range s.shown() {
		messages += len(m)
	}
	return text + fmt.Sprintf("%d cards, %d sends of unknown outcome, %d torn ends", messages, s.w.journalEvents("delivery.unknown"), s.torn)
}

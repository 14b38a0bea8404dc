package dispatch

import (
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

var (
	simSeed      = flag.Int64("sim.seed", -1, "run only the history of this seed")
	simHistories = flag.Int("sim.histories", 300, "how many random histories to run")
	simSteps     = flag.Int("sim.steps", 800, "steps of a history before it is let come to rest")
	simRequests  = flag.Int("sim.requests", 0, "at most so many keys in a history, 0 for any number")
	simWithout   = flag.String("sim.without", "", "acts to leave out, separated by commas")
)

// TestSimulation runs random histories. A failing one is made smaller, and the test says with which flags it can be run
// again, step for step.
func TestSimulation(t *testing.T) {
	base := simOptions{steps: *simSteps, requests: *simRequests, without: map[string]bool{}}
	for _, name := range strings.Split(*simWithout, ",") {
		base.without[name] = true
	}
	first, histories := uint64(0), *simHistories
	if testing.Short() {
		histories = min(histories, 50)
	}
	if *simSeed >= 0 {
		first, histories = uint64(*simSeed), 1
	}
	var next atomic.Int64
	var mu sync.Mutex
	var failed []simOptions
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for {
				i := next.Add(1) - 1
				mu.Lock()
				over := i >= int64(histories) || len(failed) > 0
				mu.Unlock()
				if over {
					return
				}
				o := base
				o.seed = first + uint64(i)
				if play(o) != nil {
					mu.Lock()
					failed = append(failed, o)
					mu.Unlock()
				}
			}
		})
	}
	workers.Wait()
	for _, o := range failed {
		small, f := shrink(o)
		t.Errorf("seed %d, step %d: %s\nsmallest: go test ./internal/dispatch -run 'Simulation$' %s", o.seed, f.step, f.text, small)
	}
}

// String is the history as flags.
func (o simOptions) String() string {
	s := fmt.Sprintf("-sim.seed=%d -sim.steps=%d", o.seed, o.steps)
	if o.requests > 0 {
		s += fmt.Sprintf(" -sim.requests=%d", o.requests)
	}
	names := slices.Sorted(maps.Keys(o.without))
	if names = slices.DeleteFunc(names, func(n string) bool { return n == "" }); len(names) > 0 {
		s += " -sim.without=" + strings.Join(names, ",")
	}
	return s
}

// maxShrinks bounds the histories that are played to make a failing one smaller.
const maxShrinks = 300

// shrink looks for a smaller history of the same seed that fails too, though perhaps in another way: without some kinds of
// acts, with fewer requests, with fewer steps.
func shrink(o simOptions) (simOptions, simFailure) {
	f := play(o)
	tries := 0
	try := func(smaller simOptions) bool {
		if tries++; tries > maxShrinks {
			return false
		}
		if found := play(smaller); found != nil {
			o, f = smaller, found
			return true
		}
		return false
	}
	for again := true; again; {
		again = false
		for _, a := range acts {
			if a.name == "effect" || a.name == "tell" || a.name == "ask" || o.without[a.name] {
				continue
			}
			smaller := o
			smaller.without = map[string]bool{a.name: true}
			maps.Copy(smaller.without, o.without)
			again = try(smaller) || again
		}
		for n := 1; n <= 3 && (o.requests == 0 || n < o.requests); n++ {
			smaller := o
			smaller.requests = n
			if try(smaller) {
				again = true
				break
			}
		}
		for cut := o.steps / 2; cut >= 1; cut /= 2 {
			for o.steps > cut {
				smaller := o
				smaller.steps -= cut
				if !try(smaller) {
					break
				}
				again = true
			}
		}
	}
	return o, *f
}

func TestASimulationIsTheSameEachTime(t *testing.T) {
	for seed := range uint64(5) {
		o := simOptions{seed: seed, steps: 300}
		if a, b := fingerprint(o), fingerprint(o); a != b {
			t.Errorf("seed %d: %x and %x", seed, a, b)
		}
	}
}

// TestAFailingHistoryIsMadeSmaller claims what is not true, and wants to see why in a few steps.
func TestAFailingHistoryIsMadeSmaller(t *testing.T) {
	o := simOptions{seed: 1, steps: 500, also: func(s *sim) string {
		for id, n := range s.reminders {
			if n > 0 {
				return fmt.Sprintf("%v was reminded of", id)
			}
		}
		return ""
	}}
	for play(o) == nil {
		o.seed++
	}
	small, f := shrink(o)
	if small.steps > o.steps*3/4 || len(small.without) < len(acts)/2 || !strings.Contains(f.text, "was reminded of") {
		t.Errorf("%s: %+v", small, f)
	}
	if again := play(small); again == nil || *again != f {
		t.Errorf("%s does not fail again in the same way: %+v", small, again)
	}
}

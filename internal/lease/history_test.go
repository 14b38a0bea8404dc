package lease

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// mutualExclusion is a lock as it must look from outside: it goes to a client
// only while nobody has it, and comes back from whoever has it. Refusals are
// always allowed.
var mutualExclusion = porcupine.Model{
	Init: func() any { return 0 },
	Step: func(state, input, output any) (bool, any) {
		owner, op, done := state.(int), input.(lockOp), output.(bool)
		switch {
		case !done:
			return true, owner
		case op.take:
			return owner == 0, op.client
		default:
			return owner == op.client, 0
		}
	},
	DescribeOperation: func(input, output any) string {
		op := input.(lockOp)
		return fmt.Sprintf("client %d take %v: %v", op.client, op.take, output)
	},
}

type lockOp struct {
	client int // from 1
	take   bool
}

// history lets processes of a role take and release at random for a while and
// returns what they did and when. Operations that were cut off by a kill are
// taken to have no effect beyond the kill, which releases.
func history(t *testing.T, role string, clients, opsEach int) []porcupine.Operation {
	t.Helper()
	g := newGate(t)
	var mu sync.Mutex
	var ops []porcupine.Operation
	begin := time.Now()
	var all sync.WaitGroup
	for c := 1; c <= clients; c++ {
		p := start(t, role, g)
		p.expect("ready")
		all.Go(func() {
			random := rand.New(rand.NewPCG(7, uint64(c)))
			record := func(take bool, line string) bool {
				call := time.Since(begin)
				answer, ok := p.ask(line)
				done := ok && (strings.HasPrefix(answer, "held") || answer == "ok")
				mu.Lock()
				defer mu.Unlock()
				ops = append(ops, porcupine.Operation{
					ClientId: c - 1, Input: lockOp{c, take}, Output: done,
					Call: call.Nanoseconds(), Return: time.Since(begin).Nanoseconds(),
				})
				return done
			}
			for range opsEach {
				if !record(true, "take") {
					continue
				}
				time.Sleep(time.Duration(random.IntN(3)) * time.Millisecond)
				if !record(false, "release") {
					return
				}
			}
		})
	}
	all.Wait()
	return ops
}

func takes(ops []porcupine.Operation) (n int) {
	for _, op := range ops {
		if op.Input.(lockOp).take && op.Output.(bool) {
			n++
		}
	}
	return n
}

func TestHistoryIsMutuallyExclusive(t *testing.T) {
	ops := history(t, "holder", 4, 40)
	if n := takes(ops); n < 20 {
		t.Fatalf("%d takes only: the history shows nothing", n)
	}
	if result := porcupine.CheckOperationsTimeout(mutualExclusion, ops, time.Minute); result != porcupine.Ok {
		t.Errorf("check = %v", result)
	}
}

// TestHistoryCheckCanFail: the same check finds a lock out that looks and then
// takes in two steps.
func TestHistoryCheckCanFail(t *testing.T) {
	ops := history(t, "broken", 4, 40)
	if result := porcupine.CheckOperationsTimeout(mutualExclusion, ops, time.Minute); result != porcupine.Illegal {
		t.Errorf("check = %v for a broken lock with %d takes", result, takes(ops))
	}
}

// brokenRole is a lock that is wrong on purpose.
func brokenRole(home string, lines *bufio.Scanner) int {
	os.MkdirAll(home, 0o700)
	path := filepath.Join(home, "broken.lock")
	fmt.Println("ready")
	for lines.Scan() {
		if lines.Text() == "release" {
			os.Remove(path)
			fmt.Println("ok")
			continue
		}
		if _, err := os.Lstat(path); err == nil {
			fmt.Println("refused")
			continue
		}
		time.Sleep(2 * time.Millisecond)
		os.WriteFile(path, nil, 0o600)
		fmt.Println("held")
	}
	return 0
}

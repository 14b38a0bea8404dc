//go:build all

package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

// soakVariable is how long the daemon lives in the soak, as Go writes durations:
// APPROVALD_SOAK=5m go test -tags all -timeout 20m -run TestSoak -v ./internal/e2e
const soakVariable = "APPROVALD_SOAK"

// TestSoak has one daemon live while everything around it comes and goes: the Bot API server, its limits, connections, agents, commands
// that write the log's files themselves, people, archiving, and orders to read the configuration again. At rest it has no more memory,
// descriptors, goroutines or watches than near its beginning, and nobody was forgotten.
func TestSoak(t *testing.T) {
	t.Parallel()
	length, rounds := 12*time.Second, 3
	if text := os.Getenv(soakVariable); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", soakVariable, err)
		}
		rounds = 6
	}
	w := newWorld(t, watched, func(_ *world, config string) string {
		return "reminder = 0.5\n" + config + "[requests]\nmax_pending = 100000\nper_requester_per_hour = 100000\n"
	})
	s := &soak{world: w, rng: rand.New(rand.NewPCG(1, 2)), direct: slices.Clone(w.env)}
	// Commands with another runtime directory do not find the socket and write the files themselves.
	s.direct = append(s.direct, "XDG_RUNTIME_DIR="+w.dir)
	w.env = append(w.env, "GOGC=50")
	s.daemon = w.up()

	for range rounds { // before the first look: pools, buffers and connections are there by then
		s.round()
	}
	first := s.rest()
	t.Logf("after %d rounds: %v", s.rounds, first)
	last := first
	var all []figures
	for end := time.Now().Add(length); time.Now().Before(end); {
		s.round()
		if s.rounds%rounds == 0 {
			last = s.rest()
			all = append(all, last)
			t.Logf("after %d rounds: %v", s.rounds, last)
		}
	}
	if len(all) == 0 {
		all = append(all, s.rest())
	}
	t.Logf("%d requests, %d commands, %d decided by taps in %v", s.requests, s.commands, s.decided, length)
	// What a moment adds is no growth: of the looks after the first, the smallest counts.
	best := slices.MinFunc(all, func(a, b figures) int { return a.heap - b.heap })
	if best.heap > first.heap*5/4+2<<20 {
		t.Errorf("the heap grew from %d to %d bytes", first.heap, best.heap)
	}
	// A little for each request would not show in that, but in the trend over a long run.
	if half := len(all) / 2; half >= 3 {
		least := func(list []figures) figures {
			return slices.MinFunc(list, func(a, b figures) int { return a.heap - b.heap })
		}
		early, late := least(all[:half]), least(all[half:])
		if grown := late.heap - early.heap; grown > 512<<10 {
			t.Errorf("the heap grows: %d bytes at the least in the first half, %d in the second", early.heap, late.heap)
		}
	}
	for what, grown := range map[string]func(figures) int{
		"descriptors":     func(f figures) int { return f.descriptors },
		"goroutines":      func(f figures) int { return f.goroutines },
		"inotify watches": func(f figures) int { return f.watches },
		// Each look comes after an archiving, which cuts the journal too.
		"4 KiB of the journal": func(f figures) int { return f.journal >> 12 },
	} {
		least := grown(slices.MinFunc(all, func(a, b figures) int { return grown(a) - grown(b) }))
		if least > grown(first)+3 {
			t.Errorf("%s grew from %d to %d", what, grown(first), least)
		}
	}
	if status := w.status(); status.Pending != 0 || status.Unsettled != 0 {
		t.Errorf("left at rest: %+v", status)
	}
	w.stopInTime(s.daemon)
	w.run(0, "log", "verify")
}

type soak struct {
	*world
	daemon                              *process
	rng                                 *rand.Rand
	direct                              []string // environment of commands that do not find the socket
	rounds, requests, commands, decided int
}

// round is one bout: requests from both sides, a blow from outside, people who answer, and the end of all that was asked.
func (s *soak) round() {
	s.rounds++
	var waiters []*process
	for i := range 3 {
		s.requests++
		key := fmt.Sprintf("soak:%d#%d", s.rounds, i)
		args := []string{"request", key, "--class", "deploy.production", "--summary", "soak", "--wait", "--as", "agent" + strconv.Itoa(i)}
		if i == 2 {
			waiters = append(waiters, s.directly(args...))
			continue
		}
		waiters = append(waiters, s.world.start(args...))
	}
	s.blow()
	gone := s.directly("request", fmt.Sprintf("soak:%d#gone", s.rounds), "--class", "deploy.production", "--summary", "s", "--wait", "--timeout", "50ms", "--withdraw-on-timeout")
	for _, args := range [][]string{{"queue"}, {"status"}, {"lease"}} {
		s.commands++
		s.run(0, args...)
	}
	for _, p := range waiters {
		card := s.card(s.daemon, p.args[1])
		button := []string{"Approve", "Reject"}[s.rng.IntN(2)]
		for ended := false; !ended; {
			if _, err := s.telegram.Phone(alice).TapStale(card, button); err != nil {
				s.t.Fatal(err)
			}
			select {
			case <-p.done:
				ended = true
			case <-time.After(2 * time.Second): // the tap was lost with a connection: a person taps again
			}
		}
		if code := p.code(); code != map[string]int{"Approve": 0, "Reject": 3}[button] {
			s.t.Errorf("%s after %s: exit code %d: %s", p.args[1], button, code, p.stderr.String())
		}
		s.decided++
	}
	gone.code()
	if s.rounds%4 == 0 {
		s.commands++
		s.run(0, "log", "archive", "--carry")
	}
	if s.rounds%3 == 0 {
		s.daemon.signal(syscall.SIGHUP)
	}
}

// blow is something that happens around the daemon.
func (s *soak) blow() {
	fault := func(method string, do telegramtest.Action, count int) {
		s.telegram.Fault(telegramtest.Fault{Method: method, Do: do, Count: count})
	}
	switch s.rounds % 6 {
	case 0:
		s.telegram.Offline()
		time.Sleep(300 * time.Millisecond) // how long it is away; nothing is waited for
		s.must(s.telegram.Online())
	case 1:
		fault("sendMessage", telegramtest.Limited(time.Second), 1)
	case 2:
		fault("", telegramtest.Reset(), 3)
	case 3:
		fault("getUpdates", telegramtest.Fail(502, "Bad Gateway"), 2)
	case 4:
		fault("editMessageText", telegramtest.CutShort(), 1)
	case 5:
		for range 5 { // a flood of strangers
			if _, err := s.telegram.Phone(alice).TapData("nonsense"); err != nil {
				break
			}
		}
	}
}

// directly starts a command that writes the gate's files itself.
func (s *soak) directly(args ...string) *process {
	env := s.env
	s.env = s.direct
	defer func() { s.env = env }()
	return s.world.start(args...)
}

// figures are what a daemon has at rest.
type figures struct{ heap, descriptors, goroutines, watches, journal int }

func (f figures) String() string {
	return fmt.Sprintf("heap %d KiB, %d descriptors, %d goroutines, %d inotify watches, journal %d KiB", f.heap>>10, f.descriptors, f.goroutines, f.watches, f.journal>>10)
}

// rest waits until nothing is left to do and takes the figures: of several looks the least each, since a scrape and a poll have their
// own share, and the heap right after a collection is the least of many.
func (s *soak) rest() figures {
	s.t.Helper()
	s.telegram.ClearFaults()
	s.until("the daemon to come to rest", func() bool {
		st := s.status()
		return st.Pending == 0 && st.Unsettled == 0
	})
	s.commands++
	s.run(0, "log", "archive")
	least := figures{1 << 60, 1 << 30, 1 << 30, 1 << 30, 1 << 60}
	for range 60 {
		status, scrape := s.look("/metrics")
		if status != http.StatusOK {
			s.t.Fatalf("%d %s", status, scrape)
		}
		value := func(series string) int {
			v, err := strconv.ParseFloat(sample(scrape, series), 64)
			s.must(err)
			return int(v)
		}
		least.heap = min(least.heap, value("go_memstats_heap_alloc_bytes"))
		least.descriptors = min(least.descriptors, value("process_open_fds"))
		least.goroutines = min(least.goroutines, value("go_goroutines"))
	}
	infos, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", s.daemon.cmd.Process.Pid))
	s.must(err)
	least.watches = 0
	for _, info := range infos {
		text, _ := os.ReadFile(info) //nolint:errcheck // it was closed meanwhile
		least.watches += strings.Count(string(text), "inotify wd:")
	}
	if info, err := os.Stat(s.journalFile()); err == nil {
		least.journal = int(info.Size())
	}
	return least
}

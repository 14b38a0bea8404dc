package lease

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRace: of eight processes that start at once exactly one holds, each
// round, whatever the holder of the round before did to end.
func TestRace(t *testing.T) { race(t, newDiskGate(t), 8, 12, nil) }

// race runs rounds of racing processes. Between rounds the holder releases, is
// killed, or is killed while stopped; a loser may be stopped for a while. wrap,
// when given, is put before the command line of each second process.
func race(t *testing.T, g gate, racers, rounds int, wrap []string) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, uint64(rounds)))
	procs := make([]*process, racers)
	spawnRacer := func(i int) {
		var w []string
		if i%2 == 1 {
			w = slices.Clone(wrap)
		}
		procs[i] = start(t, "holder", g, w...)
		procs[i].expect("ready")
	}
	for i := range procs {
		spawnRacer(i)
	}
	for round := range rounds {
		stopped := -1
		if random.IntN(3) == 0 {
			stopped = random.IntN(racers)
			procs[stopped].stop()
		}
		for _, p := range procs {
			p.tell("take")
		}
		if stopped >= 0 {
			procs[stopped].signal(unix.SIGCONT)
		}
		holder, refused := -1, 0
		for i, p := range procs {
			switch line := p.hear(); {
			case strings.HasPrefix(line, "held"):
				if holder >= 0 {
					t.Fatalf("round %d: %d and %d both hold", round, holder, i)
				}
				holder = i
			case strings.HasPrefix(line, "refused "+CodePollerRunning):
				refused++
			default:
				t.Fatalf("round %d: process %d says %q", round, i, line)
			}
		}
		if holder < 0 || refused != racers-1 {
			t.Fatalf("round %d: holder %d, %d refused", round, holder, refused)
		}
		h := procs[holder]
		switch random.IntN(3) {
		case 0:
			h.tell("release")
			h.expect("ok")
		case 1:
			h.kill()
			spawnRacer(holder)
		default:
			h.stop()
			probe := procs[(holder+1)%racers]
			probe.tell("take")
			probe.expect("refused " + CodePollerRunning)
			if random.IntN(2) == 0 {
				h.signal(unix.SIGCONT)
				h.tell("check")
				h.expect("ok")
				h.tell("release")
				h.expect("ok")
			} else {
				h.kill()
				spawnRacer(holder)
			}
		}
	}
}

// TestStoppedHolderKeepsItsLease: a suspended machine is not a loss.
func TestStoppedHolderKeepsItsLease(t *testing.T) {
	g := newGate(t)
	p := start(t, "holder", g)
	p.expect("ready")
	p.tell("take")
	p.expect("held")
	p.stop()
	begin := time.Now()
	_, err := Acquire(t.Context(), g.options())
	held := wantHeld(t, err)
	if took := time.Since(begin); took > time.Second {
		t.Errorf("refused after %v", took)
	}
	if held.Holder.PID != p.pid() {
		t.Errorf("holder = %+v, want pid %d", held.Holder, p.pid())
	}
	p.signal(unix.SIGCONT)
	p.tell("check")
	p.expect("ok")
}

// TestStoppedHolderWakesToALostLease: one that was robbed of its files while
// it was stopped finds out before it sends anything.
func TestStoppedHolderWakesToALostLease(t *testing.T) {
	g := newGate(t)
	p := start(t, "holder", g)
	p.expect("ready")
	p.tell("take")
	p.expect("held")
	p.stop()
	for _, path := range []string{g.record(), g.flock()} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	l := mustAcquire(t, g.options())
	p.tell("check")
	p.signal(unix.SIGCONT)
	p.expect("error the gate's transport lease is unavailable")
	if err := l.Check(); err != nil {
		t.Errorf("the successor's Check: %v", err)
	}
}

// TestLockFileRemovedUnderALiveHolder: the newcomer locks a file of its own and
// waits until the other has noticed; they never hold together.
func TestLockFileRemovedUnderALiveHolder(t *testing.T) {
	g := newGate(t)
	p := start(t, "holder", g)
	p.expect("ready")
	p.tell("take")
	p.expect("held")
	p.stop() // so that the newcomer is surely first
	if err := os.Remove(g.flock()); err != nil {
		t.Fatal(err)
	}
	type result struct {
		l   *Lease
		err error
	}
	taking := make(chan result, 1)
	go func() {
		l, err := Acquire(t.Context(), g.options())
		taking <- result{l, err}
	}()
	waitUntil(t, func() bool { return kernelLocked(t, g) })
	p.tell("check")
	p.tell("release")
	p.signal(unix.SIGCONT)
	p.expect("error the gate's transport lease is unavailable")
	p.expect("ok")
	r := <-taking
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer r.l.Release()
	if err := r.l.Check(); err != nil {
		t.Error(err)
	}
}

// TestRecycledNumber: the record names a number that some other program has.
func TestRecycledNumber(t *testing.T) {
	g := newGate(t)
	p := start(t, "sleeper", g)
	p.expect("sleeping")
	g.write(t, g.record(), foreignText(p.pid(), ModePoll, time.Now().Add(-time.Hour)))
	l := mustAcquire(t, g.options())
	if reason, _ := l.Takeover(); reason != ReasonRecycled {
		t.Errorf("reason = %q", reason)
	}
}

// TestChildInheritsNothing: a child that outlives a killed holder does not keep
// the lease from the next one.
func TestChildInheritsNothing(t *testing.T) {
	g := newGate(t)
	p := start(t, "holder", g)
	p.expect("ready")
	p.tell("take")
	p.expect("held")
	p.tell("spawn")
	child, err := strconv.Atoi(strings.TrimPrefix(p.expect("child "), "child "))
	if err != nil {
		t.Fatal(err)
	}
	p.expect("ok")
	defer unix.Kill(child, unix.SIGKILL)
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", child))
	if err != nil || len(fds) == 0 {
		t.Fatalf("descriptors of the child: %v, %v", fds, err)
	}
	for _, fd := range fds {
		if target, _ := os.Readlink(fd); strings.HasPrefix(target, g.home) {
			t.Errorf("the child has %s", target)
		}
	}
	p.kill()
	if err := unix.Kill(child, 0); err != nil {
		t.Fatalf("the child ended: %v", err)
	}
	l := mustAcquire(t, g.options())
	if reason, _ := l.Takeover(); reason != ReasonGone {
		t.Errorf("reason = %q", reason)
	}
}

// TestStandbyTakesOver: whatever ends the holder, the standby follows.
func TestStandbyTakesOver(t *testing.T) {
	for name, end := range map[string]func(p *process){
		"killed":              (*process).kill,
		"released":            func(p *process) { p.tell("release"); p.expect("ok") },
		"killed when stopped": func(p *process) { p.stop(); p.kill() },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate(t)
			holder, standby := start(t, "holder", g), start(t, "standby", g)
			holder.expect("ready")
			standby.expect("ready")
			holder.tell("take")
			holder.expect("held")
			standby.tell("take")
			standby.expect("waiting")
			cpu := cpuTime(t, standby.pid())
			end(holder)
			standby.expect("held")
			if used := cpuTime(t, standby.pid()) - cpu; used > time.Second {
				t.Errorf("the standby used %v of processor time", used)
			}
		})
	}
}

// TestStandbyBehindALockFileThatIsReplaced: a waiter on an unlinked file is
// never left behind, and never holds together with a newcomer.
func TestStandbyBehindALockFileThatIsReplaced(t *testing.T) {
	g := newGate(t)
	holder, standby := start(t, "holder", g), start(t, "standby", g)
	holder.expect("ready")
	standby.expect("ready")
	holder.tell("take")
	holder.expect("held")
	standby.tell("take")
	standby.expect("waiting")
	for range 20 {
		if err := os.Remove(g.flock()); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	// Whoever locks the new file first has the lease; the other one waits or stops.
	holder.tell("check")
	if strings.HasPrefix(holder.hear(), "ok") {
		holder.kill()
	} else {
		holder.tell("release")
		holder.expect("ok")
	}
	standby.expect("held")
	_, err := Acquire(t.Context(), g.options())
	wantHeld(t, err)
}

func TestStandbyBehindAForeignHolder(t *testing.T) {
	g := newGate(t)
	holder, standby := start(t, "foreign", g), start(t, "standby", g)
	holder.expect("ready")
	standby.expect("ready")
	holder.tell("take")
	holder.expect("held")
	standby.tell("take")
	standby.expect("waiting")
	holder.kill()
	standby.expect("held")
}

func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(rest)
	user, err1 := strconv.Atoi(fields[11])
	sys, err2 := strconv.Atoi(fields[12])
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return time.Duration(user+sys) * 10 * time.Millisecond
}

// TestWithTheOtherImplementation: both directions.
func TestWithTheOtherImplementation(t *testing.T) {
	t.Run("it holds and we refuse", func(t *testing.T) {
		g := newGate(t)
		other := start(t, "foreign", g)
		other.expect("ready")
		other.tell("take")
		other.expect("held")
		_, err := Acquire(t.Context(), g.options())
		if held := wantHeld(t, err); held.Holder.PID != other.pid() || !held.Holder.Foreign {
			t.Errorf("holder = %+v", held.Holder)
		}
		other.tell("release")
		other.expect("ok")
		mustAcquire(t, g.options())
	})
	t.Run("we hold and it refuses", func(t *testing.T) {
		g := newGate(t)
		l := mustAcquire(t, g.options())
		if err := l.SetEpoch(2); err != nil {
			t.Fatal(err)
		}
		other := start(t, "foreign", g)
		other.expect("ready")
		other.tell("take")
		other.expect("refused")
		l.Release()
		other.tell("take")
		other.expect("held")
	})
	t.Run("it dies and we take over", func(t *testing.T) {
		g := newGate(t)
		other := start(t, "foreign", g)
		other.expect("ready")
		other.tell("take")
		other.expect("held")
		other.kill()
		if reason, _ := mustAcquire(t, g.options()).Takeover(); reason != ReasonGone {
			t.Errorf("reason = %q", reason)
		}
	})
	t.Run("both race on a dead record", func(t *testing.T) { raceForeign(t, newGate(t), 10) })
}

// raceForeign lets two of each kind race for a record whose process is gone.
// The other implementation may replace a record of ours that it has just
// judged, as its own rules have a hole there; ours then must know that it lost.
func raceForeign(t *testing.T, g gate, rounds int) {
	t.Helper()
	dead := deadPid(t)
	kinds := []string{"holder", "foreign", "holder", "foreign"}
	procs := make([]*process, len(kinds))
	for i, kind := range kinds {
		procs[i] = start(t, kind, g)
		procs[i].expect("ready")
	}
	for round := range rounds {
		g.write(t, g.record(), foreignText(dead, ModePoll, time.Now().Add(-time.Minute)))
		for _, p := range procs {
			p.tell("take")
		}
		var holders []int
		for i, p := range procs {
			if strings.HasPrefix(p.hear(), "held") {
				holders = append(holders, i)
			}
		}
		var sure []int
		for _, i := range holders {
			if kinds[i] == "holder" {
				procs[i].tell("check")
				if procs[i].hear() != "ok" {
					continue
				}
			}
			sure = append(sure, i)
		}
		if len(sure) != 1 {
			t.Fatalf("round %d: %v hold (answered held: %v)", round, sure, holders)
		}
		for _, i := range holders {
			procs[i].tell("release")
			procs[i].expect("ok")
		}
	}
}

// TestManyStandbys: each end of a holder makes exactly one of the waiting the
// next, though all of them wait on one file.
func TestManyStandbys(t *testing.T) {
	g := newGate(t)
	type won struct {
		p    *process
		line string
	}
	const standbys = 4
	wins := make(chan won, standbys)
	for range standbys {
		p := start(t, "standby", g)
		p.expect("ready")
		go func() {
			for line, ok := p.ask("take"); ok; line, ok = <-p.lines {
				if line != "waiting" {
					wins <- won{p, line}
					return
				}
			}
		}()
	}
	for range standbys {
		w := <-wins
		if !strings.HasPrefix(w.line, "held") {
			t.Fatalf("a standby says %q", w.line)
		}
		_, err := Acquire(t.Context(), g.options())
		if held := wantHeld(t, err); held.Holder.PID != w.p.pid() {
			t.Errorf("holder = %+v, want pid %d", held.Holder, w.p.pid())
		}
		if n := len(wins); n > 0 {
			t.Fatalf("%d more hold beside the holder", n)
		}
		w.p.kill()
	}
	mustAcquire(t, g.options())
}

// Package procid tells one process from every other that ever had its number.
//
// A pid alone names nobody: the kernel hands it out again, every pid namespace
// has its own pid 1, and a reboot starts the count anew. An Identity therefore
// holds the kernel's boot id, the pid namespace, the pid and the start time in
// clock ticks since boot (field 22 of /proc/PID/stat). None of them depends on
// the wall clock, and none on the time stamps of files under /proc, which are
// those of an inode that the kernel makes and forgets as it likes.
//
// What it guarantees: a process that lives is never judged dead. What it does
// not: that every dead one is recognised. A process that cannot be examined
// (another pid namespace, an unreadable /proc, a missing field) counts as alive.
package procid

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Identity names one process of one machine for good. The JSON names are those
// that a log's append lock uses.
type Identity struct {
	// BootID is the kernel's boot id, a UUID that changes with every boot.
	BootID string `json:"boot"`
	// PIDNS is the pid namespace in which PID counts, as /proc/self/ns/pid
	// links it: "pid:[4026531836]".
	PIDNS string `json:"pidns"`
	// PID is the process's number inside PIDNS.
	PID int `json:"pid"`
	// StartTicks is the process's start in clock ticks since boot; 0 is unknown.
	StartTicks uint64 `json:"start"`
	// TimeNS is the time namespace, as /proc/self/ns/time links it. A start
	// read in another one is shifted and cannot be compared. Empty is unknown.
	TimeNS string `json:"timens,omitempty"`
}

// Verdict says what became of an identified process.
type Verdict int

// The verdicts. Only those of which Dead is true allow anything to be taken
// from the process.
const (
	// Unknown: the process could not be examined. Counts as alive.
	Unknown Verdict = iota
	// Alive: the very process runs (or is stopped, or belongs to another user).
	Alive
	// Gone: no process has this number.
	Gone
	// Zombie: the process has ended and only waits to be reaped.
	Zombie
	// Recycled: the number belongs to a process with another start.
	Recycled
	// OtherBoot: the machine was restarted since.
	OtherBoot
	// OtherNamespace: the number counts in a pid namespace that cannot be seen
	// into from here. Counts as alive.
	OtherNamespace
)

var verdictNames = [...]string{
	Unknown: "unknown", Alive: "alive", Gone: "gone", Zombie: "zombie",
	Recycled: "recycled", OtherBoot: "other-boot", OtherNamespace: "other-namespace",
}

// String gives the verdict's lower-case name.
func (v Verdict) String() string {
	if v < 0 || int(v) >= len(verdictNames) {
		return "verdict(" + strconv.Itoa(int(v)) + ")"
	}
	return verdictNames[v]
}

// Dead reports whether the process has certainly ended. Everything that is not
// known for certain is alive.
func (v Verdict) Dead() bool {
	switch v {
	case Gone, Zombie, Recycled, OtherBoot:
		return true
	default:
		return false
	}
}

// Prober looks processes up. Its zero value asks the real /proc and the real
// kernel; tests replace one part or another.
type Prober struct {
	// ProcRoot is where procfs is mounted; empty is /proc.
	ProcRoot string
	// BootID replaces the kernel's boot id.
	BootID func() (string, error)
	// Kill replaces kill(2), which is only ever called with signal 0.
	Kill func(pid int, sig syscall.Signal) error
}

// Self identifies the calling process. It fails when /proc is not mounted or
// cannot be read.
func Self() (Identity, error) { return Prober{}.Self() }

// Self identifies the calling process as p sees it.
func (p Prober) Self() (Identity, error) {
	boot, err := p.Boot()
	if err != nil {
		return Identity{}, err
	}
	pidns, err := os.Readlink(p.path("self", "ns", "pid"))
	if err != nil {
		return Identity{}, fmt.Errorf("read the own pid namespace: %w", err)
	}
	stat, err := p.stat("self")
	if err != nil {
		return Identity{}, fmt.Errorf("read the own start time: %w", err)
	}
	// Kernels without time namespaces have no such link.
	timens, err := os.Readlink(p.path("self", "ns", "time"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Identity{}, fmt.Errorf("read the own time namespace: %w", err)
	}
	numbers, err := p.ownNumbers()
	if err != nil {
		return Identity{}, fmt.Errorf("read the own pid: %w", err)
	}
	pid := numbers[len(numbers)-1]
	return Identity{BootID: boot, PIDNS: pidns, PID: pid, StartTicks: stat.StartTicks, TimeNS: timens}, nil
}

// Boot returns the kernel's boot id.
func (p Prober) Boot() (string, error) {
	if p.BootID != nil {
		return p.BootID()
	}
	raw, err := os.ReadFile(p.path("sys", "kernel", "random", "boot_id"))
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	id := strings.TrimSpace(string(raw))
	if id == "" {
		return "", errors.New("read the boot id: empty")
	}
	return id, nil
}

// Judge says whether the identified process still lives, and why it thinks so
// in words for a person. It errs only towards life.
func (p Prober) Judge(id Identity) (Verdict, string) {
	if id.PID <= 0 {
		return Unknown, fmt.Sprintf("%d is no pid", id.PID)
	}
	boot, err := p.Boot()
	if err != nil {
		return Unknown, err.Error()
	}
	if id.BootID == "" {
		return Unknown, "the boot in which it ran is not recorded"
	}
	if id.BootID != boot {
		return OtherBoot, "the machine was restarted since"
	}
	pidns, err := os.Readlink(p.path("self", "ns", "pid"))
	if err != nil {
		return Unknown, "the own pid namespace cannot be read: " + err.Error()
	}
	if id.PIDNS != pidns {
		return OtherNamespace, "it runs in another pid namespace and cannot be seen from this one"
	}
	verdict, stat, why := p.Look(id.PID)
	if verdict != Alive {
		return verdict, why
	}
	return p.compareStart(id, stat)
}

// compareStart tells the process from a later one under the same number.
func (p Prober) compareStart(id Identity, stat Stat) (Verdict, string) {
	if id.StartTicks == 0 || stat.StartTicks == 0 {
		return Alive, fmt.Sprintf("process %d runs; its start cannot be compared", id.PID)
	}
	if stat.StartTicks == id.StartTicks {
		return Alive, fmt.Sprintf("process %d runs and has the recorded start", id.PID)
	}
	if id.TimeNS != "" {
		timens, err := os.Readlink(p.path("self", "ns", "time"))
		if err != nil || timens != id.TimeNS {
			return Unknown, "its start was recorded in another time namespace and cannot be compared"
		}
	}
	return Recycled, fmt.Sprintf("number %d now belongs to a process with another start", id.PID)
}

// Look says whether any process has this number in the own pid namespace:
// Alive, Gone, Zombie or Unknown, and why. The Stat is set only when Alive, and
// even then zero when /proc hides the process.
func (p Prober) Look(pid int) (Verdict, Stat, string) {
	numbers, err := p.ownNumbers()
	if err != nil {
		return Unknown, Stat{}, "/proc cannot be read: " + err.Error()
	}
	if len(numbers) > 1 {
		// This /proc belongs to an outer pid namespace and shows some other
		// process under the number. Only kill(2) counts in the own one.
		return p.signal(pid)
	}
	stat, err := p.stat(strconv.Itoa(pid))
	switch {
	case err == nil && stat.ended():
		return Zombie, Stat{}, fmt.Sprintf("process %d has ended and waits to be reaped", pid)
	case err == nil:
		return Alive, stat, fmt.Sprintf("process %d runs", pid)
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH):
		return Unknown, Stat{}, fmt.Sprintf("process %d cannot be examined: %v", pid, err)
	}
	// An entry may be absent because /proc hides other users' processes
	// (hidepid), so its absence alone proves nothing.
	return p.signal(pid)
}

// signal asks kill(2) whether the number is taken.
func (p Prober) signal(pid int) (Verdict, Stat, string) {
	switch err := p.kill(pid); {
	case errors.Is(err, syscall.ESRCH):
		return Gone, Stat{}, fmt.Sprintf("there is no process %d", pid)
	case errors.Is(err, syscall.EPERM):
		return Alive, Stat{}, fmt.Sprintf("process %d runs and belongs to another user", pid)
	case err != nil:
		return Unknown, Stat{}, fmt.Sprintf("process %d cannot be examined: %v", pid, err)
	default:
		return Alive, Stat{}, fmt.Sprintf("process %d runs but /proc does not show it", pid)
	}
}

func (p Prober) kill(pid int) error {
	if p.Kill != nil {
		return p.Kill(pid, 0)
	}
	return syscall.Kill(pid, 0)
}

func (p Prober) path(elem ...string) string {
	root := p.ProcRoot
	if root == "" {
		root = "/proc"
	}
	return filepath.Join(append([]string{root}, elem...)...)
}

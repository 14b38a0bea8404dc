package procid

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is USER_HZ, in which the kernel reports start times. It is 100
// on every architecture that Go's linux ports know.
const ticksPerSecond = 100

// Stat is what /proc/PID/stat says that matters here.
type Stat struct {
	// PID is field 1.
	PID int
	// State is field 3: R, S, D, T, t, Z, X and so on.
	State byte
	// StartTicks is field 22, clock ticks since boot.
	StartTicks uint64
}

// ended reports a zombie or a process that is being torn down.
func (s Stat) ended() bool { return s.State == 'Z' || s.State == 'X' || s.State == 'x' }

// SinceBoot is the process's start as time since boot, to 10 ms.
func (s Stat) SinceBoot() time.Duration {
	return time.Duration(s.StartTicks) * (time.Second / ticksPerSecond)
}

// ParseStat reads the text of a /proc/PID/stat. The second field is the
// program's name in parentheses and may itself hold spaces, parentheses and
// line feeds, so the fields after it are counted from the last ')'.
func ParseStat(text []byte) (Stat, error) {
	open := bytes.IndexByte(text, '(')
	end := bytes.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return Stat{}, errors.New("process stat: no name in parentheses")
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text[:open])))
	if err != nil || pid <= 0 {
		return Stat{}, fmt.Errorf("process stat: bad pid %q", text[:open])
	}
	const state, start = 3, 22
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) <= start-state || len(fields[0]) != 1 {
		return Stat{}, fmt.Errorf("process stat: %d fields after the name", len(fields))
	}
	ticks, err := strconv.ParseUint(fields[start-state], 10, 64)
	if err != nil {
		return Stat{}, fmt.Errorf("process stat: bad start time %q", fields[start-state])
	}
	return Stat{PID: pid, State: fields[0][0], StartTicks: ticks}, nil
}

func (p Prober) stat(pid string) (Stat, error) {
	raw, err := os.ReadFile(p.path(pid, "stat"))
	if err != nil {
		return Stat{}, err
	}
	return ParseStat(raw)
}

// UID returns the real user id of a process, from /proc/PID/status. The owner
// of the directory /proc/PID is not it: that is root for a process that may not
// be dumped.
func (p Prober) UID(pid int) (uint32, error) {
	fields, err := p.statusLine(strconv.Itoa(pid), "Uid:")
	if err != nil {
		return 0, fmt.Errorf("read the owner of process %d: %w", pid, err)
	}
	uid, err := strconv.ParseUint(fields[0], 10, 32)
	if err != nil {
		return 0, fmt.Errorf("read the owner of process %d: bad Uid %q", pid, fields[0])
	}
	return uint32(uid), nil
}

// ownNumbers returns the calling process's pids, from that in the pid namespace
// of this mount of /proc to that in its own. One number: the two are the same.
func (p Prober) ownNumbers() ([]int, error) {
	fields, err := p.statusLine("self", "NSpid:")
	if err != nil {
		return nil, err
	}
	numbers := make([]int, len(fields))
	for i, field := range fields {
		if numbers[i], err = strconv.Atoi(field); err != nil || numbers[i] <= 0 {
			return nil, fmt.Errorf("bad NSpid %q", fields)
		}
	}
	return numbers, nil
}

// statusLine returns the fields, at least one, after a name in /proc/PID/status.
func (p Prober) statusLine(pid, name string) ([]string, error) {
	raw, err := os.ReadFile(p.path(pid, "status"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			if fields := strings.Fields(value); len(fields) > 0 {
				return fields, nil
			}
			break
		}
	}
	return nil, fmt.Errorf("no %s in %s", strings.TrimSuffix(name, ":"), p.path(pid, "status"))
}

// BootTime returns when the machine started by its wall clock, to a second
// (btime of /proc/stat). It moves when that clock is set, so it serves only to
// compare with a time stamp that somebody else took from the same clock.
func (p Prober) BootTime() (time.Time, error) {
	raw, err := os.ReadFile(p.path("stat"))
	if err != nil {
		return time.Time{}, fmt.Errorf("read the boot time: %w", err)
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, "btime "); ok {
			seconds, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			if err != nil {
				return time.Time{}, fmt.Errorf("read the boot time: bad btime %q", value)
			}
			return time.Unix(seconds, 0).UTC(), nil
		}
	}
	return time.Time{}, errors.New("read the boot time: no btime in /proc/stat")
}

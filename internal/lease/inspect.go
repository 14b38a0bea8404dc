package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/procid"
)

// Report is what can be known of a gate's lease without taking anything.
type Report struct {
	// Held: a start would be refused now.
	Held bool `json:"held"`
	// Holder is who the record names, alive or not; nil without a record.
	Holder *Holder `json:"holder"`
	// Verdict is "free", "held", "stale" (the next start takes over), "torn"
	// (the next start replaces it), "doubtful" (counts as held) or "unavailable"
	// (nobody is known to hold it, and a start of this user would be refused).
	Verdict string `json:"verdict"`
	// Why and Hint are for people.
	Why  string `json:"why"`
	Hint string `json:"hint"`
	// KernelLock is "held", "free" or "unknown"; LockPID holds it, when seen.
	KernelLock string `json:"kernel_lock"`
	LockPID    int    `json:"lock_pid,omitempty"`
	// Path is the record's, Section an unfinished take-over's, if there is one.
	Path    string `json:"path"`
	Section string `json:"section,omitempty"`
	// Filesystem names the type; HostOnly: the lock may reach this host only.
	Filesystem string `json:"filesystem"`
	HostOnly   bool   `json:"host_only"`
}

// Lines is the report for people, one thing a line.
func (r Report) Lines() []string {
	lines := []string{"lease: " + r.Verdict}
	if r.Holder != nil {
		lines = append(lines, "holder: "+r.Holder.describe())
		if r.Holder.Epoch > 0 {
			lines = append(lines, "epoch: "+strconv.FormatInt(r.Holder.Epoch, 10))
		}
	}
	lines = append(lines, "why: "+r.Why)
	if r.Hint != "" {
		lines = append(lines, "next: "+r.Hint)
	}
	lines = append(lines, "record: "+r.Path)
	if r.Section != "" {
		lines = append(lines, "unfinished take-over: "+r.Section)
	}
	if r.HostOnly {
		lines = append(lines, "scope: this host only, perhaps ("+r.Filesystem+")")
	}
	return lines
}

// Inspect says who holds the lease of a gate, and why it thinks so. It takes
// no lock and writes nothing. It fails with an *UnavailableError when the
// record cannot be read.
func Inspect(home string) (Report, error) { return inspect(Options{Home: home}) }

// FilesystemAt names the type of the file system that the path, or the nearest directory of it that exists, is on,
// and tells whether a lock there may reach this host only.
func FilesystemAt(path string) (name string, hostOnly bool, err error) {
	at, err := realSystem().filesystem(existing(path))
	return at.name, at.remote, err
}

func inspect(o Options) (Report, error) {
	t, err := newPlace(o)
	if err != nil {
		return Report{}, err
	}
	r := Report{Path: t.recordPath, Filesystem: t.filesystem.name, HostOnly: t.filesystem.remote}
	rec, err := t.read(context.Background())
	if err != nil {
		return Report{}, err
	}
	if _, err := os.Lstat(t.sectionPath); err == nil {
		r.Section = t.sectionPath
	}
	if rec.present && !rec.torn {
		h := rec.rec.public()
		r.Holder = &h
	}
	r.KernelLock, r.LockPID = t.kernelLockState(rec)
	t.conclude(&r, rec)
	if !r.Held {
		if u := t.obstacle(r, rec); u != nil {
			r.Verdict, r.Why, r.Hint = "unavailable", u.Path+": "+u.Reason, u.Hint
			if u.Err != nil {
				r.Why += ": " + u.Err.Error()
			}
		}
	}
	return r, nil
}

func (t *taker) conclude(r *Report, rec observed) {
	const stop = "stop that process to start another, or wait with approvald up --standby"
	switch {
	case r.KernelLock == "held":
		r.Held, r.Verdict, r.Hint = true, "held", stop
		r.Why = fmt.Sprintf("process %d holds the kernel lock", r.LockPID)
		if r.LockPID == 0 {
			r.Why = "a process holds the kernel lock"
		}
	case !rec.present:
		r.Verdict, r.Why = "free", "there is no record and nobody holds the kernel lock"
		if r.KernelLock != "free" {
			r.Why = "there is no record; whether the kernel lock is held cannot be seen from here"
		}
	case rec.torn:
		r.Verdict, r.Why = "torn", "the record cannot be read: the stop before was unclean"
		r.Hint = "nothing to do: the next start replaces it"
	default:
		v := t.judge(rec)
		r.Why = v.why
		switch {
		case v.dead:
			r.Verdict = "stale"
			r.Why = v.reason + ": " + v.why
			r.Hint = "nothing to do: the next start takes over"
		case rec.rec.Holder == nil:
			r.Held, r.Verdict = true, "held"
			r.Hint = "stop that process; if it is certainly gone, remove " + t.recordPath
		case r.KernelLock == "free":
			r.Verdict, r.Why = "stale", v.why+", but it does not hold the kernel lock"
			r.Hint = "nothing to do: the next start takes over"
		default:
			r.Held, r.Verdict, r.Hint = true, "doubtful", stop
		}
	}
}

// kernelLockState looks the lock up in /proc, which takes nothing. Locks of
// processes outside the own pid namespace are not listed there, and some file
// systems have another device number there, so "free" is said only where the
// lock would have been seen.
func (t *taker) kernelLockState(rec observed) (state string, pid int) {
	var st unix.Stat_t
	if err := unix.Lstat(t.flockPath, &st); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "free", 0
		}
		return "unknown", 0
	}
	// The kernel gives out the list a page at a time, and one that changes
	// meanwhile can lack a lock that was held throughout. So it is read again,
	// and whoever the record names is asked as well.
	for range rereads {
		pid, listed, err := listedLock(t.prober, &st)
		if err != nil {
			return "unknown", 0
		}
		if listed {
			return "held", pid
		}
	}
	if rec.present && !rec.torn && rec.rec.Holder != nil && t.inOwnNamespace(rec.rec.Holder.PIDNS) {
		if has, err := hasLock(t.prober, rec.rec.PID, &st); has {
			return "held", rec.rec.PID
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "unknown", 0
		}
	}
	if t.filesystem.plain && initialNamespace(t.prober) {
		return "free", 0
	}
	return "unknown", 0
}

// lockOwner returns the pid of the kernel lock's holder, 0 when not visible.
func lockOwner(p procid.Prober, path string) int {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return 0
	}
	pid, _, _ := listedLock(p, &st)
	return pid
}

// listedLock finds a flock on the file in /proc/locks, whose lines are like
// "1: FLOCK  ADVISORY  WRITE 1234 fd:00:5678 0 EOF".
func listedLock(p procid.Prober, st *unix.Stat_t) (pid int, listed bool, err error) {
	raw, err := os.ReadFile(procPath(p, "locks"))
	if err != nil {
		return 0, false, err
	}
	pid, listed = findLock(raw, st)
	return pid, listed, nil
}

// hasLock reports whether one process has a descriptor with a flock on the file.
// Its fdinfo repeats the lines of /proc/locks behind "lock:".
func hasLock(p procid.Prober, pid int, st *unix.Stat_t) (bool, error) {
	dir := procPath(p, strconv.Itoa(pid), "fdinfo")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, entry := range entries {
		raw, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		for line := range bytes.Lines(raw) {
			if lock, ok := bytes.CutPrefix(line, []byte("lock:")); ok {
				if _, found := findLock(lock, st); found {
					return true, nil
				}
			}
		}
	}
	return false, nil
}

func procPath(p procid.Prober, elem ...string) string {
	root := p.ProcRoot
	if root == "" {
		root = "/proc"
	}
	return filepath.Join(append([]string{root}, elem...)...)
}

func findLock(list []byte, st *unix.Stat_t) (pid int, found bool) {
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)), st.Ino)
	for line := range bytes.Lines(list) {
		f := strings.Fields(string(line))
		// Waiters have "->" after the number and hold nothing. A shared lock (READ)
		// keeps a start out as well.
		if len(f) >= 6 && f[1] == "FLOCK" && (f[3] == "WRITE" || f[3] == "READ") && f[5] == want {
			pid, _ := strconv.Atoi(f[4])
			return max(pid, 0), true
		}
	}
	return 0, false
}

// inOwnNamespace reports whether pids of that namespace name processes here.
func (t *taker) inOwnNamespace(pidns string) bool {
	self, err := t.prober.Self()
	return err == nil && self.PIDNS == pidns
}

// initialNamespace reports whether this is the machine's first pid namespace,
// which has a fixed number.
func initialNamespace(p procid.Prober) bool {
	const first = "pid:[4026531836]"
	self, err := p.Self()
	return err == nil && self.PIDNS == first
}

package lease

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/procid"
)

// machine is a procfs of plain files: a machine whose boot, clock and
// processes a test chooses. It started at bootedAt.
type machine struct {
	t      *testing.T
	root   string
	boot   string
	signal error // what kill(2) says of every number
	clock  time.Time
	uptime time.Duration
}

var bootedAt = time.Date(2026, 8, 4, 9, 0, 0, 0, time.UTC)

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, root: t.TempDir(), boot: "boot-1", signal: syscall.ESRCH, uptime: 2 * time.Hour}
	m.clock = bootedAt.Add(m.uptime)
	m.file("stat", fmt.Sprintf("cpu 1\nbtime %d\n", bootedAt.Unix()))
	m.link("self/ns/pid", "pid:[1]")
	m.link("self/ns/time", "time:[1]")
	m.file("self/stat", statText(os.Getpid(), 'R', 100))
	m.file("self/status", fmt.Sprintf("NSpid:\t%d\nUid:\t0 0 0 0\n", os.Getpid()))
	return m
}

func statText(pid int, state byte, ticks uint64) string {
	return fmt.Sprintf("%d (any) (thing) %c %s%d 0 0", pid, state, strings.Repeat("0 ", 18), ticks)
}

func (m *machine) file(name, text string) {
	m.t.Helper()
	path := filepath.Join(m.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) link(name, target string) {
	m.t.Helper()
	path := filepath.Join(m.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		m.t.Fatal(err)
	}
}

// process puts a process on the machine that started so long after boot.
func (m *machine) process(pid int, state byte, sinceBoot time.Duration, uid int) {
	m.t.Helper()
	m.file(fmt.Sprintf("%d/stat", pid), statText(pid, state, uint64(sinceBoot/(10*time.Millisecond))))
	m.file(fmt.Sprintf("%d/status", pid), fmt.Sprintf("Name:\tx\nUid:\t%d %d %d %d\n", uid, uid, uid, uid))
}

func (m *machine) apply(o Options) Options {
	o.Prober = procid.Prober{
		ProcRoot: m.root,
		BootID:   func() (string, error) { return m.boot, nil },
		Kill:     func(int, syscall.Signal) error { return m.signal },
	}
	o.Now = func() time.Time { return m.clock }
	sys := realSystem()
	sys.uptime = func() (time.Duration, error) { return m.uptime, nil }
	o.sys = sys
	o.grace = time.Nanosecond
	return o
}

func foreignText(pid int, mode string, started time.Time) string {
	return fmt.Sprintf(`{"version":1,"pid":%d,"mode":%q,"started_at":%q,"instance_home":"/srv/gate"}`,
		pid, mode, started.UTC().Format("2006-01-02T15:04:05.000Z"))
}

// TestForeignRecords: a record without an identity is reclaimed only when its
// process has certainly ended.
func TestForeignRecords(t *testing.T) {
	written := bootedAt.Add(time.Hour) // the record's started_at
	tests := []struct {
		name   string
		setup  func(m *machine)
		reason string // empty: refused
	}{
		{"no such process", func(*machine) {}, ReasonGone},
		{"zombie", func(m *machine) { m.process(70, 'Z', time.Hour, os.Getuid()) }, ReasonGone},
		{"the process that wrote it", func(m *machine) { m.process(70, 'S', time.Hour-time.Second, os.Getuid()) }, ""},
		{"stopped", func(m *machine) { m.process(70, 'T', time.Hour-time.Second, os.Getuid()) }, ""},
		{"started 9 s later: rounding, perhaps", func(m *machine) { m.process(70, 'S', time.Hour+9*time.Second, os.Getuid()) }, ""},
		{"started 11 s later", func(m *machine) { m.process(70, 'S', time.Hour+11*time.Second, os.Getuid()) }, ReasonRecycled},
		{"started later, another owner", func(m *machine) { m.process(70, 'S', time.Hour+11*time.Second, os.Getuid()+1) }, ReasonForeign},
		{"another owner alone proves nothing", func(m *machine) { m.process(70, 'S', time.Minute, os.Getuid()+1) }, ""},
		{"not ours to signal", func(m *machine) { m.signal = syscall.EPERM }, ""},
		{"hidden, but there", func(m *machine) { m.signal = nil }, ""},
		{"unreadable entry", func(m *machine) { m.file("70/stat", "70 (cut") }, ""},
		{"started later, but the clock went back an hour", func(m *machine) {
			m.process(70, 'S', time.Hour+time.Minute, os.Getuid())
			m.clock = m.clock.Add(-time.Hour)
		}, ""},
		{"started later, but the clock went forward an hour", func(m *machine) {
			m.process(70, 'S', time.Hour+time.Minute, os.Getuid())
			m.clock = m.clock.Add(time.Hour)
		}, ""},
		{"no boot time", func(m *machine) {
			m.process(70, 'S', time.Hour+time.Minute, os.Getuid())
			m.file("stat", "cpu 1\n")
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g, m := newGate(t), newMachine(t)
			tt.setup(m)
			text := foreignText(70, ModeWebhook, written)
			g.write(t, g.record(), text)
			l, err := Acquire(t.Context(), m.apply(g.options()))
			if tt.reason == "" {
				held := wantHeld(t, err)
				if held.Code != CodeWebhookRegistered || held.Holder.PID != 70 || !held.Holder.Foreign || !strings.Contains(err.Error(), "remove the file") {
					t.Errorf("held = %+v: %v", held, err)
				}
				if now, _ := os.ReadFile(g.record()); string(now) != text {
					t.Errorf("the record was changed: %s", now)
				}
				if got := g.files(t); got != "telegram-transport.flock telegram-transport.lock" {
					t.Errorf("files: %s", got)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer l.Release()
			if got, _ := l.Takeover(); got != tt.reason {
				t.Errorf("reason = %q, want %q", got, tt.reason)
			}
			ev := g.events.await(t, Reclaimed)
			if ev.Reason != tt.reason || !strings.Contains(ev.Text, tt.reason) || !strings.Contains(ev.Text, g.record()) {
				t.Errorf("event = %+v", ev)
			}
			if got := g.files(t); got != "telegram-transport.flock telegram-transport.lock" {
				t.Errorf("files: %s", got)
			}
		})
	}
}

// TestForeignPidOneIsAlive: pid 1 of another container cannot be told from the
// own one.
func TestForeignPidOneIsAlive(t *testing.T) {
	g := newGate(t)
	g.write(t, g.record(), foreignText(1, ModePoll, time.Now()))
	_, err := Acquire(t.Context(), g.options())
	wantHeld(t, err)
}

// TestOwnRecordsUnderAFreeKernelLock: an approvald's record is stale by
// construction; the reason says how far that can be seen.
func TestOwnRecordsUnderAFreeKernelLock(t *testing.T) {
	owner := func(change func(*record)) record {
		r := record{Version: 1, PID: 70, Mode: ModePoll, StartedAt: "2026-08-04T09:14:02.000Z", InstanceHome: "/srv",
			Holder: &recordedOwner{BootID: "boot-1", PIDNS: "pid:[1]", StartTicks: 500, Nonce: "n", UID: uint32(os.Getuid())}}
		change(&r)
		return r
	}
	tests := []struct {
		name   string
		rec    record
		setup  func(*machine)
		reason string
	}{
		{"gone", owner(func(*record) {}), func(*machine) {}, ReasonGone},
		{"zombie", owner(func(*record) {}), func(m *machine) { m.process(70, 'Z', 5*time.Second, 0) }, ReasonGone},
		{"reboot", owner(func(r *record) { r.Holder.BootID = "boot-0" }), func(m *machine) { m.process(70, 'S', 5*time.Second, 0) }, ReasonGone},
		{"recycled", owner(func(*record) {}), func(m *machine) { m.process(70, 'S', time.Hour, os.Getuid()) }, ReasonRecycled},
		{"recycled by another user", owner(func(*record) {}), func(m *machine) { m.process(70, 'S', time.Hour, os.Getuid()+1) }, ReasonForeign},
		{"recycled by this process", owner(func(r *record) { r.PID = os.Getpid() }), func(m *machine) {
			m.process(os.Getpid(), 'R', time.Second, os.Getuid())
		}, ReasonRecycled},
		{"this process, but another nonce: it was replaced by exec", owner(func(r *record) { r.PID, r.Holder.StartTicks = os.Getpid(), 100 }),
			func(m *machine) { m.process(os.Getpid(), 'R', time.Second, os.Getuid()) }, ReasonGone},
		{"pid 1 of another container", owner(func(r *record) { r.PID, r.Holder.PIDNS = 1, "pid:[2]" }),
			func(m *machine) { m.process(1, 'S', 5*time.Second, 0) }, ReasonGone},
		{"alive and without its lock, stopped for good", owner(func(*record) {}), func(m *machine) { m.process(70, 'T', 5*time.Second, 0) }, ReasonGone},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g, m := newGate(t), newMachine(t)
			tt.setup(m)
			g.write(t, g.record(), string(tt.rec.encode()))
			l, err := Acquire(t.Context(), m.apply(g.options()))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Release()
			if got, _ := l.Takeover(); got != tt.reason {
				t.Errorf("reason = %q, want %q: %s", got, tt.reason, g.events.await(t, Reclaimed).Text)
			}
		})
	}
}

// TestHolderKeepsItsLease: nothing that the wall clock, /proc or a number says
// takes a lease from a process that holds the kernel lock.
func TestHolderKeepsItsLease(t *testing.T) {
	for name, change := range map[string]func(*machine){
		"clock an hour back":      func(m *machine) { m.clock = m.clock.Add(-time.Hour) },
		"clock a day forward":     func(m *machine) { m.clock = m.clock.Add(24 * time.Hour) },
		"boot id changed":         func(m *machine) { m.boot = "boot-2" },
		"number taken by another": func(m *machine) { m.process(os.Getpid(), 'S', time.Hour, 12345) },
		"number taken by none":    func(m *machine) { m.signal = syscall.ESRCH },
		"boot id unreadable":      func(m *machine) { m.boot = "" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, m := newGate(t), newMachine(t)
			l, err := Acquire(t.Context(), m.apply(g.options()))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Release()
			change(m)
			_, err = Acquire(t.Context(), m.apply(g.options()))
			wantHeld(t, err)
			if err := l.Check(); err != nil {
				t.Errorf("the holder's Check: %v", err)
			}
		})
	}
}

// TestTornRecords: what cannot be read, or lacks what every record has, can
// never look alive.
func TestTornRecords(t *testing.T) {
	for name, text := range map[string]string{
		"empty":           "",
		"cut off":         `{"pid":12`,
		"NULs":            strings.Repeat("\x00", 4096),
		"only a pid":      `{"pid":1}`,
		"no mode":         `{"version":1,"pid":1,"started_at":"2026-08-04T09:14:02.000Z"}`,
		"no time":         `{"version":1,"pid":1,"mode":"poll"}`,
		"time is no time": `{"version":1,"pid":1,"mode":"poll","started_at":"yesterday"}`,
		"pid is text":     `{"version":1,"pid":"1","mode":"poll","started_at":"2026-08-04T09:14:02.000Z"}`,
		"huge pid":        `{"version":1,"pid":1e300,"mode":"poll","started_at":"2026-08-04T09:14:02.000Z"}`,
		"trailing bytes":  foreignText(1, ModePoll, bootedAt) + "x",
		"larger than any": strings.Repeat("x", maxRecord+1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			g.write(t, g.record(), text)
			begin := time.Now()
			l := mustAcquire(t, g.options())
			if waited := time.Since(begin); waited < rereads*rereadPause {
				t.Errorf("replaced after %v, before it was read %d times again", waited, rereads)
			}
			if got := g.events.String(); got != string(TornReplaced) {
				t.Errorf("events: %s", got)
			}
			if _, ok := l.Takeover(); ok {
				t.Error("a torn record has no reason of the frozen set")
			}
		})
	}
}

// TestHalfWrittenRecordIsReadAgain: another implementation creates its record
// and writes it in two steps.
func TestHalfWrittenRecordIsReadAgain(t *testing.T) {
	g := newGate(t)
	g.write(t, g.record(), "")
	o := g.options()
	taking := make(chan error, 1)
	go func() {
		_, err := Acquire(t.Context(), o)
		taking <- err
	}()
	// The start holds the kernel lock while it looks at the record.
	waitUntil(t, func() bool { return kernelLocked(t, g) })
	g.write(t, g.record(), foreignText(os.Getpid(), ModePoll, time.Now()))
	wantHeld(t, <-taking)
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(foreignText(1, ModePoll, bootedAt)))
	f.Add(record{Version: 1, PID: 2, Mode: ModeWebhook, StartedAt: "2026-08-04T09:14:02.000Z", Holder: &recordedOwner{Nonce: "n"}}.encode())
	f.Add([]byte(`{"pid":1}`))
	f.Add([]byte("\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseRecord(data)
		if err != nil {
			return
		}
		back, err := parseRecord(r.encode())
		if err != nil || back.PID != r.PID || back.Mode != r.Mode || (back.Holder == nil) != (r.Holder == nil) {
			t.Errorf("parseRecord(%q) = %+v, again %+v, %v", data, r, back, err)
		}
	})
}

func TestNoIdentityNoLease(t *testing.T) {
	g := newGate(t)
	o := g.options()
	o.Prober = procid.Prober{BootID: func() (string, error) { return "", errors.New("no boot id") }}
	_, err := Acquire(t.Context(), o)
	wantUnavailable(t, err)
}

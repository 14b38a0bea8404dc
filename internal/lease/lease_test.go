package lease

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("LEASE_TEST_ROLE"); role != "" {
		os.Exit(runRole(role))
	}
	goleak.VerifyTestMain(m)
}

// gate is a fresh gate home with what the tests need of it.
type gate struct {
	home   string
	events *eventLog
}

// newGate lies in memory where the machine has such a place: most tests would
// do little but wait for the disk.
func newGate(t testing.TB) gate {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "lease-test-")
	if err != nil {
		return newDiskGate(t)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return gate{home: filepath.Join(dir, "gate", ".approval"), events: &eventLog{}}
}

// newDiskGate lies where files usually do.
func newDiskGate(t testing.TB) gate {
	t.Helper()
	home, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return gate{home: filepath.Join(home, ".approval"), events: &eventLog{}}
}

func (g gate) options() Options {
	return Options{Home: g.home, Mode: ModePoll, Program: "approvald", Version: "test", Report: g.events.add}
}

func (g gate) record() string  { return filepath.Join(g.home, "daemon", "telegram-transport.lock") }
func (g gate) flock() string   { return filepath.Join(g.home, "daemon", "telegram-transport.flock") }
func (g gate) section() string { return g.record() + ".reclaim" }

func (g gate) mkdir(t *testing.T) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(g.record()), 0o700); err != nil {
		t.Fatal(err)
	}
}

func (g gate) write(t *testing.T, path, text string) {
	t.Helper()
	g.mkdir(t)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// files lists what lies in the daemon directory.
func (g gate) files(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(g.record()))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func mustAcquire(t *testing.T, o Options) *Lease {
	t.Helper()
	l, err := Acquire(t.Context(), o)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	t.Cleanup(func() { l.Release() })
	return l
}

func wantHeld(t *testing.T, err error) *HeldError {
	t.Helper()
	var held *HeldError
	if !errors.As(err, &held) {
		t.Fatalf("error = %v, want a *HeldError", err)
	}
	oneLine(t, err)
	return held
}

func wantUnavailable(t *testing.T, err error) *UnavailableError {
	t.Helper()
	var u *UnavailableError
	if !errors.As(err, &u) {
		t.Fatalf("error = %v, want an *UnavailableError", err)
	}
	if u.Code != CodeUnavailable || u.Path == "" || u.Reason == "" {
		t.Errorf("UnavailableError lacks a member: %+v", u)
	}
	oneLine(t, err)
	return u
}

func oneLine(t *testing.T, err error) {
	t.Helper()
	if strings.ContainsAny(err.Error(), "\r\n") {
		t.Errorf("not one line: %q", err.Error())
	}
}

func readRecord(t *testing.T, path string) record {
	t.Helper()
	o, err := observe(path)
	if err != nil || !o.present || o.torn {
		t.Fatalf("record at %s: %+v, %v", path, o, err)
	}
	return o.rec
}

func TestTakeAndRelease(t *testing.T) {
	g := newGate(t)
	before := time.Now()
	l := mustAcquire(t, g.options())

	rec := readRecord(t, g.record())
	if rec.Version != 1 || rec.PID != os.Getpid() || rec.Mode != "poll" || rec.InstanceHome != g.home {
		t.Errorf("record = %+v", rec)
	}
	if h := rec.Holder; h.BootID == "" || h.PIDNS == "" || h.StartTicks == 0 || len(h.Nonce) != 32 || h.Program != "approvald" || h.Version != "test" || int(h.UID) != os.Getuid() {
		t.Errorf("holder = %+v", h)
	}
	if !strings.HasSuffix(rec.StartedAt, "Z") || len(rec.StartedAt) != len("2026-08-04T09:14:02.000Z") {
		t.Errorf("started_at = %q, want UTC milliseconds", rec.StartedAt)
	}
	if since := l.Holder().Since; since.Before(before.Truncate(time.Millisecond)) || since.After(time.Now()) {
		t.Errorf("since = %v", since)
	}
	for path, want := range map[string]os.FileMode{
		g.record(): 0o600, g.flock(): 0o600, filepath.Dir(g.record()): 0o700 | os.ModeDir,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("mode of %s = %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	if err := l.Check(); err != nil {
		t.Errorf("Check: %v", err)
	}
	if reason, ok := l.Takeover(); ok {
		t.Errorf("Takeover = %q of a free gate", reason)
	}

	for range 2 {
		if err := l.Release(); err != nil {
			t.Errorf("Release: %v", err)
		}
	}
	if got := g.files(t); got != "telegram-transport.flock" {
		t.Errorf("files after the release: %s", got)
	}
	if err := l.Check(); !errors.Is(err, ErrReleased) || !errors.Is(l.Err(), ErrReleased) {
		t.Errorf("Check after the release = %v", err)
	}
	select {
	case <-l.Lost():
		t.Error("Lost is closed by a release")
	default:
	}
	if g.events.String() != "" {
		t.Errorf("events: %s", g.events)
	}
}

func TestRefusalNamesTheHolder(t *testing.T) {
	tests := []struct{ runs, wanted, code, conflict string }{
		{ModePoll, ModePoll, "telegram-poller-running", "both deliver every request"},
		{ModePoll, ModeWebhook, "telegram-poller-running", "exclude each other"},
		{ModeWebhook, ModePoll, "webhook-registered", "exclude each other"},
		{ModeWebhook, ModeWebhook, "webhook-registered", "both deliver every request"},
	}
	for _, tt := range tests {
		t.Run(tt.runs+" against "+tt.wanted, func(t *testing.T) {
			g := newGate(t)
			o := g.options()
			o.Mode = tt.runs
			l := mustAcquire(t, o)
			files := g.files(t)
			rec, _ := os.ReadFile(g.record())

			o.Mode = tt.wanted
			_, err := Acquire(t.Context(), o)
			held := wantHeld(t, err)
			if held.Code != tt.code {
				t.Errorf("code = %s, want %s", held.Code, tt.code)
			}
			for _, part := range []string{"Telegram", "mode " + tt.runs, "pid ", "since " + l.Holder().Since.Format(timeLayout), tt.conflict, "stop that one", g.record()} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q lacks %q", err, part)
				}
			}
			if now, _ := os.ReadFile(g.record()); string(now) != string(rec) || g.files(t) != files {
				t.Error("the refusal changed something")
			}
			if err := l.Check(); err != nil {
				t.Errorf("the holder's Check: %v", err)
			}
		})
	}
}

func TestHolderIsNamedWhateverLiesInItsRecord(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "cut off": `{"pid":12`, "NULs": strings.Repeat("\x00", 4096)} {
		t.Run(name, func(t *testing.T) {
			g := newGate(t)
			k := holdKernelLock(t, g)
			defer k()
			g.write(t, g.record(), text)
			_, err := Acquire(t.Context(), g.options())
			held := wantHeld(t, err)
			if held.Code != CodePollerRunning || held.Holder.PID != os.Getpid() {
				t.Errorf("held = %+v, want the lock's owner from /proc/locks", held)
			}
		})
	}
}

func TestAgain(t *testing.T) {
	g := newGate(t)
	first := mustAcquire(t, g.options())
	if err := first.SetEpoch(7); err != nil {
		t.Fatal(err)
	}
	one := readRecord(t, g.record())

	_, err := Acquire(t.Context(), g.options())
	wantHeld(t, err)

	o := g.options()
	o.Again, o.Mode = true, ModeWebhook
	second := mustAcquire(t, o)
	two := readRecord(t, g.record())
	if two.PID != one.PID || two.Holder.StartTicks != one.Holder.StartTicks || two.Holder.Nonce == one.Holder.Nonce {
		t.Errorf("the record was not rewritten for the same process: %+v, then %+v", one.Holder, two.Holder)
	}
	if two.Mode != ModeWebhook || two.Holder.Epoch != 7 {
		t.Errorf("record = %+v", two)
	}
	if err := first.Check(); !errors.Is(err, ErrLost) {
		t.Errorf("the earlier lease's Check = %v, want ErrLost", err)
	}
	<-first.Lost()
	if err := first.Release(); err != nil {
		t.Errorf("the earlier lease's Release: %v", err)
	}
	if err := second.Check(); err != nil {
		t.Errorf("the later lease's Check: %v", err)
	}
	if _, err := Acquire(t.Context(), g.options()); err == nil {
		t.Error("a third one got in")
	}
}

func TestAgainOnAFreeGate(t *testing.T) {
	o := newGate(t).options()
	o.Again = true
	mustAcquire(t, o)
}

func TestSetEpoch(t *testing.T) {
	g := newGate(t)
	l := mustAcquire(t, g.options())
	before := readRecord(t, g.record())
	if err := l.SetEpoch(42); err != nil {
		t.Fatal(err)
	}
	after := readRecord(t, g.record())
	if after.Holder.Epoch != 42 || l.Holder().Epoch != 42 {
		t.Errorf("epoch = %d", after.Holder.Epoch)
	}
	after.Holder.Epoch = 0
	if *after.Holder != *before.Holder || after.StartedAt != before.StartedAt {
		t.Errorf("more than the epoch changed: %+v, then %+v", before, after)
	}
	if err := l.Check(); err != nil {
		t.Error(err)
	}
	if got := g.files(t); got != "telegram-transport.flock telegram-transport.lock" {
		t.Errorf("files: %s", got)
	}
	l.Release()
	if err := l.SetEpoch(43); !errors.Is(err, ErrReleased) {
		t.Errorf("SetEpoch after the release = %v", err)
	}
}

// The epoch of a holder that died stands in its record, should the journal be lost with it.
func TestEpochBefore(t *testing.T) {
	g := newGate(t)
	l := mustAcquire(t, g.options())
	if l.EpochBefore() != 0 {
		t.Errorf("on a free gate: %d", l.EpochBefore())
	}
	if err := l.SetEpoch(42); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadFile(g.record())
	if err != nil {
		t.Fatal(err)
	}
	l.Release()
	if err := os.WriteFile(g.record(), left, 0o600); err != nil {
		t.Fatal(err)
	}
	if next := mustAcquire(t, g.options()); next.EpochBefore() != 42 {
		t.Errorf("after a holder of epoch 42: %d", next.EpochBefore())
	}
}

func TestReleaseLeavesAnothersRecord(t *testing.T) {
	g := newGate(t)
	l := mustAcquire(t, g.options())
	other := readRecord(t, g.record())
	other.Holder.Nonce = "another take of this very process"
	l.watch.stop()
	g.write(t, g.record(), string(other.encode()))
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	if got := readRecord(t, g.record()); got.Holder.Nonce != other.Holder.Nonce {
		t.Errorf("record = %+v", got)
	}
}

func TestThousandCyclesLeaveNothing(t *testing.T) {
	g := newGate(t)
	cycle := func() {
		l, err := Acquire(t.Context(), g.options())
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(); err != nil {
			t.Fatal(err)
		}
	}
	cycle()
	before := openDescriptors(t)
	for range 1000 {
		cycle()
	}
	waitUntil(t, func() bool { return openDescriptors(t) <= before })
	if got := g.files(t); got != "telegram-transport.flock" {
		t.Errorf("files: %s", got)
	}
	held.Lock()
	defer held.Unlock()
	if len(held.by) != 0 {
		t.Errorf("%d leases are remembered", len(held.by))
	}
}

// TestReleaseIsNotStarved: the watch never keeps a release waiting.
func TestReleaseIsNotStarved(t *testing.T) {
	g := newGate(t)
	for range 200 {
		l := mustAcquire(t, g.options())
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				select {
				case <-stop:
					return
				default:
					l.Check()
				}
			}
		}()
		if err := l.Release(); err != nil {
			t.Fatal(err)
		}
		close(stop)
		<-done
	}
	mustAcquire(t, g.options())
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestAcquireWithAnEndedContext(t *testing.T) {
	g := newGate(t)
	mustAcquire(t, g.options())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := g.options()
	o.Standby = true
	if _, err := Acquire(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("Acquire = %v, want context.Canceled", err)
	}
}

func TestUnknownMode(t *testing.T) {
	o := newGate(t).options()
	o.Mode = "carrier pigeon"
	if _, err := Acquire(t.Context(), o); err == nil || !strings.Contains(err.Error(), "pigeon") {
		t.Errorf("Acquire = %v", err)
	}
}

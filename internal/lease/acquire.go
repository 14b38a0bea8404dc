package lease

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/approvald/approvald/internal/durable"
	"github.com/approvald/approvald/internal/procid"
)

const (
	// rounds is how often a take-over is begun before it is given up.
	rounds = 5
	// rereads and rereadPause: how long a record may be half written by
	// another implementation before it counts as torn.
	rereads     = 5
	rereadPause = 20 * time.Millisecond
	// liveGrace is how long the start waits for a holder that lives but lost
	// its kernel lock: that one looks at least once in watchPeriod and leaves.
	liveGrace = 2 * time.Second
)

// Options say what to take and how. Only Home and Mode are needed.
type Options struct {
	// Home is the gate's home; ResolveHome is applied to it.
	Home string
	// Mode is ModePoll or ModeWebhook.
	Mode string
	// Program and Version stand in the record for people.
	Program, Version string
	// AllowRemoteFS accepts a home on a file system (NFS, SMB, 9p, FUSE and
	// the like) where the lock may keep out processes of this host only.
	AllowRemoteFS bool
	// Standby waits for the lease instead of refusing while somebody holds it.
	Standby bool
	// Again takes what this same process holds already, for a part that is
	// restarted inside it: the earlier Lease is lost. Without it the process
	// is refused like any other.
	Again bool
	// Report is told what an operator should read in the log; may be nil. It is
	// called from several goroutines and must not call the lease.
	Report func(Event)
	// Prober, FS and Now are the process table, the file system and the clock.
	// The clock only stamps the record and judges other implementations'
	// records; nil is time.Now.
	Prober procid.Prober
	FS     durable.FS
	Now    func() time.Time

	sys   *system
	grace time.Duration
}

// taker is one attempt's view of a gate: its files and who wants them.
type taker struct {
	mode   string
	prober procid.Prober
	fs     durable.FS
	sys    *system
	now    func() time.Time
	report func(Event)
	grace  time.Duration

	home, daemonDir                    string
	recordPath, flockPath, sectionPath string
	filesystem                         filesystem

	self  procid.Identity
	nonce string
	rec   record
	// epochBefore is the epoch in the record that was reclaimed.
	epochBefore int64
}

// Acquire takes the gate's lease or refuses: with a *HeldError when a live
// holder has it, with an *UnavailableError when exclusion cannot be promised,
// with ctx's cause when ctx ended first. A refusal leaves nothing behind but
// the directories and the kernel lock's empty file.
//
// The kernel lock comes first; the record is dealt with under it.
func Acquire(ctx context.Context, o Options) (*Lease, error) {
	t, err := newTaker(o)
	if err != nil {
		return nil, err
	}
	if o.Again {
		if l, err := t.again(); l != nil || err != nil {
			return l, err
		}
	}
	if o.Standby {
		return t.waitToTake(ctx)
	}
	return t.attempt(ctx)
}

func newTaker(o Options) (*taker, error) {
	if o.Mode != ModePoll && o.Mode != ModeWebhook {
		return nil, fmt.Errorf("lease: unknown mode %q", o.Mode)
	}
	t, err := newPlace(o)
	if err != nil {
		return nil, err
	}
	if t.filesystem.remote && !o.AllowRemoteFS {
		return nil, unavailable(t.home, "on "+t.filesystem.name+" a lock may keep out processes of this host only",
			"move the gate's home to a local disk, or say --allow-remote-fs when one host alone uses it", nil)
	}
	if t.self, err = t.prober.Self(); err != nil {
		return nil, unavailable(t.recordPath, "this process cannot identify itself", "mount /proc", err)
	}
	var random [16]byte
	rand.Read(random[:])
	t.nonce = hex.EncodeToString(random[:])
	t.rec = record{
		Version: recordVersion, PID: t.self.PID, Mode: o.Mode,
		StartedAt: t.now().UTC().Format(timeLayout), InstanceHome: t.home,
		Holder: &recordedOwner{
			BootID: t.self.BootID, PIDNS: t.self.PIDNS, StartTicks: t.self.StartTicks, Nonce: t.nonce,
			UID: uint32(os.Getuid()), Program: o.Program, Version: o.Version,
		},
	}
	if err := t.fs.MkdirAll("lease.dir", t.daemonDir, 0o700); err != nil {
		return nil, unavailable(t.daemonDir, "the directory cannot be made", hintFor(err), err)
	}
	if t.filesystem.remote {
		t.report(Event{Kind: HostOnly, Path: t.home,
			Text: "the gate's home is on " + t.filesystem.name + ": the lease may keep out processes of this host only; " + t.home})
	}
	return t, nil
}

// newPlace resolves the gate's paths and touches nothing.
func newPlace(o Options) (*taker, error) {
	home, err := ResolveHome(o.Home)
	if err != nil {
		return nil, err
	}
	t := &taker{
		mode: o.Mode, prober: o.Prober, fs: o.FS, sys: o.sys, now: o.Now, report: o.Report, grace: o.grace,
		home: home, daemonDir: filepath.Join(home, "daemon"),
	}
	if t.sys == nil {
		t.sys = realSystem()
	}
	if t.now == nil {
		t.now = time.Now
	}
	if t.report == nil {
		t.report = func(Event) {}
	}
	if t.grace == 0 {
		t.grace = liveGrace
	}
	t.recordPath = filepath.Join(t.daemonDir, "telegram-transport.lock")
	t.flockPath = filepath.Join(t.daemonDir, "telegram-transport.flock")
	t.sectionPath = t.recordPath + ".reclaim"
	dir := existing(t.daemonDir)
	if t.filesystem, err = t.sys.filesystem(dir); err != nil {
		return nil, unavailable(dir, "its file system cannot be examined", hintFor(err), err)
	}
	return t, nil
}

// attempt takes the lease without waiting for a holder to go.
func (t *taker) attempt(ctx context.Context) (*Lease, error) {
	k, err := t.lockOrName(ctx)
	if err != nil {
		return nil, err
	}
	return t.takeUnder(ctx, k)
}

// takeUnder deals with the record under the kernel lock, which it closes when
// it fails.
func (t *taker) takeUnder(ctx context.Context, k *kernelLock) (*Lease, error) {
	reason, err := t.takeRecord(ctx, k)
	if err == nil {
		var l *Lease
		if l, err = newLease(t, k, reason); err == nil {
			return l, nil
		}
	}
	// A record that was put in place before a later step failed goes again.
	removeExact(t.recordPath, t.rec.encode())
	k.close()
	return nil, err
}

// lockOrName takes the kernel lock, or names who holds it. A lock that is held
// while the record names nobody alive is on its way in or out, so both are
// looked at again a few times.
func (t *taker) lockOrName(ctx context.Context) (*kernelLock, error) {
	var last observed
	for attempt := range rereads + 1 {
		if attempt > 0 {
			if err := sleep(ctx, rereadPause); err != nil {
				return nil, err
			}
		}
		k, err := t.lockKernel()
		if err != errBusy {
			return k, err
		}
		o, err := observe(t.recordPath)
		if err != nil {
			return nil, t.unreadable(err)
		}
		if o.present && !o.torn && o.rec.Holder != nil && !t.judge(o).dead {
			return nil, t.held(o.rec.public(), "its kernel lock is held")
		}
		last = o
	}
	holder := Holder{PID: lockOwner(t.prober, t.flockPath)}
	if last.present && !last.torn && last.rec.Holder == nil && !t.judge(last).dead {
		holder = last.rec.public()
	}
	refusal := t.held(holder, "it holds the kernel lock, and the record does not name it")
	refusal.Starting = !holder.Foreign
	return nil, refusal
}

func (t *taker) held(h Holder, why string) *HeldError {
	return &HeldError{Code: h.code(), Holder: h, Wanted: t.mode, Path: t.recordPath, Why: why}
}

func (t *taker) unreadable(err error) error {
	return unavailable(t.recordPath, "the record cannot be read", hintAt(t.recordPath, err), err)
}

// takeRecord puts this process's record in place and returns why the one
// before could be replaced; empty when there was none to reclaim.
func (t *taker) takeRecord(ctx context.Context, k *kernelLock) (reason string, err error) {
	data := t.rec.encode()
	for range rounds {
		err := t.fs.CreateExclusive("lease.record", t.recordPath, data, 0o600)
		if err == nil {
			t.sweep()
			return "", nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", unavailable(t.recordPath, "the record cannot be made", hintFor(err), err)
		}
		o, err := t.read(ctx)
		if err != nil {
			return "", err
		}
		if !o.present {
			continue
		}
		event, err := t.mayReplace(ctx, o)
		if err != nil {
			return "", err
		}
		switch err := t.takeOver(ctx, k, o, data); {
		case err == nil:
			t.sweep()
			if o.rec.Holder != nil {
				t.epochBefore = o.rec.Holder.Epoch
			}
			t.report(event)
			return event.Reason, nil
		case errors.Is(err, errMoved):
		case errors.Is(err, errSectionBusy):
			if err := sleep(ctx, reclaimWait); err != nil {
				return "", err
			}
		default:
			return "", err
		}
	}
	path, reason := t.recordPath, "the record keeps changing"
	if o, err := observe(t.sectionPath); err == nil && o.present {
		path, reason = t.sectionPath, "another process is taking over and does not come to an end"
	}
	refusal := unavailable(path, reason, "see which process it names; remove the file only when that one is certainly gone", nil)
	refusal.passing = true
	return "", refusal
}

// read reads the record, again while another implementation may be writing it.
func (t *taker) read(ctx context.Context) (observed, error) {
	for attempt := 0; ; attempt++ {
		o, err := observe(t.recordPath)
		if err != nil {
			return observed{}, t.unreadable(err)
		}
		if !o.torn || attempt == rereads {
			return o, nil
		}
		if err := sleep(ctx, rereadPause); err != nil {
			return observed{}, err
		}
	}
}

// mayReplace decides about a record that lies there while this process holds
// the kernel lock: a *HeldError when its holder may live, else the event that
// reports why it may be replaced.
func (t *taker) mayReplace(ctx context.Context, o observed) (Event, error) {
	switch {
	case o.torn:
		return Event{Kind: TornReplaced, Path: t.recordPath,
			Text: "replaced an unreadable lease record: the stop before was unclean; " + t.recordPath}, nil
	case o.rec.Holder == nil:
		v := t.judge(o)
		if !v.dead {
			return Event{}, t.held(o.rec.public(), v.why)
		}
		return t.reclaimed(o, v), nil
	}
	// An approvald's record is stale by construction: its holder would have
	// the kernel lock.
	v := t.judge(o)
	if !v.dead {
		if err := t.letGo(ctx, o); err != nil {
			return Event{}, err
		}
		v = verdict{dead: true, reason: ReasonGone, why: "its kernel lock is free"}
	}
	return t.reclaimed(o, v), nil
}

func (t *taker) reclaimed(o observed, v verdict) Event {
	return Event{Kind: Reclaimed, Reason: v.reason, Path: t.recordPath,
		Text: fmt.Sprintf("reclaimed the lease of %s (%s: %s); %s", o.rec.public().describe(), v.reason, v.why, t.recordPath)}
}

// letGo waits for a holder that certainly lives and has no kernel lock any
// more, because somebody removed the lock's file. It is about to notice. One
// that does not, because it is stopped, is fenced by its epoch.
func (t *taker) letGo(ctx context.Context, o observed) error {
	if v, _ := t.prober.Judge(o.rec.identity()); v != procid.Alive || o.rec.identity() == t.selfIdentity() || t.copied(o.rec) {
		return nil
	}
	for waited := time.Duration(0); waited < t.grace; waited += rereadPause {
		if err := sleep(ctx, rereadPause); err != nil {
			return err
		}
		now, err := observe(t.recordPath)
		if err != nil || !now.same(o) {
			return nil
		}
		if v, _ := t.prober.Judge(o.rec.identity()); v != procid.Alive {
			return nil
		}
	}
	return nil
}

// copied reports whether the record came here with a copy of another home, whose
// holder has that home's lock and will not look at this one.
func (t *taker) copied(rec record) bool {
	if rec.InstanceHome == t.home {
		return false
	}
	there, err := t.sys.identify(filepath.Join(rec.InstanceHome, "daemon", filepath.Base(t.flockPath)))
	if err != nil {
		return false
	}
	here, err := t.sys.identify(t.flockPath)
	return err == nil && !here.sameFile(there)
}

// selfIdentity is this process as a record names it.
func (t *taker) selfIdentity() procid.Identity { return t.rec.identity() }

// takeOver replaces exactly the judged record, inside the section.
func (t *taker) takeOver(ctx context.Context, k *kernelLock, judged observed, data []byte) error {
	s, err := t.enterSection(k)
	if err != nil {
		return err
	}
	defer s.leave()
	now, err := observe(t.recordPath)
	if err != nil {
		return t.unreadable(err)
	}
	if !now.same(judged) {
		return errMoved
	}
	return t.replace(judged, data, s.owned)
}

// sweep removes what a process that was killed half-way left beside the
// record. Whoever makes such files holds the kernel lock, which is ours now.
func (t *taker) sweep() {
	left, _ := filepath.Glob(filepath.Join(t.daemonDir, ".telegram-transport.lock*.tmp-*"))
	for _, path := range left {
		os.Remove(path)
	}
}

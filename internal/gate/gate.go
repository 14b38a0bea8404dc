package gate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/durable"
	"github.com/approvald/approvald/internal/procid"
)

// systemActor signs what nobody decided.
const systemActor = "system:gate"

// OpenOptions say how to open a gate. The zero value is that of a command at work on the files.
type OpenOptions struct {
	// Guard is asked inside the append lock before anything is decided; the daemon passes the check
	// of its lease and epoch. Its error refuses the operation.
	Guard func() error
	// ReadDamaged opens a gate whose log is damaged for looking at what is intact before the damage,
	// which [Gate.Damage] then tells. Every change is refused with [CodeLogCorrupt].
	ReadDamaged bool
	// LockWait is how long to wait for the append lock; 0 is the log's own default.
	LockWait time.Duration
	// Took is told how long appends to the log took, as approvallog.Options.Took. Nil is nobody.
	Took func(op string, took time.Duration)
	// Logf reports what a person should know although it fails nothing. Nil drops it.
	Logf func(format string, args ...any)

	Now    func() time.Time // nil is time.Now
	FS     durable.FS       // carries the hook of tests
	Prober procid.Prober    // the zero value asks the real /proc
}

// Gate is one open gate: its configuration and its log. Its methods may be called from any number
// of goroutines.
type Gate struct {
	cfg   atomic.Pointer[Config]
	paths Paths
	fs    durable.FS
	now   func() time.Time
	log   *approvallog.Log
	reqs  *approvallog.Requests

	prober procid.Prober
	logf   func(format string, args ...any)

	appended atomic.Bool // something, by this process
}

// Open opens the gate's log, which verifies it, and writes nothing. A gate that was never used has
// an empty log.
func Open(cfg Config, o OpenOptions) (*Gate, error) {
	g := &Gate{paths: cfg.Paths(), fs: o.FS, now: o.Now, reqs: approvallog.NewRequests(), prober: o.Prober}
	g.cfg.Store(&cfg)
	if g.now == nil {
		g.now = time.Now
	}
	if g.logf = o.Logf; g.logf == nil {
		g.logf = func(string, ...any) {}
	}
	log, err := approvallog.Open(approvallog.Options{
		Path:        g.paths.Log,
		Fold:        g.reqs,
		Snapshot:    g.paths.Snapshot,
		Guard:       o.Guard,
		ReadDamaged: o.ReadDamaged,
		Now:         g.now,
		LockWait:    o.LockWait,
		FS:          o.FS,
		Prober:      o.Prober,
		Logf:        o.Logf,
		Took:        o.Took,
	})
	if err != nil {
		return nil, mapError(err, "open the approval log")
	}
	g.log = log
	return g, nil
}

// snapshotAfter is how many records beyond the snapshot a process that has appended reads before it
// leaves a snapshot behind for the next. The daemon takes them by itself.
const snapshotAfter = 50_000

// Close lets go of the log.
func (g *Gate) Close() error {
	if g.appended.Load() && g.log.Behind() >= snapshotAfter {
		// Nothing depends on it: the next one reads the log instead.
		_ = g.log.WriteSnapshot(context.Background())
	}
	return g.log.Close()
}

// Config answers the gate's configuration that is in force.
func (g *Gate) Config() Config { return *g.cfg.Load() }

// Reconfigure puts another configuration of the same gate in force for all requests that are judged from now on. Where the gate's
// files are does not change by it; see [RestartFor] for what else does not.
func (g *Gate) Reconfigure(cfg Config) { g.cfg.Store(&cfg) }

// Paths answers where the gate's files are.
func (g *Gate) Paths() Paths { return g.paths }

// Log is the approval log; it feeds Requests.
func (g *Gate) Log() *approvallog.Log { return g.log }

// Requests is the fold of the log. Use it inside View or Update of the Log only.
func (g *Gate) Requests() *approvallog.Requests { return g.reqs }

// Damage is the [CodeLogCorrupt] error of a log that was opened although it is damaged, else nil.
func (g *Gate) Damage() error {
	if err := g.log.Damage(); err != nil {
		return mapError(err, "read the approval log")
	}
	return nil
}

// Prepare makes what a gate needs before anything is kept in it: the home, the log (empty on a fresh
// home) and the directories beside it, in this order, so that a log that is missing where other
// things are is known to be lost.
func (g *Gate) Prepare(ctx context.Context) error {
	if err := g.fs.MkdirAll("log", filepath.Dir(g.paths.Log), 0o700); err != nil {
		return internalError(err, "make the gate home %s", g.paths.Home)
	}
	if err := g.log.Ensure(ctx); err != nil {
		return mapError(err, "make the approval log")
	}
	for _, dir := range []string{g.paths.Payloads, g.paths.Daemon} {
		if err := g.fs.MkdirAll("home", dir, 0o700); err != nil {
			return internalError(err, "make the gate home %s", g.paths.Home)
		}
	}
	return nil
}

// leftoverAge is how long nobody has touched a temporary file that nobody is going to finish.
const leftoverAge = time.Hour

// Sweep removes the temporary files that killed processes have left in the gate's directories, and answers how many. It is
// for the holder of the lease.
func (g *Gate) Sweep() (removed int, err error) {
	before := g.now().Add(-leftoverAge)
	dirs := []string{g.paths.Payloads, g.paths.Daemon, filepath.Dir(g.paths.Log), g.paths.Quarantine, g.paths.Archive}
	for _, archive := range []string{g.paths.Archive, filepath.Join(g.paths.Daemon, filepath.Base(g.paths.Archive))} {
		segments, dirErr := os.ReadDir(archive)
		if !errors.Is(dirErr, fs.ErrNotExist) {
			err = errors.Join(err, dirErr)
		}
		for _, s := range segments {
			if s.IsDir() {
				dirs = append(dirs, filepath.Join(archive, s.Name()))
			}
		}
	}
	for _, dir := range dirs {
		n, dirErr := g.fs.Sweep("sweep", dir, before)
		removed += n
		err = errors.Join(err, dirErr)
	}
	return removed, err
}

// mapError gives an error of the log the code and hint that people and programs are told. An
// [*Error] and the context's errors pass as they are.
func mapError(err error, doing string) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	e := internalError(err, "%s", doing)
	switch {
	case errors.Is(err, approvallog.ErrCorrupt):
		e.Code, e.Hint = CodeLogCorrupt, "nothing is sent or decided until it is repaired; look at it with: approvald log verify"
	case errors.Is(err, approvallog.ErrTorn):
		e.Code, e.Hint = CodeLogTorn, "the next append moves the torn bytes to quarantine; look at them with: approvald log verify"
	case errors.Is(err, approvallog.ErrLocked):
		e.Code, e.Hint = CodeAppendLocked, "try again; a holder that is stopped has to be continued or ended first"
	case errors.Is(err, approvallog.ErrFenced):
		e.Code, e.Hint = CodeFenced, "another process has taken the gate over; this one must not write any more"
	case errors.Is(err, approvallog.ErrPoisoned):
		e.Hint = "check the disk, then restart: a new process reads what is really there"
	case errors.Is(err, approvallog.ErrInvalid):
		e.Code = CodeInvalidRequest
	}
	return e
}

// update runs decide against the exact head of the log and answers once what it appended is on
// disk.
func (g *Gate) update(ctx context.Context, doing string, decide func(tx *approvallog.Tx) error) error {
	records, err := g.log.Update(ctx, decide)
	if len(records) > 0 {
		g.appended.Store(true)
	}
	return mapError(err, doing)
}

// look answers the request as the log has it now, what other processes appended included.
func (g *Gate) look(ctx context.Context, key string) (approvallog.Request, error) {
	if err := g.refresh(ctx); err != nil {
		return approvallog.Request{}, err
	}
	return g.known(key)
}

// known answers the request as this process knows it. One that is still to come is [CodeNotYet].
func (g *Gate) known(key string) (approvallog.Request, error) {
	var r approvallog.Request
	var ok bool
	var later error
	err := g.log.View(func() {
		if r, ok = g.reqs.Get(key); !ok {
			_, later = g.awaited(key)
		}
	})
	if err != nil {
		return approvallog.Request{}, mapError(err, "read the approval log")
	}
	if !ok {
		if err := g.Damage(); err != nil {
			return approvallog.Request{}, err // it may stand behind the damage
		}
		if later != nil {
			return approvallog.Request{}, later
		}
		return approvallog.Request{}, notFound(key)
	}
	r.State = r.StateAt(g.now())
	return r, nil
}

// refresh reads what other processes appended. Beyond damage there is nothing to be read.
func (g *Gate) refresh(ctx context.Context) error {
	if g.log.Damage() != nil {
		return nil
	}
	return mapError(g.log.Refresh(ctx), "read the approval log")
}

func (g *Gate) read(ctx context.Context, view func()) error {
	if err := g.refresh(ctx); err != nil {
		return err
	}
	return mapError(g.log.View(view), "read the approval log")
}

func notFound(key string) error {
	return refuse(CodeNotFound, "see the pending ones with: approvald queue", "no request has the key %q", clip(key))
}

// Get answers the request under key, or [CodeNotFound]; [CodeNotYet] is the follow-up of one that has not been executed yet.
func (g *Gate) Get(ctx context.Context, key string) (approvallog.Request, error) {
	if err := CheckKey(key); err != nil {
		return approvallog.Request{}, err
	}
	return g.look(ctx, key)
}

// List answers the requests that can still be decided, oldest first.
func (g *Gate) List(ctx context.Context) ([]approvallog.Request, error) {
	var all []approvallog.Request
	if err := g.read(ctx, func() { all = g.reqs.Pending() }); err != nil {
		return nil, err
	}
	now := g.now()
	open := make([]approvallog.Request, 0, len(all))
	for _, r := range all {
		if r.StateAt(now) == approvallog.StatePending {
			open = append(open, r)
		}
	}
	return open, nil
}

// checkIdentity refuses whoever is not the requester: the name must be the same and, where the
// kernel vouched for both, the user.
func checkIdentity(r approvallog.Request, requester string, peer *Peer, doing string) error {
	if r.Requester != requester {
		return refuse(CodeWrongIdentity, "only who asked may do this: --as "+strings.TrimPrefix(r.Requester, "agent:"),
			"%s %q: it was asked for by %s, not by %s", doing, clip(r.Key), r.Requester, clip(requester))
	}
	if r.Peer != nil && peer != nil && r.Peer.UID != peer.UID {
		return refuse(CodeWrongIdentity, "only who asked may do this",
			"%s %q: it was asked for by uid %d, and this is uid %d", doing, clip(r.Key), r.Peer.UID, peer.UID)
	}
	return nil
}

// ended says how a request stands that can no longer be changed as asked.
func ended(r approvallog.Request, doing string) error {
	how := string(r.State)
	switch {
	case r.Decision != nil && r.Ending == nil:
		how += fmt.Sprintf(" by %s at %s", r.Decision.By, r.Decision.At.UTC().Format(time.RFC3339))
	case r.Ending != nil:
		how += fmt.Sprintf(" by %s at %s", r.Ending.By, r.Ending.At.UTC().Format(time.RFC3339))
	}
	return refuse(CodeAlreadyDecided, "nothing was changed; see it with: approvald show KEY", "%s %q: it is %s", doing, clip(r.Key), how)
}

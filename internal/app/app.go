package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/run"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/dispatch"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/lease"
	"github.com/approvald/approvald/internal/metrics"
	"github.com/approvald/approvald/internal/rescue"
	"github.com/approvald/approvald/internal/transport"
)

// ErrStarted reports a second Start of one App. A stopped App is not started again: make a new one.
var ErrStarted = errors.New("this daemon was started before")

// ErrStopped reports a stop that was asked for before the start had come to its end.
var ErrStopped = errors.New("the daemon was stopped while it started")

// errStopRequested ends the group for a stop that somebody asked for.
var errStopRequested = errors.New("a stop was requested")

// App is one daemon for one gate.
type App struct {
	opts   Options
	log    *zap.Logger
	client *transport.Client
	token  transport.Secret
	secret transport.Secret // of the webhook; empty when polling

	stages   stages
	family   *family
	standing standing
	cleanups cleanups

	// Each is stored before its stage is reached and read only behind it.
	lease  *lease.Lease
	fence  *dispatch.Fence
	gate   *gate.Gate
	before dispatch.EpochInfo // who had the gate last
	epoch  int64
	loop   *dispatch.Loop
	// noteWebhook keeps for the next start which webhook of this gate Telegram may have.
	noteWebhook func(ctx context.Context, url string) error

	botLease      *lease.BotLease // the transport actor's own
	receiverEnded chan struct{}   // closed when no more updates come in

	metrics *metrics.Metrics
	vitals  *vitals
	ending  atomic.Bool // the actors are being stopped

	inForce      inForce
	reloads      reloads
	reconfigured chan struct{} // holds something after a reload

	began       time.Time
	notifier    *notifier
	sightings   sightings
	contact     time.Time // the watch's own: the last that dispatch was told
	contactLost atomic.Bool

	mu       sync.Mutex
	started  bool
	receiver receiver
	trouble  error // why the start goes no further for now
	// chatTrouble is why the gate's chat could not be reached when it was looked at, empty when it could.
	chatTrouble string
	announced   bool     // log lines are written from here on
	held        []string // what was to be said before

	stop    context.CancelCauseFunc
	stopped context.Context
	done    chan struct{}
	err     error // valid once done is closed
}

// receiver is a transport: poll or webhook.
type receiver interface {
	Run(ctx context.Context, handler transport.Handler) error
	Health() transport.Health
	Ready() <-chan struct{}
}

// New checks everything that can be checked before the lease: the options, the token, the webhook's secret. It touches nothing.
// A token that is missing, readable by others or malformed is a *gate.Error with the code of a configuration fault.
func New(o Options) (*App, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("daemon options: %w", err)
	}
	token, err := o.Config.Token()
	if err != nil {
		return nil, err
	}
	a := &App{
		opts: o, began: o.Now(), token: token, stages: newStages(), family: newFamily(), receiverEnded: make(chan struct{}), done: make(chan struct{}),
		reconfigured: make(chan struct{}, 1),
	}
	a.inForce.config, a.inForce.loadedAt = o.Config, a.began
	a.metrics, a.vitals = a.newMetrics(), a.newVitals()
	secrets := []transport.Secret{token}
	if o.Config.Transport.Mode == gate.ModeWebhook {
		if a.secret, err = o.Config.WebhookSecret(token); err != nil {
			return nil, err
		}
		secrets = append(secrets, a.secret)
	}
	a.client, err = transport.New(transport.Options{Token: token, APIBase: o.Config.Telegram.APIBase, Scrub: secrets[1:], Observe: a.called})
	if err != nil {
		return nil, &gate.Error{Code: gate.CodeConfig, Message: "telegram client: " + err.Error(), Err: err}
	}
	redact := func(core zapcore.Core) zapcore.Core { return transport.RedactCore(core, a.client.Redactor()) }
	if o.Logger != nil {
		a.log = o.Logger.WithOptions(zap.WrapCore(redact))
	} else {
		a.log = NewLogger(o.Stderr, redact)
	}
	a.notifier = newNotifier(func() bool { return len(a.config().Attention.OnTrouble) > 0 }, func(ctx context.Context, item news) error {
		c := command{argv: a.config().Attention.OnTrouble, gate: o.Gate, redact: a.client.Redactor().String, limit: commandLimit, run: a.family.run}
		if len(c.argv) == 0 {
			return nil // it was taken out of the configuration meanwhile
		}
		return c.tell(ctx, item)
	}, a.log.Named("trouble"))
	a.stopped, a.stop = context.WithCancelCause(context.Background())
	return a, nil
}

// Run makes a daemon and serves until ctx ends, a signal comes, or a part fails. It returns nil after a stop that was asked
// for, whatever had to be left behind for it to be in time.
//
// Errors that mean something to a caller come wrapped: *lease.HeldError, *lease.BotHeldError and *lease.UnavailableError when a
// lease was refused or lost (errors.Is lease.ErrLost), approvallog.ErrCorrupt for a damaged log, *gate.Error for a rule of the
// gate, a refused token included. Nothing was logged before a refusal, so that its error is the one line that is shown.
func Run(ctx context.Context, o Options) error {
	a, err := New(o)
	if err != nil {
		return err
	}
	if err := a.Start(ctx); err != nil && !errors.Is(err, ErrStopped) {
		return err
	}
	<-a.done
	return a.err
}

// Start begins to serve and returns when agents can ask (the socket is open) or the start has failed. Telegram is tried
// afterwards; Ready tells when it has answered. The daemon stops when ctx ends.
func (a *App) Start(ctx context.Context) error {
	a.mu.Lock()
	if a.started {
		a.mu.Unlock()
		return ErrStarted
	}
	a.started = true
	a.mu.Unlock()

	release := context.AfterFunc(ctx, func() { a.stop(errStopRequested) })
	g := a.group()
	go func() {
		defer close(a.done)
		defer release()
		a.err = rescue.Run("stop", func() error { return a.serve(g) })
	}()
	select {
	case <-a.stages.socket.done:
		return nil
	case <-a.done:
		if a.err == nil {
			return ErrStopped
		}
		return a.err
	}
}

// Ready is closed once the daemon can do its whole work.
func (a *App) Ready() <-chan struct{} { return a.stages.ready.done }

// Done is closed once the daemon has stopped; Stop then tells how.
func (a *App) Done() <-chan struct{} { return a.done }

// Stop ends the daemon and waits until it has stopped, at most about StopLimit. It may be called any number of times, from
// several places at once, and always tells the same: nil for a stop that was asked for, else what ended the daemon.
func (a *App) Stop() error {
	a.mu.Lock()
	started := a.started
	a.started = true
	a.mu.Unlock()
	a.stop(errStopRequested)
	if !started {
		a.client.Close()
		close(a.done)
		return nil
	}
	<-a.done
	return a.err
}

// serve runs the actors to their common end and then the clean-ups.
func (a *App) serve(g *run.Group) error {
	err := g.Run()
	asked := errors.Is(err, errStopRequested) || errors.Is(err, run.ErrSignal)
	if !asked {
		err = a.firstCause(err)
	}
	log := a.log
	if !a.isAnnounced() {
		log = zap.NewNop() // the error is the one line of a refused start
	}
	log.Info("stopping", zap.String("why", err.Error()))
	failed := a.cleanups.run(log, a.opts.StopLimit/18)
	a.client.Close()
	if asked {
		// What failed was logged with its name; the stop itself was done.
		log.Info("stopped", zap.String("gate", a.opts.Gate), zap.Bool("clean", failed == nil))
		return nil
	}
	return errors.Join(err, failed)
}

// firstCause is why the daemon really ends. A gate's directory that is moved away takes lease, log and journal along, and any of their
// parts may notice first: without the lease, that is what has to be told.
func (a *App) firstCause(err error) error {
	if !a.stages.lease.reached() || errors.Is(err, lease.ErrLost) {
		return err
	}
	if lost := a.lease.Check(); lost != nil {
		return lost
	}
	corrupt, ok := errors.AsType[*approvallog.CorruptError](err)
	if !ok || exists(corrupt.Path) {
		return err
	}
	if corrupt.Path == a.opts.Config.Paths().Journal {
		// The lease puts its own files back. Without the journal the epoch is over all the same, and the log is not to blame.
		return &lease.UnavailableError{
			Code: lease.CodeUnavailable, Path: corrupt.Path, Err: lease.ErrLost,
			Reason: "lease lost: the delivery journal was removed under the running daemon, perhaps with its directory",
			Hint:   "put it back if there is a copy, and start again; without it, requests that wait are shown again",
		}
	}
	// A home that is removed loses one file after the other, and the lease's may be its last.
	for range removalLooks {
		time.Sleep(removalPause)
		if lost := a.lease.Check(); lost != nil {
			return lost
		}
	}
	return err
}

const (
	removalLooks = 20
	removalPause = 10 * time.Millisecond
)

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// drain is how long the actors get out of StopLimit; the clean-ups, at most six of them, have the rest. Nearly all of it waits for the
// answers to messages that were sent already: without an answer the next daemon has to send them once more.
func (a *App) drain() time.Duration { return a.opts.StopLimit * 2 / 3 }

// drainReceiver is how long the transport gets: dispatch, which its last update needs, outlives it.
func (a *App) drainReceiver() time.Duration { return a.opts.StopLimit / 2 }

// notify logs a message to the service manager that could not be sent; nothing depends on it.
func (a *App) notify(what string, err error) {
	if err != nil {
		a.log.Warn("the service manager was not told", zap.String("what", what), zap.Error(err))
	}
}

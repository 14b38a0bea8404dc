package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/oklog/run"
	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/dispatch"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/lease"
	"github.com/approvald/approvald/internal/transport"
)

// group builds the actors. All of them run from the first moment; the stages order what they do.
func (a *App) group() *run.Group {
	g := new(run.Group)
	{
		// Stop: a context that ends or a call of Stop.
		ctx, cancel := context.WithCancelCause(a.stopped)
		g.Add(func() error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, func(error) { a.ending.Store(true); cancel(errInterrupted) })
	}
	if len(a.opts.Signals) > 0 {
		// Signals: after the first one the handler is gone, so a second one kills at once. That is the operator's way out of a stop
		// that takes too long, and no worse than a crash.
		g.Add(run.SignalHandler(context.Background(), a.opts.Signals...))
		// Other signals: to read the configuration again, and those that would end a process by default and mean nothing here.
		actor(g, a.log, "signals", a.drain(), a.heedSignals)
	}
	if os.Getpid() == 1 {
		// Orphans: what a container leaves to its first process.
		actor(g, a.log, "orphans", a.drain(), a.family.inherit)
	}
	{
		// Lease: take it, then watch that it is still ours.
		actor(g, a.log, "lease", a.drain(), a.holdLease)
	}
	{
		// State: open and verify the log and the journal, open the epoch.
		actor(g, a.log, "log", a.drain(), a.holdState)
	}
	{
		// Metrics: let the daemon be watched, from the lease on.
		actor(g, a.log, "metrics", a.drain(), a.serveMetrics)
	}
	{
		// Socket: let agents ask.
		actor(g, a.log, "socket", a.drain(), a.serveAgents)
	}
	{
		// Dispatch: take up what was left, then turn requests into messages and taps into decisions.
		actor(g, a.log, "dispatch", a.drain(), a.dispatch)
	}
	{
		// Transport: know the bot, then fetch or receive updates.
		actor(g, a.log, "transport", a.drainReceiver(), a.receive)
	}
	{
		// Trouble: notice what keeps people from being asked or heard, and tell the operator.
		actor(g, a.log, "trouble", a.drain(), a.watchTrouble)
	}
	{
		// Service manager: READY behind everything else, then the watchdog.
		actor(g, a.log, "service manager", a.drain(), a.report)
	}
	return g
}

// holdLease takes the gate's lease and ends the daemon when it is lost, or when it was found free and taken again after another
// daemon had it in between.
func (a *App) holdLease(ctx context.Context) error {
	retaken := make(chan struct{}, 1)
	held, err := lease.Acquire(ctx, lease.Options{
		Home:          a.opts.Config.Home,
		Mode:          a.opts.Config.Transport.Mode,
		Program:       "approvald",
		Version:       a.opts.Version,
		AllowRemoteFS: a.opts.AllowRemoteFS,
		Standby:       a.opts.Standby,
		Report: func(e lease.Event) {
			switch e.Kind {
			case lease.Waiting:
				a.log.Info(e.Text) // now: who started a standby wants to know what it waits for
				return
			case lease.Retaken:
				select {
				case retaken <- struct{}{}:
				default:
				}
			}
			a.tellf("%s", e.Text)
		},
	})
	if err != nil {
		return err
	}
	a.cleanups.push("release the lease", func(context.Context) error { return held.Release() })
	a.lease = held
	a.stages.lease.reach()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-held.Lost():
			return held.Err()
		case <-retaken:
		}
		if err := a.stages.epoch.wait(ctx); err != nil {
			return err
		}
		if err := a.fence.Guard(); err != nil {
			return err
		}
	}
}

// holdState opens what the gate remembers. The log is verified while it is read; a damaged one ends the start before anything
// was sent or decided.
func (a *App) holdState(ctx context.Context) error {
	if err := a.stages.lease.wait(ctx); err != nil {
		return err
	}
	deliveries := dispatch.NewDeliveries()
	journal, err := a.opts.Config.Paths().OpenJournal(approvallog.Options{
		Fold: deliveries, Now: a.opts.Now, Program: "approvald " + a.opts.Version, Logf: a.tellf, Took: a.took(logJournal),
	})
	if err != nil {
		return err
	}
	a.cleanups.push("close the delivery journal", func(context.Context) error { return journal.Close() })
	deliveryLog := dispatch.WrapLog(journal)
	a.fence = dispatch.NewFence(a.lease.Check, deliveryLog, deliveries)

	a.gate, err = gate.Open(a.opts.Config, gate.OpenOptions{Guard: a.fence.Guard, Now: a.opts.Now, Logf: a.tellf, Took: a.took(logApproval)})
	if err != nil {
		return fmt.Errorf("open the gate: %w", err)
	}
	opened := a.gate
	if n, err := opened.Sweep(); n > 0 || err != nil {
		a.log.Info("swept up what killed processes left", zap.Int("files", n), zap.Error(err))
	}
	a.cleanups.push("close the log", func(context.Context) error { return opened.Close() })
	a.stages.verified.reach()

	if err := journal.View(func() { a.before, _ = deliveries.LastEpoch() }); err != nil {
		return fmt.Errorf("read the delivery journal: %w", err)
	}
	known, err := a.knownEpoch()
	if err != nil {
		return err
	}
	a.missJournal(journal, deliveries, known)
	info := dispatch.EpochInfo{
		Program: "approvald " + a.opts.Version, Transport: a.opts.Config.Transport.Mode, PID: os.Getpid(), Known: known,
		WebhookURL: a.before.WebhookURL, // until Telegram says that it is gone
	}
	epoch, err := a.openEpoch(ctx, deliveryLog, deliveries, info)
	if err != nil {
		return fmt.Errorf("open the epoch: %w", err)
	}
	a.fence.Bind(epoch)
	if err := a.lease.SetEpoch(epoch); err != nil {
		return fmt.Errorf("write the epoch into the lease: %w", err)
	}
	a.epoch = epoch
	a.noteWebhook = func(ctx context.Context, url string) error {
		return dispatch.NoteWebhook(ctx, deliveryLog, deliveries, epoch, url)
	}
	a.cleanups.push("close the epoch", func(ctx context.Context) error {
		if a.lease.Check() != nil {
			return nil // it is not ours to close
		}
		return dispatch.CloseEpoch(ctx, dispatch.WrapLog(opened.Log()), deliveryLog, deliveries, epoch)
	})
	policy := policyOf(a.opts.Config)
	a.loop = dispatch.New(dispatch.Options{
		Log: dispatch.WrapLog(a.gate.Log()), Journal: deliveryLog, Requests: a.gate.Requests(), Deliveries: deliveries,
		Sender: a.client, Payloads: a.gate, Pacer: transport.NewPacer(), FollowUps: a.gate, Rules: policy.Rules,
		Chat:     dispatch.Chat{ID: a.opts.Config.Telegram.ChatID, ThreadID: policy.ThreadID, FollowMigration: true},
		Deputy:   policy.Deputy,
		Reminder: policy.Reminder, LastContact: a.lastContact(), NoteContact: a.noteContact,
		ConfigHash: policy.ConfigHash, Epoch: epoch, Check: a.lease.Check, Logger: a.log.Named("dispatch"), Stopping: ctx.Done(), Drain: a.drain() - a.opts.StopLimit/10,
		Observe: a.metrics,
	})
	a.stages.epoch.reach()
	ctx, beside := newHelpers(ctx)
	beside.run("journal snapshot", func() { journal.KeepSnapshot(ctx) })
	a.gate.Log().KeepSnapshot(ctx)
	return beside.end(ctx, context.Cause(ctx))
}

// openEpoch opens this lease's epoch. The holder before may have been stopped in the middle of an append: its append lock is never
// taken from a process that lives. A standby has time, and waits for it to go on or to end.
func (a *App) openEpoch(ctx context.Context, journal dispatch.Log, deliveries *dispatch.Deliveries, info dispatch.EpochInfo) (int64, error) {
	for {
		epoch, err := dispatch.OpenEpoch(ctx, dispatch.WrapLog(a.gate.Log()), journal, deliveries, info)
		if !a.opts.Standby || !errors.Is(err, approvallog.ErrLocked) {
			return epoch, err
		}
		a.log.Warn("the standby has the lease and waits for the append lock", zap.Error(err))
		pause := time.NewTimer(a.opts.RetryMin)
		select {
		case <-ctx.Done():
			pause.Stop()
			return 0, context.Cause(ctx)
		case <-pause.C:
		}
	}
}

// serveAgents opens the socket and answers on it. Only the lease's holder gets here, so a socket that lies there already belonged to
// a daemon that is gone.
func (a *App) serveAgents(ctx context.Context) error {
	if err := a.stages.epoch.wait(ctx); err != nil {
		return err
	}
	listener, err := gateapi.Listen(ctx, a.opts.Config.Paths().Socket, a.opts.Config.Identity())
	if err != nil {
		return err
	}
	a.cleanups.push("remove the socket", func(context.Context) error {
		if err := listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err // else the server closed it at its end
		}
		if a.lease.Check() != nil {
			return nil // what lies there may be the next holder's
		}
		return listener.Remove()
	})
	server := gateapi.NewServer(gateapi.ServerOptions{Gate: a.opts.Config.Identity(), Ops: gateapi.Local(a.gate, a.status), Logger: a.log.Named("socket")})
	a.stages.socket.reach()
	return server.Serve(ctx, listener)
}

// dispatch takes up what an earlier daemon left, which needs no network, and runs the loop once the bot is known to be ours.
func (a *App) dispatch(ctx context.Context) error {
	if err := a.stages.socket.wait(ctx); err != nil {
		return err
	}
	paths := a.opts.Config.Paths()
	if err := a.loop.Recover(ctx); err != nil {
		return paths.JournalError(fmt.Errorf("recover: %w", err))
	}
	a.stages.recovered.reach()
	if err := a.stages.bot.wait(ctx); err != nil {
		return err
	}
	// All actors are interrupted at once, but an update in hand needs the loop until its outcome is on disk.
	running, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	release := context.AfterFunc(ctx, func() {
		limit := time.NewTimer(a.drainReceiver())
		defer limit.Stop()
		select {
		case <-a.receiverEnded:
		case <-limit.C:
		}
		cancel(errInterrupted)
	})
	defer release()
	return paths.JournalError(a.loop.Run(running))
}

package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/dispatch"
	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/metrics"
	"github.com/approvald/approvald/internal/transport"
)

// The logs, as metrics name them.
const (
	logApproval = "approval"
	logJournal  = "journal"
)

func (a *App) newMetrics() *metrics.Metrics {
	taps, refused := dispatch.Outcomes()
	return metrics.New(a.opts.Version, metrics.Vocabulary{
		Deliveries: dispatch.MessageKinds(), DeliveryOutcomes: dispatch.ResultKinds(), Taps: taps, RefusedTaps: refused,
		Logs: []string{logApproval, logJournal},
	}, a.snapshot)
}

// took passes on how long the disk takes for one of the logs.
func (a *App) took(log string) func(op string, took time.Duration) {
	return func(op string, took time.Duration) {
		switch op {
		case approvallog.OpAppend:
			a.metrics.Appended(log, took)
		case approvallog.OpSync:
			a.metrics.Synced(log, took)
		}
	}
}

func (a *App) called(method string, class transport.Class, took, retryAfter time.Duration) {
	a.metrics.Called(method, string(class), took, retryAfter)
}

// serveMetrics lets the daemon be watched, where the configuration says so. Only the lease's holder gets here: a standby would not
// find the address free, and has nothing to show.
func (a *App) serveMetrics(ctx context.Context) error {
	address := a.opts.Config.Metrics.Listen
	if address == "" {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if err := a.stages.lease.wait(ctx); err != nil {
		return err
	}
	listener, err := metrics.Listen(ctx, address)
	if err != nil {
		return fmt.Errorf("metrics.listen = %q: %w", address, err)
	}
	a.cleanups.push("close the metrics listener", func(context.Context) error {
		if err := listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err // else the server closed it at its end
		}
		return nil
	})
	a.log.Info("metrics are served", zap.Stringer("address", listener.Addr()))
	return a.metrics.Serve(ctx, listener, metrics.Probes{Alive: a.alive, Ready: a.ready}, a.log.Named("metrics"))
}

// alive says why the daemon does not live: a part of it makes no progress.
func (a *App) alive() error {
	if stuck := a.vitals.stuck(); stuck != "" {
		return fmt.Errorf("no progress: %s", stuck)
	}
	return nil
}

// ready says why the daemon cannot do its whole work at the moment. That a single request cannot be shown is no such reason.
func (a *App) ready() error {
	if a.stopped.Err() != nil || a.ending.Load() {
		return errors.New("stopping")
	}
	if !a.stages.ready.reached() {
		return errors.New(a.startStatus())
	}
	if err := a.alive(); err != nil {
		return err
	}
	if err := a.lease.Check(); err != nil {
		return err
	}
	for _, t := range a.troubles(a.loop.Alarm()) {
		if t.Code != gateapi.TroubleUndelivered {
			return fmt.Errorf("%s: %s", t.Code, t.Text)
		}
	}
	// Between two polls that fail and the trouble that this becomes.
	if h, ok := a.health(); ok && !h.Healthy {
		return errors.New(h.Error)
	}
	return nil
}

// snapshot is what a scrape shows. It works at every moment from New on.
func (a *App) snapshot() metrics.Snapshot {
	now := a.opts.Now()
	s := metrics.Snapshot{Ready: a.ready() == nil, UpdatesAge: now.Sub(a.began), UpdatesPatience: silenceAtStart, Troubles: make(map[string]bool)}
	for _, code := range gateapi.TroubleCodes() {
		s.Troubles[code] = false
	}
	if h, ok := a.health(); ok {
		s.TransportHealthy, s.UpdatesPatience, s.UpdatesSkipped = h.Healthy, h.Patience, h.Skipped
		if !h.LastSuccess.IsZero() {
			s.UpdatesAge = time.Since(h.LastSuccess.Round(0)) // a machine that slept had no contact meanwhile
		}
	}
	s.ReloadsGood, s.ReloadsFailed, s.LastReloadGood = a.reloads.counts()
	config := a.inForce.status()
	s.ConfigLoaded, s.NeedsRestart = config.LoadedAt, len(config.NeedsRestart)
	if a.stages.lease.reached() {
		s.LeaseHeld = a.lease.Check() == nil
	}
	if !a.stages.epoch.reached() {
		return s
	}
	s.Epoch = a.epoch
	stats := a.loop.Stats()
	s.Undelivered, s.Unsettled = stats.Undelivered, stats.Unsettled
	s.ChatMuted = max(0, stats.MutedUntil.Sub(now))
	// What the log says, also before the loop runs.
	_ = a.gate.Log().View(func() { s.Pending, _ = a.gate.Requests().PendingCount(now, "") })
	for _, t := range a.troubles(a.loop.Alarm()) {
		s.Troubles[t.Code] = true
	}
	return s
}

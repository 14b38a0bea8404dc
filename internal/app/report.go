package app

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/rescue"
)

const (
	// startStep is how long the service manager is asked to wait at a time while the start makes progress.
	startStep = 30 * time.Second
	// receiveOverdue is how late a receive loop may come round before it is taken to hang: two calls that ran into their own
	// limit of 30 s, and a little more. A network that is down is no hang.
	receiveOverdue = 75 * time.Second
)

// report tells the service manager how far the daemon is, and vouches for it while every part shows progress.
func (a *App) report(ctx context.Context) error {
	defer func() { a.notify("stopping", a.opts.Notify.Stopping("stopping")) }()
	if err := a.reportStart(ctx); err != nil {
		return err
	}
	a.log.Info("ready", zap.String("gate", a.opts.Gate))
	a.notify("ready", a.opts.Notify.Ready(a.client.Redactor().String(a.standing.line(a.opts.Gate))))
	a.stages.ready.reach()

	feed := a.opts.Notify.WatchdogInterval() > 0
	if !feed && a.opts.Config.Metrics.Listen == "" {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	tick := time.NewTicker(a.vitals.every)
	defer tick.Stop()
	for {
		stuck := a.vitals.stuck()
		a.tellStanding(func(s *standing) { s.stuck = stuck })
		switch {
		case stuck != "":
			a.log.Error("no progress; whoever watches the daemon is told", zap.String("part", stuck))
		case feed:
			a.notify("watchdog", a.opts.Notify.Watchdog())
		}
		a.vitals.probe()
		select {
		case err := <-a.vitals.failed:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// reportStart keeps the service manager patient until every stage is reached. Telegram may take hours to be reachable, so the time
// is extended for as long as the daemon is there to ask for it.
func (a *App) reportStart(ctx context.Context) error {
	tick := time.NewTicker(startStep / 3)
	defer tick.Stop()
	for {
		a.notify("start", a.opts.Notify.ExtendTimeout(startStep))
		a.notify("status", a.opts.Notify.Status(a.startStatus()))
		select {
		case <-a.stages.transport.done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("stopped before the daemon was ready: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// standing is how the daemon stands, for `systemctl status`.
type standing struct {
	mu       sync.Mutex
	stuck    string // the part without progress
	config   string // what became of the last order to read the configuration again, when that matters still
	troubles []gateapi.Trouble
	said     string
}

// line is one line, to be said with READY: what is wrong stands first.
func (s *standing) line(gate string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = s.compose(gate)
	return s.said
}

func (s *standing) compose(gate string) string {
	var parts []string
	if s.stuck != "" {
		parts = append(parts, "no progress: "+s.stuck)
	}
	for _, t := range s.troubles {
		parts = append(parts, t.Code+": "+t.Text)
	}
	parts = append(parts, "serving gate "+gate)
	if s.config != "" {
		parts = append(parts, s.config)
	}
	return strings.Join(parts, "; ")
}

// reloaded notes what became of a reload; READY, which ends it, says so.
func (s *standing) reloaded(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config = what
}

// tellStanding changes how the daemon stands, and tells the service manager when that reads differently. Until READY the start has the word.
func (a *App) tellStanding(change func(*standing)) {
	s := &a.standing
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
	if line := s.compose(a.opts.Gate); line != s.said && a.stages.ready.reached() {
		s.said = line
		a.notify("status", a.opts.Notify.Status(a.client.Redactor().String(line)))
	}
}

func (a *App) startStatus() string {
	status := "starting: waiting for " + a.stages.current()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.trouble != nil {
		status += ": " + a.trouble.Error()
	}
	return status
}

// lookAtVitals is how often the parts are asked for progress when no watchdog says how often.
const lookAtVitals = 10 * time.Second

// newVitals are the parts whose progress the watchdog and /healthz vouch for. They are first asked when the daemon is ready; until
// then a start that waits is told from one that hangs by the service manager's own limit.
func (a *App) newVitals() *vitals {
	every := a.opts.Notify.WatchdogInterval()
	if every == 0 {
		every = lookAtVitals
	}
	return &vitals{every: every, failed: make(chan error, 1), vitals: []*vital{
		{name: "lease", limit: every, probe: func() error { return a.lease.Check() }},
		{name: "log", limit: every, probe: a.probeLog},
		{name: "dispatch", limit: every, probe: func() error { return a.loop.Ping(context.Background()) }},
		{name: "transport", limit: receiveOverdue, due: a.receiveDue},
	}}
}

// probeLog goes the way of an append up to the write: the append lock, the guard, the fold of what others wrote.
func (a *App) probeLog() error {
	_, err := a.gate.Log().Update(context.Background(), func(*approvallog.Tx) error { return nil })
	return err
}

func (a *App) receiveDue() time.Time {
	h, _ := a.health()
	return h.Due
}

// vital is one part: either it can be asked (probe), or it tells when it comes round next (due). A probe that ends with an error has
// ended: errors are for those who hear them, the watchdog is for silence.
type vital struct {
	name  string
	limit time.Duration
	probe func() error
	due   func() time.Time

	mu    sync.Mutex
	began time.Time // of a probe that has not returned, else zero
}

type vitals struct {
	every  time.Duration // how often they are to be asked
	vitals []*vital
	failed chan error // holds the first panic of a probe
}

func (v *vitals) fail(err error) {
	select {
	case v.failed <- err:
	default:
	}
}

// stuck names the first part that shows no progress, or nothing.
func (v *vitals) stuck() string {
	for _, part := range v.vitals {
		if part.isStuck(time.Now()) {
			return part.name
		}
	}
	return ""
}

// probe asks every part again whose last answer came. A part that never answers costs one goroutine until the watchdog ends it all.
func (v *vitals) probe() {
	for _, part := range v.vitals {
		if part.probe != nil {
			part.ask(v.fail)
		}
	}
}

func (p *vital) ask(failed func(error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.began.IsZero() {
		return
	}
	p.began = time.Now()
	go func() {
		// That it returned is the answer.
		rescue.Go("probe of "+p.name, failed, func() { _ = p.probe() })
		p.mu.Lock()
		defer p.mu.Unlock()
		p.began = time.Time{}
	}()
}

func (p *vital) isStuck(now time.Time) bool {
	if p.due != nil {
		due := p.due()
		return !due.IsZero() && now.Sub(due) > p.limit
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.began.IsZero() && now.Sub(p.began) >= p.limit
}

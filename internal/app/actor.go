package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/oklog/run"
	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/rescue"
)

// errInterrupted is the cause with which an actor's context ends because the group stops.
var errInterrupted = errors.New("the daemon is stopping")

// actor adds one part of the daemon to the group. execute runs until its context ends or the part fails; the interrupt
// only ends that context. run.Group waits for all its actors, so one that does not obey within drain is left behind, with
// its name in the log: a part that hangs must not keep the lease from being released.
//
// A part that ends by itself ends the daemon: no part is optional, and a daemon that is alive without one of them
// is worse than none.
func actor(g *run.Group, log *zap.Logger, name string, drain time.Duration, execute func(context.Context) error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	g.Add(func() error {
		result := make(chan error, 1)
		go func() { result <- rescue.Run(name, func() error { return execute(ctx) }) }()
		var err error
		select {
		case err = <-result:
		case <-ctx.Done():
			limit := time.NewTimer(drain)
			defer limit.Stop()
			select {
			case err = <-result:
			case <-limit.C:
				log.Warn("a part did not stop in time and is left behind", zap.String("part", name), zap.Duration("after", drain))
				return fmt.Errorf("%s did not stop within %s", name, drain)
			}
		}
		if p, ok := errors.AsType[*rescue.Error](err); ok {
			// There is no second chance to see the stack.
			log.Error("panic", zap.String("part", p.Part), zap.Any("value", p.Value), zap.ByteString("stack", p.Stack))
		}
		switch {
		case ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled) || errors.Is(err, errInterrupted)):
			log.Debug("stopped", zap.String("part", name))
			return nil
		case err == nil:
			return fmt.Errorf("%s ended by itself", name)
		default:
			// Errors say themselves what failed; a name in front would stand in the one line of a refused start.
			log.Debug("failed", zap.String("part", name), zap.Error(err))
			return err
		}
	}, func(error) { cancel(errInterrupted) })
}

// helpers are goroutines beside an actor's own. A panic in one ends the actor as its own would.
type helpers struct {
	running sync.WaitGroup
	fail    context.CancelCauseFunc // of the context that the actor runs under
}

// newHelpers answers the context that the actor and its helpers run under. The actor returns with end.
func newHelpers(ctx context.Context) (context.Context, *helpers) {
	h := &helpers{}
	ctx, h.fail = context.WithCancelCause(ctx)
	return ctx, h
}

func (h *helpers) run(part string, f func()) {
	h.running.Go(func() { rescue.Go(part, h.fail, f) })
}

// end ends the helpers, waits for them, and answers err, the actor's own end, or the panic of one of them.
func (h *helpers) end(ctx context.Context, err error) error {
	h.fail(errInterrupted)
	h.running.Wait()
	if p, ok := errors.AsType[*rescue.Error](context.Cause(ctx)); ok {
		return p
	}
	return err
}

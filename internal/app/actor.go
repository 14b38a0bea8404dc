package app

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/oklog/run"
	"go.uber.org/zap"
)

// errInterrupted is the cause with which an actor's context ends because the group stops.
var errInterrupted = errors.New("the daemon is stopping")

// PanicError is a panic in one of the daemon's parts, turned into an error so that the stop stays orderly: the lease is
// released and the log is whole. The stack is logged where the panic is met: there is no second chance to see it.
type PanicError struct {
	Part  string
	Value any
	Stack []byte
}

// Error shows the panic's value and its stack.
func (e *PanicError) Error() string {
	return fmt.Sprintf("%s: panic: %v\n%s", e.Part, e.Value, e.Stack)
}

// guarded runs a part and turns its panic into a *PanicError.
func guarded(part string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Part: part, Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}

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
		go func() { result <- guarded(name, func() error { return execute(ctx) }) }()
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
		if p, ok := errors.AsType[*PanicError](err); ok {
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

package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/rescue"
)

// cleanups is the stop order: a stack of named steps, run last in, first out, after every actor has ended. Whoever
// acquires a thing pushes its release at once, so a start that failed half-way unwinds by the same path as a clean stop.
type cleanups struct {
	mu    sync.Mutex
	steps []cleanup
}

type cleanup struct {
	name string
	run  func(context.Context) error
}

// push adds a step that runs before all that were pushed earlier. The step must return soon after its context ends.
func (c *cleanups) push(name string, run func(context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps = append(c.steps, cleanup{name, run})
}

// run empties the stack. Each step gets at most limit, and one that does not return by then is left behind with its
// name in the error: the steps below it, the lease's release above all, are owed whatever hangs above them. Failed steps
// are logged as they fail and joined into the error.
func (c *cleanups) run(log *zap.Logger, limit time.Duration) error {
	c.mu.Lock()
	steps := c.steps
	c.steps = nil
	c.mu.Unlock()

	var failed []error
	for i := len(steps) - 1; i >= 0; i-- {
		step := steps[i]
		began := time.Now()
		err := within(limit, step)
		if err != nil {
			err = fmt.Errorf("clean up %s: %w", step.name, err)
			log.Error("a step of the stop failed", zap.String("step", step.name), zap.Error(err))
			failed = append(failed, err)
			continue
		}
		log.Debug("cleaned up", zap.String("step", step.name), zap.Duration("took", time.Since(began)))
	}
	return errors.Join(failed...)
}

// graceAfterCancel is how long a step may still take after its context ended to return what it has to say.
const graceAfterCancel = 100 * time.Millisecond

// within runs a step under a limit and does not wait for it much longer than that, whether or not it obeys its context.
func within(limit time.Duration, step cleanup) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	result := make(chan error, 1)
	go func() {
		result <- rescue.Run(step.name, func() error {
			defer rescue.At("after " + step.name)
			return step.run(ctx)
		})
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	grace := time.NewTimer(graceAfterCancel)
	defer grace.Stop()
	select {
	case err := <-result:
		return err
	case <-grace.C:
		return fmt.Errorf("did not return within %s", limit)
	}
}

package lease

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/approvald/approvald/internal/durable"
)

// absentGraces is how many of the taker's grace periods a standby leaves a daemon
// directory away that somebody may be about to put back, before it makes one.
const absentGraces = 5

// waitToTake waits for the lease as long as it takes. Once a standby has seen a
// holder, nothing but ctx ends its wait: what it cannot have now, it may have
// when a directory is back, another take-over ended or a disk has room again.
// A start that never could wait is refused like any other.
func (t *taker) waitToTake(ctx context.Context) (*Lease, error) {
	var seen bool
	var told string
	tell := func(text string) {
		if text != told {
			told = text
			t.report(Event{Kind: Waiting, Path: t.recordPath, Text: text})
		}
	}
	for since := time.Now(); ; {
		l, err := t.attempt(ctx)
		if held, ok := errors.AsType[*HeldError](err); ok {
			seen = true
			tell("waiting for the lease: " + held.Holder.describe() + " has it; " + t.recordPath)
			if l, err = t.standby(ctx, held); l == nil && err == nil {
				since = time.Now()
				continue
			}
		}
		refused, ok := errors.AsType[*UnavailableError](err)
		if !ok || !seen && !refused.passing {
			return l, err
		}
		tell("waiting for the lease, which cannot be had now: " + refused.Error())
		if err := sleep(ctx, watchPeriod); err != nil {
			return nil, err
		}
		if time.Since(since) > absentGraces*t.grace {
			_ = t.makeDir() // what fails here is told at the next attempt
		}
	}
}

// makeDir makes the daemon directory again, but never the home above it: that
// would be another gate.
func (t *taker) makeDir() error {
	if err := t.fs.Before("lease.dir", t.daemonDir); err != nil {
		return err
	}
	if err := durable.Mkdir(t.daemonDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return t.fs.SyncDir("lease.dir", t.home)
}

// standby waits for what held names and takes over. nil, nil means that the
// holder changed in some other way: look again.
func (t *taker) standby(ctx context.Context, held *HeldError) (*Lease, error) {
	if held.Holder.Foreign {
		return nil, t.waitForeign(ctx)
	}
	k, err := t.waitKernel(ctx)
	if err != nil {
		return nil, err
	}
	l, err := t.takeUnder(ctx, k)
	if errors.As(err, &held) {
		return nil, nil
	}
	return l, err
}

// waitForeign waits until another implementation's record may have changed.
// Its process holds nothing that the kernel would tell of, so a tick counts.
func (t *taker) waitForeign(ctx context.Context) error {
	n, err := newNotifier(t.sys, filepath.Base(t.recordPath))
	if err != nil {
		n = &notifier{}
	}
	defer n.close()
	n.add(t.daemonDir, dirEvents)
	tick := time.NewTimer(watchPeriod)
	defer tick.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-n.C:
	case err := <-n.broken:
		return err
	case <-tick.C:
	}
	return nil
}

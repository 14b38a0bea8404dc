package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// signalError ends a verb that a signal interrupted. The process ends by that
// signal, so that a shell or supervisor sees what happened.
type signalError struct {
	sig syscall.Signal
	key string // the request that was waited for, if it was one
}

func (e signalError) Error() string { return unix.SignalName(e.sig) }

func (e signalError) failure() failure {
	return failure{
		code:    "interrupted",
		message: unix.SignalName(e.sig) + ": stopped waiting for " + e.key + "; nothing was decided by that",
		hint:    "wait on with: approvald wait " + quoteArg(e.key),
	}
}

// withSignals is ctx that ends with a signalError on the signals that ask a
// waiting program to stop.
func withSignals(ctx context.Context, key string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	quit := make(chan struct{})
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		select {
		case s := <-got:
			if sig, ok := s.(syscall.Signal); ok {
				cancel(signalError{sig, key})
			}
		case <-quit:
		}
	}()
	return ctx, func() {
		signal.Stop(got)
		close(quit)
		<-gone
		cancel(nil)
	}
}

// dieBySignal ends the process by sig, as if it had not been caught. It returns
// the shell's code for that only where the signal is blocked or ignored.
func dieBySignal(sig syscall.Signal) int {
	signal.Reset(sig)
	if err := unix.Kill(unix.Getpid(), sig); err == nil {
		// The signal is delivered to some thread of this process before long.
		unix.Nanosleep(&unix.Timespec{Sec: 1}, nil)
	}
	return 128 + int(sig)
}

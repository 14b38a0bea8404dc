package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// A signal that comes while the configuration is read stops the daemon in order, as one that comes later does.
func TestStopBeforeTheDaemonListens(t *testing.T) {
	guard := make(chan os.Signal, 2) // else a signal that nobody catches ends the test
	signal.Notify(guard, stopsDaemon...)
	defer signal.Stop(guard)
	for _, sig := range stopsDaemon {
		ctx, release := untilStopped(context.Background())
		if ctx.Err() != nil {
			t.Fatal("it ended before the signal")
		}
		if err := syscall.Kill(os.Getpid(), sig.(syscall.Signal)); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(30 * time.Second):
			t.Errorf("%v does not end it", sig)
		}
		release()
	}
}

package lease

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// awaitText returns once an event said something.
func (e *eventLog) awaitText(t *testing.T, text string) {
	t.Helper()
	waitUntil(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, ev := range e.events {
			if strings.Contains(ev.Text, text) {
				return true
			}
		}
		return false
	})
}

// standbyOn starts a standby; its lease comes out of the channel.
func standbyOn(t *testing.T, g gate) (*eventLog, <-chan *Lease) {
	t.Helper()
	var events eventLog
	o := g.options()
	o.Standby, o.Report, o.grace = true, events.add, 100*time.Millisecond
	taken := make(chan *Lease, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		l, err := Acquire(t.Context(), o)
		if err != nil {
			t.Errorf("the standby gave up: %v", err)
		}
		taken <- l
	}()
	t.Cleanup(func() {
		<-done
		select {
		case l := <-taken:
			if l != nil {
				l.Release()
			}
		default:
		}
	})
	return &events, taken
}

func wantTaken(t *testing.T, taken <-chan *Lease) {
	t.Helper()
	select {
	case l := <-taken:
		if l == nil {
			t.Fatal("no lease")
		}
		defer l.Release()
		if err := l.Check(); err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the standby does not take over")
	}
}

// TestStandbyOutlastsATakeOver: the five rounds are for a plain start.
func TestStandbyOutlastsATakeOver(t *testing.T) {
	t.Parallel()
	for name, entry := range map[string]string{"empty": "", "a paused process's": `{"pid":1,"nonce":"n","time":0}`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := deadGate(t)
			g.write(t, g.section(), entry)
			events, taken := standbyOn(t, g)
			events.awaitText(t, "cannot be had now")
			if err := os.Remove(g.section()); err != nil {
				t.Fatal(err)
			}
			wantTaken(t, taken)
		})
	}
}

// TestStandbyOutlastsAMovedDirectory: moved and put back, or gone for good.
func TestStandbyOutlastsAMovedDirectory(t *testing.T) {
	t.Parallel()
	for _, back := range []bool{true, false} {
		g := newGate(t)
		holder := mustAcquire(t, g.options())
		events, taken := standbyOn(t, g)
		events.awaitText(t, "has it")
		dir := strings.TrimSuffix(g.record(), "/telegram-transport.lock")
		if err := os.Rename(dir, dir+".away"); err != nil {
			t.Fatal(err)
		}
		<-holder.Lost()
		holder.Release()
		events.awaitText(t, "cannot be had now")
		if back {
			if err := os.Rename(dir+".away", dir); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
				t.Fatal(err)
			}
		}
		wantTaken(t, taken)
	}
}

// TestStandbyThatNeverCouldWait is refused as a plain start is.
func TestStandbyThatNeverCouldWait(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	g.mkdir(t)
	if err := os.Mkdir(g.flock(), 0o700); err != nil {
		t.Fatal(err)
	}
	o := g.options()
	o.Standby = true
	_, err := Acquire(t.Context(), o)
	wantUnavailable(t, err)
}

// TestStartBesideAStandbyThatTakesOver: the standby is no transport that runs.
func TestStartBesideAStandbyThatTakesOver(t *testing.T) {
	t.Parallel()
	g := deadGate(t)
	defer holdKernelLock(t, g)()
	_, err := Acquire(t.Context(), g.options())
	wantHeld(t, err)
	if text := err.Error(); strings.Contains(text, "running already") || !strings.Contains(text, "taking over (a standby") {
		t.Errorf("the refusal: %s", text)
	}
}

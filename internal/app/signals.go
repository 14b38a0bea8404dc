package app

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"go.uber.org/zap"
)

// hangUpEcho is how long after a terminal has gone another SIGHUP is taken to be about that: the kernel and the shell both send one.
const hangUpEcho = 2 * time.Second

// heedSignals deals with the signals that do not stop the daemon. SIGHUP reads the configuration again, unless it says that the
// terminal has gone: that takes neither the gate away nor a half-edited file as an order. SIGPIPE comes from a log reader that
// went away. The others mean nothing.
func (a *App) heedSignals(ctx context.Context) error {
	caught := make(chan os.Signal, 4)
	signal.Notify(caught, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE)
	hangUp := hangUpWatch{terminal: onTerminal()}
	var open <-chan struct{} // once a reload waits for the gate to be open
	for {
		select {
		case <-ctx.Done():
			// They stay caught until the process ends: the clean-ups are still to come.
			return context.Cause(ctx)
		case <-open:
			open = nil
			a.reload()
		case s := <-caught:
			switch {
			case s == syscall.SIGPIPE:
			case s != syscall.SIGHUP:
				a.log.Info("signal ignored", zap.Stringer("signal", s))
			case hangUp.meant(time.Now(), onTerminal()):
				a.log.Info("the terminal has gone; the daemon goes on without it. To have the configuration read again, send SIGHUP once more")
			default:
				open = a.stages.epoch.done
			}
		}
	}
}

// hangUpWatch tells a SIGHUP that the end of a terminal brings from one that somebody sends.
type hangUpWatch struct {
	terminal bool // there was one when last looked at
	gone     time.Time
}

// meant reports whether a SIGHUP that comes now is about the terminal.
func (w *hangUpWatch) meant(now time.Time, terminal bool) bool {
	if w.terminal && !terminal {
		w.gone = now
	}
	w.terminal = terminal
	return !w.gone.IsZero() && now.Sub(w.gone) < hangUpEcho
}

// onTerminal reports whether this process has a controlling terminal. The kernel takes it away before it sends SIGHUP.
func onTerminal() bool {
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return false // no way to tell, and SIGHUP then means what it means to a service
	}
	const terminal = 7 - 3 // tty_nr, of the fields after the name
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) <= terminal {
		return false
	}
	number, err := strconv.Atoi(string(fields[terminal]))
	return err == nil && number != 0
}

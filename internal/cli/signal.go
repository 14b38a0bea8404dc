package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// signalError ends a verb that a signal interrupted. The process ends by that
// signal, so that a shell or supervisor sees what happened.
type signalError struct {
	sig syscall.Signal
	key string // the request that was waited for, if it was one
	end string // how it ended when the signal came, empty while it waits on
}

func (e signalError) Error() string { return unix.SignalName(e.sig) }

func (e signalError) failure() failure {
	if e.end != "" {
		return failure{
			code:    "interrupted",
			message: unix.SignalName(e.sig) + ": stopped waiting for " + e.key + ", which is " + e.end,
			hint:    "see it with: approvald show " + quoteArg(e.key),
		}
	}
	return failure{
		code:    "interrupted",
		message: unix.SignalName(e.sig) + ": stopped waiting for " + e.key + "; nothing was decided by that",
		hint:    "wait on with: approvald wait " + quoteArg(e.key),
	}
}

// stopping are the signals that ask a waiting program to stop.
var stopping = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// withSignals is ctx that ends with a signalError on the signals that ask a
// waiting program to stop.
func withSignals(ctx context.Context, key string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	got := make(chan os.Signal, 1)
	catch(got, stopping)
	quit := make(chan struct{})
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		select {
		case s := <-got:
			if sig, ok := s.(syscall.Signal); ok {
				cancel(signalError{sig: sig, key: key})
			}
		case <-quit:
		}
	}()
	return ctx, func() {
		signal.Stop(got)
		quitPlainly()
		close(quit)
		<-gone
		cancel(nil)
	}
}

// dieBySignal ends the process by sig, as if it had not been caught. It returns
// the shell's code for that only where the signal is blocked or ignored.
func dieBySignal(sig syscall.Signal) int {
	signal.Reset(sig)
	if sig == syscall.SIGQUIT {
		quitPlainly()
	}
	if err := unix.Kill(unix.Getpid(), sig); err == nil {
		// The signal is delivered to some thread of this process before long.
		unix.Nanosleep(&unix.Timespec{Sec: 1}, nil)
	}
	return 128 + int(sig)
}

// sigaction holds the kernel's struct sigaction of any architecture. The zero value is the default action.
type sigaction [64]byte

// goQuit is what the Go runtime does on SIGQUIT.
var goQuit sigaction

// catch is signal.Notify for those of the signals that this process was not told
// to ignore, as nohup does.
func catch(c chan<- os.Signal, signals []os.Signal) {
	quitCaught()
	for _, sig := range signals {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}

// quitPlainly makes SIGQUIT, which Ctrl-\ sends, end this process as it ends any
// program: the Go runtime would print all its goroutines. quitCaught gives the
// signal back to the runtime, as signal.Notify needs it.
func quitPlainly() {
	if !signal.Ignored(syscall.SIGQUIT) {
		setQuit(&sigaction{}, &goQuit)
	}
}

func quitCaught() {
	if goQuit != (sigaction{}) {
		setQuit(&goQuit, nil)
		goQuit = sigaction{}
	}
}

func setQuit(act, old *sigaction) {
	const setSize = 8 // of the kernel's signal set
	// Refused, everything stays as it is: the program ends all the same, with more talk.
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(syscall.SIGQUIT),
		uintptr(unsafe.Pointer(act)), uintptr(unsafe.Pointer(old)), setSize, 0, 0)
}

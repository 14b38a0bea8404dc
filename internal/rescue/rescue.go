// Package rescue turns a panic in one part of the daemon into an error that names the part, so that the daemon ends in order: the
// lease is released and the log is whole.
//
// It guarantees that a function run by [Run] returns an [Error] in place of panicking, and that a test can make any part panic, or do
// something else, at a named point ([Hook]). It does not guarantee that what the part held is let go of: whoever waits for it
// needs a limit of time.
package rescue

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"
)

// Error is a panic.
type Error struct {
	Part  string
	Value any
	Stack []byte
}

// Error shows the panic's value and its stack.
func (e *Error) Error() string { return fmt.Sprintf("%s: panic: %v\n%s", e.Part, e.Value, e.Stack) }

// Run runs a part and turns its panic into an [*Error]. part is a point for the tests' hook.
func Run(part string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Error{Part: part, Value: v, Stack: debug.Stack()}
		}
	}()
	At(part)
	return f()
}

// Go runs a part that has no error of its own, and tells failed of its panic.
func Go(part string, failed func(error), f func()) {
	if err := Run(part, func() error { f(); return nil }); err != nil {
		failed(err)
	}
}

var hook atomic.Pointer[func(point string)]

// Hook has every point that the daemon comes by call f, in the goroutine that comes by; nil calls nothing. It is for tests.
func Hook(f func(point string)) {
	if f == nil {
		hook.Store(nil)
		return
	}
	hook.Store(&f)
}

// At marks a point that a test can hook.
func At(point string) {
	if f := hook.Load(); f != nil {
		(*f)(point)
	}
}

// Package demo plays the whole story of approvald on one machine: the real program as daemon and as commands, each a process
// of its own, against a Bot API server on loopback whose phone is the terminal or, in auto mode, a script.
//
// It guarantees that a story told to its end is true: every claim that it prints is checked against the processes' exit
// codes, the phone and the log, and one that does not hold ends the demo with an error. It reaches nothing but 127.0.0.1 and a
// temporary directory, and leaves neither a process nor a file behind, also when it is interrupted.
//
// It does not show webhooks, quorums or the systemd unit.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// autoLimit ends a demo that plays by itself and hangs; it takes a few seconds when all is well.
const autoLimit = time.Minute

// ErrNoTerminal reports that a person is to choose and there is no terminal to ask on.
var ErrNoTerminal = errors.New("the demo asks you to choose and standard input is no terminal: run it as `approvald demo --auto`")

// ErrQuit reports that the person left before the end.
var ErrQuit = errors.New("the demo was left before its end")

// Options says how to play.
type Options struct {
	// Program is the approvald to run as daemon and as commands. Default: the running program.
	Program string
	// Auto lets a script hold the phone.
	Auto bool
	// In is the terminal of the person who holds the phone; not read in auto mode.
	In *os.File
	// Out is where the story goes.
	Out io.Writer
}

// Run plays the story. It returns nil when every step held, ErrQuit when the person left, else what did not hold.
func Run(ctx context.Context, o Options) (err error) {
	if o.Program == "" {
		if o.Program, err = os.Executable(); err != nil {
			return fmt.Errorf("find the program itself: %w", err)
		}
	}
	screen := newScreen(o.Out)
	var hand hand = scripted{}
	if o.Auto {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, autoLimit, fmt.Errorf("the demo did not end within %s", autoLimit))
		defer cancel()
	} else {
		if o.In == nil || !term.IsTerminal(int(o.In.Fd())) {
			return ErrNoTerminal
		}
		person, err := newPerson(o.In, screen)
		if err != nil {
			return err
		}
		defer person.close()
		hand = person
	}

	w, err := newWorld(screen, o.Program)
	if err != nil {
		return fmt.Errorf("set the demo up: %w", err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if err := tell(ctx, w, hand); err != nil {
		if !errors.Is(err, ErrQuit) && ctx.Err() == nil {
			screen.alarm("%v", err)
			w.explain()
		}
		return err
	}
	return nil
}

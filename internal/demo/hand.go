package demo

import (
	"context"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// hand is who holds the phone.
type hand interface {
	// numbered says whether the buttons are to be drawn with the keys that tap them.
	numbered() bool
	// choose returns the button to tap, counted from 0 over all rows, out of those with the given labels. want is what the
	// story would like. It returns an error when ctx ends first: the card has changed or the demo is over.
	choose(ctx context.Context, labels []string, want string) (int, error)
}

// scripted taps what the story wants.
type scripted struct{}

func (scripted) numbered() bool { return false }

func (scripted) choose(ctx context.Context, labels []string, want string) (int, error) {
	if want == "" {
		<-ctx.Done()
		return 0, context.Cause(ctx)
	}
	for i, label := range labels {
		if label == want {
			return i, nil
		}
	}
	return 0, fmt.Errorf("the card has no button %q: %q", want, labels)
}

// person taps with the keys of a terminal.
type person struct {
	screen *screen
	fd     int
	saved  unix.Termios
	keys   chan byte // holds one
}

// newPerson puts the terminal into a mode in which each key arrives at once and unseen; Ctrl-C still interrupts.
func newPerson(in *os.File, s *screen) (*person, error) {
	p := &person{screen: s, fd: int(in.Fd()), keys: make(chan byte, 1)}
	mode, err := unix.IoctlGetTermios(p.fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("read the terminal's mode: %w", err)
	}
	p.saved = *mode
	mode.Lflag &^= unix.ICANON | unix.ECHO
	mode.Cc[unix.VMIN], mode.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(p.fd, unix.TCSETS, mode); err != nil {
		return nil, fmt.Errorf("read single keys from the terminal: %w", err)
	}
	// A read of a terminal cannot be given up; this one ends with the process.
	go p.read(in)
	return p, nil
}

func (p *person) read(in *os.File) {
	defer close(p.keys)
	buf := make([]byte, 64)
	for {
		n, err := in.Read(buf)
		if err != nil {
			return
		}
		if buf[0] == 0x1b {
			n = 1 // an arrow's or a function key's sequence, which ends in a letter
		}
		for _, key := range buf[:n] {
			select {
			case p.keys <- key:
			default: // one is waiting already
			}
		}
	}
}

func (p *person) close() {
	_ = unix.IoctlSetTermios(p.fd, unix.TCSETS, &p.saved) // nothing can be done about a terminal that is gone
}

func (p *person) numbered() bool { return true }

func (p *person) choose(ctx context.Context, labels []string, _ string) (int, error) {
	// A key typed early must not tap a card that was not seen yet.
	select {
	case <-p.keys:
	default:
	}
	p.screen.line(p.screen.style(styleBold, "  "+keysFor(labels)+", q leaves:"))
	for {
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case key, open := <-p.keys:
			switch {
			case !open, key == 'q', key == 'Q', key == 4: // Ctrl-D
				return 0, ErrQuit
			}
			if i, ok := buttonOf(key, labels); ok {
				return i, nil
			}
			p.screen.line("  That key is no button. " + keysFor(labels) + ", q leaves.")
		}
	}
}

// initials are the keys of the buttons that every card has, beside their numbers.
var initials = map[byte]string{'a': buttonApprove, 'r': buttonReject}

// buttonOf is the button that a key taps.
func buttonOf(key byte, labels []string) (int, bool) {
	if key >= '1' && int(key-'1') < len(labels) {
		return int(key - '1'), true
	}
	i := slices.Index(labels, initials[key|0x20]) // in either case
	return i, i >= 0
}

// keysFor says which keys tap.
func keysFor(labels []string) string {
	text := fmt.Sprintf("Tap 1 to %d", len(labels))
	if slices.Contains(labels, buttonApprove) && slices.Contains(labels, buttonReject) {
		text += ", or a to approve, r to reject"
	}
	return text
}

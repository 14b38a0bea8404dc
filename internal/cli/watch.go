package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/approvald/approvald/internal/gateapi"
)

// watchEvery is how often a watched status is looked at: ages on it change every second.
const watchEvery = time.Second

// watchStatus keeps a status up to date until Ctrl-C, which is how a watch is meant to end: with exit code 0.
func (e *env) watchStatus(ctx context.Context, ops gateapi.Ops) error {
	out, ok := e.ui.out.(*os.File)
	if !e.json && (!ok || !term.IsTerminal(int(out.Fd())) || os.Getenv("TERM") == "dumb") {
		return usagef("approvald status --watch --json", "--watch redraws a terminal, and stdout is none that can be redrawn")
	}
	ctx, stop := withSignals(ctx, "")
	defer stop()
	show := e.changes()
	if !e.json {
		show = e.redraw(out)
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		err := show(ctx, ops)
		if ctx.Err() == nil && err == nil && e.ui.broken != nil {
			err = fmt.Errorf("write to stdout: %w", e.ui.broken)
		}
		if ctx.Err() == nil && err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			if sig, ok := errors.AsType[signalError](context.Cause(ctx)); ok && sig.sig == syscall.SIGINT {
				return nil
			}
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// changes prints one JSON value each time that something else than the time of the last exchange is new.
func (e *env) changes() func(context.Context, gateapi.Ops) error {
	last, began := "", false
	return func(ctx context.Context, ops gateapi.Ops) error {
		st, err := ops.Status(ctx)
		if err != nil && !began {
			return err
		}
		began = true
		if err != nil {
			if f := describe(err); ctx.Err() == nil && f.message != last {
				last = f.message
				e.ui.fail(f)
			}
			return nil
		}
		same := st
		same.Transport.LastSuccess = nil
		text, err := gateapi.Encode(same)
		if err != nil {
			return fmt.Errorf("encode output: %w", err)
		}
		if string(text) == last {
			return nil
		}
		last = string(text)
		return e.ui.emit(st)
	}
}

// redraw draws each status over the one before. The screen is not cleared, so that nothing flickers and what was there
// before stays.
func (e *env) redraw(out *os.File) func(context.Context, gateapi.Ops) error {
	drawn, began := 0, false
	return func(ctx context.Context, ops gateapi.Ops) error {
		frame, err := e.frame(ctx, ops)
		if err != nil && !began {
			return err
		}
		if err != nil {
			f := describe(err)
			frame = []string{string(told(f.message)), string(told(f.hint))}
		}
		if ctx.Err() != nil {
			return nil
		}
		began = true
		width, height, err := term.GetSize(int(out.Fd()))
		if err != nil || width <= 0 || height <= 1 {
			width, height = 80, 24
		}
		frame = append(frame, "", "at "+stamp(time.Now())+"; Ctrl-C ends the watch")
		if most := height - 1; len(frame) > most { // one more line and the terminal scrolls
			frame = append(frame[:max(0, most-1)], "…")
		}
		var b strings.Builder
		if drawn > 0 {
			fmt.Fprintf(&b, "\x1b[%dA\r", drawn)
		}
		for _, line := range frame {
			b.WriteString(cut(line, width))
			b.WriteString("\x1b[K\n")
		}
		b.WriteString("\x1b[J")
		drawn = len(frame)
		e.ui.write(b.String())
		return nil
	}
}

// frame is the status as lines.
func (e *env) frame(ctx context.Context, ops gateapi.Ops) ([]string, error) {
	st, err := ops.Status(ctx)
	if err != nil {
		return nil, err
	}
	waiting, err := ops.List(ctx)
	if err != nil {
		return nil, err
	}
	var page bytes.Buffer
	on := *e
	on.ui = &ui{out: &page, err: e.ui.err, colour: e.ui.colour}
	on.printStatus(st, waiting)
	return strings.Split(strings.TrimSuffix(page.String(), "\n"), "\n"), nil
}

// cut shortens a line to a terminal's width: one that wrapped would take two rows, and the next frame start on a wrong one.
// Marks of ours take no room.
func cut(line string, width int) string {
	var b strings.Builder
	room := width - 1 // the last column is left free: some terminals wrap there
	for i := 0; i < len(line); {
		if strings.HasPrefix(line[i:], "\x1b[") {
			end := strings.IndexByte(line[i:], 'm')
			b.WriteString(line[i : i+end+1])
			i += end + 1
			continue
		}
		r, n := utf8.DecodeRuneInString(line[i:])
		if room -= columns(r); room < 0 {
			break
		}
		b.WriteString(line[i : i+n])
		i += n
	}
	if room < 0 && strings.Contains(line, "\x1b[") {
		b.WriteString("\x1b[0m")
	}
	return b.String()
}

// columns is how much room a character may take: two for whatever is not Latin, Greek or Cyrillic, which is too much for
// some and too little for none.
func columns(r rune) int {
	if r < 0x1100 || r == '…' {
		return 1
	}
	return 2
}

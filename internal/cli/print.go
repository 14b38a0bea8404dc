package cli

import (
	"fmt"
	"io"
	"iter"
	"os"
	"strings"
	"unicode"
	"unicode/utf16"

	"golang.org/x/term"

	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/visible"
)

// The rules of everything that approvald prints:
//
//   - Data goes to stdout, talk goes to stderr. What a script would keep is
//     data; what helps a person is talk.
//   - With --json stdout gets exactly one JSON value on one line, an error
//     included; follow modes get one a line. Times are RFC 3339 in UTC with
//     milliseconds. Talk stays on stderr.
//   - Talk begins with "approvald: ". An error is one line, lower case, without
//     a full stop; what to do next is a line of its own that begins with "hint: "
//     or, for a command line that cannot be meant, with "Try: ".
//   - A refusal to start the daemon is exactly one line.
//   - Text from outside (keys, summaries, names, notes, payloads, server
//     errors) passes through line, block or say, which make control, C1 and
//     direction-changing characters visible. JSON has them as escapes.
//   - A word says what a colour says. Colour goes to terminals only, and not
//     when NO_COLOR is set.
//   - Nothing else in this package writes to stdout or stderr.

// ui is the one way out.
type ui struct {
	out, err io.Writer
	json     bool
	colour   bool
	oneLine  bool  // a failure is exactly one line on stderr, its hint included
	broken   error // the first failed write to stdout
}

func newUI(out, errw *os.File) *ui {
	return &ui{
		out: out, err: errw,
		colour: term.IsTerminal(int(out.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
	}
}

// line prints one line of data. Every string among args is made visible, line
// ends included.
func (u *ui) line(format string, args ...any) {
	u.write(fmt.Sprintf(format, clean(args)...) + "\n")
}

// block prints text of several lines, each behind prefix, so that none can pass
// for a line of ours.
func (u *ui) block(prefix string, text verbatim) {
	for l := range text.lines() {
		u.write(prefix + l + "\n")
	}
}

// raw prints bytes untouched: only for data that a person asked for as bytes,
// and for what cobra generates.
func (u *ui) raw(b []byte) {
	if _, err := u.out.Write(b); err != nil && u.broken == nil {
		u.broken = err
	}
}

// emit prints one JSON value on one line.
func (u *ui) emit(v any) error {
	text, err := jsonLine(v)
	if err == nil {
		u.write(text)
	}
	return err
}

// emitTalk prints one JSON value on stderr, for a verb whose stdout belongs to
// somebody else.
func (u *ui) emitTalk(v any) error {
	text, err := jsonLine(v)
	if err == nil {
		_, _ = io.WriteString(u.err, text)
	}
	return err
}

func jsonLine(v any) (string, error) {
	text, err := gateapi.Encode(v)
	if err != nil {
		return "", fmt.Errorf("encode output: %w", err)
	}
	return escapeJSON(string(text)) + "\n", nil
}

// say is talk to the person.
func (u *ui) say(format string, args ...any) {
	// A closed stderr leaves nobody to tell.
	_, _ = fmt.Fprintf(u.err, "approvald: "+format+"\n", clean(args)...)
}

// tell is a line for the person without the prefix: part of something longer
// that talk shows.
func (u *ui) tell(format string, args ...any) {
	_, _ = fmt.Fprintf(u.err, format+"\n", clean(args)...)
}

// ask prints a question without ending its line.
func (u *ui) ask(format string, args ...any) {
	_, _ = fmt.Fprintf(u.err, format, clean(args)...)
}

// show prints text of several lines to the person, each behind prefix.
func (u *ui) show(prefix string, text verbatim) {
	for l := range text.lines() {
		_, _ = fmt.Fprintln(u.err, prefix+l)
	}
}

// fail tells a failure the way that --json asks for.
func (u *ui) fail(f failure) {
	message := strings.ReplaceAll(f.message, "\n", "; ")
	if u.json {
		type inner struct {
			Code    string `json:"code"`
			Message string `json:"message"`
			Hint    string `json:"hint"`
		}
		if err := u.emit(struct {
			Error inner `json:"error"`
		}{inner{f.code, message, f.hint}}); err != nil {
			u.say("%s", err)
		}
		return
	}
	switch {
	case u.oneLine && f.hint != "":
		u.say("%s; %s", told(message), told(f.hint))
		return
	case !u.oneLine && len(f.faults) > 1:
		for _, fault := range f.faults {
			u.say("%s", told(fault))
		}
	default:
		u.say("%s", told(message))
	}
	switch {
	case f.hint == "":
	case strings.HasPrefix(f.hint, "Try: "):
		u.tell("%s", told(f.hint))
	default:
		u.tell("hint: %s", told(f.hint))
	}
}

// bold marks the word that matters on a terminal.
func (u *ui) bold(s string) verbatim {
	if !u.colour {
		return verbatim(visible.Line(s))
	}
	return verbatim("\x1b[1m" + visible.Line(s) + "\x1b[0m")
}

func (u *ui) write(s string) { u.raw([]byte(s)) }

// verbatim is text that was made visible already.
type verbatim string

func (v verbatim) lines() iter.Seq[string] {
	return strings.SplitSeq(strings.TrimSuffix(string(v), "\n"), "\n")
}

// told is a sentence of ours, in which foreign text was made visible already.
func told(sentence string) verbatim { return verbatim(visible.Message(sentence)) }

// clean makes the text among format arguments visible. Numbers and times cannot
// carry anything.
func clean(args []any) []any {
	out := make([]any, len(args))
	for i, a := range args {
		switch v := a.(type) {
		case verbatim:
			out[i] = string(v)
		case string:
			out[i] = visible.Line(v)
		case error:
			out[i] = visible.Message(v.Error())
		case fmt.Stringer:
			out[i] = visible.Line(v.String())
		default:
			out[i] = a
		}
	}
	return out
}

// escapeJSON writes the characters that a terminal obeys or hides as \u
// escapes. JSON text has them inside strings only, so its meaning stays.
func escapeJSON(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || r < 0x7f:
			b.WriteRune(r)
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029':
			if r > 0xffff {
				hi, lo := utf16.EncodeRune(r)
				fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
			} else {
				fmt.Fprintf(&b, `\u%04x`, r)
			}
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

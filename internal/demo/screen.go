package demo

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/approvald/approvald/internal/stage"
	"github.com/approvald/approvald/internal/telegramtest"
)

// Narration speaks in plain sentences at the left margin. What a program was told starts with "$", what it said back is
// indented below it, and the phone stands further right in its own frame. Colour is an addition, never the only carrier, and is
// left out when the output is no terminal or NO_COLOR is set.

const (
	styleBold  = "1"
	styleDim   = "2"
	styleRed   = "31"
	styleGreen = "32"
	styleCyan  = "36"
)

// screen prints the story. Several children print at once; each line stays whole.
type screen struct {
	mu     sync.Mutex
	w      io.Writer
	colour bool
	width  int
}

func newScreen(w io.Writer) *screen {
	s := &screen{w: w, width: 78}
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return s
	}
	s.colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	if width, _, err := term.GetSize(int(file.Fd())); err == nil && width >= 50 {
		s.width = min(width, 100)
	}
	return s
}

func (s *screen) style(code, text string) string {
	if !s.colour || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s *screen) line(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintln(s.w, text) //nolint:errcheck // there is nowhere else to tell it
}

// chapter opens a part of the story.
func (s *screen) chapter(number, total int, title string) {
	s.line("")
	s.line(s.style(styleBold, fmt.Sprintf("── %d/%d  %s ", number, total, title)) +
		s.style(styleDim, strings.Repeat("─", max(3, s.width-utf8.RuneCountInString(title)-10))))
}

// say tells what happens, wrapped to the width.
func (s *screen) say(format string, args ...any) {
	for _, line := range wrap(fmt.Sprintf(format, args...), s.width) {
		s.line(line)
	}
}

// command shows a command line as a person would type it.
func (s *screen) command(args ...string) {
	s.line("  " + s.style(styleCyan, "$ "+stage.CommandLine(append([]string{"approvald"}, args...))))
}

// note is a fact that the demo checked.
func (s *screen) note(format string, args ...any) {
	s.line("  " + s.style(styleGreen, "✓ ") + fmt.Sprintf(format, args...))
}

// alarm is a fact that did not hold.
func (s *screen) alarm(format string, args ...any) {
	s.line("  " + s.style(styleRed, "✗ "+fmt.Sprintf(format, args...)))
}

// Write makes the screen the place for a program's own output.
func (s *screen) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		s.line("    " + s.style(styleDim, strings.TrimRight(line, "\r\n")))
	}
	return len(p), nil
}

// show draws a message as it stands on the phone. With numbers, each button carries the key that taps it.
func (s *screen) show(owner string, m telegramtest.Message, numbers bool) {
	const indent, widest = "      ", 72
	if numbers {
		number := 0
		rows := make([][]telegramtest.Button, len(m.Buttons))
		for i, row := range m.Buttons {
			rows[i] = slices.Clone(row)
			for j := range row {
				number++
				rows[i][j].Text = fmt.Sprintf("%d: %s", number, row[j].Text)
			}
		}
		m.Buttons = rows
	}
	s.line(indent + s.style(styleDim, owner+"'s phone"))
	for line := range strings.Lines(telegramtest.Render(m, min(s.width-len(indent), widest))) {
		s.line(indent + strings.TrimRight(line, "\n"))
	}
}

// wrap breaks a text between words so that no line is longer than width, if its words allow it.
func wrap(text string, width int) []string {
	var lines []string
	current := ""
	for _, word := range strings.Fields(text) {
		if current != "" && utf8.RuneCountInString(current)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, current)
			current = word
			continue
		}
		current = strings.TrimPrefix(current+" "+word, " ")
	}
	return append(lines, current)
}

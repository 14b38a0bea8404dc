package demo

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/approvald/approvald/internal/telegramtest"
)

// show draws a message as it stands on the phone: its text with the formatting that Telegram would give it, and its buttons.
// With numbers, each button carries the key that taps it.
func (s *screen) show(owner string, m telegramtest.Message, numbers bool) {
	const indent = "      "
	width := min(s.width-len(indent)-4, 66)
	when := m.Date.UTC().Format("15:04")
	if m.Edited() {
		when = "edited " + m.EditDate.UTC().Format("15:04")
	}
	title := "─ " + owner + "'s phone "
	s.line(indent + "╭" + title + strings.Repeat("─", max(0, width+2-utf8.RuneCountInString(title))) + "╮")
	row := func(text string, plainLength int) {
		s.line(indent + "│ " + text + strings.Repeat(" ", max(0, width-plainLength)) + " │")
	}
	if m.Document != nil {
		name := "📎 " + m.Document.Name
		row(s.style(styleBold, name), cells(name))
	}
	text, entities := m.Text, m.Entities
	if m.Document != nil {
		text, entities = m.Caption, m.CaptionEntities
	}
	for _, line := range layout(text, entities, width) {
		row(line.styled(s), line.cells())
	}
	row(strings.Repeat(" ", max(0, width-len(when)))+s.style(styleDim, when), width)
	s.line(indent + "╰" + strings.Repeat("─", width+2) + "╯")
	number := 0
	for _, buttons := range m.Buttons {
		var drawn []string
		for _, b := range buttons {
			number++
			label := b.Text
			if numbers {
				label = string(rune('0'+number%10)) + "  " + label
			}
			drawn = append(drawn, s.style(styleBold, "[ "+label+" ]"))
		}
		s.line(indent + "  " + strings.Join(drawn, "  "))
	}
}

// span is a piece of a line in one style.
type span struct {
	text  string
	style string
}

type spans []span

func (l spans) cells() int {
	n := 0
	for _, part := range l {
		n += cells(part.text)
	}
	return n
}

func (l spans) styled(s *screen) string {
	var b strings.Builder
	for _, part := range l {
		if part.style == "" {
			b.WriteString(part.text)
			continue
		}
		b.WriteString(s.style(part.style, part.text))
	}
	return b.String()
}

// layout breaks a formatted text into lines of at most width cells. Entity offsets count UTF-16 code units.
func layout(text string, entities []telegramtest.Entity, width int) []spans {
	var lines []spans
	var line spans
	used, offset := 0, 0
	flush := func() {
		lines = append(lines, line)
		line, used = nil, 0
	}
	for _, r := range text {
		style := styleAt(entities, offset)
		offset += utf16.RuneLen(r)
		if r == '\n' {
			flush()
			continue
		}
		if used+runeCells(r) > width {
			flush()
		}
		if n := len(line); n > 0 && line[n-1].style == style {
			line[n-1].text += string(r)
		} else {
			line = append(line, span{string(r), style})
		}
		used += runeCells(r)
	}
	flush()
	return lines
}

func styleAt(entities []telegramtest.Entity, offset int) string {
	style := ""
	for _, e := range entities {
		if offset < e.Offset || offset >= e.Offset+e.Length {
			continue
		}
		switch e.Type {
		case "bold":
			style = styleBold
		case "code", "pre":
			style = styleCyan
		case "italic", "blockquote", "expandable_blockquote":
			if style == "" {
				style = styleDim
			}
		}
	}
	return style
}

func cells(text string) int {
	n := 0
	for _, r := range text {
		n += runeCells(r)
	}
	return n
}

// runeCells is how many columns a terminal gives a rune, for the few wide ones that a card uses: pictographs take two,
// joiners and variation selectors none.
func runeCells(r rune) int {
	switch {
	case r == 0x200d || (r >= 0xfe00 && r <= 0xfe0f):
		return 0
	case r >= 0x1f300 && r <= 0x1faff, r == 0x2705, r == 0x274c, r == 0x231b, r == 0x23f3:
		return 2
	default:
		return 1
	}
}

package telegramtest

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
)

// Render draws a message for a plain terminal as a bubble with its buttons under
// it, at most width columns wide (at least 20). Formatting that a terminal
// without colours cannot show is marked: *bold*, a bar for quotes and code.
// Control characters are shown as escapes, so that no text can move the cursor.
// The result ends in a line feed.
func Render(m Message, width int) string {
	width = max(width, 20)
	inner := width - 4
	lines := bodyLines(m, inner)
	if d := m.Document; d != nil {
		head := fmt.Sprintf("[file] %s, %s", printable(d.Name), byteCount(d.Size))
		lines = append(wrap(head, inner), lines...)
	}
	widest := 0
	for _, l := range lines {
		widest = max(widest, columns(l))
	}
	foot := m.Date.UTC().Format("15:04")
	if m.Edited() {
		foot = "edited " + foot
	}
	if m.Deleted {
		foot = "deleted"
	}
	widest = max(widest, columns(foot), min(buttonsWidth(m.Buttons)-4, inner))

	var b strings.Builder
	b.WriteString("╭" + strings.Repeat("─", widest+2) + "╮\n")
	for _, l := range lines {
		b.WriteString("│ " + pad(l, widest) + " │\n")
	}
	b.WriteString("│ " + strings.Repeat(" ", widest-columns(foot)) + foot + " │\n")
	b.WriteString("╰" + strings.Repeat("─", widest+2) + "╯\n")
	for _, row := range m.Buttons {
		b.WriteString(buttonRow(row, widest+4) + "\n")
	}
	return b.String()
}

// bodyLines lays out the text with the marks of its entities.
func bodyLines(m Message, width int) []string {
	text, es := m.Text, m.Entities
	if m.Document != nil {
		text, es = m.Caption, m.CaptionEntities
	}
	if text == "" {
		return nil
	}
	opens, closes, barred := marks(text, es)
	var out []string
	var line strings.Builder
	bar := false
	flush := func() {
		prefix := ""
		if bar {
			prefix = "▏ "
		}
		for _, l := range wrap(line.String(), width-columns(prefix)) {
			out = append(out, prefix+l)
		}
		line.Reset()
	}
	unit := 0
	for _, r := range text {
		if line.Len() == 0 {
			bar = barred[unit]
		}
		line.WriteString(opens[unit])
		if r == '\n' {
			flush()
		} else {
			line.WriteString(printable(string(r)))
		}
		unit += utf16.RuneLen(r)
		line.WriteString(closes[unit])
	}
	flush()
	return out
}

// marks maps UTF-16 offsets to what is written there, and those of quotes and of
// code of several lines to a bar.
func marks(text string, es []Entity) (opens, closes map[int]string, barred map[int]bool) {
	opens, closes, barred = map[int]string{}, map[int]string{}, map[int]bool{}
	sign := map[string]string{"bold": "*", "italic": "_", "strikethrough": "~", "spoiler": "||", "code": "`"}
	units := utf16.Encode([]rune(text))
	for _, e := range es {
		end := e.Offset + e.Length
		if e.Offset < 0 || e.Length < 0 || end > len(units) {
			continue // made by hand, not by a server
		}
		block := e.Type == "pre" || isQuote(e) || e.Type == "code" && slices.Contains(units[e.Offset:end], '\n')
		switch {
		case block:
			for i := e.Offset; i < end; i++ {
				barred[i] = true
			}
		case sign[e.Type] != "":
			opens[e.Offset] += sign[e.Type]
			closes[end] = sign[e.Type] + closes[end]
		case e.Type == "text_link":
			closes[end] = " <" + printable(e.URL) + ">" + closes[end]
		}
	}
	return opens, closes, barred
}

// buttonRow draws buttons of one row beside each other.
func buttonRow(row []Button, width int) string {
	cells := make([]string, len(row))
	each := width/len(row) - 4
	for i, b := range row {
		label := printable(b.Text)
		gap := max(each-columns(label), 0)
		cells[i] = "[ " + strings.Repeat(" ", gap/2) + label + strings.Repeat(" ", gap-gap/2) + " ]"
	}
	return strings.Join(cells, "")
}

func buttonsWidth(rows [][]Button) int {
	widest := 0
	for _, row := range rows {
		n := 0
		for _, b := range row {
			n = max(n, columns(printable(b.Text))+4)
		}
		widest = max(widest, n*len(row))
	}
	return widest
}

// wrap breaks a line at spaces where it can, else anywhere, and loses nothing
// but the spaces it breaks at.
func wrap(line string, width int) []string {
	var out []string
	for columns(line) > width {
		cut, n, space := 0, 0, -1
		for i, r := range line {
			n += columnsOf(r)
			if n > width {
				break
			}
			if r == ' ' {
				space = i
			}
			cut = i + len(string(r))
		}
		if cut < len(line) && line[cut] == ' ' {
			space = cut
		}
		if space > 0 {
			out = append(out, line[:space])
			line = line[space+1:]
			continue
		}
		out = append(out, line[:cut])
		line = line[cut:]
	}
	return append(out, line)
}

// printable shows control and format characters as escapes.
func printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\t':
			b.WriteString("    ")
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r) && r != 0x200d || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r):
			fmt.Fprintf(&b, "\\u{%x}", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func pad(s string, width int) string { return s + strings.Repeat(" ", max(width-columns(s), 0)) }

func columns(s string) int {
	n := 0
	for _, r := range s {
		n += columnsOf(r)
	}
	return n
}

// wide are the ranges that terminals draw two columns wide.
var wide = [][2]rune{
	{0x1100, 0x115f}, {0x231a, 0x231b}, {0x23e9, 0x23ec}, {0x2614, 0x2615}, {0x26a1, 0x26a1}, {0x26d4, 0x26d4}, {0x2705, 0x2705},
	{0x274c, 0x274c}, {0x2753, 0x2755}, {0x2757, 0x2757}, {0x2795, 0x2797}, {0x2e80, 0xa4cf}, {0xac00, 0xd7a3}, {0xf900, 0xfaff},
	{0xfe30, 0xfe6f}, {0xff00, 0xff60}, {0xffe0, 0xffe6}, {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f900, 0x1faff}, {0x20000, 0x3fffd},
}

func columnsOf(r rune) int {
	if unicode.Is(unicode.Mn, r) || r == 0x200d || r == 0xfe0f {
		return 0
	}
	if slices.ContainsFunc(wide, func(w [2]rune) bool { return r >= w[0] && r <= w[1] }) {
		return 2
	}
	return 1
}

func byteCount(n int64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}

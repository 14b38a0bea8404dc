// Package visible makes text of unknown origin safe to look at.
//
// People decide by what they see. Characters that hide, that reorder their neighbours or that
// drive a terminal make what is seen differ from what is there, so they are replaced by escapes
// in plain ASCII. The replacement is unambiguous: two different texts never look the same because
// of it, for a text that itself spells an escape has its backslash escaped.
//
// It guarantees that the result is valid UTF-8 without control characters (but the newline and
// tab that Text leaves), without direction changes and without characters of no width. It does not
// deal with letters of different scripts that resemble each other.
package visible

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// tabMark stands for a tab where a tab would be turned into a space on its way, as Telegram does.
const tabMark = '⇥'

// Text returns s with all hidden characters as escapes; newlines and tabs stay what they are.
// It is for blocks of text of their own.
func Text(s string) string {
	return escape(s, func(r rune) bool { return r == '\n' || r == '\t' }, false)
}

// Line is Text for a field that must stay on its line: newlines and tabs are escaped too.
func Line(s string) string { return escape(s, func(rune) bool { return false }, false) }

// Quote is Line between quotes, for a name or a text inside a sentence.
func Quote(s string) string { return `"` + Line(s) + `"` }

// Message is Line for a sentence in which foreign text was made visible already: the escapes that it spells stay. It is not for
// foreign text itself, which could spell escapes of its own.
func Message(s string) string {
	return Rewrite(s, func(r rune, raw string) string { return Line(raw) })
}

// Block is Text for a medium that does not keep tabs: each is shown as ⇥, and a ⇥ of the text's
// own as an escape.
func Block(s string) string { return escape(s, func(r rune) bool { return r == '\n' }, true) }

// Count is the number of hidden characters in s. Newlines and tabs do not count.
func Count(s string) int {
	n := 0
	scan(s, func(_ string, r rune, hidden bool) {
		if hidden && r != '\n' && r != '\t' {
			n++
		}
	})
	return n
}

// Rewrite returns s with each hidden character, newlines and tabs among them, as what spell makes of it. It is for
// notations that have escapes of their own. r is utf8.RuneError with size 1 for a byte that is not UTF-8.
func Rewrite(s string, spell func(r rune, raw string) string) string {
	var b strings.Builder
	b.Grow(len(s))
	scan(s, func(raw string, r rune, hidden bool) {
		if hidden {
			raw = spell(r, raw)
		}
		b.WriteString(raw)
	})
	return b.String()
}

// escape rewrites s. keep names hidden characters that stay.
func escape(s string, keep func(rune) bool, marks bool) string {
	if plain(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	at := 0
	scan(s, func(raw string, r rune, hidden bool) {
		at += len(raw)
		switch {
		case r == utf8.RuneError && len(raw) == 1:
			fmt.Fprintf(&b, `\x{%02x}`, raw[0])
		case r == '\t' && marks:
			b.WriteRune(tabMark)
		case r == tabMark && marks:
			writeEscape(&b, r)
		case hidden && !keep(r):
			writeEscape(&b, r)
		case r == '\\' && spellsEscape(s[at:]):
			writeEscape(&b, r)
		default:
			b.WriteString(raw)
		}
	})
	return b.String()
}

func writeEscape(b *strings.Builder, r rune) { fmt.Fprintf(b, `\u{%x}`, r) }

// spellsEscape reports whether a backslash before rest would read as one of our escapes.
func spellsEscape(rest string) bool {
	return strings.HasPrefix(rest, "u{") || strings.HasPrefix(rest, "x{")
}

// plain is the quick answer for text that every rule leaves alone.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '\\' {
			return false
		}
	}
	return true
}

// scan calls visit for every character in turn, or byte where s is not UTF-8.
func scan(s string, visit func(raw string, r rune, hidden bool)) {
	var base rune // the last character that is neither a selector nor a skin tone
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		raw := s[i : i+size]
		i += size
		hidden := Hidden(r) || (r == utf8.RuneError && size == 1)
		switch r {
		case zeroWidthJoiner:
			next, _ := utf8.DecodeRuneInString(s[i:])
			hidden = !pictograph(base) || !pictograph(next)
		case emojiSelector:
			hidden = !pictograph(base) && !keycap(base)
		default:
			if r < skinToneFirst || r > skinToneLast {
				base = r
			}
		}
		visit(raw, r, hidden)
	}
}

const (
	zeroWidthJoiner = '\u200d'
	emojiSelector   = '\ufe0f'
	skinToneFirst   = '\U0001f3fb'
	skinToneLast    = '\U0001f3ff'
)

// blanks are characters that the classes below call letters, marks or symbols, and that draw nothing.
var blanks = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x034f, Hi: 0x034f, Stride: 1}, // combining grapheme joiner
		{Lo: 0x115f, Hi: 0x1160, Stride: 1}, // Hangul fillers
		{Lo: 0x17b4, Hi: 0x17b5, Stride: 1}, // Khmer inherent vowels
		{Lo: 0x180b, Hi: 0x180f, Stride: 1}, // Mongolian selectors
		{Lo: 0x2800, Hi: 0x2800, Stride: 1}, // empty Braille cell
		{Lo: 0x3164, Hi: 0x3164, Stride: 1}, // Hangul filler
		{Lo: 0xfe00, Hi: 0xfe0f, Stride: 1}, // variation selectors
		{Lo: 0xffa0, Hi: 0xffa0, Stride: 1}, // half-width Hangul filler
	},
	R32: []unicode.Range32{
		{Lo: 0x1d159, Hi: 0x1d159, Stride: 1}, // null note head
		{Lo: 0xe0100, Hi: 0xe01ef, Stride: 1}, // variation selectors, supplement
	},
}

// Hidden reports whether r, seen alone, is drawn as nothing, as an odd space, or changes how its
// neighbours are drawn: control and format characters, separators other than the space, private
// and unassigned code points, and the blanks.
func Hidden(r rune) bool {
	if r >= ' ' && r <= '~' {
		return false
	}
	return !unicode.IsGraphic(r) || r != ' ' && unicode.Is(unicode.Zs, r) || unicode.Is(blanks, r)
}

// pictograph reports whether r can be part of an emoji sequence.
func pictograph(r rune) bool {
	if r == utf8.RuneError {
		return false
	}
	return r >= 0x2190 && unicode.Is(unicode.So, r) && !unicode.Is(blanks, r) ||
		r >= 0x2190 && r <= 0x2bff && unicode.Is(unicode.Sm, r)
}

func keycap(r rune) bool { return r >= '0' && r <= '9' || r == '#' || r == '*' }

// Duration writes a duration as a person would: without the zero units that [time.Duration.String] adds.
func Duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

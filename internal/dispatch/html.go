package dispatch

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// markup builds the HTML of a message. It is the only place where text becomes markup: every text is escaped as it
// comes in, and tags are opened and closed by the same call, so that the result is balanced whatever the text is.
type markup struct{ b strings.Builder }

// escaper knows the four entities that Telegram knows.
var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;")

func escapeHTML(s string) string { return escaper.Replace(s) }

// text adds our own words or text that has been made visible.
func (m *markup) text(s string) *markup {
	m.b.WriteString(escapeHTML(s))
	return m
}

// code adds text of unknown origin within a line. Telegram makes no links, mentions or commands of code.
func (m *markup) code(s string) *markup {
	if s != "" {
		m.b.WriteString("<code>" + escapeHTML(s) + "</code>")
	}
	return m
}

// block adds a block of text of unknown origin, coloured as the language when there is one.
func (m *markup) block(s, language string) *markup {
	switch {
	case s == "":
	case language == "":
		m.b.WriteString("<pre>" + escapeHTML(s) + "</pre>")
	default:
		m.b.WriteString(`<pre><code class="language-` + escapeHTML(language) + `">` + escapeHTML(s) + "</code></pre>")
	}
	return m
}

// fold adds a block of text of unknown origin that is closed until it is tapped.
func (m *markup) fold(s string) *markup {
	if s != "" {
		m.b.WriteString("<blockquote expandable><code>" + escapeHTML(s) + "</code></blockquote>")
	}
	return m
}

// plain is the text of markup that this type has built.
func plain(built string) string {
	var b strings.Builder
	for built != "" {
		text, rest, _ := strings.Cut(built, "<")
		b.WriteString(unescaper.Replace(text))
		_, built, _ = strings.Cut(rest, ">")
	}
	return b.String()
}

var unescaper = strings.NewReplacer("&amp;", "&", "&lt;", "<", "&gt;", ">", "&quot;", `"`)

func (m *markup) line() *markup { return m.text("\n") }

func (m *markup) String() string { return m.b.String() }

// units is the length of s in UTF-16 code units, never less than its length in code points.
func units(s string) int {
	n := 0
	for _, r := range s {
		n += unitsOf(r)
	}
	return n
}

func unitsOf(r rune) int {
	if r > 0xffff {
		return 2
	}
	return 1
}

// escapedUnits is the length of s once it stands in HTML.
func escapedUnits(s string) int {
	n := 0
	for _, r := range s {
		n += escapedUnitsOf(r)
	}
	return n
}

func escapedUnitsOf(r rune) int {
	switch r {
	case '&':
		return len("&amp;")
	case '<', '>':
		return len("&lt;")
	case '"':
		return len("&quot;")
	default:
		return unitsOf(r)
	}
}

// head is the longest beginning of s that takes at most limit units in HTML, never ending inside a character or inside
// a sequence that is drawn as one.
func head(s string, limit int) string {
	n := 0
	for i, r := range s {
		if n += escapedUnitsOf(r); n > limit {
			return s[:seam(s, i)]
		}
	}
	return s
}

// seam is the last place at or before cut where s can be cut without tearing a joined sequence.
func seam(s string, cut int) int {
	const joiner, emojiSelector = '\u200d', '\ufe0f'
	for cut > 0 {
		last, size := utf8.DecodeLastRuneInString(s[:cut])
		next, _ := utf8.DecodeRuneInString(s[cut:])
		if last != joiner && next != joiner && next != emojiSelector && !unicode.Is(unicode.M, next) {
			break
		}
		cut -= size
	}
	return cut
}

func runes(s string) int { return utf8.RuneCountInString(s) }

package visible

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestEscapes(t *testing.T) {
	for _, c := range []struct{ name, in, text, line string }{
		{"plain", "rm -rf /srv", "rm -rf /srv", "rm -rf /srv"},
		{"newline and tab", "a\tb\nc", "a\tb\nc", `a\u{9}b\u{a}c`},
		{"carriage return", "ok\rno", `ok\u{d}no`, `ok\u{d}no`},
		{"right-to-left override", "a\u202eb", `a\u{202e}b`, `a\u{202e}b`},
		{"isolates and marks", "\u2066x\u2069\u200e\u200f\u061c", `\u{2066}x\u{2069}\u{200e}\u{200f}\u{61c}`, `\u{2066}x\u{2069}\u{200e}\u{200f}\u{61c}`},
		{"Arabic and Hebrew stay", "سلام שלום", "سلام שלום", "سلام שלום"},
		{"override beside Arabic", "س\u202eab", `س\u{202e}ab`, `س\u{202e}ab`},
		{"zero width", "rm\u200b -rf\ufeff\u00ad\u2060", `rm\u{200b} -rf\u{feff}\u{ad}\u{2060}`, `rm\u{200b} -rf\u{feff}\u{ad}\u{2060}`},
		{"tag characters", "\U000e0041", `\u{e0041}`, `\u{e0041}`},
		{"no-break space", "a\u00a0b", `a\u{a0}b`, `a\u{a0}b`},
		{"fillers", "\u3164\u115f\u2800", `\u{3164}\u{115f}\u{2800}`, `\u{3164}\u{115f}\u{2800}`},
		{"terminal sequences", "\x1b[2K\u009b\x7f", `\u{1b}[2K\u{9b}\u{7f}`, `\u{1b}[2K\u{9b}\u{7f}`},
		{"invalid UTF-8", "caf\xe9", `caf\x{e9}`, `caf\x{e9}`},
		{"replacement character is one", "\ufffd", "\ufffd", "\ufffd"},
		{"spelt escape", `\u{202e} \x{41}`, `\u{5c}u{202e} \u{5c}x{41}`, `\u{5c}u{202e} \u{5c}x{41}`},
		{"other backslashes", `C:\u0041\x41\\`, `C:\u0041\x41\\`, `C:\u0041\x41\\`},
		{"family emoji", "👨‍👩‍👧", "👨‍👩‍👧", "👨‍👩‍👧"},
		{"skin tone and profession", "👩🏽‍⚕️ ok", "👩🏽‍⚕️ ok", "👩🏽‍⚕️ ok"},
		{"keycap", "1️⃣", "1️⃣", "1️⃣"},
		{"joiner between letters", "a\u200db", `a\u{200d}b`, `a\u{200d}b`},
		{"joiner after an emoji", "👨\u200d", `👨\u{200d}`, `👨\u{200d}`},
		{"selector after a letter", "a\ufe0f", `a\u{fe0f}`, `a\u{fe0f}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Text(c.in); got != c.text {
				t.Errorf("Text = %q, want %q", got, c.text)
			}
			if got := Line(c.in); got != c.line {
				t.Errorf("Line = %q, want %q", got, c.line)
			}
		})
	}
}

func TestBlockKeepsTabsTellable(t *testing.T) {
	if got, want := Block("a\tb⇥c\n"), "a⇥b\\u{21e5}c\n"; got != want {
		t.Errorf("Block = %q, want %q", got, want)
	}
}

func TestCount(t *testing.T) {
	if got := Count("a\u200bb\u202e\tc\n\xff👨‍👩‍👧"); got != 3 {
		t.Errorf("Count = %d, want 3", got)
	}
}

func TestEqualLookingNamesDiffer(t *testing.T) {
	if Line("agent") == Line("age\u200bnt") {
		t.Error("a name with a zero-width space looks like the one without")
	}
}

// restore is the inverse of Line, written from its description alone.
func restore(s string) string {
	var b strings.Builder
	for s != "" {
		if (strings.HasPrefix(s, `\u{`) || strings.HasPrefix(s, `\x{`)) && strings.Contains(s, "}") {
			end := strings.IndexByte(s, '}')
			var v rune
			for _, c := range s[3:end] {
				v = v*16 + rune(strings.IndexRune("0123456789abcdef", c))
			}
			if s[1] == 'x' {
				b.WriteByte(byte(v))
			} else {
				b.WriteRune(v)
			}
			s = s[end+1:]
			continue
		}
		b.WriteByte(s[0])
		s = s[1:]
	}
	return b.String()
}

func FuzzLine(f *testing.F) {
	for _, s := range []string{"", "a\u202eb", "\\u{", "\xff\\x{ff}", "👨‍👩‍👧\u200d", "\t⇥\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		line := Line(s)
		if !utf8.ValidString(line) {
			t.Fatalf("Line(%q) = %q is not UTF-8", s, line)
		}
		if n := Count(line); n != 0 {
			t.Fatalf("Line(%q) = %q still hides %d characters", s, line, n)
		}
		if got := restore(line); got != s {
			t.Fatalf("Line(%q) = %q reads back as %q", s, line, got)
		}
		if strings.ContainsAny(Block(s), "\t\r") {
			t.Fatalf("Block(%q) keeps a control character", s)
		}
	})
}

func TestDurationsAreWrittenAsPeopleDo(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 45 * time.Second: "45s", time.Minute: "1m", 90 * time.Second: "1m30s", time.Hour: "1h", 24 * time.Hour: "24h",
		time.Hour + 5*time.Second: "1h0m5s", 100 * time.Minute: "1h40m", -2 * time.Hour: "-2h", 250 * time.Millisecond: "250ms",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

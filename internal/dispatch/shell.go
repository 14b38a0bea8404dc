package dispatch

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/approvald/approvald/internal/visible"
)

// shellWords writes an argument vector so that it can be read in one way only: as what bash or zsh would have to be
// given to run exactly these arguments. A plain argument stands as it is; one with blanks or special characters in
// single quotes; one with quotes, line breaks or hidden characters as $'...' with escapes. Each line of a text of
// several lines begins with its own $', so that no argument can look like a line of the card.
func shellWords(argv []string) string {
	words := make([]string, len(argv))
	for i, arg := range argv {
		words[i] = shellWord(arg, i == 0)
	}
	return strings.Join(words, " ")
}

func shellWord(arg string, first bool) string {
	switch {
	case bare(arg, first):
		return arg
	case !strings.Contains(arg, "'") && visible.Line(arg) == arg:
		return "'" + arg + "'"
	default:
		lines := strings.SplitAfter(arg, "\n")
		if lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		for i, line := range lines {
			lines[i] = "$'" + ansiC(line) + "'"
		}
		return strings.Join(lines, "\\\n")
	}
}

// bare reports whether an argument needs no quotes. As the first word an equals sign would make it an assignment.
func bare(arg string, first bool) bool {
	for i := range len(arg) {
		c := arg[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("_@%+:,./-", c) >= 0:
		case c == '=' && i > 0 && !first:
		default:
			return false
		}
	}
	return arg != ""
}

// ansiC escapes for the inside of $'...'.
func ansiC(s string) string {
	s = strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s)
	return visible.Rewrite(s, func(r rune, raw string) string {
		switch {
		case r == '\n':
			return `\n`
		case r == '\t':
			return `\t`
		case r == '\r':
			return `\r`
		case r == utf8.RuneError || r < 0x80:
			return fmt.Sprintf(`\x%02x`, raw[0])
		case r > 0xffff:
			return fmt.Sprintf(`\U%08x`, r)
		default:
			return fmt.Sprintf(`\u%04x`, r)
		}
	})
}

package gate

import (
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
)

// keyLines finds the line on which each key of a TOML document stands. Keys are named as in
// [Fault.Key]: dotted, with the index of each element of an array.
//
// The TOML library knows positions only of what it cannot parse, and one position for all tables of
// an array, so that a fault in the meaning of a value could not be pointed at. The document must be
// valid TOML; of any other the answer is of no use, but the scan still ends.
func keyLines(doc string) map[string]int {
	s := &lineScanner{src: doc, line: 1, lines: make(map[string]int), arrays: make(map[string]int)}
	s.document()
	return s.lines
}

type lineScanner struct {
	src    string
	pos    int
	line   int
	lines  map[string]int
	arrays map[string]int // tables seen so far of each array of tables
}

func (s *lineScanner) done() bool { return s.pos >= len(s.src) }

func (s *lineScanner) next() {
	if s.src[s.pos] == '\n' {
		s.line++
	}
	s.pos++
}

func (s *lineScanner) advance(n int) {
	for range n {
		if s.done() {
			return
		}
		s.next()
	}
}

func (s *lineScanner) at(prefix string) bool { return strings.HasPrefix(s.src[s.pos:], prefix) }

// space skips white space, line ends, commas and comments: all that can stand between two
// statements, two elements of an array or two keys of an inline table.
func (s *lineScanner) space() {
	for !s.done() {
		switch c := s.src[s.pos]; c {
		case ' ', '\t', '\r', '\n', ',':
			s.next()
		case '#':
			for !s.done() && s.src[s.pos] != '\n' {
				s.next()
			}
		default:
			return
		}
	}
}

func (s *lineScanner) document() {
	table := ""
	for s.space(); !s.done(); s.space() {
		start := s.pos
		line := s.line
		switch {
		case s.at("[["):
			s.advance(2)
			path := s.resolve("", s.key())
			n := s.arrays[path]
			s.arrays[path] = n + 1
			table = path + indexSuffix(n)
			s.note(table, line)
			s.note(path, line)
			s.advance(2)
		case s.at("["):
			s.advance(1)
			table = s.resolve("", s.key())
			s.note(table, line)
			s.advance(1)
		default:
			s.assignment(table)
		}
		if s.pos == start {
			s.next()
		}
	}
}

// note keeps the first line of a key: an implied parent is named where it first appears.
func (s *lineScanner) note(path string, line int) {
	if _, ok := s.lines[path]; !ok {
		s.lines[path] = line
	}
}

// assignment reads KEY = VALUE.
func (s *lineScanner) assignment(table string) {
	line := s.line
	parts := s.key()
	path := table
	for _, part := range parts {
		path = joinKey(path, part)
		s.note(path, line)
	}
	s.space()
	if !s.done() && s.src[s.pos] == '=' {
		s.next()
	}
	s.space()
	s.value(path)
}

func (s *lineScanner) value(path string) {
	if s.done() {
		return
	}
	switch c := s.src[s.pos]; {
	case c == '"' || c == '\'':
		s.str()
	case c == '[':
		s.next()
		s.space()
		for i := 0; !s.done() && s.src[s.pos] != ']'; i++ {
			start := s.pos
			element := path + indexSuffix(i)
			s.note(element, s.line)
			s.value(element)
			s.space()
			if s.pos == start {
				return
			}
		}
		s.advance(1)
	case c == '{':
		s.next()
		s.space()
		for !s.done() && s.src[s.pos] != '}' {
			start := s.pos
			s.assignment(path)
			s.space()
			if s.pos == start {
				return
			}
		}
		s.advance(1)
	default:
		for !s.done() && !strings.ContainsRune(",]}#\n", rune(s.src[s.pos])) {
			s.next()
		}
	}
}

// str skips a string of any of the four kinds and returns its text when it is a basic or literal
// one on one line, as keys are.
func (s *lineScanner) str() string {
	quote := s.src[s.pos : s.pos+1]
	escapes := quote == `"`
	if long := strings.Repeat(quote, 3); s.at(long) {
		s.advance(3)
		for !s.done() && !s.at(long) {
			if escapes && s.src[s.pos] == '\\' {
				s.next()
			}
			s.advance(1)
		}
		// Up to two more quotes belong to the text: the last three close it.
		for s.at(long + quote) {
			s.advance(1)
		}
		s.advance(3)
		return ""
	}
	start := s.pos
	s.next()
	for !s.done() && s.src[s.pos] != quote[0] && s.src[s.pos] != '\n' {
		if escapes && s.src[s.pos] == '\\' {
			s.next()
		}
		s.advance(1)
	}
	s.advance(1)
	text := s.src[start:s.pos]
	if !escapes {
		return strings.Trim(text, "'")
	}
	var v struct{ K string }
	if _, err := toml.Decode("K = "+text, &v); err != nil {
		return strings.Trim(text, `"`)
	}
	return v.K
}

// key reads a dotted key up to what ends it.
func (s *lineScanner) key() []string {
	var parts []string
	for !s.done() {
		for !s.done() && (s.src[s.pos] == ' ' || s.src[s.pos] == '\t') {
			s.next()
		}
		if s.done() {
			break
		}
		start := s.pos
		switch c := s.src[s.pos]; c {
		case '"', '\'':
			parts = append(parts, s.str())
		default:
			for !s.done() && !strings.ContainsRune(" \t.=]\r\n", rune(s.src[s.pos])) {
				s.next()
			}
			if s.pos > start {
				parts = append(parts, s.src[start:s.pos])
			}
		}
		for !s.done() && (s.src[s.pos] == ' ' || s.src[s.pos] == '\t') {
			s.next()
		}
		if s.done() || s.src[s.pos] != '.' {
			break
		}
		s.next()
	}
	return parts
}

// resolve joins the parts of a table header; a part that names an array of tables stands for its
// last table, unless it is the last part.
func (s *lineScanner) resolve(path string, parts []string) string {
	for i, part := range parts {
		path = joinKey(path, part)
		if n := s.arrays[path]; n > 0 && i < len(parts)-1 {
			path += indexSuffix(n - 1)
		}
	}
	return path
}

// joinKey adds one part, quoted when it is no bare key, so that a dot inside it stays one part.
func joinKey(path, part string) string {
	name := toml.Key{part}.String()
	if path == "" {
		return name
	}
	return path + "." + name
}

// indexSuffix names one element of an array.
func indexSuffix(i int) string { return "[" + strconv.Itoa(i) + "]" }

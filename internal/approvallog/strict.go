package approvallog

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// strictError says where JSON text breaks a rule of I-JSON (RFC 7493).
type strictError struct {
	Reason Reason // malformed-line or duplicate-key
	Offset int    // in the text
	Detail string
	// unfinished: the text ended where more had to come.
	unfinished bool
}

func (e *strictError) Error() string { return fmt.Sprintf("%s at byte %d", e.Detail, e.Offset) }

// checkStrict accepts one JSON value with white space around it as I-JSON demands it: valid UTF-8,
// no name twice in an object, no lone surrogates, finite numbers, no integer beyond 2^53, and
// nested at most maxDepth deep. It looks at the whole text for the first malformation before it
// reports a repeated name.
func checkStrict(b []byte) *strictError {
	s := strictScanner{b: b}
	s.space()
	if err := s.value(0); err != nil {
		return err
	}
	s.space()
	if s.i < len(b) {
		return s.fail("text after the value")
	}
	return s.duplicate
}

type strictScanner struct {
	b         []byte
	i         int
	duplicate *strictError
}

func (s *strictScanner) fail(detail string) *strictError {
	if s.i >= len(s.b) {
		return &strictError{Reason: ReasonMalformed, Offset: len(s.b), Detail: "the text ends too early", unfinished: true}
	}
	return &strictError{Reason: ReasonMalformed, Offset: s.i, Detail: detail}
}

func (s *strictScanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

func (s *strictScanner) at(c byte) bool { return s.i < len(s.b) && s.b[s.i] == c }

func (s *strictScanner) value(depth int) *strictError {
	if depth > maxDepth {
		return s.fail(fmt.Sprintf("nested deeper than %d", maxDepth))
	}
	if s.i >= len(s.b) {
		return s.fail("")
	}
	switch s.b[s.i] {
	case '"':
		_, err := s.str()
		return err
	case '{':
		return s.object(depth)
	case '[':
		return s.array(depth)
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		return s.number()
	}
}

func (s *strictScanner) literal(text string) *strictError {
	for j := range len(text) {
		if !s.at(text[j]) {
			return s.fail("not a JSON value")
		}
		s.i++
	}
	return nil
}

// separator steps over what stands behind an element or a member: a comma, or the end of what
// holds it.
func (s *strictScanner) separator(end byte, detail string) (last bool, err *strictError) {
	s.space()
	switch {
	case s.at(','):
		s.i++
		return false, nil
	case s.at(end):
		s.i++
		return true, nil
	default:
		return false, s.fail(detail)
	}
}

func (s *strictScanner) array(depth int) *strictError {
	s.i++
	s.space()
	if s.at(']') {
		s.i++
		return nil
	}
	for {
		s.space()
		if err := s.value(depth + 1); err != nil {
			return err
		}
		if last, err := s.separator(']', "neither , nor ] after an element"); last || err != nil {
			return err
		}
	}
}

func (s *strictScanner) object(depth int) *strictError {
	s.i++
	s.space()
	if s.at('}') {
		s.i++
		return nil
	}
	names := make(map[string]struct{}, 8)
	for {
		s.space()
		if !s.at('"') {
			return s.fail("no name where one has to stand")
		}
		start := s.i
		name, err := s.str()
		if err != nil {
			return err
		}
		if _, again := names[name]; again && s.duplicate == nil {
			s.duplicate = &strictError{Reason: ReasonDuplicateKey, Offset: start, Detail: "a name stands twice in one object"}
		}
		names[name] = struct{}{}
		s.space()
		if !s.at(':') {
			return s.fail("no : after a name")
		}
		s.i++
		s.space()
		if err := s.value(depth + 1); err != nil {
			return err
		}
		if last, err := s.separator('}', "neither , nor } after a member"); last || err != nil {
			return err
		}
	}
}

func (s *strictScanner) str() (string, *strictError) {
	s.i++
	start := s.i
	var out []byte // only once an escape made text and bytes differ
	for s.i < len(s.b) {
		c := s.b[s.i]
		switch {
		case c == '"':
			text := s.b[start:s.i]
			if out != nil {
				text = out
			}
			s.i++
			return string(text), nil
		case c == '\\':
			if out == nil {
				out = append(make([]byte, 0, 32), s.b[start:s.i]...)
			}
			r, err := s.escape()
			if err != nil {
				return "", err
			}
			out = utf8.AppendRune(out, r)
		case c < 0x20:
			return "", s.fail("a raw control character in a string")
		default:
			r, n := utf8.DecodeRune(s.b[s.i:])
			if r == utf8.RuneError && n == 1 {
				if !utf8.FullRune(s.b[s.i:]) {
					s.i = len(s.b)
				}
				return "", s.fail("invalid UTF-8")
			}
			if out != nil {
				out = append(out, s.b[s.i:s.i+n]...)
			}
			s.i += n
		}
	}
	return "", s.fail("")
}

// escape reads one escape, both halves of a surrogate pair at once.
func (s *strictScanner) escape() (rune, *strictError) {
	s.i++
	if s.i >= len(s.b) {
		return 0, s.fail("")
	}
	c := s.b[s.i]
	if at := bytes.IndexByte([]byte(`"\/bfnrt`), c); at >= 0 {
		s.i++
		return rune("\"\\/\b\f\n\r\t"[at]), nil
	}
	if c != 'u' {
		return 0, s.fail("an unknown escape")
	}
	start := s.i - 1
	r, err := s.unit()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if !s.at('\\') {
		return 0, s.lone(start)
	}
	s.i++
	if !s.at('u') {
		return 0, s.lone(start)
	}
	low, err := s.unit()
	if err != nil {
		return 0, err
	}
	if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
		s.i = start
		return 0, s.fail("a lone surrogate")
	}
	return r, nil
}

func (s *strictScanner) lone(start int) *strictError {
	if s.i < len(s.b) {
		s.i = start
	}
	return s.fail("a lone surrogate")
}

// unit reads the u and the four digits of a \u escape.
func (s *strictScanner) unit() (rune, *strictError) {
	s.i++
	var r rune
	for range 4 {
		if s.i >= len(s.b) {
			return 0, s.fail("")
		}
		d, err := strconv.ParseUint(string(s.b[s.i]), 16, 8)
		if err != nil {
			return 0, s.fail("not four hex digits after \\u")
		}
		r = r<<4 | rune(d)
		s.i++
	}
	return r, nil
}

func (s *strictScanner) digits() bool {
	start := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i > start
}

func (s *strictScanner) number() *strictError {
	start := s.i
	if s.at('-') {
		s.i++
	}
	digits := s.i
	if s.at('0') {
		s.i++
	} else if !s.digits() {
		return s.fail("not a JSON value")
	}
	end := s.i
	if s.at('.') {
		s.i++
		if !s.digits() {
			return s.fail("no digit after the point of a number")
		}
	}
	if s.at('e') || s.at('E') {
		s.i++
		if s.at('+') || s.at('-') {
			s.i++
		}
		if !s.digits() {
			return s.fail("no digit in the exponent of a number")
		}
	}
	f, err := strconv.ParseFloat(string(s.b[start:s.i]), 64)
	// The form written decides as well as the value: what is canonical must be readable again.
	tooBig := s.i == end && !integerInRange(s.b[digits:end]) ||
		f == math.Trunc(f) && math.Abs(f) > 1<<53 && math.Abs(f) < 1e21
	if err != nil || tooBig {
		bad := &strictError{Reason: ReasonMalformed, Offset: start, Detail: "an integer beyond 2^53"}
		if err != nil {
			bad.Detail = "a number too big for a double"
		}
		return bad
	}
	return nil
}

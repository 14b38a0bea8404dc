package approvallog

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of objects and arrays that is read or written.
const maxDepth = 512

// canonicalScanner walks bytes and accepts them only when they are the RFC 8785 text of a value, so
// that a stored line is checked in one pass and never made anew to be compared. It says yes or no;
// what exactly is wrong, [checkStrict] finds out in a second and slower look.
//
// Beyond RFC 8785 it refuses integers beyond 2^53, which two readers may read as different numbers.
type canonicalScanner struct {
	b []byte
	i int
	// plain: the string that str accepted last is ASCII without escapes.
	plain bool
}

// value accepts one value at depth.
func (s *canonicalScanner) value(depth int) bool {
	if s.i >= len(s.b) || depth > maxDepth {
		return false
	}
	switch c := s.b[s.i]; c {
	case '"':
		return s.str()
	case '{':
		return s.object(depth, nil)
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

func (s *canonicalScanner) literal(text string) bool {
	if len(s.b)-s.i < len(text) || string(s.b[s.i:s.i+len(text)]) != text {
		return false
	}
	s.i += len(text)
	return true
}

func (s *canonicalScanner) take(c byte) bool {
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

func (s *canonicalScanner) array(depth int) bool {
	s.i++
	if s.take(']') {
		return true
	}
	for {
		if !s.value(depth + 1) {
			return false
		}
		if s.take(',') {
			continue
		}
		return s.take(']')
	}
}

// object accepts an object whose names stand in strictly rising UTF-16 order. A non-nil member is
// told each name and the value's place, as the bytes stand (a string with its quotes).
func (s *canonicalScanner) object(depth int, member func(name []byte, nameStart, from, to int)) bool {
	s.i++
	if s.take('}') {
		return true
	}
	var last []byte
	lastPlain := true
	for first := true; ; first = false {
		nameStart := s.i
		if s.i >= len(s.b) || s.b[s.i] != '"' || !s.str() {
			return false
		}
		name := s.b[nameStart+1 : s.i-1]
		if first {
		} else if lastPlain && s.plain {
			if bytes.Compare(last, name) >= 0 { // the bytes of plain names are their UTF-16 units
				return false
			}
		} else if !lessName(last, name) {
			return false
		}
		last, lastPlain = name, s.plain
		if !s.take(':') {
			return false
		}
		from := s.i
		if !s.value(depth + 1) {
			return false
		}
		if member != nil {
			member(name, nameStart, from, s.i)
		}
		if s.take(',') {
			continue
		}
		return s.take('}')
	}
}

// str accepts a string in its one canonical spelling: UTF-8 as it is, the short escapes where there
// are some, \u00xx in lower case for the other control characters, and no other escape.
func (s *canonicalScanner) str() bool {
	b, i := s.b, s.i+1
	s.plain = true
	for {
		// Eight bytes at a time while none of them is a quote, a backslash, a control character or
		// the start of a longer sequence.
		for i+8 <= len(b) {
			if special := specialBytes(binary.LittleEndian.Uint64(b[i:])); special != 0 {
				i += bits.TrailingZeros64(special) / 8
				break
			}
			i += 8
		}
		if i >= len(b) {
			return false
		}
		switch c := b[i]; {
		case c == '"':
			s.i = i + 1
			return true
		case c == '\\':
			n := canonicalEscape(b[i:])
			if n == 0 {
				return false
			}
			i += n
			s.plain = false
		case c < 0x20:
			return false
		case c < utf8.RuneSelf:
			i++
		default:
			s.plain = false
			r, n := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && n == 1 {
				return false
			}
			i += n
		}
	}
}

// specialBytes returns a word whose lowest set bit lies in the first byte of x that str must look
// at: a quote, a backslash, below 0x20, or 0x80 and above. Bits above that one may be set wrongly.
func specialBytes(x uint64) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	quote := x ^ ones*'"'
	slash := x ^ ones*'\\'
	return ((quote-ones)&^quote | (slash-ones)&^slash | (x-ones*0x20)&^x | x) & highs
}

// canonicalEscape returns the length of the escape that b starts with, 0 when it is not the
// canonical one for its character.
func canonicalEscape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
	default:
		return 0
	}
	if len(b) < 6 || b[2] != '0' || b[3] != '0' || b[4] != '0' && b[4] != '1' {
		return 0
	}
	low := b[5]
	if !(low >= '0' && low <= '9' || low >= 'a' && low <= 'f') {
		return 0
	}
	if b[4] == '0' && (low == '8' || low == '9' || low == 'a' || low == 'c' || low == 'd') {
		return 0 // has a short escape
	}
	return 6
}

// number accepts a number in the form that ECMAScript gives it.
func (s *canonicalScanner) number() bool {
	b, start := s.b, s.i
	i := start
	if i < len(b) && b[i] == '-' {
		i++
	}
	digits := i
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	if i == digits {
		return false
	}
	if i == len(b) || b[i] != '.' && b[i] != 'e' {
		s.i = i
		return canonicalInteger(b[digits:i], digits > start)
	}
	for i < len(b) && numberByte(b[i]) {
		i++
	}
	s.i = i
	f, err := strconv.ParseFloat(string(b[start:i]), 64)
	if err != nil {
		return false
	}
	var buf [32]byte
	return bytes.Equal(appendNumber(buf[:0], f), b[start:i])
}

func numberByte(c byte) bool {
	return c >= '0' && c <= '9' || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-'
}

// canonicalInteger reports whether the digits are an integer without leading zeros, of at most
// 2^53, and not "-0".
func canonicalInteger(digits []byte, negative bool) bool {
	if digits[0] == '0' {
		return len(digits) == 1 && !negative
	}
	return integerInRange(digits)
}

// integerInRange reports whether digits without leading zeros are at most 2^53.
func integerInRange(digits []byte) bool {
	const limit = "9007199254740992"
	return len(digits) < len(limit) || len(digits) == len(limit) && string(digits) <= limit
}

// appendNumber appends f as ECMAScript's Number::toString gives it (RFC 8785, 3.2.2.3).
func appendNumber(b []byte, f float64) []byte {
	if f == 0 {
		return append(b, '0') // also for -0
	}
	if abs := math.Abs(f); abs >= 1e-6 && abs < 1e21 {
		return strconv.AppendFloat(b, f, 'f', -1, 64)
	}
	b = strconv.AppendFloat(b, f, 'e', -1, 64)
	// Go writes at least two digits of exponent, ECMAScript as few as there are.
	if n := len(b); n >= 4 && b[n-4] == 'e' && b[n-2] == '0' {
		b[n-2] = b[n-1]
		b = b[:n-1]
	}
	return b
}

// lessName reports whether the name a stands before b in UTF-16 order, both as they are written in
// canonical text without their quotes.
func lessName(a, b []byte) bool {
	if plainName(a) && plainName(b) {
		return bytes.Compare(a, b) < 0
	}
	x, y := utf16.Encode([]rune(unquote(a))), utf16.Encode([]rune(unquote(b)))
	for i := 0; i < len(x) && i < len(y); i++ {
		if x[i] != y[i] {
			return x[i] < y[i]
		}
	}
	return len(x) < len(y)
}

// plainName reports whether a name is ASCII without escapes: its bytes are its UTF-16 units.
func plainName(name []byte) bool {
	for _, c := range name {
		if c >= utf8.RuneSelf || c == '\\' {
			return false
		}
	}
	return true
}

// unquote returns the text of a string that [canonicalScanner.str] accepted, given without quotes.
func unquote(b []byte) string {
	if bytes.IndexByte(b, '\\') < 0 {
		return string(b)
	}
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		if b[i] != '\\' {
			out = append(out, b[i])
			continue
		}
		i++
		switch b[i] {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			code, _ := strconv.ParseUint(string(b[i+1:i+5]), 16, 8)
			out = append(out, byte(code))
			i += 4
		default:
			out = append(out, b[i])
		}
	}
	return string(out)
}

// appendString appends s as a canonical string. s must be valid UTF-8.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, '\\', 'b')
		case '\f':
			b = append(b, '\\', 'f')
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			if c < 0x20 {
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			} else {
				b = append(b, c)
			}
		}
	}
	return append(b, '"')
}

package approvallog

import (
	"fmt"

	"github.com/gowebpki/jcs"
)

// Canonicalize returns the RFC 8785 text of one JSON value. It refuses with [ErrInvalid] what two
// readers may understand differently: a name twice in one object, invalid UTF-8, lone surrogates,
// integers beyond 2^53, numbers that are no finite double, and nesting beyond 512.
func Canonicalize(b []byte) ([]byte, error) {
	if isCanonical(b) {
		return append([]byte(nil), b...), nil // and strict: FuzzCanonical holds that
	}
	if err := checkStrict(b); err != nil {
		return nil, fmt.Errorf("%w: JSON text: %w", ErrInvalid, err)
	}
	out, err := jcs.Transform(b)
	if err != nil {
		return nil, fmt.Errorf("%w: JSON text: %w", ErrInvalid, err)
	}
	if !isCanonical(out) {
		return nil, fmt.Errorf("%w: JSON text has no canonical form", ErrInvalid)
	}
	return out, nil
}

// isCanonical reports whether b is the RFC 8785 text of a value, and nothing else.
func isCanonical(b []byte) bool {
	s := canonicalScanner{b: b}
	return s.value(0) && s.i == len(b)
}

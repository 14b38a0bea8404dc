package gate

import "strings"

// The spellings of names. Each would be one regular expression, and a process that asks once would spend more time on
// making them than on all else that it does to a request.

// maxName is how many bytes the name of a gate and the id of an approver have at most.
const maxName = 64

// spelt reports whether s begins with a byte for which first is true and goes on with bytes for which rest is.
func spelt(s string, first, rest func(c byte) bool) bool {
	if s == "" || !first(s[0]) {
		return false
	}
	for i := 1; i < len(s); i++ {
		if !rest(s[i]) {
			return false
		}
	}
	return true
}

func isLower(c byte) bool  { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
func isAlnum(c byte) bool  { return isLower(c) || isLetter(c) }

// isGateName: letters, digits, _ and -, from a letter or digit on.
func isGateName(s string) bool {
	return len(s) <= maxName && spelt(s, isAlnum, func(c byte) bool { return isAlnum(c) || c == '_' || c == '-' })
}

// isApproverID: as a gate's name, and dots.
func isApproverID(s string) bool {
	return len(s) <= maxName && spelt(s, isAlnum, func(c byte) bool { return isAlnum(c) || c == '.' || c == '_' || c == '-' })
}

// IsApproverID reports whether s can be an approver's name in the log.
func IsApproverID(s string) bool { return isApproverID(s) }

// isEnvName: the name of an environment variable.
func isEnvName(s string) bool {
	return spelt(s, func(c byte) bool { return isLetter(c) || c == '_' }, func(c byte) bool { return isAlnum(c) || c == '_' })
}

// isClassName: parts with dots between them, each of lower-case letters, digits, _ and -, from a letter or digit on.
func isClassName(s string) bool {
	for part := range strings.SplitSeq(s, ".") {
		if !spelt(part, isLower, isClassByte) {
			return false
		}
	}
	return true
}

// isClassPattern: a class name in which * may stand anywhere, and _ and - also at the start of all parts but the first.
func isClassPattern(s string) bool {
	for i, part := range strings.Split(s, ".") {
		first := isPatternByte
		if i == 0 {
			first = func(c byte) bool { return isLower(c) || c == '*' }
		}
		if !spelt(part, first, isPatternByte) {
			return false
		}
	}
	return true
}

func isClassByte(c byte) bool   { return isLower(c) || c == '_' || c == '-' }
func isPatternByte(c byte) bool { return isClassByte(c) || c == '*' }

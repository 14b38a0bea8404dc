package gate

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSpellings(t *testing.T) {
	rules := map[string]struct {
		is   func(string) bool
		want *regexp.Regexp
	}{
		"gate":     {isGateName, regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)},
		"approver": {isApproverID, regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)},
		"variable": {isEnvName, regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)},
		"class":    {isClassName, regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*)*$`)},
		"pattern":  {isClassPattern, regexp.MustCompile(`^[a-z0-9*][a-z0-9*_-]*(\.[a-z0-9*_-]+)*$`)},
	}
	check := func(t interface{ Errorf(string, ...any) }, s string) {
		for name, r := range rules {
			if got, want := r.is(s), r.want.MatchString(s); got != want {
				t.Errorf("%s %q: %v, want %v", name, s, got, want)
			}
		}
	}
	for _, s := range []string{"", ".", "a", "a.", ".a", "a..b", "a.-b", "a.*", "*", "_", "a\n", "é", strings.Repeat("a", 64), strings.Repeat("a", 65)} {
		check(t, s)
	}
	for c := range 256 {
		check(t, string([]byte{byte(c)}))
		check(t, string([]byte{'a', byte(c)}))
		check(t, string([]byte{'a', '.', byte(c), 'a'}))
	}
	rapid.Check(t, func(t *rapid.T) { check(t, rapid.StringOf(rapid.RuneFrom([]rune("aZ0._-*é\n"))).Draw(t, "s")) })
}

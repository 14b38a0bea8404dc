package cli

import "testing"

// A line that is wider than the terminal would take two rows, and the next frame would be drawn over the wrong ones.
func TestLinesAreCutToTheTerminal(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{"short", "short"},
		{"exactly 9", "exactly 9"},
		{"more than ten", "more than"},
		{"trouble \x1b[1mdeaf\x1b[0m: x", "trouble \x1b[1md\x1b[0m"},
		{"\x1b[1mok\x1b[0m", "\x1b[1mok\x1b[0m"},
		{"日本語です", "日本語で"},
		{"überall ja", "überall j"},
	} {
		if got := cut(tt.line, 10); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.line, got, tt.want)
		}
	}
}

package cli

import (
	"os"
	"strings"
	"testing"
)

// The manual and the README list the same exit codes.
func TestManualListsTheExitCodes(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{manAbout, string(readme)} {
		_, table, found := strings.Cut(text, "| code | meaning |\n")
		if !found {
			t.Fatal("no table of exit codes")
		}
		table, _, _ = strings.Cut(table, "\n\n")
		if rows := strings.Count(table, "\n"); rows != 13 {
			t.Errorf("%d rows, want one for each code and the rule", rows)
		}
		if !strings.Contains(manAbout, table) {
			t.Errorf("the manual lists other codes than\n%s", table)
		}
	}
}

package durable

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestSweepRemovesWhatKilledWritersLeft(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	old, fresh := now.Add(-2*time.Hour), now
	for name, changed := range map[string]time.Time{
		filepath.Base(TempName("a.json")):                     old,
		filepath.Base(TempName(filepath.Join("b", "events"))): old,
		filepath.Base(TempName("at-work.json")):               fresh,
		"a.json":                                              old,
		".a.json.tmp-":                                        old,
		".a.json.tmp-0123456789abcdef.kept":                   old,
		"a.json.tmp-0123456789abcdef":                         old,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, changed, changed); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := FS{}.Sweep("payloads", dir, now.Add(-time.Hour))
	if err != nil || removed != 2 {
		t.Errorf("removed %d, %v", removed, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if len(left) != 5 || !slices.Contains(left, "a.json") {
		t.Errorf("left are %q", left)
	}
	if removed, err := (FS{}).Sweep("payloads", filepath.Join(dir, "nowhere"), now); removed != 0 || err != nil {
		t.Errorf("in a directory that is not there: %d, %v", removed, err)
	}
}

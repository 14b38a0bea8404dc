//go:build all

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOnlyTheLogIsTheTruth: every other file of a home is removed, emptied, damaged or rolled back, one at a time. The next record
// follows the log's last one all the same, and a new chain is never begun.
func TestOnlyTheLogIsTheTruth(t *testing.T) {
	program, dir := onethread(t), quickDir(t)
	made, err := newFaultGate(program, filepath.Join(dir, "made"), "")
	old := filepath.Join(dir, "old")
	if err == nil {
		err = errors.Join(
			makes(request("a"), request("b"), verb("withdraw", "b", "--reason", "cancelled", "--as", "ci"), work{steps: "snapshot"}, work{steps: "epoch 1"})(made),
			copyTree(made.home, old),
		)
	}
	if err == nil {
		var f *os.File
		if f, err = os.OpenFile(made.log(), os.O_WRONLY|os.O_APPEND, 0); err == nil {
			_, err = f.WriteString(`{"action_key":"torn`)
			err = errors.Join(err, f.Close(), makes(request("c"), work{steps: "epoch 1"}, request("d"))(made))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	err = filepath.WalkDir(made.home, func(path string, d fs.DirEntry, err error) error {
		if name := strings.TrimPrefix(path, made.home+"/"); err == nil && !d.IsDir() && name != "log/events.jsonl" {
			files = append(files, name)
		}
		return err
	})
	if err != nil || len(files) < 7 {
		t.Fatal(files, err)
	}
	ways := map[string]func(path, name string) error{
		"removed": func(path, _ string) error { return os.Remove(path) },
		"emptied": func(path, _ string) error { return os.Truncate(path, 0) },
		"NULs": func(path, _ string) error {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, make([]byte, info.Size()), 0o600)
		},
		"damaged": func(path, _ string) error {
			text, err := os.ReadFile(path)
			if err != nil || len(text) == 0 {
				return err
			}
			text[len(text)/2] ^= 0x10
			return os.WriteFile(path, text, 0o600)
		},
		"rolled back": func(path, name string) error {
			text, err := os.ReadFile(filepath.Join(old, name))
			if err != nil {
				return os.Remove(path)
			}
			return os.WriteFile(path, text, 0o600)
		},
	}
	before, err := os.ReadFile(made.log())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		for way, spoil := range ways {
			t.Run(name+" "+way, func(t *testing.T) {
				g, err := newFaultGate(program, t.TempDir(), made.home)
				if err == nil {
					err = spoil(filepath.Join(g.home, name), name)
				}
				if err != nil {
					t.Fatal(err)
				}
				g.wants(t, 0, request("next"))
				after, err := os.ReadFile(g.log())
				added, ok := bytes.CutPrefix(after, before)
				if err != nil || !ok || bytes.Count(added, []byte("\n")) != 1 {
					t.Fatalf("%v: the log was changed otherwise than by one record: %q", err, added)
				}
				var last struct{ Hash string }
				var next struct{ Prev string }
				lines := bytes.Split(bytes.TrimSpace(before), []byte("\n"))
				if err := errors.Join(json.Unmarshal(lines[len(lines)-1], &last), json.Unmarshal(added, &next)); err != nil || next.Prev != last.Hash {
					t.Errorf("%v: the new record follows %s, not %s", err, next.Prev, last.Hash)
				}
				g.sound(t, "a", "b", "c", "d", "next")
				g.wants(t, 0, verb("show", "a"))
			})
		}
	}
}

// TestEachFindingHasItsExitCode: who runs log verify by a timer can tell a finding from a failure to look.
func TestEachFindingHasItsExitCode(t *testing.T) {
	g, err := newFaultGate(onethread(t), quickDir(t), "")
	if err != nil {
		t.Fatal(err)
	}
	g.wants(t, 1, verb("log", "verify"))
	g.wants(t, 0, request("a"))
	g.wants(t, 0, request("b"))
	whole, err := os.ReadFile(g.log())
	if err != nil {
		t.Fatal(err)
	}
	head := ""
	for _, field := range strings.Fields(g.wants(t, 0, verb("log", "verify")).stdout) {
		if strings.HasPrefix(field, "2:") {
			head = field
		}
	}
	lines := strings.SplitAfter(string(whole), "\n")
	for name, c := range map[string]struct {
		text   string
		args   []string
		code   int
		status string
		reason string
	}{
		"good":                {string(whole), nil, 0, "clean", ""},
		"good, with its head": {string(whole), []string{"--head", head}, 0, "clean", ""},
		"edited":              {strings.Replace(string(whole), `"summary":"s"`, `"summary":"t"`, 1), nil, 8, "corrupt", "hash-mismatch"},
		"cut, with its head":  {lines[0], []string{"--head", head}, 8, "corrupt", "head-mismatch"},
		"cut":                 {lines[0], nil, 0, "clean", ""},
		"emptied":             {"", []string{"--head", head}, 8, "corrupt", "head-mismatch"},
		"torn":                {string(whole) + `{"action_key":"x`, nil, 9, "torn-tail", "torn-tail"},
		"NULs behind":         {string(whole) + "\x00\x00\x00", nil, 9, "torn-tail", "torn-tail"},
		"no log":              {"a text\nof two lines\n", nil, 8, "corrupt", "malformed-line"},
		"a usage":             {string(whole), []string{"--head", "x"}, 2, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(g.log(), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got := g.wants(t, c.code, verb(append([]string{"log", "verify", "--json"}, c.args...)...))
			var report struct{ Status, Reason string }
			if err := json.Unmarshal([]byte(got.stdout), &report); err != nil || report.Status != c.status || report.Reason != c.reason {
				t.Errorf("%v: %v", err, got)
			}
			if name == "cut" {
				if said := g.do(verb("log", "verify")).stderr; !strings.Contains(said, "does not show records cut off the end") {
					t.Errorf("without a head: %q", said)
				}
			}
		})
	}
	if err := os.Chmod(filepath.Dir(g.log()), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(g.log()), os.Mkdir(g.log(), 0o700)); err != nil {
		t.Fatal(err)
	}
	if got := g.wants(t, 1, verb("log", "verify")); !strings.Contains(got.stderr, g.log()) {
		t.Error(fmt.Sprint("a directory in its place: ", got))
	}
}

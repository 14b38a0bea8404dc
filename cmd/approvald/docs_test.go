package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func doc(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// rows are the cells of all tables of a document, without their headers.
func rows(text string) (all [][]string) {
	inside := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(line, "|"):
			inside = false
		case strings.HasPrefix(line, "|---"):
			inside = true
		case inside:
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			all = append(all, cells)
		}
	}
	return all
}

var quotedWords = regexp.MustCompile("`([^`]+)`")

// said are all texts in the sources that can be printed: string literals, those joined by + as one, with a … for what is put in.
func said(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	fset := token.NewFileSet()
	var fold func(e ast.Expr) (string, bool)
	fold = func(e ast.Expr) (string, bool) {
		switch e := e.(type) {
		case *ast.BasicLit:
			if e.Kind == token.STRING {
				text, err := strconv.Unquote(e.Value)
				return text, err == nil
			}
		case *ast.BinaryExpr:
			if e.Op == token.ADD {
				left, lok := fold(e.X)
				right, rok := fold(e.Y)
				return left + right, lok || rok
			}
		}
		return "…", false
	}
	err := filepath.WalkDir("../../internal", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if e, ok := n.(ast.Expr); ok {
				if text, ok := fold(e); ok {
					all.WriteString(text + "\n")
					return false
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

// What the guide to troubles quotes is what is printed: whoever looks a message up finds it.
func TestTroubleshootingQuotesWhatIsPrinted(t *testing.T) {
	printed, text := said(t), doc(t, "docs/troubleshooting.md")
	seen := 0
	for _, row := range rows(text) {
		cell := row[0]
		if len(row) == 3 {
			cell = row[2] // of doctor
		}
		for _, m := range quotedWords.FindAllStringSubmatch(cell, -1) {
			seen++
			if !strings.Contains(printed, m[1]) && m[1] != "systemctl status" {
				t.Errorf("nothing prints %q", m[1])
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d messages were seen", seen)
	}
}

// Every check of doctor stands in the guide, in its order.
func TestTroubleshootingNamesEveryCheck(t *testing.T) {
	w := newWorld(t)
	var checks []string
	for _, f := range w.doctor(0) {
		checks = append(checks, f.Check)
	}
	var listed []string
	for _, row := range rows(doc(t, "docs/troubleshooting.md")) {
		if len(row) == 3 {
			listed = append(listed, strings.Trim(row[0], "`"))
		}
	}
	if fmt.Sprint(listed) != fmt.Sprint(checks) {
		t.Errorf("the guide has  %v\ndoctor has %v", listed, checks)
	}
}

// The guide's table of exit codes is the README's, and every code of an error that the sources know is in the guide.
func TestExitCodesAreWrittenDown(t *testing.T) {
	guide := doc(t, "docs/exit-codes.md")
	meaning, codes := map[string]string{}, map[string]string{}
	for _, row := range rows(guide) {
		if _, err := strconv.Atoi(row[0]); err == nil {
			meaning[row[0]] = row[1]
			continue
		}
		for _, m := range quotedWords.FindAllStringSubmatch(row[0], -1) {
			codes[m[1]] = row[1]
		}
	}
	same := 0
	for _, row := range rows(doc(t, "README.md")) {
		if _, err := strconv.Atoi(row[0]); err == nil {
			same++
			if meaning[row[0]] != row[1] {
				t.Errorf("%s is %q here and %q there", row[0], row[1], meaning[row[0]])
			}
		}
	}
	if same != 13 || len(meaning) != 13 {
		t.Errorf("%d codes in the README and %d in the guide, want 13", same, len(meaning))
	}
	found := 0
	for _, file := range []string{"internal/gate/errors.go", "internal/lease/errors.go", "internal/gateapi/failover.go", "internal/cli/exit.go", "internal/cli/pairing.go"} {
		for _, m := range regexp.MustCompile(`(?m)^(?:const|)\s*[cC]ode[A-Z]\w+\s*= "([a-z-]+)"`).FindAllStringSubmatch(doc(t, file), -1) {
			found++
			if _, ok := codes[m[1]]; !ok {
				t.Errorf("%s of %s is not in the guide", m[1], file)
			}
		}
	}
	if found < 25 {
		t.Errorf("only %d codes were found in the sources", found)
	}
}

// The first steps, typed as they stand, end with an approval.
func TestGettingStartedLeadsToAnApproval(t *testing.T) {
	w := newWorld(t)
	if err := os.Remove(filepath.Join(w.dir, config)); err != nil {
		t.Fatal(err)
	}
	env := append(w.env[1:len(w.env):len(w.env)], "PATH="+os.Getenv("PATH"))
	ran := 0
	for _, m := range regexp.MustCompile("(?ms)^```console\n(.*?)^```$").FindAllStringSubmatch(doc(t, "docs/getting-started.md"), -1) {
		for _, cmd := range commands(m[1]) {
			ran++
			switch {
			case cmd == "approvald init":
				w.initByHand()
			case cmd == "approvald up":
				w.up()
			case strings.HasPrefix(cmd, "approvald run"):
				p := w.startProgram(env, "sh", "-c", cmd)
				w.tap("Approve")
				if ws := p.ended(); ws.ExitStatus() != 0 || p.out.String() != "approved\n" {
					t.Errorf("%s: exit code %d: %s%s", cmd, ws.ExitStatus(), p.out, p.errOut)
				}
			default:
				w.shellRun(env, cmd)
			}
		}
	}
	if ran != 4 {
		t.Errorf("%d commands, want 4", ran)
	}
}

// A link between the documents leads somewhere.
func TestLinksLeadSomewhere(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "../../README.md", "../../ARCHITECTURE.md", "../../SECURITY.md", "../../CONTRIBUTING.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\]\(([^):\s]+)\)`).FindAllStringSubmatch(string(text), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			path := filepath.Join(filepath.Dir(file), target)
			if target == "" {
				path = file
			}
			there, err := os.ReadFile(path)
			if info, serr := os.Stat(path); serr == nil && info.IsDir() {
				continue
			}
			if err != nil {
				t.Errorf("%s: %s: %v", file, m[1], err)
				continue
			}
			if anchor != "" && !hasHeading(string(there), anchor) {
				t.Errorf("%s: %s: there is no such heading", file, m[1])
			}
		}
	}
}

func hasHeading(text, anchor string) bool {
	for line := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			slug := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			if strings.ReplaceAll(slug, " ", "-") == anchor {
				return true
			}
		}
	}
	return false
}

package dispatch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// constants finds the string constants of a type in the package's source.
func constants(t *testing.T, typeName string) (values []string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			typ, ok := spec.Type.(*ast.Ident)
			if !ok && len(spec.Names) > 0 && strings.HasPrefix(spec.Names[0].Name, strings.TrimSuffix(typeName, "Kind")) && typeName == "ResultKind" {
				typ, ok = &ast.Ident{Name: typeName}, true
			}
			if ok && typ.Name == typeName {
				for _, v := range spec.Values {
					if lit, ok := v.(*ast.BasicLit); ok {
						value, err := strconv.Unquote(lit.Value)
						if err != nil {
							t.Fatal(err)
						}
						values = append(values, value)
					}
				}
			}
			return true
		})
	}
	return values
}

// TestEveryOutcomeCanBeCounted: what is counted by name has a series from the start.
func TestEveryOutcomeCanBeCounted(t *testing.T) {
	all, _ := Outcomes()
	for _, v := range constants(t, "Outcome") {
		if !slices.Contains(all, v) {
			t.Errorf("the outcome %q is missing in the list of outcomes", v)
		}
	}
	kinds := constants(t, "ResultKind")
	if len(kinds) < 10 {
		t.Fatalf("the test found %v only", kinds)
	}
	for _, v := range kinds {
		if !slices.Contains(ResultKinds(), v) {
			t.Errorf("the result %q is missing in ResultKinds", v)
		}
	}
	for _, a := range []Action{
		SendCard{}, SendDocument{}, EditProgress{}, EditSettled{}, SendReminder{}, EditReminder{}, SendAbsence{}, SendDigest{}, EditDigest{}, RemindDigest{}, StripButtons{},
	} {
		if kind := messageKind(a); kind == "other" || !slices.Contains(MessageKinds(), kind) {
			t.Errorf("%T counts as %q", a, kind)
		}
	}
	if observed("made up") != "other" {
		t.Error("an unknown outcome becomes a label")
	}
}

package archtest

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	module   = "github.com/approvald/approvald"
	root     = "../.."
	maxLines = 500
)

// layers is the order of the packages, highest first. A package imports only packages of lower layers; packages of one
// layer do not know each other.
var layers = [][]string{
	{"cmd/approvald", "internal/e2e", "internal/service"},
	{"internal/cli"},
	{"internal/demo", "internal/demopage", "internal/rehearse", "internal/doctor"},
	{"internal/stage"},
	{"internal/app"},
	{"internal/gateapi", "internal/dispatch", "internal/pairing"},
	{"internal/gate"},
	{"internal/transport", "internal/lease", "internal/approvallog", "internal/metrics"},
	{
		"internal/procid", "internal/durable", "internal/visible", "internal/sdnotify", "internal/rescue", "internal/telegramtest",
		"internal/manpage", "internal/archtest",
	},
}

// forbidden are imports that the order alone would allow.
var forbidden = map[string][]string{
	// The order allows a fall from any height; these would be short-cuts past the one who owns the matter.
	"internal/gateapi":      {"internal/transport", "internal/lease"},
	"internal/gate":         {"internal/lease"}, // of transport it takes the token's type and what an address must be
	"internal/approvallog":  {"internal/sdnotify", "internal/telegramtest"},
	"internal/telegramtest": {"internal/archtest"},
}

// onlyIn are imports that one package keeps to itself, so that what stands behind it can be replaced or audited.
var onlyIn = map[string][]string{
	"github.com/go-telegram-bot-api/telegram-bot-api/v5": {"internal/transport"},
	"github.com/gowebpki/jcs":                            {"internal/approvallog"},
	"github.com/oklog/run":                               {"internal/app"},
	"github.com/prometheus/client_golang/prometheus":     {"internal/metrics"},
	"github.com/BurntSushi/toml":                         {"internal/gate", "internal/cli", "internal/rehearse"},
	"rsc.io/qr":                                          {"internal/cli"},
	"github.com/fsnotify/fsnotify":                       {"internal/approvallog", "internal/lease"},
}

type source struct {
	dir, name string // slash-separated, from the root
	text      []byte
	file      *ast.File
}

func (s source) test() bool { return strings.HasSuffix(s.name, "_test.go") }

// sources parses every Go file of the module.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if base := entry.Name(); name != root && (strings.HasPrefix(base, ".") || base == "testdata" || base == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(fset, name, text, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		all = append(all, source{path.Dir(rel), path.Base(rel), text, file})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("only %d Go files below %s: the walk looks at the wrong place", len(all), root)
	}
	return all
}

func layerOf(pkg string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, pkg) })
}

// TestImportsPointOneWay holds the order for the shipped code. Tests may look down any number of layers, and the fakes
// of the outside world may be used by every test.
func TestImportsPointOneWay(t *testing.T) {
	for _, s := range sources(t) {
		own := layerOf(s.dir)
		if own < 0 {
			t.Errorf("%s: its package has no place in the layers of this test", path.Join(s.dir, s.name))
			continue
		}
		if s.test() {
			continue
		}
		for _, spec := range s.file.Imports {
			imported := strings.Trim(spec.Path.Value, `"`)
			if owners, ok := onlyIn[imported]; ok && !slices.Contains(owners, s.dir) {
				t.Errorf("%s: imports %s, which belongs to %s", path.Join(s.dir, s.name), imported, strings.Join(owners, ", "))
			}
			pkg, ours := strings.CutPrefix(imported, module+"/")
			if !ours {
				continue
			}
			switch {
			case layerOf(pkg) < 0:
				t.Errorf("%s: imports %s, which has no place in the layers of this test", path.Join(s.dir, s.name), pkg)
			case layerOf(pkg) <= own:
				t.Errorf("%s: imports %s, which is not below it", path.Join(s.dir, s.name), pkg)
			case slices.Contains(forbidden[s.dir], pkg):
				t.Errorf("%s: must not know %s", path.Join(s.dir, s.name), pkg)
			}
		}
	}
}

func TestEveryPackageSaysWhatItGuarantees(t *testing.T) {
	documented := map[string]int{}
	for _, s := range sources(t) {
		if s.test() {
			continue
		}
		if s.file.Doc != nil {
			documented[s.dir]++
			want := "Package " + s.file.Name.Name
			if s.file.Name.Name == "main" {
				want = "Command "
			}
			if text := s.file.Doc.Text(); !strings.HasPrefix(text, want) {
				t.Errorf("%s: the doc comment does not start with %q", path.Join(s.dir, s.name), want)
			}
		} else {
			documented[s.dir] += 0
		}
	}
	for dir, n := range documented {
		if n != 1 {
			t.Errorf("%s: %d files carry a package comment, want 1", dir, n)
		}
	}
}

func TestNoFileIsTooLong(t *testing.T) {
	for _, s := range sources(t) {
		if n := bytes.Count(s.text, []byte("\n")); n > maxLines {
			t.Errorf("%s: %d lines, at most %d: split it by concept", path.Join(s.dir, s.name), n, maxLines)
		}
	}
}

func TestGofmt(t *testing.T) {
	for _, s := range sources(t) {
		formatted, err := format.Source(s.text)
		if err != nil || !bytes.Equal(formatted, s.text) {
			t.Errorf("%s: not gofmt's form (%v)", path.Join(s.dir, s.name), err)
		}
	}
}

func TestModuleReplacesNothing(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte("replace")) {
		t.Error("go.mod has a replace directive: `go install` of a released version would refuse it")
	}
}

// RFC 3339 with nanoseconds drops trailing zeros: one time in ten has fewer digits than the others, and no test sees it often.
func TestTimesAreWrittenWithAllDigits(t *testing.T) {
	for _, s := range sources(t) {
		if !s.test() && bytes.Contains(s.text, []byte("Format(time.RFC3339Nano")) {
			t.Errorf("%s: writes a time with time.RFC3339Nano; approvallog.TimeLayout has one length", path.Join(s.dir, s.name))
		}
	}
}

package gate

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"
)

func TestKeyLinesPointAtEveryKey(t *testing.T) {
	doc := `# a comment = 1
a = 1   # b = 2
"c.d" = "x # = y"
e . f = '''
g = 1
'''
h = [
  1, # one
  [2,
   3],
]
i = { j = "]", k = { l = "}" } }
m = """
\"""
n = 1"""""
o = '\'
p = "\\"
[q]
r = 2026-08-04 09:00:00Z
[[s.t]]
u = 1
[[s.t]]
u = 2
[s.t.v]
w = 3
[[s.t.x]]
y = 4
`
	want := map[string]int{
		"a": 2, `"c.d"`: 3, "e": 4, "e.f": 4, "h": 7, "h[0]": 8, "h[1]": 9, "h[1][0]": 9, "h[1][1]": 10,
		"i": 12, "i.j": 12, "i.k": 12, "i.k.l": 12, "m": 13, "o": 16, "p": 17, "q": 18, "q.r": 19,
		"s.t": 20, "s.t[0]": 20, "s.t[0].u": 21, "s.t[1]": 22, "s.t[1].u": 23, "s.t[1].v": 24, "s.t[1].v.w": 25,
		"s.t[1].x": 26, "s.t[1].x[0]": 26, "s.t[1].x[0].y": 27,
	}
	if _, err := toml.Decode(doc, &map[string]any{}); err != nil {
		t.Fatalf("the document is no TOML: %v", err)
	}
	if diff := cmp.Diff(want, keyLines(doc)); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// FuzzKeyLines holds the scanner against the TOML library: of every valid document it must know
// all keys, and of any other it must end.
func FuzzKeyLines(f *testing.F) {
	f.Add(fullConfig)
	f.Add("a.b = {c = [ {d = 1}, ], \"\\u0065\" = ''}\n[[f]]\n[f.g]\n[[f]]\nh='''\n''''\n")
	f.Add("x = \"\"\"a\\\n  b\"\"\"\"\n[\"\"]\n'' = 1\n")
	f.Fuzz(func(t *testing.T, doc string) {
		lines := keyLines(doc)
		values := make(map[string]any)
		if _, err := toml.Decode(doc, &values); err != nil {
			return
		}
		var missing []string
		eachKey("", values, func(path string) {
			if _, ok := lines[path]; !ok {
				missing = append(missing, path)
			}
		})
		if len(missing) > 0 {
			t.Errorf("no line for %q; known: %q", missing, slices.Sorted(maps.Keys(lines)))
		}
	})
}

// eachKey visits the keys that hold values; tables that a longer header only implies have no line
// of their own.
func eachKey(path string, v any, visit func(string)) {
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			eachKey(joinKey(path, name), value, visit)
		}
	case []map[string]any:
		for i, value := range v {
			eachKey(path+indexSuffix(i), value, visit)
		}
	case []any:
		for i, value := range v {
			eachKey(path+indexSuffix(i), value, visit)
		}
	default:
		if !strings.HasSuffix(path, "]") {
			visit(path)
		}
	}
}

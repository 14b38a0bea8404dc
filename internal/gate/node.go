package gate

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/approvald/approvald/internal/visible"
)

// faults collects what is wrong with one file while it is read.
type faults struct {
	file  string
	lines map[string]int
	list  []Fault
}

// add notes a fault of the key. It is shown on the key's own line, else on that of the nearest
// table around it.
func (f *faults) add(key, remedy, format string, args ...any) {
	f.list = append(f.list, Fault{
		File: f.file, Line: f.line(key), Key: key, What: fmt.Sprintf(format, args...), Remedy: remedy,
	})
}

func (f *faults) line(key string) int {
	for key != "" {
		if line, ok := f.lines[key]; ok {
			return line
		}
		key = key[:max(0, strings.LastIndexAny(key, ".["))]
	}
	return 1
}

func (f *faults) err() error {
	if len(f.list) == 0 {
		return nil
	}
	slices.SortStableFunc(f.list, func(a, b Fault) int { return cmp.Compare(a.Line, b.Line) })
	return &ConfigError{Faults: f.list}
}

// node is one table of the document being read. Each reader takes a key, notes a fault when the
// value has another type than asked for, and answers the zero value then: reading goes on, so that
// all faults of a file are found at once. What no reader took is an unknown key.
type node struct {
	faults *faults
	path   string
	values map[string]any
	taken  map[string]bool
}

func (n *node) child(path string, values map[string]any) *node {
	return &node{faults: n.faults, path: path, values: values, taken: make(map[string]bool)}
}

func (n *node) key(name string) string { return joinKey(n.path, name) }

func (n *node) fault(name, remedy, format string, args ...any) {
	n.faults.add(n.key(name), remedy, format, args...)
}

// take answers the value of a key; ok is false when the table has none.
func (n *node) take(name string) (any, bool) {
	n.taken[name] = true
	v, ok := n.values[name]
	return v, ok
}

func (n *node) has(name string) bool {
	_, ok := n.values[name]
	return ok
}

// typed answers the value of a key when it has the type T, which want describes to people.
func typed[T any](n *node, name, want string) (T, bool) {
	v, ok := n.take(name)
	if !ok {
		var zero T
		return zero, false
	}
	t, ok := v.(T)
	if !ok {
		n.fault(name, "write "+want, "is %s", describe(v))
	}
	return t, ok
}

// describe names the type of a TOML value as its author would.
func describe(v any) string {
	switch v := v.(type) {
	case string:
		return fmt.Sprintf("the string %q", clip(v))
	case int64:
		return fmt.Sprintf("the integer %d", v)
	case float64:
		return fmt.Sprintf("the number %v", v)
	case bool:
		return fmt.Sprintf("the boolean %t", v)
	case map[string]any:
		return "a table"
	case []any, []map[string]any:
		return "an array"
	default:
		return "a date or time"
	}
}

// clip keeps a value that is repeated in a message short.
func clip(s string) clipped {
	const limit = 60
	if len(s) <= limit {
		return clipped(s)
	}
	return clipped(strings.ToValidUTF8(s[:limit], "") + "…")
}

// clipped is foreign text in a message. It is formatted in the one notation of hidden characters, with %q in quotes.
type clipped string

// Format implements [fmt.Formatter].
func (c clipped) Format(f fmt.State, verb rune) {
	text := visible.Line(string(c))
	if verb == 'q' {
		text = visible.Quote(string(c))
	}
	_, _ = io.WriteString(f, text) // a fmt.State takes every write
}

func (n *node) str(name, want string) (string, bool) { return typed[string](n, name, want) }

func (n *node) boolean(name string) bool {
	b, _ := typed[bool](n, name, "true or false")
	return b
}

// integer answers the value, or fallback when the key is missing, of another type or out of range.
func (n *node) integer(name string, fallback, least, most int) int {
	v, ok := typed[int64](n, name, fmt.Sprintf("a whole number from %d to %d", least, most))
	if !ok {
		return fallback
	}
	if v < int64(least) || v > int64(most) {
		n.fault(name, fmt.Sprintf("write a whole number from %d to %d", least, most), "%d is out of range", v)
		return fallback
	}
	return int(v)
}

// duration answers the value, or fallback when the key is missing or not acceptable.
func (n *node) duration(name string, fallback, least, most time.Duration) time.Duration {
	want := fmt.Sprintf("a duration from %v to %v in quotes, such as \"30m\" or \"24h\"", visible.Duration(least), visible.Duration(most))
	s, ok := n.str(name, want)
	if !ok {
		return fallback
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		n.fault(name, "write "+want, "%q is not a duration", clip(s))
	case d < least || d > most:
		n.fault(name, "write "+want, "%s is out of range", clip(s))
	default:
		return d
	}
	return fallback
}

// strings answers an array of strings; ok is false when the key is missing or not acceptable.
func (n *node) strings(name, want string) ([]string, bool) {
	v, ok := n.take(name)
	if !ok {
		return nil, false
	}
	array, ok := v.([]any)
	if !ok {
		n.fault(name, "write "+want, "is %s", describe(v))
		return nil, false
	}
	list := make([]string, 0, len(array))
	for i, element := range array {
		s, isString := element.(string)
		if !isString {
			n.faults.add(n.key(name)+indexSuffix(i), "write "+want, "is %s", describe(element))
			ok = false
			continue
		}
		list = append(list, s)
	}
	return list, ok
}

// table answers the table of that name, an empty one when it is missing or no table.
func (n *node) table(name string) *node {
	m, _ := typed[map[string]any](n, name, fmt.Sprintf("a table, [%s]", n.key(name)))
	return n.child(n.key(name), m)
}

// tables answers the tables of an array of tables, written as [[name]] or inline.
func (n *node) tables(name, want string) []*node {
	v, ok := n.take(name)
	if !ok {
		return nil
	}
	var list []*node
	add := func(i int, m map[string]any) {
		list = append(list, n.child(n.key(name)+indexSuffix(i), m))
	}
	switch array := v.(type) {
	case []map[string]any:
		for i, m := range array {
			add(i, m)
		}
	case []any:
		for i, element := range array {
			if m, isTable := element.(map[string]any); isTable {
				add(i, m)
				continue
			}
			n.faults.add(n.key(name)+indexSuffix(i), want, "is %s", describe(element))
		}
	default:
		n.fault(name, want, "is %s", describe(v))
	}
	return list
}

// rest notes a fault for each key that nobody asked for.
func (n *node) rest() {
	for _, name := range slices.Sorted(maps.Keys(n.values)) {
		if n.taken[name] {
			continue
		}
		known := slices.Sorted(maps.Keys(n.taken))
		n.fault(name, "known here: "+strings.Join(known, ", "), "unknown key")
	}
}

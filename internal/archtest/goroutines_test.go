package archtest

import (
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"
)

// daemonPackages run in the daemon.
var daemonPackages = []string{
	"internal/app", "internal/approvallog", "internal/dispatch", "internal/gate", "internal/gateapi", "internal/lease", "internal/metrics",
	"internal/transport", "internal/sdnotify", "internal/durable", "internal/procid",
}

// plainGoroutines may panic: the process then ends by SIGABRT with a trace, as by kill -9, which the log, the lease and the journal
// stand. Each has its reason.
var plainGoroutines = map[string]string{
	"internal/dispatch/loop.go: drain":         "waits and closes, nothing else",
	"internal/approvallog/walk.go: together":   "a reader without a result, in a start that has sent nothing yet",
	"internal/approvallog/queue.go: block":     "one system call on a descriptor of its own",
	"internal/approvallog/watch.go: subscribe": "only wakes others; no caller is there to be told",
}

// TestEveryGoroutineOfTheDaemonIsCaught: a panic in a goroutine without a net would end the daemon without its stop.
func TestEveryGoroutineOfTheDaemonIsCaught(t *testing.T) {
	found, used := 0, map[string]bool{}
	for _, s := range sources(t) {
		if s.test() || !slices.Contains(daemonPackages, s.dir) {
			continue
		}
		for _, decl := range s.file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if !starts(n) {
					return true
				}
				found++
				place := path.Join(s.dir, s.name) + ": " + f.Name.Name
				if _, plain := plainGoroutines[place]; plain {
					used[place] = true
				} else if !rescued(n) {
					t.Errorf("%s starts a goroutine whose panic nobody catches: run it by rescue.Run or rescue.Go", place)
				}
				return false
			})
		}
	}
	if found < 15 {
		t.Errorf("the test found %d goroutines only", found)
	}
	for place := range plainGoroutines {
		if !used[place] {
			t.Errorf("%s starts no goroutine any more", place)
		}
	}
}

// starts reports a go statement, and a call of sync.WaitGroup's Go or of its like: one function literal as its argument.
func starts(n ast.Node) bool {
	if _, ok := n.(*ast.GoStmt); ok {
		return true
	}
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "Go"
}

// rescued reports whether package rescue stands around what is run.
func rescued(n ast.Node) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "rescue" && strings.Contains("Run Go", sel.Sel.Name) {
				found = true
			}
		}
		return !found
	})
	return found
}

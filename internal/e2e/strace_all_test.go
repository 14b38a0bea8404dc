//go:build all

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// scenario is one row of the fault matrix: work on a home, during which one system call fails.
type scenario struct {
	from  func(g *faultGate) error // makes the home that the work begins with
	work  work
	known []string // keys of requests that the home has
	// acknowledged gives from what the work printed the keys of the requests that somebody was told of.
	acknowledged func(stdout string) []string
	epochs       bool // what is acknowledged are epochs of the journal
}

func lines(stdout string) []string { return strings.Fields(stdout) }
func nothing(string) []string      { return nil }

// makes does healthy work, one after the other.
func makes(all ...work) func(*faultGate) error {
	return func(g *faultGate) error {
		for _, w := range all {
			if got := g.do(w); got.code != 0 {
				return fmt.Errorf("%+v: %v", w, got)
			}
		}
		return nil
	}
}

func (g *faultGate) log() string { return filepath.Join(g.home, "log", "events.jsonl") }

var scenarios = map[string]scenario{
	"append": {makes(request("a"), request("b")), request("new"), []string{"a", "b"}, lines, false},
	"many appends through one handle": {
		makes(request("a")), work{steps: "file new-1 new-2 new-3"}, []string{"a"}, lines, false,
	},
	"first creation": {makes(), request("new"), nil, lines, false},
	"torn tail": {func(g *faultGate) error {
		err := makes(request("a"), request("b"))(g)
		info, serr := os.Stat(g.log())
		if err = errors.Join(err, serr); err == nil {
			err = os.Truncate(g.log(), info.Size()-9)
		}
		return err
	}, request("new"), []string{"a"}, lines, false},
	"snapshot": {
		makes(request("a"), work{steps: "snapshot"}, request("b")), work{steps: "snapshot"}, []string{"a", "b", "between"}, lines, false,
	},
	"archive": {
		makes(request("a"), request("b"), verb("withdraw", "a", "--reason", "cancelled", "--as", "ci"), verb("withdraw", "b", "--reason", "cancelled", "--as", "ci")),
		verb("log", "archive"), []string{"a", "b"}, nothing, false,
	},
	"archive that carries over": {
		makes(request("a"), request("b"), verb("withdraw", "b", "--reason", "cancelled", "--as", "ci"), verb("log", "archive", "--carry"), request("c"), request("d"),
			verb("withdraw", "d", "--reason", "cancelled", "--as", "ci")),
		verb("log", "archive", "--carry"), []string{"a", "b", "c", "d"}, nothing, false,
	},
	"delivery journal":          {makes(request("a"), work{steps: "epoch 1"}), work{steps: "epoch 2"}, []string{"a"}, lines, true},
	"first in delivery journal": {makes(request("a")), work{steps: "epoch 1"}, []string{"a"}, lines, true},
}

// Calls that the matrix leaves out: those that change nothing and whose failure the program does not look at, and those that are not
// about files.
var leftOut = []string{"close", "fcntl", "epoll_ctl", "lseek", "connect", "execve", "inotify_add_watch"}

// changing are the calls before each of which the process is also killed.
var changing = []string{"write", "pwrite64", "fsync", "fdatasync", "ftruncate", "renameat", "renameat2", "rename", "linkat", "unlinkat", "mkdirat",
	"fchmod", "fchmodat", "fchown", "fchownat", "flock"}

// final are the calls that promise that something is there: when one fails, nobody may be told that it is.
var final = []string{"write", "pwrite64", "fsync", "fdatasync"}

// injections are what is done to one call.
func injections(c sysCall) []string {
	list := []string{"error=EIO"}
	changes := c.creates || slices.Contains(changing, c.name)
	if changes {
		list = append(list, "error=ENOSPC", "signal=SIGKILL")
	}
	switch c.name {
	case "write", "pwrite64":
		// Strace lets the call tell of one byte and does not run it: worse than what a disk does.
		list = append(list, "retval=1")
	}
	return list
}

// fault is one cell of the matrix.
type fault struct {
	call sysCall
	what string
}

func (f fault) String() string {
	return fmt.Sprintf("%s, call %d of its kind, %s", f.call.key(), f.call.nth, f.what)
}
func (f fault) kills() bool { return strings.HasPrefix(f.what, "signal=") }

// TestEverySystemCallFailsOnce is the fault matrix. A first run counts the system calls on the gate's files; then each of them
// fails once with each error, returns too little, or is where the process is killed. Whatever happens, the log verifies, all that
// somebody was told of is in it once, and the next healthy process goes on from there and leaves nothing behind.
func TestEverySystemCallFailsOnce(t *testing.T) {
	program := onethread(t)
	for name, s := range scenarios {
		t.Run(name, func(t *testing.T) {
			dir := quickDir(t)
			made, err := newFaultGate(program, filepath.Join(dir, "made"), "")
			if err == nil {
				err = s.from(made)
			}
			if err != nil {
				t.Fatal(err)
			}
			from := made.home
			if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
				from = ""
			}
			counted, err := newFaultGate(program, filepath.Join(dir, "counted", "0"), from) // as deep as the others: each step of a path is looked at
			if err != nil {
				t.Fatal(err)
			}
			got, calls, err := counted.traced(s.work, "all", "")
			if err != nil || got.code != 0 {
				t.Fatalf("%v: %v", err, got)
			}
			if other, err := elsewhere(program, filepath.Join(dir, "counted", "1"), from, s.work); err != nil || other != "" {
				t.Fatalf("a call that the matrix would miss, since another thread makes it: %s %v", other, err)
			}
			var matrix []fault
			kinds := map[string]int{}
			for _, c := range calls {
				if c.path == "" || slices.Contains(leftOut, c.name) {
					continue
				}
				kinds[c.name]++
				for _, what := range injections(c) {
					matrix = append(matrix, fault{c, what})
				}
			}
			began := time.Now()
			parallel(matrix, func(i int, f fault) {
				dir := filepath.Join(dir, fmt.Sprint(i))
				defer os.RemoveAll(dir)
				hit, err := s.run(program, dir, from, f)
				switch {
				case err != nil:
					t.Errorf("%v: %v", f, err)
				case !hit:
					t.Errorf("%v: never came", f)
				}
			})
			t.Logf("%d faults in %v: %v", len(matrix), time.Since(began).Round(time.Second), countsOf(kinds))
		})
	}
}

// elsewhere gives a call on the gate's files that another thread than the main one makes, empty when there is none.
func elsewhere(program, dir, from string, w work) (string, error) {
	g, err := newFaultGate(program, dir, from)
	if err != nil {
		return "", err
	}
	trace := filepath.Join(g.dir, "trace")
	if got := g.do(w, "strace", "-f", "-y", "-o", trace, "-e", "signal=none"); got.code != 0 {
		return "", errors.New(got.String())
	}
	text, err := os.ReadFile(trace)
	main, _, _ := strings.Cut(string(text), " ")
	for line := range strings.Lines(string(text)) {
		pid, call, _ := strings.Cut(line, " ")
		name := callStart.FindStringSubmatch(strings.TrimLeft(call, " "))
		if pid != main && name != nil && !slices.Contains(leftOut, name[1]) && strings.Contains(call, g.home) {
			return line, nil
		}
	}
	return "", err
}

func countsOf(kinds map[string]int) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		list = append(list, fmt.Sprintf("%s %d", name, kinds[name]))
	}
	return strings.Join(list, ", ")
}

// parallel does do for each element, as many at a time as there are processors.
func parallel[T any](list []T, do func(int, T)) {
	next := make(chan int)
	var group sync.WaitGroup
	for range runtime.NumCPU() {
		group.Go(func() {
			for i := range next {
				do(i, list[i])
			}
		})
	}
	for i := range list {
		next <- i
	}
	close(next)
	group.Wait()
}

// tries is how often the count of a call is followed: what the runtime does besides moves it now and then.
const tries = 5

// run is one cell. It reports whether the fault hit.
func (s scenario) run(program, dir, from string, f fault) (hit bool, err error) {
	for try := range tries {
		g, err := newFaultGate(program, filepath.Join(dir, fmt.Sprint(try)), from)
		if err != nil {
			return false, err
		}
		got, calls, err := g.traced(s.work, f.call.name, fmt.Sprintf("%s:when=%d", f.what, f.call.nth))
		if err != nil {
			return false, err
		}
		var at sysCall
		if f.kills() && got.code == 128+9 && len(calls) > 0 {
			at = calls[len(calls)-1]
		}
		for _, c := range calls {
			if c.injected && !f.kills() {
				at = c
			}
		}
		acknowledged := s.acknowledged(got.stdout)
		if err := s.told(g, f, at, got, acknowledged); err != nil {
			return false, fmt.Errorf("%w\n%s\n%v", err, at.text, got)
		}
		if err := s.afterwards(g, acknowledged); err != nil {
			return false, fmt.Errorf("%w\n%s\nit had said: %v", err, at.text, got)
		}
		if at.key() == f.call.key() {
			return true, nil
		}
		f.call.nth += f.off(calls)
	}
	return false, nil
}

// off is by how much another run counts the call otherwise, as far as its calls tell.
func (f fault) off(calls []sysCall) int {
	best := 0
	if !slices.ContainsFunc(calls, func(c sysCall) bool { return c.key() == f.call.key() }) {
		return 1
	}
	for _, c := range calls {
		if d := c.nth - f.call.nth; c.key() == f.call.key() && (best == 0 || max(d, -d) < max(best, -best)) {
			best = d
		}
	}
	return best
}

// needless are files that nothing depends on: what fails with them is said, and fails nothing.
var needless = regexp.MustCompile(`^(log|daemon)/archive/[^/]+(/\.?index.*)?$`)

// told judges what the process said of the fault.
func (s scenario) told(g *faultGate, f fault, at sysCall, got outcome, acknowledged []string) error {
	if at.path == "" || f.kills() {
		return nil
	}
	if got.code >= 128 || strings.Contains(got.stderr, "panic") || strings.Contains(got.stderr, "goroutine ") {
		return errors.New("it crashed")
	}
	if !strings.Contains(got.stderr, g.home) && got.code != 0 {
		return errors.New("the message names no path")
	}
	if !slices.Contains(final, at.name) {
		return nil
	}
	switch {
	case got.code == 0 && (!needless.MatchString(at.path) || !strings.Contains(got.stderr, "has no index")):
		return errors.New("a failed write or sync went unnoticed")
	case got.code != 0 && !strings.Contains(got.stderr, "hint: "):
		return errors.New("the message does not say what to do")
	}
	if strings.HasPrefix(s.work.steps, "file ") && at.path == "log/events.jsonl" && f.what != "error=ENOSPC" {
		wrote, tried := len(acknowledged), strings.Fields(s.work.steps)[1:]
		if !slices.Equal(acknowledged, tried[:wrote]) || strings.Count(got.stderr, "poisoned") < len(tried)-wrote {
			return errors.New("the handle was used on after the failure")
		}
	}
	return nil
}

// afterwards judges what the process has left: at once, after the same work was done once more, and after a day.
func (s scenario) afterwards(g *faultGate, acknowledged []string) error {
	owed := slices.Clone(s.known)
	if !s.epochs {
		owed = append(owed, acknowledged...)
	}
	report := g.do(verb("log", "verify", "--semantic", "--json"))
	noLog := report.code == 1 && strings.Contains(report.stdout, `"not-found"`)
	if report.code != 0 && report.code != 9 && !(noLog && len(owed) == 0) {
		return fmt.Errorf("log verify: %v", report)
	}
	if !noLog {
		if err := g.holds(owed); err != nil {
			return err
		}
	}
	if s.epochs {
		if err := g.opened(acknowledged); err != nil {
			return err
		}
	}
	for _, w := range []work{s.work, request("healthy")} {
		if got := g.do(w); got.code != 0 {
			return fmt.Errorf("afterwards, %+v: %v", w, got)
		}
	}
	if report := g.do(verb("log", "verify", "--semantic")); report.code != 0 {
		return fmt.Errorf("log verify after an append: %v", report)
	}
	if err := g.holds(append(owed, "healthy")); err != nil {
		return err
	}
	return g.leavesNothing(s.work)
}

// holds makes sure that each of the requests is there once, and none twice.
func (g *faultGate) holds(keys []string) error {
	export := g.do(verb("log", "export"))
	if export.code != 0 {
		return fmt.Errorf("log export: %v", export)
	}
	count := map[string]int{}
	for line := range strings.Lines(export.stdout) {
		var r struct {
			Event   string
			Key     string `json:"action_key"`
			Payload struct {
				Approvald struct{ Carried json.RawMessage }
			}
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return fmt.Errorf("%w: %s", err, line)
		}
		if r.Event == "approval.requested" && r.Payload.Approvald.Carried == nil {
			count[r.Key]++
		}
	}
	for _, key := range keys {
		if count[key] == 0 {
			return fmt.Errorf("%s was acknowledged and is not there", key)
		}
	}
	for key, n := range count {
		if n > 1 {
			return fmt.Errorf("%s is there %d times", key, n)
		}
	}
	return nil
}

// opened makes sure that the epochs are in the journal.
func (g *faultGate) opened(epochs []string) error {
	if len(epochs) == 0 {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(g.home, "daemon", "deliveries.jsonl"))
	for _, epoch := range epochs {
		if n := strings.Count(string(text), fmt.Sprintf(`"epoch":%s,`, epoch)); n != 1 {
			return fmt.Errorf("epoch %s is in the journal %d times, %v", epoch, n, err)
		}
	}
	return nil
}

// may are the names that a gate's home may hold for ever.
var may = regexp.MustCompile(`^(log/(events\.jsonl(\.queue)?|quarantine/[0-9TZ.a-f-]+)|(log|daemon)/archive/[0-9TZ.-]+/(events\.jsonl|segment\.json|index)|` +
	`payloads/[0-9a-f]{64}\.json|daemon/(deliveries\.jsonl(\.queue)?|snapshot\.json|index-[-0-9a-f]+))$`)

// leavesNothing makes sure that after a day, and what a daemon does at its start, only what belongs there is in the home.
func (g *faultGate) leavesNothing(w work) error {
	past := time.Now().Add(-24 * time.Hour)
	err := filepath.WalkDir(g.home, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			err = os.Chtimes(path, past, past)
		}
		return err
	})
	if err != nil {
		return err
	}
	day := []work{{steps: "start"}}
	if w.steps == "snapshot" { // it removes what an earlier one has left
		day = append(day, w)
	}
	for _, w := range day {
		if got := g.do(w); got.code != 0 {
			return fmt.Errorf("a day later, %+v: %v", w, got)
		}
	}
	return filepath.WalkDir(g.home, func(path string, d fs.DirEntry, err error) error {
		if name := strings.TrimPrefix(path, g.home+"/"); err == nil && !d.IsDir() && !may.MatchString(name) {
			err = fmt.Errorf("left behind: %s", name)
		}
		return err
	})
}

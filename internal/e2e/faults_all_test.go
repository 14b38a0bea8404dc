//go:build all

package e2e

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// onethread is the program of testdata/onethread. It is built without the race detector, under which a process takes long to start,
// and run a thousand times.
func onethread(t *testing.T) string {
	t.Helper()
	name, err := buildOnethread()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

var buildOnethread = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "onethread-")
	if err != nil {
		return "", err
	}
	atEnd = append(atEnd, func() { os.RemoveAll(dir) })
	name := filepath.Join(dir, "onethread")
	if out, err := exec.Command("go", "build", "-o", name, "./testdata/onethread").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return name, nil
})

// faultGate is a gate without Telegram, in a directory of its own.
type faultGate struct {
	program   string
	dir, home string
	env       []string
	as        uint32 // the user that runs the program, 0 for this one
}

// quickDir is a directory in memory where there is one: whether an fsync takes time is of no matter to who makes it fail.
func quickDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "faults-")
	if err != nil {
		dir, err = os.MkdirTemp("", "faults-")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newFaultGate makes a gate whose home is a copy of from, or is not there when from is empty.
func newFaultGate(program, dir, from string) (*faultGate, error) {
	g := &faultGate{program: program, dir: dir, home: filepath.Join(dir, "home", ".approval")}
	config := fmt.Sprintf("home = %q\n[telegram]\ntoken_env = \"NONE\"\nchat_id = 1\n[[approvers]]\nid = \"alice\"\ntelegram_user_id = 111\n", g.home)
	file := filepath.Join(dir, "approvald", "default.toml")
	err := os.MkdirAll(filepath.Dir(file), 0o700)
	if err == nil {
		err = os.WriteFile(file, []byte(config), 0o600)
	}
	if err == nil && from != "" {
		err = copyTree(from, g.home)
	}
	g.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "USER=ci", "XDG_CONFIG_HOME=" + dir, "XDG_RUNTIME_DIR=" + filepath.Join(dir, "run"),
		"APPROVALD_LOCK_DIR=" + filepath.Join(dir, "lock")}
	return g, err
}

// copyTree copies files with their modes and times.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name := filepath.Join(to, strings.TrimPrefix(path, from))
		if d.IsDir() {
			return os.MkdirAll(name, info.Mode().Perm())
		}
		b, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(name, b, info.Mode().Perm())
		}
		return errors.Join(err, os.Chtimes(name, info.ModTime(), info.ModTime()))
	})
}

// outcome is how a process ended and what it said.
type outcome struct {
	code           int // 128 and more: by a signal
	stdout, stderr string
}

func (o outcome) String() string {
	return fmt.Sprintf("exit code %d\n%s%s", o.code, o.stdout, o.stderr)
}

// work is what the traced process is to do: the steps of onethread, or a verb.
type work struct {
	steps string
	verb  []string
}

// do runs the program, under the command line before, to its end.
func (g *faultGate) do(w work, before ...string) outcome {
	args := append(slices.Clone(before), append([]string{g.program}, w.verb...)...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env, cmd.Dir = append(slices.Clone(g.env), "STEPS="+w.steps), g.dir
	credential(cmd, g.as)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState == nil {
		return outcome{-1, "", err.Error()}
	}
	code := cmd.ProcessState.ExitCode()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		code = 128 + int(status.Signal())
	}
	return outcome{code, stdout.String(), stderr.String()}
}

func verb(args ...string) work { return work{verb: args} }

func request(key string) work {
	return verb("request", key, "--class", "deploy.test", "--summary", "s", "--as", "ci")
}

// traced runs the program with strace, which lists the calls of one kind that the main thread makes and, when inject is not empty,
// does that to one of them.
func (g *faultGate) traced(w work, kind, inject string) (outcome, []sysCall, error) {
	trace := filepath.Join(g.dir, "trace")
	args := []string{"strace", "-y", "-o", trace, "-e", "trace=" + kind, "-e", "signal=none"}
	if inject != "" {
		args = append(args, "-e", "inject="+kind+":"+inject)
	}
	got := g.do(w, args...)
	text, err := os.ReadFile(trace)
	if err != nil {
		return got, nil, fmt.Errorf("strace: %w\n%v", err, got)
	}
	return got, readTrace(string(text), g.home), nil
}

// sysCall is one line of strace.
type sysCall struct {
	name     string
	nth      int // of this name in the thread, from 1
	text     string
	path     string // the first below the home that it names, relative to it; empty for none
	injected bool
	creates  bool // an open that may make a file
}

var callStart = regexp.MustCompile(`^([a-z0-9_]+)\(`)

// readTrace reads the output of strace. A process that was killed at a call has it, without an end, as its last.
func readTrace(text, home string) []sysCall {
	var calls []sysCall
	count := map[string]int{}
	for line := range strings.Lines(text) {
		m := callStart.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		count[m[1]]++
		c := sysCall{name: m[1], nth: count[m[1]], text: strings.TrimSpace(line), injected: strings.Contains(line, "(INJECTED)"), creates: strings.Contains(line, "O_CREAT")}
		if at := strings.Index(line, home); at >= 0 {
			rest := line[at+len(home):]
			if end := strings.IndexAny(rest, `>"`); end >= 0 {
				c.path = cmp.Or(strings.TrimPrefix(rest[:end], "/"), ".")
			}
		}
		calls = append(calls, c)
	}
	return calls
}

// kinds of names that differ from run to run.
var varying = regexp.MustCompile(`[0-9a-f]{16}\b|\d{8}T[0-9.]+Z|-\d+-|index-[-0-9a-f]+`)

// key says what kind of call it is, the same in each run.
func (c sysCall) key() string { return c.name + " " + varying.ReplaceAllString(c.path, "*") }

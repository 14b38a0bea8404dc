package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

// world is a gate in a directory of its own, for tests that scripts cannot
// express: signals, terminals, processes that stand still.
type world struct {
	t   *testing.T
	dir string
	env []string
	bot *telegramtest.Server
}

// newWorld makes a gate whose approver is alice, with a Bot API server.
func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldWith(t, telegramtest.Options{})
}

// newWorldWith is newWorld with a Telegram of one's own.
func newWorldWith(t *testing.T, o telegramtest.Options) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "av-") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := &world{t: t, dir: dir, bot: telegramtest.RunT(t, o)}
	w.bot.AddUser(telegramtest.User{ID: alice, FirstName: "Alice"})
	for _, name := range []string{"config/approvald", "run"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	w.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TERM=dumb",
		"XDG_CONFIG_HOME=" + filepath.Join(dir, "config"), "XDG_STATE_HOME=" + filepath.Join(dir, "state"),
		"XDG_RUNTIME_DIR=" + filepath.Join(dir, "run"), "APPROVALD_LOCK_DIR=" + filepath.Join(dir, "lock"),
	}
	w.write("token", w.bot.Token()+"\n")
	w.write("config/approvald/default.toml", fmt.Sprintf(`[telegram]
token_file = %q
chat_id = %d
api_base = %q
[[approvers]]
id = "alice"
telegram_user_id = %d
`, filepath.Join(dir, "token"), alice, w.bot.URL(), alice))
	return w
}

func (w *world) write(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// stranger is the environment of an agent that may not read the configuration:
// it has the socket alone.
func (w *world) stranger() []string {
	return append(w.env[:len(w.env):len(w.env)], "XDG_CONFIG_HOME="+filepath.Join(w.dir, "nothing"))
}

// output collects what a process prints and tells when there is more.
type output struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan struct{}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.more <- struct{}{}:
	default:
	}
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

type process struct {
	t           *testing.T
	cmd         *exec.Cmd
	out, errOut *output
	done        chan struct{}
}

func (w *world) start(env []string, args ...string) *process {
	w.t.Helper()
	return w.startProgram(env, "approvald", args...)
}

func (w *world) startProgram(env []string, program string, args ...string) *process {
	w.t.Helper()
	p := &process{
		t: w.t, cmd: exec.Command(program, args...), done: make(chan struct{}),
		out: &output{more: make(chan struct{}, 1)}, errOut: &output{more: make(chan struct{}, 1)},
	}
	p.cmd.Env, p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = env, w.dir, p.out, p.errOut
	if err := p.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		// How it ended is in ProcessState.
		_ = p.cmd.Wait()
	}()
	w.t.Cleanup(func() {
		// A process that has ended needs no end.
		_ = p.cmd.Process.Kill()
		<-p.done
		if w.t.Failed() {
			w.t.Logf("%s %s\n%s%s", program, strings.Join(args, " "), p.out, p.errOut)
		}
	})
	return p
}

// sees waits until the stream has the text.
func (p *process) sees(o *output, text string) {
	p.t.Helper()
	limit := time.After(patience)
	for !strings.Contains(o.String(), text) {
		select {
		case <-o.more:
		case <-p.done:
			if !strings.Contains(o.String(), text) {
				p.t.Fatalf("ended without saying %q: %s%s", text, p.out, p.errOut)
			}
		case <-limit:
			p.t.Fatalf("never said %q: %s%s", text, p.out, p.errOut)
		}
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// ended waits for the end and answers how it came.
func (p *process) ended() syscall.WaitStatus {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("did not end: %s%s", p.out, p.errOut)
	}
	return p.cmd.ProcessState.Sys().(syscall.WaitStatus)
}

// run runs a command to its end and wants an exit code.
func (w *world) run(env []string, want int, args ...string) *process {
	w.t.Helper()
	p := w.start(env, args...)
	if ws := p.ended(); ws.ExitStatus() != want {
		w.t.Fatalf("approvald %s: exit code %d, want %d: %s%s", strings.Join(args, " "), ws.ExitStatus(), want, p.out, p.errOut)
	}
	return p
}

// up starts the daemon and waits until it serves.
func (w *world) up() *process {
	w.t.Helper()
	p := w.start(w.env, "up")
	p.sees(p.errOut, `"msg":"ready"`)
	return p
}

func (w *world) tap(button string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	if _, err := w.bot.Phone(alice).WaitTap(ctx, button); err != nil {
		w.t.Fatal(err)
	}
}

// state asks for the state of a request.
func (w *world) state(key string) (state string, ending string) {
	w.t.Helper()
	p := w.run(w.env, 0, "show", key, "--json")
	var r struct{ State string }
	if err := json.Unmarshal([]byte(p.out.String()), &r); err != nil {
		w.t.Fatal(err)
	}
	return r.State, w.run(w.env, 0, "show", key).out.String()
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, os.ErrNotExist)
}

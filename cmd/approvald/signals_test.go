package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/durable"
)

var stopSignals = []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

// Who stops a waiting program stops the wait and nothing else.
func TestWaitEndsBySignalAndDecidesNothing(t *testing.T) {
	w := newWorld(t)
	for _, sig := range stopSignals {
		key := "k" + sig.String()
		p := w.start(w.env, "request", key, "--class", "a.b", "--summary", "s", "--wait")
		p.sees(p.out, key+"\n") // the key is known before the wait
		p.sees(p.errOut, "asked")
		p.signal(sig)
		if ws := p.ended(); !ws.Signaled() || ws.Signal() != sig {
			t.Errorf("%v: ended with %#x, want by that signal", sig, ws)
		}
		if text := p.errOut.String(); strings.Contains(text, "goroutine") || !strings.Contains(text, "nothing was decided") || !strings.Contains(text, "approvald wait") {
			t.Errorf("%v: stderr %q does not say how to go on", sig, text)
		}
		if state, _ := w.state(key); state != "pending" {
			t.Errorf("%v: the request is %s, want pending", sig, state)
		}
	}
	w.run(w.env, 0, "log", "verify", "--semantic")
}

func TestWaitEndsBySignalAndWithdrawsWhenAsked(t *testing.T) {
	w := newWorld(t)
	for _, sig := range stopSignals {
		key := "k" + sig.String()
		p := w.start(w.env, "request", key, "--class", "a.b", "--summary", "s", "--wait", "--withdraw-on-timeout")
		p.sees(p.errOut, "asked")
		p.signal(sig)
		if ws := p.ended(); !ws.Signaled() || ws.Signal() != sig {
			t.Errorf("%v: ended with %#x, want by that signal", sig, ws)
		}
		if state, text := w.state(key); state != "withdrawn" || !strings.Contains(text, "(cancelled)") {
			t.Errorf("%v: the request is %s, want withdrawn as cancelled:\n%s", sig, state, text)
		}
		if text := p.errOut.String(); strings.Contains(text, "nothing was decided") || !strings.Contains(text, "stopped waiting for "+key+", which is withdrawn") {
			t.Errorf("%v: stderr %q does not say what was done", sig, text)
		}
	}
}

func TestInterruptedWaitIsOneJSONValue(t *testing.T) {
	w := newWorld(t)
	p := w.start(w.env, "request", "k", "--class", "a.b", "--summary", "s", "--wait", "--json")
	p.sees(p.errOut, "k: asked")
	p.signal(syscall.SIGTERM)
	p.ended()
	var got struct{ Error struct{ Code string } }
	if err := json.Unmarshal([]byte(p.out.String()), &got); err != nil || got.Error.Code != "interrupted" {
		t.Errorf("stdout is %q (%v), want one error of code interrupted", p.out, err)
	}
}

func TestTailFollows(t *testing.T) {
	w := newWorld(t)
	w.run(w.env, 0, "request", "one", "--class", "a.b", "--summary", "s")
	p := w.start(w.env, "log", "tail", "-f", "-n", "1", "--json")
	p.sees(p.out, `"action_key":"one"`)
	w.run(w.env, 0, "request", "two", "--class", "a.b", "--summary", "s")
	p.sees(p.out, `"action_key":"two"`)
	p.signal(syscall.SIGINT)
	if ws := p.ended(); !ws.Signaled() {
		t.Errorf("ended with %#x, want by the signal", ws)
	}
	if text := p.errOut.String(); text != "" {
		t.Errorf("stderr is %q, want nothing", text)
	}
}

// The command that run executes gets the signals, and its end is run's.
func TestRunPassesSignalsOn(t *testing.T) {
	w := newWorld(t)
	w.up()
	const script = `trap 'echo got TERM; exit 9' TERM; trap 'echo got USR1' USR1; echo ready; while :; do sleep 0.01; done`
	p := w.start(w.env, "run", "trap", "--class", "a.b", "--", "sh", "-c", script)
	w.tap("Approve")
	p.sees(p.out, "ready")
	p.signal(syscall.SIGUSR1)
	p.sees(p.out, "got USR1")
	p.signal(syscall.SIGTERM)
	if ws := p.ended(); ws.ExitStatus() != 9 {
		t.Errorf("exit code %d, want the command's 9", ws.ExitStatus())
	}

	p = w.start(w.env, "run", "die", "--class", "a.b", "--", "sh", "-c", "echo ready; exec sleep 600")
	w.tap("Approve")
	p.sees(p.out, "ready")
	p.signal(syscall.SIGTERM)
	if ws := p.ended(); ws.ExitStatus() != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d, want 143", ws.ExitStatus())
	}
	if _, text := w.state("die"); !strings.Contains(text, "execution failed, exit 143") {
		t.Errorf("the end is not recorded:\n%s", text)
	}
}

// The command sees neither the bot's token nor what belongs to a daemon.
func TestRunKeepsSecretsFromTheCommand(t *testing.T) {
	w := newWorld(t)
	w.up()
	config := w.env
	w.write("config/approvald/default.toml", strings.Replace(w.read("config/approvald/default.toml"), "token_file", "token_env = \"BOT_TOKEN\"\n# was", 1))
	p := w.start(append(config, "BOT_TOKEN="+w.bot.Token(), "NOTIFY_SOCKET=/n", "CREDENTIALS_DIRECTORY=/c", "KEPT=yes"),
		"run", "env", "--class", "a.b", "--", "env")
	w.tap("Approve")
	if ws := p.ended(); ws.ExitStatus() != 0 {
		t.Fatalf("exit code %d", ws.ExitStatus())
	}
	for _, bad := range []string{w.bot.Token(), "BOT_TOKEN", "NOTIFY_SOCKET", "CREDENTIALS_DIRECTORY"} {
		if strings.Contains(p.out.String(), bad) {
			t.Errorf("the command's environment has %s", bad)
		}
	}
	if !strings.Contains(p.out.String(), "KEPT=yes") {
		t.Error("the command lost a variable that is its own")
	}
}

// A crash, of which SIGQUIT is the one that anybody can cause, never looks like one of the exit codes: the runtime's own code
// for it is 2, "usage or configuration", after which no service manager starts the daemon again.
func TestCrashIsNoExitCode(t *testing.T) {
	w := newWorld(t)
	p := w.up()
	p.signal(syscall.SIGQUIT)
	if ws := p.ended(); !ws.Signaled() || ws.Signal() != syscall.SIGABRT || ws.CoreDump() {
		t.Errorf("ended with %#x, want by SIGABRT and without a core file", ws)
	}
	if !strings.Contains(p.errOut.String(), "goroutine") {
		t.Error("the daemon does not tell what it was doing")
	}
	w.run(w.env, 0, "log", "verify")
	w.up()
}

// A program that was told to ignore a signal, as nohup does, is not stopped by it.
func TestIgnoredSignalsStayIgnored(t *testing.T) {
	w := newWorld(t)
	w.up()
	p := w.startProgram(w.env, "sh", "-c", "trap '' HUP INT; exec approvald request k --class a.b --summary s --wait")
	p.sees(p.errOut, "asked")
	p.signal(syscall.SIGHUP)
	p.signal(syscall.SIGINT)
	w.tap("Approve")
	if ws := p.ended(); ws.ExitStatus() != 0 {
		t.Errorf("ended with %#x, want 0", ws)
	}
}

// A run that was killed leaves an execution whose end nobody records. Who asks again is told so, and asks a person.
func TestKilledRunCanBeAskedAgain(t *testing.T) {
	for _, way := range []string{"socket", "files"} {
		t.Run(way, func(t *testing.T) {
			w := newWorld(t)
			env := w.env
			if way == "socket" {
				env = w.stranger()
			}
			daemon := w.up()
			// The command outlives its runner by a moment at most.
			args := []string{"run", "k", "--class", "a.b", "--", "sh", "-c", `echo ready; while kill -0 $PPID; do sleep 0.01; done; echo done`}
			again := append([]string{"run", "--again"}, args[1:]...)
			p := w.start(env, args...)
			w.tap("Approve")
			p.sees(p.out, "ready")
			if _, text := w.state("k"); !strings.Contains(text, "execution started (pid ") {
				t.Errorf("show does not name the runner:\n%s", text)
			}
			w.run(env, 117, again...) // it runs
			p.signal(syscall.SIGKILL)
			p.ended()
			if _, text := w.state("k"); !strings.Contains(text, "is gone, how it ended is not known") {
				t.Errorf("show does not tell that the runner is gone:\n%s", text)
			}
			if text := w.run(env, 111, args...).errOut.String(); !strings.Contains(text, "--again") {
				t.Errorf("stderr %q does not show a way out", text)
			}
			if way == "files" {
				daemon.signal(syscall.SIGTERM)
				daemon.ended()
			}
			p = w.start(env, append([]string{"run", "--again"}, args[1:]...)...)
			p.sees(p.errOut, "how that ended is not known")
			if way == "files" {
				w.up()
			}
			w.tap("Approve")
			p.sees(p.out, "ready")
			p.signal(syscall.SIGTERM)
			p.ended()
			if text := w.run(w.env, 0, "log", "tail", "--json").out.String(); strings.Count(text, `"reason":"runner-gone"`) != 1 {
				t.Errorf("the lost end is not on record once:\n%s", text)
			}
			w.run(w.env, 0, "log", "verify", "--semantic")
		})
	}
}

// Files that killed clients left half-written are swept up when the daemon starts, those of clients at work are not.
func TestLeftoversAreSweptUp(t *testing.T) {
	w := newWorld(t)
	w.run(w.env, 0, "request", "k", "--class", "a.b", "--summary", "s")
	payloads := filepath.Join(w.dir, "state", "approvald", "default", ".approval", "payloads")
	left, atWork := durable.TempName(filepath.Join(payloads, "x.json")), durable.TempName(filepath.Join(payloads, "y.json"))
	long := time.Now().Add(-2 * time.Hour)
	for _, path := range []string{left, atWork} {
		if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(left, long, long); err != nil {
		t.Fatal(err)
	}
	w.up()
	if exists(left) || !exists(atWork) {
		t.Errorf("left over: %v, at work: %v", exists(left), exists(atWork))
	}
	w.run(w.env, 0, "show", "k")
}

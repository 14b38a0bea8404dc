package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// terminal is a program with a person in front of it.
type terminal struct {
	t    *testing.T
	tty  *os.File
	cmd  *exec.Cmd
	seen *output
	done chan struct{}
}

func (w *world) terminal(args ...string) *terminal {
	w.t.Helper()
	return w.terminalWith(w.env, args...)
}

func (w *world) terminalWith(env []string, args ...string) *terminal {
	w.t.Helper()
	x := &terminal{t: w.t, cmd: exec.Command("approvald", args...), seen: &output{more: make(chan struct{}, 1)}, done: make(chan struct{})}
	x.cmd.Env, x.cmd.Dir = env, w.dir
	tty, err := pty.Start(x.cmd)
	if err != nil {
		w.t.Fatal(err)
	}
	x.tty = tty
	go func() {
		defer close(x.done)
		// The end of a pseudo terminal is an I/O error.
		_, _ = io.Copy(x.seen, tty)
	}()
	w.t.Cleanup(func() {
		_ = x.cmd.Process.Kill()
		<-x.done
		tty.Close()
	})
	return x
}

// sees waits for a text on the screen.
func (x *terminal) sees(text string) {
	x.t.Helper()
	limit := time.After(patience)
	for !strings.Contains(x.seen.String(), text) {
		select {
		case <-x.seen.more:
		case <-x.done:
			if !strings.Contains(x.seen.String(), text) {
				x.t.Fatalf("the screen never showed %q: %s", text, x.seen)
			}
		case <-limit:
			x.t.Fatalf("the screen never showed %q: %s", text, x.seen)
		}
	}
}

func (x *terminal) types(text string) {
	x.t.Helper()
	if _, err := x.tty.WriteString(text); err != nil {
		x.t.Fatal(err)
	}
}

func (x *terminal) ended() syscall.WaitStatus {
	x.t.Helper()
	<-x.done
	// How it ended is in ProcessState.
	_ = x.cmd.Wait()
	return x.cmd.ProcessState.Sys().(syscall.WaitStatus)
}

func (w *world) read(name string) string {
	w.t.Helper()
	b, err := os.ReadFile(filepath.Join(w.dir, name))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(b)
}

func TestInitAsks(t *testing.T) {
	w := newWorld(t)
	x := w.terminal("init", "--gate", "asked", "--api-base", w.bot.URL())
	x.sees("Bot token")
	x.types("nonsense\n")
	x.sees("what was given is")
	x.types("4242:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n")
	x.sees("a token that Telegram does not know")
	x.types(w.bot.Token() + "\n")
	x.sees("press Enter to type the numbers in")
	x.types("\n")
	x.sees("Chat id")
	x.types("nonsense\n")
	x.sees("is not a chat's number")
	x.types("-100777\n")
	x.sees("Approver as NAME=ID")
	x.types("alice=111\n")
	x.sees("Another approver")
	x.types("\n")
	x.sees("poll or webhook")
	x.types("\n")
	x.sees("next: approvald up --gate asked")
	if ws := x.ended(); ws.ExitStatus() != 0 {
		t.Fatalf("exit code %d: %s", ws.ExitStatus(), x.seen)
	}
	if strings.Contains(x.seen.String(), w.bot.Token()) {
		t.Errorf("the token is on the screen: %s", x.seen)
	}
	if got := w.read("config/approvald/asked.token"); got != w.bot.Token()+"\n" {
		t.Errorf("token file has %q", got)
	}
	if text := w.read("config/approvald/asked.toml"); !strings.Contains(text, "chat_id = -100777") {
		t.Errorf("configuration is\n%s", text)
	}
	w.run(w.env, 0, "queue", "--gate", "asked")
}

func TestApproveAsksAtTheTerminal(t *testing.T) {
	w := newWorld(t)
	w.write("plan", "line one\n\x1b[2Kline two\n")
	w.run(w.env, 0, "request", "k", "--class", "a.b", "--summary", "s", "--payload", "plan", "--irreversible")
	x := w.terminal("approve", "k", "--as", "human:alice")
	x.sees("cannot be undone")
	x.sees("  | line one")
	x.sees("approve k as human:alice? [y/N]")
	if strings.Contains(x.seen.String(), "\x1b[2K") {
		t.Error("the payload's escape sequence reached the terminal")
	}
	x.types("y\n")
	x.sees("granted")
	if ws := x.ended(); ws.ExitStatus() != 0 {
		t.Errorf("exit code %d: %s", ws.ExitStatus(), x.seen)
	}
	w.run(w.env, 0, "wait", "k")
}

// What cannot be decided is refused before the person reads it and is asked.
func TestApproveOfWhatIsDecidedAsksNothing(t *testing.T) {
	w := newWorld(t)
	w.run(w.env, 0, "request", "k", "--class", "a.b", "--summary", "s")
	w.terminal("revoke", "k", "--as", "human:alice").refuses("there is no grant to take back")
	if ws := w.terminal("reject", "k", "--as", "human:alice", "--yes").ended(); ws.ExitStatus() != 0 {
		t.Fatalf("exit code %d", ws.ExitStatus())
	}
	if ws := w.terminal("reject", "k", "--as", "human:alice", "--yes").ended(); ws.ExitStatus() != 0 {
		t.Errorf("saying it again: exit code %d", ws.ExitStatus())
	}
	x := w.terminal("reject", "k", "--as", "human:alice", "--note", "other")
	if ws := x.ended(); ws.ExitStatus() != 0 || strings.Contains(x.seen.String(), "[y/N]") {
		t.Errorf("saying it again with a note: exit code %d, %s", ws.ExitStatus(), x.seen)
	}
	x.sees("it is rejected by human:alice")
	x.sees("the note was not recorded")
	w.terminal("approve", "k", "--as", "human:alice").refuses("it is rejected by human:alice")
	w.terminal("revoke", "k", "--as", "human:alice").refuses("it is rejected by human:alice")
}

// refuses waits for the end, which must be a refusal without a question.
func (x *terminal) refuses(why string) {
	x.t.Helper()
	ws := x.ended()
	if text := x.seen.String(); ws.ExitStatus() != 1 || !strings.Contains(text, why) || strings.Contains(text, "[y/N]") {
		x.t.Errorf("exit code %d, want 1, %q and no question: %s", ws.ExitStatus(), why, text)
	}
}

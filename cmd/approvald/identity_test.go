package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// secondGate writes the configuration of a gate that has the first one's name and nothing else of it: another home,
// another approver.
func (w *world) secondGate(name string) (config, home string) {
	w.t.Helper()
	home = filepath.Join(w.dir, "second", ".approval")
	w.write(name, fmt.Sprintf("home = %q\n%s", home,
		strings.NewReplacer(`"alice"`, `"bob"`, "telegram_user_id = 111", "telegram_user_id = 112").Replace(w.read("config/approvald/default.toml"))))
	return filepath.Join(w.dir, name), home
}

// --config says which gate is meant. The daemon of another gate that happens to have the same name, and with it the same
// socket, is told nothing and releases nobody.
func TestConfigChoosesTheGate(t *testing.T) {
	w := newWorld(t)
	prod, home := w.secondGate("prod.toml")
	w.up()
	p := w.start(w.env, "--config", prod, "request", "prod-drop", "--class", "a.b", "--summary", "s", "--wait")
	p.sees(p.errOut, "asked")
	p.sees(p.errOut, "another gate")
	if text := w.run(w.env, 0, "queue").errOut.String(); !strings.Contains(text, "nothing waits") {
		t.Errorf("the request reached the other gate: %s", text)
	}
	for verb, wants := range map[string][]string{"queue": {"prod-drop"}, "status": {"pending     1", "none runs", "another gate"}} {
		text := w.run(w.env, 0, "--config", prod, verb).out.String()
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("%s is not about the gate that --config names, without %q:\n%s", verb, want, text)
			}
		}
	}
	if !exists(filepath.Join(home, "log", "events.jsonl")) {
		t.Error("the gate that --config names has no log")
	}
	w.run(w.env, 0, "--config", prod, "withdraw", "prod-drop", "--reason", "cancelled")
	if ws := p.ended(); ws.ExitStatus() != 5 {
		t.Errorf("exit code %d, want 5", ws.ExitStatus())
	}
	// Its daemon does not take the socket from under the other one.
	up := w.run(w.env, 2, "--config", prod, "up")
	if text := up.errOut.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "--gate") {
		t.Errorf("the refusal is %q, want one line that says what to do", text)
	}
	w.run(w.env, 0, "request", "k", "--class", "a.b", "--summary", "s")
	w.tap("Approve")
	w.run(w.env, 0, "wait", "k")
}

// A configuration that is named and not there is never passed over, whatever answers on a socket.
func TestNamedConfigMustBeThere(t *testing.T) {
	w := newWorld(t)
	w.up()
	for _, args := range [][]string{
		{"request", "k", "--class", "a.b", "--summary", "s"},
		{"status"}, {"queue"}, {"show", "k"}, {"wait", "k"}, {"withdraw", "k", "--reason", "timeout"}, {"lease"}, {"log", "verify"}, {"up"},
	} {
		p := w.run(w.env, 2, append(args, "--config", "/nope/approvald.toml")...)
		if !strings.Contains(p.errOut.String(), "/nope/approvald.toml") {
			t.Errorf("%v: stderr %q does not name the file", args, p.errOut)
		}
	}
	w.run(w.env, 112, "run", "k", "--class", "a.b", "--config", "/nope/approvald.toml", "--", "true")
}

// Two spellings of one home are one gate, and so is a home that each side derives from its own environment.
func TestOneGateUnderTwoSpellings(t *testing.T) {
	w := newWorld(t)
	daemon := w.up()
	link := filepath.Join(w.dir, "link")
	if err := syscall.Symlink(filepath.Join(w.dir, "state", "approvald", "default", ".approval"), link); err != nil {
		t.Fatal(err)
	}
	w.write("linked.toml", fmt.Sprintf("home = %q\n%s", link, w.read("config/approvald/default.toml")))
	derived := append(w.env[:len(w.env):len(w.env)], "XDG_STATE_HOME="+filepath.Join(w.dir, "elsewhere"))
	for name, p := range map[string]*process{
		"linked":  w.run(w.env, 0, "--config", filepath.Join(w.dir, "linked.toml"), "status", "--json"),
		"derived": w.run(derived, 0, "status", "--json"),
	} {
		if want := fmt.Sprintf(`"pid":%d,`, daemon.cmd.Process.Pid); !strings.Contains(p.out.String(), want) {
			t.Errorf("%s: the daemon did not answer: %s", name, p.out)
		}
	}
}

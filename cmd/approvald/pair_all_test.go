//go:build all

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Root leaves no file of its own in the home of another user's daemon, which could then not start.
func TestPairAsRootWithoutItsDaemon(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root")
	}
	w := newWorld(t)
	home := filepath.Join(w.dir, "state/approvald/default/.approval")
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(home, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	p := w.run(w.env, 2, "pair", "bob", "--yes")
	if !strings.Contains(p.errOut.String(), "systemctl start approvald@default") {
		t.Errorf("said: %s", p.errOut)
	}
	if left, err := os.ReadDir(home); err != nil || len(left) != 0 {
		t.Errorf("left in the home: %v, %v", left, err)
	}
}

// The gate as a service: the daemon is another user's, the configuration is root's, and so is who pairs.
func TestPairAsRootWithAServicesDaemon(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root")
	}
	w := newWorld(t)
	w.people()
	const daemon = 12345
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bin", "state"} {
		if err := os.MkdirAll(filepath.Join(w.dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// Where the other user may run it.
	if err := os.WriteFile(filepath.Join(w.dir, "bin", "approvald"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "config", "config/approvald"} {
		if err := os.Chmod(filepath.Join(w.dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(w.dir, config), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"token", "state", "run"} {
		if err := os.Chown(filepath.Join(w.dir, name), daemon, daemon); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(w.dir, "lock"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(w.dir, "lock"), 0o777); err != nil {
		t.Fatal(err)
	}
	d := w.startProgram(w.env, "setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", filepath.Join(w.dir, "bin", "approvald"), "up")
	d.sees(d.errOut, `"msg":"ready"`)
	p := w.start(w.env, "pair", "bob", "--yes")
	p.sees(p.errOut, "waiting for it")
	w.writes(bob, "/start "+w.code(p.errOut.String()))
	if ws := p.ended(); ws.ExitStatus() != 0 || !strings.Contains(p.errOut.String(), "the running daemon goes by it") {
		t.Fatalf("exit code %d: %s", ws.ExitStatus(), p.errOut)
	}
	info, err := os.Stat(filepath.Join(w.dir, config))
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 0 || info.Mode().Perm() != 0o644 {
		t.Errorf("the configuration belongs to %d, mode %v", st.Uid, info.Mode())
	}
	if exists(filepath.Join(w.dir, "state/approvald/default/.approval/daemon/pairing.json")) {
		t.Error("the offer was left behind")
	}
}

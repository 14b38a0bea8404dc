//go:build all

package main

import (
	"os"
	"path/filepath"
	"strings"
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

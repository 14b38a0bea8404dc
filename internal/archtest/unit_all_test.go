//go:build all

package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnitFile has systemd itself judge the unit: that it understands every line, and that it stays hardened: an exposure of at
// most 1.5 of 10.
func TestUnitFile(t *testing.T) {
	unit, err := os.ReadFile(filepath.Join(root, "deploy", "systemd", "approvald@.service"))
	if err != nil {
		t.Fatal(err)
	}
	// The program need not be installed for the unit to be right.
	text := strings.Replace(string(unit), "/usr/local/bin/approvald", "/bin/true", 1)
	name := filepath.Join(t.TempDir(), "approvald@.service")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"verify", "--man=no", name},
		{"security", "--offline=true", "--no-pager", "--threshold=15", name},
	} {
		if out, err := exec.Command("systemd-analyze", args...).CombinedOutput(); err != nil {
			t.Errorf("systemd-analyze %s: %v\n%s", args[0], err, out)
		}
	}
}

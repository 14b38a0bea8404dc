//go:build all

package archtest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestSocketUnit has systemd itself judge the webhook's socket unit together with the service that it starts.
func TestSocketUnit(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"approvald@.service", "approvald-webhook@.socket"} {
		text, err := os.ReadFile(filepath.Join(root, "deploy", "systemd", name))
		if err != nil {
			t.Fatal(err)
		}
		// The program need not be installed for the unit to be right.
		text = bytes.ReplaceAll(text, []byte("/usr/local/bin/approvald"), []byte("/bin/true"))
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	verify := func() (string, error) {
		out, err := exec.Command("systemd-analyze", "verify", "--man=no", filepath.Join(dir, "approvald-webhook@.socket")).CombinedOutput()
		return string(out), err
	}
	if out, err := verify(); err != nil || out != "" {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	// A check that finds nothing wrong with a wrong unit is none.
	f, err := os.OpenFile(filepath.Join(dir, "approvald-webhook@.socket"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("\n[Socket]\nSocketModus=0660\n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if out, err := verify(); err == nil && out == "" {
		t.Error("systemd-analyze verify accepts an unknown setting")
	}
}

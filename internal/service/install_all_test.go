//go:build all

package service

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// modes are what is installed and its mode, apart from the manual pages of the verbs.
var modes = map[string]fs.FileMode{
	"bin/approvald":                                  0o755,
	"lib/systemd/system/approvald@.service":          0o644,
	"lib/sysusers.d/approvald.conf":                  0o644,
	"lib/tmpfiles.d/approvald.conf":                  0o644,
	"share/bash-completion/completions/approvald":    0o644,
	"share/zsh/site-functions/_approvald":            0o644,
	"share/fish/vendor_completions.d/approvald.fish": 0o644,
	"share/man/man1/approvald.1":                     0o644,
	"share/man/man5/approvald.toml.5":                0o644,
}

// Everything that `make install` lays down is there, is what it should be, and nothing else is.
func TestInstall(t *testing.T) {
	dir, err := installed()
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(dir, "usr", "local")
	want := map[string]fs.FileMode{}
	for path, mode := range modes {
		want[path] = mode
	}
	units, err := filepath.Glob(filepath.Join(root, "deploy", "systemd", "*@.*"))
	if err != nil || len(units) == 0 {
		t.Fatalf("no units in the sources: %v", err)
	}
	for _, unit := range units {
		want["lib/systemd/system/"+filepath.Base(unit)] = 0o644
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != dir && info.Mode().Perm() != 0o755 {
				t.Errorf("%s has mode %04o", path, info.Mode().Perm())
			}
			return nil
		}
		rel, _ := filepath.Rel(base, path)
		mode, known := want[rel]
		if strings.HasPrefix(rel, "share/man/man1/approvald-") {
			mode, known = 0o644, true
		}
		if !known || info.Mode().Perm() != mode {
			t.Errorf("%s: mode %04o, want %04o (0000 is: not at all)", path, info.Mode().Perm(), mode)
		}
		delete(want, rel)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for rel := range want {
		t.Errorf("%s is not installed", rel)
	}

	// The shells read what was made for them.
	for shell, script := range map[string]string{
		"bash": "share/bash-completion/completions/approvald", "zsh": "share/zsh/site-functions/_approvald",
	} {
		if out, err := exec.Command(shell, "-n", filepath.Join(base, script)).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s -n %s: %v\n%s", shell, script, err, out)
		}
	}
	// A completion that is typed leads somewhere.
	typed := `PATH="$1/bin:$PATH"; source "$1/share/bash-completion/completions/approvald"
_get_comp_words_by_ref() { cur=$COMP_LINE; words=(approvald wi); cword=1; prev=approvald; cur=wi; }
_init_completion() { _get_comp_words_by_ref; }
COMP_WORDS=(approvald wi); COMP_CWORD=1; COMP_LINE='approvald wi'; COMP_POINT=12; COMP_TYPE=9
__start_approvald; echo "${COMPREPLY[@]}"`
	if out, err := exec.Command("bash", "-c", typed, "bash", base).Output(); err != nil || strings.TrimSpace(string(out)) != "withdraw" {
		t.Errorf("approvald wi<TAB> gives %q (%v)", out, err)
	}
}

// The manual has a page for the program, for each verb and for the configuration, and man and mandoc find no fault in them.
func TestManualPages(t *testing.T) {
	dir, err := installed()
	if err != nil {
		t.Fatal(err)
	}
	man := filepath.Join(dir, "usr", "local", "share", "man")
	pages, err := filepath.Glob(filepath.Join(man, "man?", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if out, err := exec.Command("mandoc", "-Tlint", "-Wwarning", page).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("mandoc: %v\n%s", err, out)
		}
		cmd := exec.Command("man", "--warnings", "--local-file", page)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "MANWIDTH=100"}
		var complaints strings.Builder
		cmd.Stderr = &complaints
		if out, err := cmd.Output(); err != nil || complaints.Len() > 0 || len(out) < 200 {
			t.Errorf("man %s: %v\n%s%s", page, err, complaints.String(), out)
		}
	}
	help, err := exec.Command(filepath.Join(dir, "usr", "local", "bin", "approvald"), "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(help), "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	verbs := 0
	for line := range strings.Lines(list) {
		verb := strings.Fields(line)[0]
		if verb == "help" {
			continue
		}
		verbs++
		if _, err := os.Stat(filepath.Join(man, "man1", "approvald-"+verb+".1")); err != nil {
			t.Errorf("a verb without a page: %v", err)
		}
	}
	if verbs < 10 {
		t.Errorf("only %d verbs in\n%s", verbs, help)
	}
}

// A package's PREFIX reaches the units, and systemd finds no fault in any of them as they are installed.
func TestInstalledUnits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := makeInstall(dir, "/usr"); err != nil {
		t.Fatal(err)
	}
	units, err := filepath.Glob(filepath.Join(dir, "usr", "lib", "systemd", "system", "*"))
	if err != nil || len(units) == 0 {
		t.Fatalf("no units: %v", err)
	}
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "/usr/local") {
			t.Errorf("%s speaks of /usr/local", unit)
		}
		for _, doc := range regexp.MustCompile(`man:(\S+)\((\d)\)`).FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(dir, "usr", "share", "man", "man"+doc[2], doc[1]+"."+doc[2])); err != nil {
				t.Errorf("%s refers to a page that is not installed: %v", unit, err)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "usr", "share", "zsh", "vendor-completions", "_approvald")); err != nil {
		t.Error(err)
	}
	m := boot(t)
	out := m.sh("cd /usr/local/lib/systemd/system; for unit in *; do systemd-analyze verify --man=no ./$unit 2>&1; done")
	if out != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
}

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/approvald/approvald/internal/telegramtest"
)

// readme answers the code blocks of the README below a heading.
func readme(t *testing.T, heading string) []string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("the README has no heading %q", heading)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	var blocks []string
	for _, m := range regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```$").FindAllStringSubmatch(rest, -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// commands are the lines behind a prompt, continued lines joined, without their comments.
func commands(block string) []string {
	var list []string
	for line := range strings.Lines(strings.ReplaceAll(block, "\\\n", "")) {
		if cmd, ok := strings.CutPrefix(line, "$ "); ok {
			cmd, _, _ = strings.Cut(cmd, "  #")
			list = append(list, strings.TrimSpace(cmd))
		}
	}
	return list
}

// unfixed are the parts of an output that differ from run to run, and what stands for them when outputs are compared.
var unfixed = []struct {
	pattern *regexp.Regexp
	as      string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`), "TIME"},
	{regexp.MustCompile(`until \S.*? \([^)]*\)`), "until TIME"},
	{regexp.MustCompile(`\(uid \d+\)`), "(uid N)"},
	{regexp.MustCompile(`sha256 \S+`), "sha256 HASH"},
	{regexp.MustCompile(`\d+ bytes`), "N bytes"},
	{regexp.MustCompile(`cwd   \S+`), "cwd   DIR"},
	{regexp.MustCompile(`\d\d:\d\d`), "HH:MM"},
	{regexp.MustCompile(`[ ─]+`), " "}, // frames are as wide as what is in them
}

func fixed(text string) string {
	for _, u := range unfixed {
		text = u.pattern.ReplaceAllString(text, u.as)
	}
	return strings.TrimSpace(text)
}

// shell is the environment of a person who types what the README says, with programs of the README's examples that only say
// what they would do.
func (w *world) shell() []string {
	bin := filepath.Join(w.dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		w.t.Fatal(err)
	}
	for name, script := range map[string]string{"kubectl": "echo deployment.apps/api restarted", "psql": "echo DROP TABLE"} {
		w.write("bin/"+name, "#!/bin/sh\n"+script+"\n")
		if err := os.Chmod(filepath.Join(bin, name), 0o700); err != nil {
			w.t.Fatal(err)
		}
	}
	return append(w.env[1:len(w.env):len(w.env)], "PATH="+bin+":"+os.Getenv("PATH"))
}

// What the README shows of a run and of the phone is what both show.
func TestReadmeShowsWhatIsPrinted(t *testing.T) {
	blocks := readme(t, "What one sees")
	if len(blocks) != 2 {
		t.Fatalf("%d blocks, want the terminal and the phone", len(blocks))
	}
	w := newWorld(t)
	w.up()
	script := strings.Join(commands(blocks[0]), "\n")
	p := w.startProgram(w.shell(), "sh", "-c", "exec 2>&1\n"+script)
	card, err := w.bot.WaitMessage(t.Context(), alice, func(m telegramtest.Message) bool { return len(m.Buttons) > 0 })
	if err != nil {
		t.Fatal(err)
	}
	if got := telegramtest.Render(card, 60); fixed(got) != fixed(blocks[1]) {
		t.Errorf("the phone shows\n%swhich in the README is\n%s", got, blocks[1])
	}
	w.tap("Approve")
	p.ended()
	var said []string
	for line := range strings.Lines(strings.ReplaceAll(blocks[0], "\\\n", "")) {
		if !strings.HasPrefix(line, "$ ") {
			said = append(said, line)
		}
	}
	if got := p.out.String(); fixed(got) != fixed(strings.Join(said, "")) {
		t.Errorf("%s\nprints\n%swhich in the README is\n%s", script, got, strings.Join(said, ""))
	}
}

// The README's way to a gate of one's own leads there, typed as it stands.
func TestReadmeSetsAGateUp(t *testing.T) {
	blocks := readme(t, "Use it for real")
	if len(blocks) != 2 {
		t.Fatalf("%d blocks, want the set-up and the first request", len(blocks))
	}
	w := newWorld(t)
	const config = "config/approvald/default.toml"
	if err := os.Remove(filepath.Join(w.dir, config)); err != nil {
		t.Fatal(err)
	}
	env := w.shell()
	for _, cmd := range commands(blocks[0]) {
		switch {
		case strings.HasPrefix(cmd, "go build "):
		case cmd == "approvald init":
			w.initByHand()
		case cmd == "approvald up":
			p := w.start(w.env, "up")
			p.sees(p.errOut, `"msg":"ready"`)
		default:
			w.shellRun(env, cmd)
		}
	}
	w.write("drop.sql", "drop table users_old;\n")
	cmds := commands(blocks[1])
	if len(cmds) != 1 {
		t.Fatalf("commands %q, want one", cmds)
	}
	p := w.startProgram(env, "sh", "-c", cmds[0])
	w.tap("Approve")
	if ws := p.ended(); ws.ExitStatus() != 0 || !strings.HasSuffix(p.out.String(), "granted\nDROP TABLE\n") {
		t.Errorf("%s: exit code %d: %s%s", cmds[0], ws.ExitStatus(), p.out, p.errOut)
	}
}

func (w *world) shellRun(env []string, script string) {
	w.t.Helper()
	p := w.startProgram(env, "sh", "-c", script)
	if ws := p.ended(); ws.ExitStatus() != 0 {
		w.t.Fatalf("%s: exit code %d: %s%s", script, ws.ExitStatus(), p.out, p.errOut)
	}
}

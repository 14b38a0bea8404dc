package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Every verb shows how it is used, and what it shows is a command line that is taken.
func TestEveryVerbHasAnExampleThatParses(t *testing.T) {
	seen := 0
	var walk func(path []string, cmd *cobra.Command)
	walk = func(path []string, cmd *cobra.Command) {
		if cmd.Example == "" {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		own := 0
		for _, line := range exampleLines(t, cmd.Example) {
			for _, args := range approvaldIn(line) {
				seen++
				if parses(t, line, args) == strings.Join(path, " ") {
					own++
				}
			}
		}
		if own == 0 && len(path) > 0 && !cmd.HasSubCommands() {
			t.Errorf("%s: no example of it is of itself: %q", cmd.CommandPath(), cmd.Example)
		}
		for _, sub := range cmd.Commands() {
			walk(append(path[:len(path):len(path)], sub.Name()), sub)
		}
	}
	root := newRoot(&env{ui: &ui{}})
	root.InitDefaultHelpCmd()
	walk(nil, root)
	if seen < 25 {
		t.Errorf("only %d examples were seen", seen)
	}
}

// So is every command that the documents show behind a prompt.
func TestEveryCommandInTheDocumentsParses(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range append(files, "../../README.md") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", "")) {
			cmd, ok := strings.CutPrefix(strings.TrimSpace(line), "$ ")
			if !ok {
				continue
			}
			for _, args := range approvaldIn(cmd) {
				seen++
				args = slices.DeleteFunc(args, func(a string) bool { return a == "..." }) // left out by the document
				parses(t, filepath.Base(file)+": "+cmd, args)
			}
		}
	}
	if seen < 15 {
		t.Errorf("only %d commands were seen", seen)
	}
}

// parses finds the command that the arguments mean, on a root of its own, and has it take them. It answers the command's path.
func parses(t *testing.T, line string, args []string) string {
	t.Helper()
	root := newRoot(&env{ui: &ui{}})
	root.InitDefaultHelpCmd()
	cmd, rest, err := root.Find(args)
	if err != nil {
		t.Errorf("%s: %v", line, err)
		return ""
	}
	if err := cmd.ParseFlags(rest); err != nil {
		t.Errorf("%s: %v", line, err)
		return ""
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		t.Errorf("%s: %v", line, err)
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.Type() == "string" && f.Value.String() == "" {
			t.Errorf("%s: --%s is empty", line, f.Name)
		}
	})
	return strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), "approvald"), " ")
}

// exampleLines are the lines of an example, continued ones joined.
func exampleLines(t *testing.T, example string) (list []string) {
	t.Helper()
	for line := range strings.Lines(strings.ReplaceAll(example, "\\\n", "")) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			list = append(list, line)
		}
	}
	return list
}

// approvaldIn are the arguments of each approvald in a line of shell.
func approvaldIn(line string) (all [][]string) {
	words := shellWords(line)
	for i := 0; i < len(words); i++ {
		if words[i] != "approvald" {
			continue
		}
		var args []string
		for i++; i < len(words) && !isOperator(words[i]); i++ {
			args = append(args, words[i])
		}
		all = append(all, args)
	}
	return all
}

func isOperator(word string) bool {
	switch word {
	case "|", ">", "<", "<(", ")", "&&", "||", ";":
		return true
	}
	return false
}

// shellWords splits a line as far as examples need it: quotes, operators, comments.
func shellWords(line string) (words []string) {
	word, quoted, within := "", rune(0), false
	end := func() {
		if within {
			words = append(words, word)
		}
		word, within = "", false
	}
	for i, r := range line {
		switch {
		case quoted != 0 && r == quoted:
			quoted = 0
		case quoted != 0:
			word += string(r)
		case r == '"' || r == '\'':
			quoted, within = r, true
		case r == '#' && !within:
			return words
		case r == ' ':
			end()
		case r == '(' && i > 0 && line[i-1] == '<':
			words[len(words)-1] = "<("
		case strings.ContainsRune("|<>)", r):
			end()
			words = append(words, string(r))
		default:
			word, within = word+string(r), true
		}
	}
	end()
	return words
}

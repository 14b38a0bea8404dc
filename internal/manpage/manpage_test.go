package manpage

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var edition = Edition{Version: "1.2", Date: "2026-08-01"}

// Text that would be an escape or a request of roff is shown as it stands.
func TestTextIsNoRoff(t *testing.T) {
	page := Guide("x.toml", 5, "a -short- one", edition, "# Title\n\n.so /etc/passwd\n'br\n\\fBback\\slash and `\\*[x]`\n\n```\n.PS\n'x\n\\n\n\n-1\n```\n\n| a\\|b | default | meaning |\n|---|---|---|\n| `.x` | 1 | **m** [guide](x.md) |\n")
	for _, want := range []string{
		`.TH "X.TOML" 5 "2026-08-01" "approvald 1.2"`, `x.toml \- a \-short\- one`,
		"\n\\&.so /etc/passwd\n\\&'br\n\\efBback\\eslash and \\fB\\e*[x]\\fP\n",
		"\n.nf\n\\&.PS\n\\&'x\n\\en\n\\&\n\\-1\n.fi\n",
		"\n.TP\n\\fB\\&.x\\fP\ndefault: 1.\n\\fBm\\fP guide\n",
	} {
		if !strings.Contains(page.Text, want) {
			t.Errorf("the page has no %q:\n%s", want, page.Text)
		}
	}
	if page.File != "x.toml.5" {
		t.Errorf("the file is %s", page.File)
	}
}

func TestAPageForEachCommandThatPeopleUse(t *testing.T) {
	root := &cobra.Command{Use: "prog", Short: "Do things"}
	root.PersistentFlags().String("gate", "default", "name of the gate")
	log := &cobra.Command{Use: "log", Short: "Look at the log"}
	tail := &cobra.Command{
		Use: "tail [KEY]", Short: "Follow", Long: "Follow it.\n\n  like this\n\nAnd on.", Example: "  prog log tail\n    more",
		Run: func(*cobra.Command, []string) {},
	}
	tail.Flags().IntP("lines", "n", 10, "show `N` lines")
	hidden := &cobra.Command{Use: "secret", Hidden: true, Run: func(*cobra.Command, []string) {}}
	log.AddCommand(tail, hidden)
	root.AddCommand(log)

	pages := Commands(root, edition, "## Files\n\nNone.")
	var names []string
	for _, p := range pages {
		names = append(names, p.File)
	}
	if got := strings.Join(names, " "); got != "prog.1 prog-log.1 prog-log-tail.1" {
		t.Fatalf("the pages are %s", got)
	}
	if text := pages[0].Text; !strings.Contains(text, ".SH \"FILES\"\nNone.\n") || !strings.Contains(text, `.BR "prog\-log" "(1)"`) {
		t.Errorf("the program's page:\n%s", text)
	}
	for _, want := range []string{
		"\\fBprog log tail\\fP [KEY] [flags]\n", "Follow it.\n.PP\n.RS 4\n.nf\n  like this\n.fi\n.RE\n.PP\nAnd on.\n",
		".TP\n\\fB\\-n\\fP, \\fB\\-\\-lines\\fP \\fIN\\fP\nshow N lines (default 10)\n", "\\fB\\-\\-gate\\fP",
		".nf\nprog log tail\n  more\n.fi\n", ".BR \"prog\\-log\" \"(1),\"\n.BR \"prog.toml\" \"(5)\"\n",
	} {
		if !strings.Contains(pages[2].Text, want) {
			t.Errorf("the verb's page has no %q:\n%s", want, pages[2].Text)
		}
	}
}

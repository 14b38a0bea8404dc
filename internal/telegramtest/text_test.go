package telegramtest_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	. "github.com/approvald/approvald/internal/telegramtest"
)

// show writes entities as "type offset+length(argument)".
func show(es []Entity) string {
	var out []string
	for _, e := range es {
		s := fmt.Sprintf("%s %d+%d", e.Type, e.Offset, e.Length)
		if arg := e.URL + e.Language + e.EmojiID; arg != "" {
			s += "(" + arg + ")"
		}
		if e.User != nil {
			s += fmt.Sprintf("(user %d)", e.User.ID)
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func TestFormatting(t *testing.T) {
	s, _, b := manual(t, Options{})
	for _, c := range []struct{ mode, in, text, entities string }{
		{"HTML", "<b>b</b><strong>b</strong>", "bb", "bold 0+1, bold 1+1"},
		{"HTML", "<i>i</i><em>i</em><u>u</u><ins>u</ins>", "iiuu", "italic 0+1, italic 1+1, underline 2+1, underline 3+1"},
		{"HTML", "<s>s</s><strike>s</strike><del>s</del>", "sss", "strikethrough 0+1, strikethrough 1+1, strikethrough 2+1"},
		{"HTML", `<tg-spoiler>x</tg-spoiler><span class="tg-spoiler">y</span>`, "xy", "spoiler 0+1, spoiler 1+1"},
		{"HTML", "<B>x</b >", "x", "bold 0+1"},
		{"HTML", "😀<b>é😀</b>", "😀é😀", "bold 2+3"},
		{"HTML", "<b>a<i>b</i>c</b>", "abc", "bold 0+3, italic 1+1"},
		{"HTML", "<b></b>a", "a", ""},
		{"HTML", "&lt;b&gt; &amp;amp; &quot;x&#39;&#x41;&unknown; & &amp", "<b> &amp; \"x'A&unknown; & &", ""},
		{"HTML", `<a href="https://e.example/?a=1&amp;b=2">x</a>`, "x", "text_link 0+1(https://e.example/?a=1&b=2)"},
		{"HTML", `<a href='http://e.example'>x</a>`, "x", "text_link 0+1(http://e.example/)"},
		{"HTML", `<a href="tg://user?id=5">x</a>`, "x", "text_mention 0+1(user 5)"},
		{"HTML", `<a href="javascript:alert(1)">x</a>`, "x", ""},
		{"HTML", "<code>a</code> <pre>b\nc</pre>", "a b\nc", "code 0+1, pre 2+3"},
		{"HTML", `<pre><code class="language-diff">+a</code></pre>`, "+a", "pre 0+2(diff)"},
		{"HTML", "<blockquote>q</blockquote>\n<blockquote expandable>r</blockquote>", "q\nr", "blockquote 0+1, expandable_blockquote 2+1"},
		{"HTML", "<blockquote><b>q</b> r</blockquote>", "q r", "blockquote 0+3, bold 0+1"},
		{"HTML", "<blockquote expandable><code>q</code></blockquote>", "q", "expandable_blockquote 0+1, code 0+1"},
		{"HTML", "<blockquote><pre>q</pre></blockquote>", "q", "blockquote 0+1, pre 0+1"},
		{"HTML", "<code>a <b>b</b></code>", "a b", "code 0+3"},
		{"HTML", "  <b> x </b>  ", " x", "bold 0+2"},
		{"HTML", "a\r\nb\x00c\u202ed", "a\nb cd", ""},
		{"Markdown", "*b* _i_ `c` [t](http://e.example/x)", "b i c t", "bold 0+1, italic 2+1, code 4+1, text_link 6+1(http://e.example/x)"},
		{"markdown", "a\\_b", "a_b", ""},
		{"Markdown", "```go\nx```", "x", "pre 0+1(go)"},
		{"MarkdownV2", "*b _i_* ~s~ ||p|| __u__ `c`", "b i s p u c", "bold 0+3, italic 2+1, strikethrough 4+1, spoiler 6+1, underline 8+1, code 10+1"},
		{"MarkdownV2", "a\\.b\\\\", "a.b\\", ""},
		{"MarkdownV2", ">q\n>r\nt", "q\nr\nt", "blockquote 0+3"},
		{"MarkdownV2", "```py\nx\n```", "x", "pre 0+1(py)"},
		{"MarkdownV2", "[x](http://e.example/a\\)b)", "x", "text_link 0+1(http://e.example/a)b)"},
		{"", "https://e.example/x, @alice_ops and /start #tag", "https://e.example/x, @alice_ops and /start #tag", "url 0+19, mention 21+10, bot_command 36+6, hashtag 43+4"},
		{"HTML", "<code>/start @alice_ops</code>", "/start @alice_ops", "code 0+17"},
		{"", "a_b*c`<b>", "a_b*c`<b>", ""},
	} {
		a := b.call("sendMessage", "chat_id", "111", "text", c.in, "parse_mode", c.mode)
		if !a.OK {
			t.Errorf("%s %q: %s", c.mode, c.in, a.Description)
			continue
		}
		var m struct {
			Text     string
			Entities []Entity
		}
		check(t, json.Unmarshal(a.Result, &m))
		if m.Text != c.text || show(m.Entities) != c.entities {
			t.Errorf("%s %q:\n got %q [%s]\nwant %q [%s]", c.mode, c.in, m.Text, show(m.Entities), c.text, c.entities)
		}
		ms := s.Messages(111)
		if seen := ms[len(ms)-1]; seen.Text != c.text || show(seen.Entities) != c.entities {
			t.Errorf("%q: the phone shows %q [%s]", c.in, seen.Text, show(seen.Entities))
		}
	}
}

func TestGivenEntities(t *testing.T) {
	_, _, b := manual(t, Options{})
	for arg, want := range map[string]string{
		`[{"type":"bold","offset":0,"length":1}]`: "bold 0+1",
		`[{"type":"bold","offset":0,"length":9}]`: "",
		`{"type":"bold"}`:                         "",
		`[{"type":"pre","offset":0,"length":2,"language":"go"},{"type":"x","offset":0}]`: "pre 0+2(go)",
	} {
		var m struct{ Entities []Entity }
		b.must(&m, "sendMessage", "chat_id", "111", "text", "ab", "entities", arg)
		if got := show(m.Entities); got != want {
			t.Errorf("%s: %q", arg, got)
		}
	}
	var m struct{ Entities []Entity }
	b.must(&m, "sendMessage", "chat_id", "111", "text", "<i>ab</i>", "parse_mode", "HTML", "entities", `[{"type":"bold","offset":0,"length":1}]`)
	if got := show(m.Entities); got != "italic 0+2" {
		t.Errorf("with parse_mode: %q", got)
	}
}

// FuzzFormatting looks for texts that crash a parser, and for entities outside
// of the text.
func FuzzFormatting(f *testing.F) {
	for _, seed := range []string{"<b>a</b>", "<a href=\"x", "&#x41;", "```a\nb```", "*_a_*", "[a](b)", ">a\n>b", "<pre><code class=\"language-a\">", "\\", "\xff"} {
		f.Add(seed, uint8(0))
		f.Add(seed, uint8(2))
	}
	s := New(Options{})
	f.Cleanup(s.Close)
	s.AddUser(User{ID: 111})
	f.Fuzz(func(t *testing.T, text string, mode uint8) {
		got, es, err := Parse(text, []string{"HTML", "Markdown", "MarkdownV2", ""}[mode%4])
		if err != nil {
			if !strings.HasPrefix(err.Error(), "Bad Request: ") {
				t.Fatalf("error %q", err)
			}
			return
		}
		if !utf8.ValidString(got) {
			t.Fatalf("%q is not UTF-8", got)
		}
		units := len(utf16.Encode([]rune(got)))
		for _, e := range es {
			if e.Offset < 0 || e.Length <= 0 || e.Offset+e.Length > units {
				t.Fatalf("entity %+v in %d units of %q", e, units, got)
			}
		}
		if out := Render(Message{Text: got, Entities: es}, 30); strings.ContainsAny(out, "\x00\x1b\x7f\r") {
			t.Fatalf("render lets a control character through: %q", out)
		}
	})
}

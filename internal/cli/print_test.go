package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/visible"
)

func captured() (u *ui, out, errw *bytes.Buffer) {
	out, errw = new(bytes.Buffer), new(bytes.Buffer)
	return &ui{out: out, err: errw}, out, errw
}

// hostile moves the cursor, writes the clipboard, reverses the text and forges
// a line.
const hostile = "\x1b[1A\x1b[2K[approved] ok\x1b]52;c;x\x07 \u009b31m \x7f \u202etxt.exe\u2066 \u200b\rforged\nforged: yes"

func dangerous(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r))
}

func TestNothingDangerousIsPrinted(t *testing.T) {
	for name, print := range map[string]func(u *ui){
		"line":  func(u *ui) { u.line("k: %s %v", hostile, errors.New(hostile)) },
		"say":   func(u *ui) { u.say("k: %s", hostile) },
		"tell":  func(u *ui) { u.tell("k: %s", hostile) },
		"ask":   func(u *ui) { u.ask("%s?", hostile) },
		"block": func(u *ui) { u.block("  | ", verbatim(visible.Block(hostile))) },
		"show":  func(u *ui) { u.show("  | ", verbatim(visible.Block(hostile))) },
		"bold":  func(u *ui) { u.line("%s", u.bold(hostile)) },
		"fail":  func(u *ui) { u.fail(failure{code: "x", message: hostile, hint: hostile}) },
		"faults": func(u *ui) {
			u.fail(failure{code: "x", message: hostile, faults: []string{hostile, hostile}})
		},
		"json":      func(u *ui) { u.emit(map[string]string{hostile: hostile}) },
		"json fail": func(u *ui) { u.json = true; u.fail(failure{code: "x", message: hostile, hint: hostile}) },
		"table":     func(u *ui) { u.table([]string{"A"}, func(row func(...string)) { row(hostile) }) },
	} {
		t.Run(name, func(t *testing.T) {
			u, out, errw := captured()
			print(u)
			text := out.String() + errw.String()
			if i := strings.IndexFunc(text, dangerous); i >= 0 {
				t.Errorf("output has %q at byte %d: %q", text[i:i+1], i, text)
			}
			for l := range strings.SplitSeq(text, "\n") {
				if strings.HasPrefix(l, "forged") {
					t.Errorf("a line of the text passes for ours: %q", text)
				}
			}
		})
	}
}

func TestJSONKeepsItsMeaning(t *testing.T) {
	for _, s := range []string{hostile, "plain", "<&>", "\U000e0041 tag", "👩‍🚒", "\u2028", "é\u0301"} {
		u, out, _ := captured()
		if err := u.emit(s); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || got != s {
			t.Errorf("emit(%q) reads back as %q, %v", s, got, err)
		}
		if strings.Count(out.String(), "\n") != 1 {
			t.Errorf("emit(%q) is not one line: %q", s, out)
		}
	}
}

func TestFailureForms(t *testing.T) {
	f := failure{code: "config", message: "a\nb", faults: []string{"a", "b"}, hint: "do c"}
	for _, tt := range []struct {
		name         string
		set          func(u *ui)
		stdout, talk string
	}{
		{"people", func(*ui) {}, "", "approvald: a\napprovald: b\nhint: do c\n"},
		{"start", func(u *ui) { u.oneLine = true }, "", "approvald: a; b; do c\n"},
		{"json", func(u *ui) { u.json = true }, `{"error":{"code":"config","message":"a; b","hint":"do c"}}` + "\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u, out, errw := captured()
			tt.set(u)
			u.fail(f)
			if out.String() != tt.stdout || errw.String() != tt.talk {
				t.Errorf("stdout %q, stderr %q; want %q, %q", out, errw, tt.stdout, tt.talk)
			}
		})
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// A verb whose data did not reach stdout has not done its work.
func TestLostOutputFails(t *testing.T) {
	u, _, errw := captured()
	u.out = fullDisk{}
	e := &env{ui: u}
	u.line("data")
	if code := e.finish(nil); code != exitFailure {
		t.Errorf("exit code %d, want %d", code, exitFailure)
	}
	if !strings.Contains(errw.String(), "no space left") {
		t.Errorf("stderr %q does not say why", errw)
	}
}

func TestQuoteArg(t *testing.T) {
	for in, want := range map[string]string{
		"":           "''",
		"plain-1.2":  "plain-1.2",
		"two words":  "'two words'",
		"it's":       `'it'\''s'`,
		"$(rm -rf)":  "'$(rm -rf)'",
		"--flag=a,b": "--flag=a,b",
		"~":          "'~'",
		"#x":         "'#x'",
	} {
		if got := quoteArg(in); got != want {
			t.Errorf("quoteArg(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestRunSummaryIsOneShortLine(t *testing.T) {
	got := runSummary([]string{"sh", "-c", "echo a\necho b " + strings.Repeat("x", 2000)})
	if n := len([]rune(got)); n > maxRunSummary || strings.ContainsAny(got, "\n\r") {
		t.Errorf("summary of %d characters: %q", n, got)
	}
}

// What is shown at the terminal is what the phone shows, and what is written as
// bytes is what was given.
func TestPayloadForms(t *testing.T) {
	for _, tt := range []struct {
		name, given string
		shown       string
	}{
		{"text", "a\nb\n", "a\nb"},
		{"command", `{"kind":"command","argv":["rm","-rf","a b"],"cwd":"/srv"}`, "argv  rm -rf 'a b'\ncwd   /srv"},
		{"command that hides more", `{"kind":"command","argv":["ls"],"cwd":"/","env":["X=1"]}`, `"X=1"`},
		{"JSON that looks like text", `{"kind":"text","text":"harmless","more":"harm"}`, `"harm"`},
		{"file", "\x00\x01", "file x, 2 bytes, sha256 b413f47d13ee2fe6c845b2ee141af81de858df4ec549a58b7970bb96645bc8d2"},
		{"other JSON", `{"a":1}`, `"a": 1`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			canonical, file, err := gate.BindPayload("x", []byte(tt.given))
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256(canonical)
			shown, err := readPayloadText(canonical, file, hex.EncodeToString(sum[:]))
			if err != nil || !strings.Contains(string(shown), tt.shown) {
				t.Errorf("shown is %q, %v; want %q in it", shown, err, tt.shown)
			}
			want := []byte(tt.given)
			if json.Valid(want) {
				want = canonical
			}
			if got := boundBytes(canonical, file); !bytes.Equal(got, want) {
				t.Errorf("bytes are %q, want %q", got, want)
			}
		})
	}
}

// A row with a long cell moves itself alone, and nothing is cut.
func TestLongCellsPadNoOtherRow(t *testing.T) {
	u, out, _ := captured()
	long := strings.Repeat("k", 3*widestCell)
	u.table([]string{"KEY", "SAYS"}, func(row func(...string)) {
		row("a", "one")
		row(long, "two")
		row("bcdef", "three")
	})
	if want := "KEY    SAYS\na      one\n" + long + "  two\nbcdef  three\n"; out.String() != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
}

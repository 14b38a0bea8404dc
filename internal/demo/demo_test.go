package demo

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

func TestQuotedArgumentsReadBackAsTheyAre(t *testing.T) {
	got := quoteAll([]string{"approvald", "request", "deploy:api#41", "--summary", "it's time", "--note", "", "$(x)"})
	want := `approvald request deploy:api#41 --summary 'it'\''s time' --note '' '$(x)'`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestWrapBreaksBetweenWords(t *testing.T) {
	got := wrap("one two  three\nfour seventeenletters x", 9)
	if want := []string{"one two", "three", "four", "seventeenletters", "x"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestThePhoneShowsEveryLineInItsFrame(t *testing.T) {
	var out bytes.Buffer
	s := newScreen(&out)
	s.show("Alice", telegramtest.Message{
		Date:     time.Date(2026, 8, 4, 9, 14, 0, 0, time.UTC),
		Text:     "🔒 deploy.production\n" + strings.Repeat("wide ", 30) + "\nend",
		Entities: []telegramtest.Entity{{Type: "bold", Offset: 3, Length: 17}},
		Buttons:  [][]telegramtest.Button{{{Text: "Approve"}, {Text: "Reject"}}, {{Text: "Reject because…"}}},
	}, true)
	lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	width := cells(lines[0])
	for _, line := range lines[:len(lines)-2] {
		if cells(line) != width {
			t.Errorf("%q is %d cells wide, the frame %d", line, cells(line), width)
		}
	}
	for _, want := range []string{"09:14", "[ 1  Approve ]  [ 2  Reject ]", "[ 3  Reject because… ]", "🔒 deploy.production"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the phone does not show %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("escape sequences in an output that is no terminal")
	}
}

func TestEntitiesStyleTheTextTheyCover(t *testing.T) {
	lines := layout("🔒 ab\ncd", []telegramtest.Entity{{Type: "bold", Offset: 3, Length: 1}, {Type: "code", Offset: 6, Length: 2}}, 80)
	want := [][]span{{{"🔒 ", ""}, {"a", styleBold}, {"b", ""}}, {{"cd", styleCyan}}}
	if len(lines) != len(want) {
		t.Fatalf("%d lines: %v", len(lines), lines)
	}
	for i := range want {
		if !slices.Equal(lines[i], want[i]) {
			t.Errorf("line %d: %v, want %v", i, lines[i], want[i])
		}
	}
}

func TestWithoutATerminalThereIsNobodyToAsk(t *testing.T) {
	in, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := Run(t.Context(), Options{In: in, Out: &bytes.Buffer{}}); !errors.Is(err, ErrNoTerminal) {
		t.Errorf("got %v", err)
	}
}

func TestAProgramThatFailsEndsTheDemoAndLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var out bytes.Buffer
	err := Run(t.Context(), Options{Program: "/bin/false", Auto: true, Out: &out})
	if err == nil || !strings.Contains(err.Error(), "the daemon ended while it started") {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

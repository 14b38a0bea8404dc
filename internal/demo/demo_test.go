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

func TestWrapBreaksBetweenWords(t *testing.T) {
	got := wrap("one two  three\nfour seventeenletters x", 9)
	if want := []string{"one two", "three", "four", "seventeenletters", "x"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestButtonsCarryTheirKeys(t *testing.T) {
	var out bytes.Buffer
	s := newScreen(&out)
	m := telegramtest.Message{
		Date: time.Date(2026, 8, 4, 9, 14, 0, 0, time.UTC), Text: "🔒 deploy.production",
		Buttons: [][]telegramtest.Button{{{Text: "Approve"}, {Text: "Reject"}}, {{Text: "Reject because…"}}},
	}
	s.show("Alice", m, true)
	for _, want := range []string{"Alice's phone", "09:14", "1: Approve", "2: Reject", "3: Reject because…", "🔒 deploy.production"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the phone does not show %q:\n%s", want, out.String())
		}
	}
	if m.Buttons[0][0].Text != "Approve" {
		t.Error("drawing a message changed it")
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("escape sequences in an output that is no terminal")
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

func TestKeysTapButtons(t *testing.T) {
	labels := []string{buttonApprove, buttonReject, "Reject because…"}
	for key, want := range map[byte]int{'1': 0, '2': 1, '3': 2, 'a': 0, 'A': 0, 'r': 1, 'R': 1, '4': -1, '0': -1, 'x': -1, '\n': -1, '\t': -1} {
		if i, ok := buttonOf(key, labels); ok != (want >= 0) || ok && i != want {
			t.Errorf("key %q taps %d, %v; want %d", key, i, ok, want)
		}
	}
	if i, ok := buttonOf('a', []string{"wrong environment", "Back"}); ok {
		t.Errorf("a taps %d on a card without Approve", i)
	}
}

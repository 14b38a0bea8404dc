package pairing

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/approvald/approvald/internal/transport"
)

var start = time.Date(2026, 8, 4, 12, 0, 0, 0, time.UTC)

const bot = "gate_bot"

func private(text string) *transport.Message {
	return &transport.Message{
		Text: text, From: &transport.User{ID: 111, FirstName: "Alice", LastName: "A.", Username: "alice"},
		Chat: transport.Chat{ID: 111, Type: "private"},
	}
}

func inGroup(text string) *transport.Message {
	m := private(text)
	m.Chat = transport.Chat{ID: -5, Type: "supergroup", Title: "Ops", IsForum: true}
	m.ThreadID = 7
	return m
}

func TestWhatPresentsACode(t *testing.T) {
	for text, want := range map[string]string{
		"/start ABCD": "ABCD", "/pair ABCD": "ABCD", "/pair abcd-ef": "ABCDEF", "/pair@gate_bot ABCD": "ABCD", "/start@Gate_Bot  ABCD ": "ABCD",
		"/start": "", "/pair": "", "/pair@other_bot ABCD": "", "start ABCD": "", "/starting ABCD": "", "/start A B": "", "hello": "", "": "", "/": "",
	} {
		if got := Presented(private(text), bot); got != want {
			t.Errorf("%q presents %q, want %q", text, got, want)
		}
	}
	if got := Presented(nil, bot); got != "" {
		t.Errorf("no message presents %q", got)
	}
}

func TestCodeIsRandomAndFitsALink(t *testing.T) {
	seen := map[Code]bool{}
	for range 100 {
		_, code := New(start, Life)
		if len(code) != 16 || strings.Trim(string(code), "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "" {
			t.Fatalf("code %q: want 16 characters of base32, 80 bits", string(code))
		}
		if seen[code] {
			t.Fatalf("code %s came twice", code)
		}
		seen[code] = true
	}
	one, many := Code("ABCDEFGH").Links("gate_bot")
	if one != "https://t.me/gate_bot?start=ABCDEFGH" || many != "https://t.me/gate_bot?startgroup=ABCDEFGH" {
		t.Errorf("links %s, %s", one, many)
	}
	if got := fmt.Sprint(Code("ABCDEFGHIJ")); got != "ABCD-EFGH-IJ" {
		t.Errorf("grouped as %s", got)
	}
}

func TestThePersonWhoPresentsTheCodeIsNamed(t *testing.T) {
	o, code := New(start, Life)
	h := o.Hear(private("/start "+string(code)), bot, start)
	want := Claim{UserID: 111, Name: "Alice A.", Username: "alice", ChatID: 111, ChatType: "private"}
	if h.Verdict != Shown || h.Claim != want || h.Claim.InGroup() {
		t.Errorf("heard %+v, want %+v", h, want)
	}
	o, code = New(start, Life)
	h = o.Hear(inGroup("/pair@gate_bot "+strings.ToLower(code.String())), bot, start)
	want = Claim{UserID: 111, Name: "Alice A.", Username: "alice", ChatID: -5, ChatType: "supergroup", ChatTitle: "Ops", ThreadID: 7}
	if h.Verdict != Shown || h.Claim != want || !h.Claim.InGroup() {
		t.Errorf("heard %+v, want %+v", h, want)
	}
	if text, _ := json.Marshal(o); strings.Contains(string(text), string(code)) {
		t.Errorf("the offer holds its code: %s", text)
	}
}

// A code that was presented is used up, whoever presents it next, and whoever presented it first.
func TestACodeIsGoodOnce(t *testing.T) {
	for name, m := range map[string]func(string) *transport.Message{
		"person": private,
		"anonymous administrator": func(s string) *transport.Message {
			m := inGroup(s)
			m.SenderChat = &transport.Chat{ID: -5}
			return m
		},
	} {
		o, code := New(start, Life)
		o.Hear(m("/start "+string(code)), bot, start)
		second := private("/start " + string(code))
		second.From.ID, second.Chat.ID = 222, 222
		if h := o.Hear(second, bot, start); h.Verdict != Dead {
			t.Errorf("after %s the code is presented again: %+v", name, h)
		}
	}
}

func TestACodeDiesAfterTenMinutes(t *testing.T) {
	o, code := New(start, time.Hour)
	if h := o.Hear(private("/start "+string(code)), bot, start.Add(10*time.Minute)); h.Verdict != Dead {
		t.Errorf("after ten minutes: %+v", h)
	}
	o, code = New(start, time.Hour)
	if h := o.Hear(private("/start "+string(code)), bot, start.Add(10*time.Minute-1)); h.Verdict != Shown {
		t.Errorf("within ten minutes: %+v", h)
	}
	o, code = New(start, time.Minute)
	if h := o.Hear(private("/start "+string(code)), bot, start.Add(time.Minute)); h.Verdict != Dead {
		t.Errorf("after the minute that was asked for: %+v", h)
	}
}

func TestWrongCodesAreCountedAndSlowed(t *testing.T) {
	o, code := New(start, Life)
	now := start
	for i, delay := range []time.Duration{1, 2, 4, 8} {
		if h := o.Hear(private("/start NOTTHATONE"), bot, now); h.Verdict != Wrong || o.Wrong != i+1 {
			t.Fatalf("wrong code %d: %+v, counted %d", i+1, h, o.Wrong)
		}
		early := now.Add(delay*time.Second - 1)
		if h := o.Hear(private("/start "+string(code)), bot, early); h.Verdict != TooSoon || !o.Open(early) {
			t.Fatalf("right after wrong code %d: %+v", i+1, h)
		}
		now = now.Add(delay * time.Second)
	}
	if h := o.Hear(private("/start NOTTHATONE"), bot, now); h.Verdict != Wrong || o.Ended != EndWrong {
		t.Fatalf("the fifth: %+v, ended %q", h, o.Ended)
	}
	if h := o.Hear(private("/start "+string(code)), bot, now.Add(time.Minute)); h.Verdict != Dead {
		t.Errorf("after five wrong ones: %+v", h)
	}
}

func TestSendersWhoCannotBeKnownAreRefused(t *testing.T) {
	for name, change := range map[string]func(*transport.Message){
		"bot":           func(m *transport.Message) { m.From.IsBot = true },
		"nobody":        func(m *transport.Message) { m.From = nil },
		"channel":       func(m *transport.Message) { m.SenderChat = &transport.Chat{ID: -9} },
		"anonymous":     func(m *transport.Message) { m.From.ID = 1087968824 },
		"forwarded":     func(m *transport.Message) { m.Forwarded = true },
		"somebody's":    func(m *transport.Message) { m.Chat.ID = 222 },
		"channel post":  func(m *transport.Message) { m.Chat.Type = "channel" },
		"of no account": func(m *transport.Message) { m.From.ID = 0 },
	} {
		o, code := New(start, Life)
		m := private("/start " + string(code))
		change(m)
		if h := o.Hear(m, bot, start); h.Verdict != Refused || h.Why == "" || h.Claim != (Claim{}) {
			t.Errorf("%s: %+v", name, h)
		}
	}
	for status, admitted := range map[string]bool{
		"creator": true, "administrator": true, "member": false, "restricted": false, "left": false, "kicked": false, "": false,
	} {
		if why := Admit(Claim{}, status); (why == "") != admitted {
			t.Errorf("status %q: %q", status, why)
		}
	}
}

// Whatever is presented, in whatever order: at most one success, only with the code, only while the offer is open, and never after
// five wrong ones; and nothing but the code's own presentation says whose it is.
func TestNoHistoryPairsTwice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o, code := New(start, Life)
		now, shown, wrong := start, 0, 0
		for range rapid.IntRange(1, 40).Draw(t, "messages") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(40*time.Second)).Draw(t, "pause")))
			right := rapid.Bool().Draw(t, "right") && rapid.Bool().Draw(t, "right again")
			m := private("/start " + string(code))
			if !right {
				m.Text = "/start " + rapid.StringMatching(`[A-Z2-7]{16}`).Draw(t, "guess")
			}
			open := o.Open(now) && !now.Before(o.Next)
			h := o.Hear(m, bot, now)
			switch {
			case h.Verdict == Shown && (!right || !open):
				t.Fatalf("shown with %q, open %v", m.Text, open)
			case right && open && h.Verdict != Shown:
				t.Fatalf("the code was refused: %+v", h)
			case h.Verdict == Shown:
				shown++
			case h.Verdict == Wrong:
				wrong++
			}
		}
		if shown > 1 || wrong > MaxWrong {
			t.Fatalf("%d presentations counted and %d wrong ones looked at", shown, wrong)
		}
	})
}

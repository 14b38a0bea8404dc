package telegramtest_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/approvald/approvald/internal/telegramtest"
)

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		do     Action
		after  bool
		want   string // what the bot sees
		effect bool
	}{
		{Drop(), false, "error", false},
		{Drop(), true, "error", true},
		{Reset(), false, "error", false},
		{Reset(), true, "error", true},
		{CutShort(), true, "error", true},
		{CutShort(), false, "error", false},
		{Truncate(), true, "200 no JSON", true},
		{EmptyBody(200), false, "200 no JSON", false},
		{EmptyBody(502), true, "502 no JSON", true},
		{HTML(502), false, "502 no JSON", false},
		{HTML(413), false, "413 no JSON", false},
		{HTML(504), true, "504 no JSON", true},
		{Restarting(), false, "500 Internal Server Error: restart", false},
		{Fail(400, "Bad Request: MESSAGE_ID_INVALID"), false, "400 Bad Request: MESSAGE_ID_INVALID", false},
		{Limited(6775 * time.Second), false, "429 Too Many Requests: retry after 6775", false},
		{LimitedNoHeader(1500 * time.Millisecond), false, "429 Too Many Requests: retry after 2", false},
		{Migrated(-1005), false, "400 Bad Request: group chat was upgraded to a supergroup chat", false},
		{Respond(200, "application/json", `{"ok":false,"error_code":400,"description":"x"}`), false, "200 x", false},
		{Revoked(), false, "401 Unauthorized", false},
	} {
		t.Run(fmt.Sprintf("%s after %v", c.do, c.after), func(t *testing.T) {
			s, _, b := manual(t, Options{})
			inj := s.Fault(Fault{Method: "SENDmessage", After: c.after, Do: c.do})
			b.must(nil, "getMe")
			a := b.call("sendMessage", "chat_id", "111", "text", "a")
			got := fmt.Sprintf("%d %s", a.Status, a.Description)
			switch {
			case a.Err != nil:
				got = "error"
			case !strings.HasPrefix(a.Body, "{") || !strings.HasSuffix(a.Body, "}"):
				got = fmt.Sprintf("%d no JSON", a.Status)
			}
			if got != c.want {
				t.Errorf("got %s (%v %q), want %s", got, a.Err, a.Body, c.want)
			}
			if effect := len(s.Messages(111)) == 1; effect != c.effect {
				t.Errorf("the message was sent: %v", effect)
			}
			if c.do.String() == "limited 6775" && (a.Header.Get("Retry-After") != "6775" || a.Parameters.RetryAfter != 6775) {
				t.Errorf("retry after: %v %v", a.Header, a.Parameters)
			}
			if c.do.String() == "limited 2" && a.Header.Get("Retry-After") != "" {
				t.Errorf("header %v", a.Header)
			}
			call, err := s.WaitCall(soon(t), "sendMessage", 1)
			check(t, err)
			if inj.Hits() != 1 || call.Fault != c.do.String() {
				t.Errorf("%d hits, logged as %q", inj.Hits(), call.Fault)
			}
			if c.do.String() != "revoked" {
				b.must(nil, "sendMessage", "chat_id", "111", "text", "again")
			}
		})
	}
}

func TestFaultSelectors(t *testing.T) {
	s, _, b := manual(t, Options{Seed: 7})
	s.AddUser(User{ID: 112})
	broken := func(kv ...string) bool { return !b.call("sendMessage", append(kv, "text", "a")...).OK }
	inj := s.Fault(Fault{Chat: 112, Skip: 1, Count: 2, Do: Fail(500, "x")})
	var got []bool
	for range 4 {
		got = append(got, broken("chat_id", "112"))
		if broken("chat_id", "111") {
			t.Fatal("another chat was hit")
		}
	}
	if fmt.Sprint(got) != "[false true true false]" || inj.Hits() != 2 {
		t.Errorf("hit %v", got)
	}
	inj = s.Fault(Fault{Match: func(c Call) bool { return c.Args["parse_mode"] == "HTML" }, Count: Always, Do: Fail(500, "x")})
	if broken("chat_id", "111") || !broken("chat_id", "111", "parse_mode", "HTML") || !broken("chat_id", "111", "parse_mode", "HTML") {
		t.Error("match")
	}
	inj.Remove()
	if broken("chat_id", "111", "parse_mode", "HTML") {
		t.Error("still there after Remove")
	}
	s.Fault(Fault{Probability: 0.5, Count: Always, Do: Fail(500, "x")})
	n := 0
	for range 100 {
		if broken("chat_id", "111") {
			n++
		}
	}
	if n < 25 || n > 75 {
		t.Errorf("%d of 100 at a probability of one half", n)
	}
	s.ClearFaults()
	if broken("chat_id", "111") {
		t.Error("still there after ClearFaults")
	}
}

func TestHangAndDelay(t *testing.T) {
	s, clock, b := manual(t, Options{})
	got := make(chan answer, 2)
	send := func(ctx context.Context) { got <- b.callContext(ctx, "sendMessage", "chat_id", "111", "text", "a") }

	inj := s.Fault(Fault{Method: "sendMessage", Do: Hang()})
	go send(t.Context())
	check(t, inj.WaitHits(soon(t), 1))
	if len(s.Messages(111)) != 0 {
		t.Error("sent while hanging")
	}
	inj.Release()
	if a := <-got; !a.OK || len(s.Messages(111)) != 1 {
		t.Errorf("after release: %+v", a)
	}

	inj = s.Fault(Fault{Method: "sendMessage", After: true, Do: Hang()})
	ctx, cancel := context.WithCancel(t.Context())
	go send(ctx)
	check(t, inj.WaitHits(soon(t), 1))
	cancel()
	if a := <-got; a.Err == nil || len(s.Messages(111)) != 2 {
		t.Errorf("client that left: %+v", a)
	}

	s.Fault(Fault{Method: "sendMessage", Do: Delay(3 * time.Second)})
	go send(t.Context())
	check(t, clock.AwaitTimers(soon(t), 1))
	clock.Advance(3 * time.Second)
	if a := <-got; !a.OK {
		t.Errorf("after the delay: %+v", a)
	}
}

func TestOffline(t *testing.T) {
	s, _, b := manual(t, Options{})
	done := make(chan answer, 1)
	go func() { done <- b.call("getUpdates", "timeout", "50") }()
	check(t, s.WaitPolling(soon(t)))
	s.Offline()
	if a := <-done; a.Err == nil {
		t.Error("the poll survived")
	}
	if a := b.call("getMe"); a.Err == nil {
		t.Error("a call got through")
	}
	texts(t, s, 1) // the phones have a network of their own
	check(t, s.Online())
	check(t, s.Online())
	if us := b.updates(); len(us) != 1 {
		t.Errorf("after the outage: %+v", us)
	}
}

func TestRevoke(t *testing.T) {
	s, _, b := manual(t, Options{})
	old := s.Token()
	revoked := b.url("getMe")
	s.Revoke("")
	r, err := http.NewRequest(http.MethodGet, revoked, nil)
	check(t, err)
	if a := b.do(t.Context(), r); a.Status != 401 {
		t.Errorf("with the revoked token: %d", a.Status)
	}
	s.Unrevoke(old)
	b.must(nil, "getMe")
	s.Revoke("5:new")
	if s.Token() != "5:new" {
		t.Error(s.Token())
	}
	b.must(nil, "getMe")
}

// TestCloseEndsEverything closes a server with a poll, a hanging call and a
// delayed one on it; TestMain looks for what is left.
func TestCloseEndsEverything(t *testing.T) {
	s, _, b := manual(t, Options{})
	s.Fault(Fault{Method: "getMe", Do: Hang()})
	s.Fault(Fault{Method: "getChat", Do: Delay(time.Hour)})
	var wg sync.WaitGroup
	for _, m := range []string{"getMe", "getChat", "getUpdates"} {
		wg.Go(func() { b.call(m, "timeout", "50") })
	}
	check(t, s.WaitFor(soon(t), func(st State) bool { return len(st.Calls()) == 3 && st.Polling() }))
	s.Close()
	s.Close()
	wg.Wait()
	if err := s.Start(); err == nil {
		t.Error("a closed server started")
	}
}

func TestRateLimits(t *testing.T) {
	s, clock, b := manual(t, Options{Limits: TelegramLimits()})
	s.AddChat(Chat{ID: -10, Type: Group, Members: Members(111)})
	send := func(chat string) answer { return b.call("sendMessage", "chat_id", chat, "text", "a") }
	for range 5 {
		if a := send("111"); !a.OK {
			t.Fatal(a.Description)
		}
	}
	a := send("111")
	if a.Status != 429 || a.Description != "Too Many Requests: retry after 1" || a.Header.Get("Retry-After") != "1" || a.Parameters.RetryAfter != 1 {
		t.Errorf("sixth: %d %q", a.Status, a.Description)
	}
	if a := b.call("editMessageText", "chat_id", "111", "message_id", "1", "text", "b"); a.Status != 429 {
		t.Errorf("edits have a budget of their own: %d", a.Status)
	}
	clock.Advance(time.Second)
	if a := send("111"); !a.OK {
		t.Error(a.Description)
	}
	for range 20 {
		if a := send("-10"); !a.OK {
			t.Fatal(a.Description)
		}
	}
	if a := send("-10"); a.Parameters.RetryAfter != 3 {
		t.Errorf("21st in a group: %q", a.Description)
	}
	s.Mute(111, 6775*time.Second)
	if a := send("111"); a.Parameters.RetryAfter != 6775 {
		t.Errorf("muted: %q", a.Description)
	}
	clock.Advance(6775 * time.Second)
	if a := send("111"); !a.OK {
		t.Error(a.Description)
	}
	s.Mute(0, time.Minute)
	if a := send("-10"); a.Parameters.RetryAfter != 60 {
		t.Errorf("muted bot: %q", a.Description)
	}
	b.must(nil, "getMe")
}

func TestPenalty(t *testing.T) {
	_, clock, b := manual(t, Options{Limits: Limits{Chat: Bucket{Rate: 1, Burst: 1}, Penalty: 5 * time.Second}})
	b.must(nil, "sendMessage", "chat_id", "111", "text", "a")
	for _, want := range []int{1, 6, 11} {
		if a := b.call("sendMessage", "chat_id", "111", "text", "a"); a.Parameters.RetryAfter != want {
			t.Errorf("retry after %d, want %d", a.Parameters.RetryAfter, want)
		}
	}
	clock.Advance(16 * time.Second)
	b.must(nil, "sendMessage", "chat_id", "111", "text", "a")
}

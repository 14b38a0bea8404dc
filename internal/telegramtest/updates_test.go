package telegramtest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/approvald/approvald/internal/telegramtest"
)

// texts makes Alice write n messages.
func texts(t *testing.T, s *Server, n int) {
	t.Helper()
	for i := range n {
		_, err := s.Phone(111).Text(fmt.Sprintf("m%d", i))
		check(t, err)
	}
}

func TestOffsets(t *testing.T) {
	const first = 1000
	for _, c := range []struct {
		name   string
		offset int64
		kv     []string
		want   []int64 // returned
		left   []int64 // by a later call without offset
	}{
		{"none confirms nothing", 0, nil, []int64{1000, 1001, 1002}, []int64{1000, 1001, 1002}},
		{"offset confirms what is below", 1001, nil, []int64{1001, 1002}, []int64{1001, 1002}},
		{"limit", 0, []string{"limit", "2"}, []int64{1000, 1001}, []int64{1000, 1001, 1002}},
		{"limit is clamped, garbage is 1", 0, []string{"limit", "x"}, []int64{1000}, []int64{1000, 1001, 1002}},
		{"next id confirms all", 1003, nil, nil, nil},
		{"up to ten beyond confirms all", 1012, nil, nil, nil},
		{"far beyond is ignored", 1013, nil, []int64{1000, 1001, 1002}, []int64{1000, 1001, 1002}},
		{"far below confirms nothing", 1, nil, []int64{1000, 1001, 1002}, []int64{1000, 1001, 1002}},
		{"negative drops all but the last", -1, nil, []int64{1002}, []int64{1002}},
		{"negative beyond the queue", -100, nil, []int64{1000, 1001, 1002}, []int64{1000, 1001, 1002}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _, b := manual(t, Options{FirstUpdateID: first})
			texts(t, s, 3)
			got := ids(b.updates(append(c.kv, "offset", strconv.FormatInt(c.offset, 10))...))
			if !slices.Equal(got, c.want) {
				t.Errorf("returned %v, want %v", got, c.want)
			}
			if left := ids(b.updates()); !slices.Equal(left, c.left) {
				t.Errorf("left %v, want %v", left, c.left)
			}
		})
	}
}

func TestConfirmationHoldsWhenTheResponseIsLost(t *testing.T) {
	s, _, b := manual(t, Options{FirstUpdateID: 50})
	texts(t, s, 2)
	s.Fault(Fault{Method: "getUpdates", After: true, Do: Drop()})
	if a := b.call("getUpdates", "offset", "51"); a.Err == nil {
		t.Fatal("the response was not lost")
	}
	if got := ids(b.updates()); !slices.Equal(got, []int64{51}) {
		t.Errorf("left %v", got)
	}
}

func TestLifetimes(t *testing.T) {
	s, clock, b := manual(t, Options{})
	b.must(nil, "sendMessage", "chat_id", "111", "text", "a", "reply_markup", yesNo)
	_, err := s.Phone(111).Tap("Approve")
	check(t, err)
	texts(t, s, 1)
	_, err = s.Phone(111).TextDated("old", clock.Now().Add(-25*time.Hour))
	check(t, err)

	clock.Advance(150 * time.Second)
	if us := b.updates(); len(us) != 2 || us[0].Tap == nil {
		t.Fatalf("after 150 s: %+v", us)
	}
	clock.Advance(time.Second)
	if us := b.updates(); len(us) != 1 || us[0].Message == nil {
		t.Fatalf("after 151 s: %+v", us)
	}
	clock.Advance(24 * time.Hour)
	if us := b.updates(); len(us) != 0 {
		t.Fatalf("after a day: %+v", us)
	}
}

func TestLongPoll(t *testing.T) {
	s, clock, b := manual(t, Options{})
	got := make(chan []update, 1)
	poll := func(timeout string) {
		go func() {
			var us []update
			_ = json.Unmarshal(b.call("getUpdates", "timeout", timeout).Result, &us)
			got <- us
		}()
		check(t, s.WaitPolling(soon(t)))
	}
	poll("30")
	texts(t, s, 1)
	if us := <-got; len(us) != 1 {
		t.Fatalf("woken with %+v", us)
	}
	b.updates("offset", "-1")
	b.updates("offset", strconv.FormatInt(b.updates()[0].ID+1, 10))

	poll("60") // clamped to 50 s
	clock.Advance(49 * time.Second)
	select {
	case <-got:
		t.Fatal("ended before 50 s")
	default:
	}
	clock.Advance(time.Second)
	if us := <-got; len(us) != 0 {
		t.Fatalf("ended with %+v", us)
	}

	poll("30")
	s.Revoke("")
	if us := <-got; us == nil || len(us) != 0 {
		t.Fatalf("a revoked token ends a poll with an empty list, got %v", us)
	}
}

func TestTwoPollers(t *testing.T) {
	s, clock, b := manual(t, Options{})
	answers := make(chan answer, 3)
	poll := func(n int) {
		go func() { answers <- b.call("getUpdates", "timeout", "30", "limit", strconv.Itoa(n)) }()
		check(t, s.WaitFor(soon(t), func(st State) bool { return st.Count("getUpdates") == n && st.Polling() }))
	}
	const conflict = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"

	poll(1)
	poll(2)
	if a := <-answers; a.Status != 409 || a.Description != conflict {
		t.Fatalf("the older poll got %d %q", a.Status, a.Description)
	}
	// The second 409 within 3 s is held for 3 s.
	poll(3)
	check(t, clock.AwaitTimers(soon(t), 2)) // the third poll waits, or the 409
	select {
	case a := <-answers:
		t.Fatalf("a second 409 came at once: %+v", a)
	default:
	}
	clock.Advance(3 * time.Second)
	if a := <-answers; a.Status != 409 {
		t.Fatalf("held answer %+v", a)
	}
	// A short poll disturbs nobody, and one that finds updates neither: both
	// get the same ones.
	b.updates()
	if !polling(s) {
		t.Fatal("timeout=0 ended the waiting poll")
	}
	texts(t, s, 1)
	if a := <-answers; !strings.Contains(a.Body, "m0") {
		t.Fatalf("waiting poll got %s", a.Body)
	}
	if us := b.updates("timeout", "30"); len(us) != 1 {
		t.Fatalf("second poll got %+v", us)
	}
}

func polling(s *Server) (p bool) {
	s.View(func(st State) { p = st.Polling() })
	return p
}

func TestPollerThatLeft(t *testing.T) {
	s, _, b := manual(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan answer, 1)
	go func() { done <- b.callContext(ctx, "getUpdates", "timeout", "50") }()
	check(t, s.WaitPolling(soon(t)))
	cancel()
	<-done
	check(t, s.WaitFor(soon(t), func(st State) bool { return !st.Polling() }))
}

func TestAntiHammer(t *testing.T) {
	s, clock, b := manual(t, Options{AntiHammer: On})
	texts(t, s, 3)
	if us := b.updates(); len(us) != 3 {
		t.Fatalf("first call: %d", len(us))
	}
	if us := b.updates(); len(us) != 1 {
		t.Fatalf("again within 0.5 s: %d", len(us))
	}
	clock.Advance(time.Second)
	if us := b.updates(); len(us) != 3 {
		t.Fatalf("again after 1 s: %d", len(us))
	}
	us := b.updates("offset", strconv.FormatInt(b.updates("offset", "-1")[0].ID+1, 10))
	if len(us) != 0 {
		t.Fatalf("left %v", us)
	}
	next := s.Calls("getUpdates")
	offset := next[len(next)-1].Args["offset"]
	done := make(chan answer, 1)
	go func() { done <- b.call("getUpdates", "offset", offset) }()
	check(t, s.WaitPolling(soon(t))) // timeout 0 became 3 s
	clock.Advance(3 * time.Second)
	<-done
}

func TestAllowedUpdates(t *testing.T) {
	s, _, b := manual(t, Options{})
	b.must(nil, "sendMessage", "chat_id", "111", "text", "a", "reply_markup", yesNo)
	tap := func() int64 {
		tap, err := s.Phone(111).Tap("Approve")
		check(t, err)
		return tap.Info().UpdateID
	}
	s.RememberAllowedUpdates(`["message"]`)
	if tap() != 0 {
		t.Error("a tap was queued that is not allowed")
	}
	for _, unchanged := range []string{"null", "x", `"message"`, `[1]`, `["callback_query",null]`} {
		b.updates("allowed_updates", unchanged)
		if tap() != 0 {
			t.Errorf("%s changed the list", unchanged)
		}
	}
	b.updates() // left out: unchanged
	if tap() != 0 {
		t.Error("a call without the argument changed the list")
	}
	if got := s.WebhookInfo().AllowedUpdates; !slices.Equal(got, []string{"message"}) {
		t.Errorf("remembered %v", got)
	}
	b.updates("allowed_updates", `["CALLBACK_QUERY","nonsense"]`)
	if tap() == 0 {
		t.Error("names have case")
	}
	for _, reset := range []string{"[]", `["nonsense"]`} {
		s.RememberAllowedUpdates(`["message"]`)
		b.updates("allowed_updates", reset)
		if tap() == 0 || s.WebhookInfo().AllowedUpdates != nil {
			t.Errorf("%s did not reset the list", reset)
		}
	}
}

func TestQueueOfALongLife(t *testing.T) {
	s, _, b := manual(t, Options{FirstUpdateID: 700_000_001})
	texts(t, s, 1)
	b.updates("offset", "700000002")

	// A week later the ids start again at a random number: an offset far above
	// is ignored, one of the new range counts.
	s.SetNextUpdateID(100_000_007)
	texts(t, s, 1)
	if got := ids(b.updates("offset", "700000002")); !slices.Equal(got, []int64{100_000_007}) {
		t.Fatalf("after the reset: %v", got)
	}
	b.updates("offset", "100000008")
	if got := b.updates(); len(got) != 0 {
		t.Fatalf("not confirmed: %v", got)
	}

	s.Redeliver(100_000_007)
	if got := ids(b.updates()); !slices.Equal(got, []int64{100_000_007}) {
		t.Fatalf("redelivered %v", got)
	}
	b.updates("offset", "100000008")

	s.ReplayAlways(20)
	for range 3 {
		if got := ids(b.updates("offset", "100000008")); !slices.Equal(got, []int64{700_000_001, 100_000_007, 100_000_007}) &&
			!slices.Equal(got, []int64{700_000_001, 100_000_007}) {
			t.Fatalf("replayed %v", got)
		}
	}
	s.ReplayAlways(0)

	// Updates nobody can read.
	id := s.InjectUpdate("hologram", `{"from":{"id":"a string"}}`)
	s.InjectRaw(id+1, `{"update_id":%d,"callback_query":[`)
	a := b.call("getUpdates")
	if want := fmt.Sprintf(`{"update_id":%d,"hologram":{"from":{"id":"a string"}}},{"update_id":%d,"callback_query":[`, id, id+1); !strings.Contains(a.Body, want) {
		t.Fatalf("got %s", a.Body)
	}
}

func TestBatchIsCutAt4MiB(t *testing.T) {
	s, _, b := manual(t, Options{})
	big := `{"text":"` + strings.Repeat("a", 500<<10) + `"}`
	for range 10 {
		s.InjectUpdate("message", big)
	}
	if n := len(b.updates()); n != 8 {
		t.Errorf("%d updates of 500 KiB in one answer", n)
	}
}

func TestConflictWithWebhook(t *testing.T) {
	s, _, b := manual(t, Options{})
	done := make(chan answer, 1)
	go func() { done <- b.call("getUpdates", "timeout", "50") }()
	check(t, s.WaitPolling(soon(t)))
	b.must(nil, "setWebhook", "url", "https://example.com/hook")
	if a := <-done; a.Status != 409 || a.Description != "Conflict: terminated by setWebhook request" {
		t.Errorf("waiting poll: %d %q", a.Status, a.Description)
	}
	a := b.call("getUpdates")
	if a.Status != 409 || a.Description != "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first" {
		t.Errorf("next poll: %d %q", a.Status, a.Description)
	}
	if a := b.must(nil, "deleteWebhook"); a.Description != "Webhook was deleted" {
		t.Errorf("delete: %q", a.Description)
	}
	b.updates()
}

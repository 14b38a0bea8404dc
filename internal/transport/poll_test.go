package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// pollServer answers getUpdates from a queue, as Telegram does: the offset
// confirms, an empty poll is held, a repeated fault comes first.
type pollServer struct {
	fakeAPI
	queue []string // raw updates, ids rising
	// fault is asked first; ok false lets the call through.
	fault func(apiCall) (status int, body string, err error, ok bool)
	added chan struct{}
}

func newPollServer(queue ...string) *pollServer {
	s := &pollServer{queue: queue, added: make(chan struct{}, 100)}
	s.answer = s.serve
	return s
}

func (s *pollServer) push(raw ...string) {
	s.mu.Lock()
	s.queue = append(s.queue, raw...)
	s.mu.Unlock()
	s.added <- struct{}{}
}

func (s *pollServer) serve(ctx context.Context, c apiCall) (int, string, error) {
	if s.fault != nil {
		if status, body, err, ok := s.fault(c); ok {
			return status, body, err
		}
	}
	switch c.method {
	case "getMe":
		return 200, okResult(map[string]any{"id": 1}), nil
	case "getWebhookInfo":
		return 200, `{"ok":true,"result":{"url":""}}`, nil
	case "deleteWebhook":
		return 200, okResult(true), nil
	}
	offset, _ := strconv.ParseInt(c.form["offset"], 10, 64)
	hold, _ := strconv.Atoi(c.form["timeout"])
	timer := time.NewTimer(time.Duration(hold) * time.Second)
	defer timer.Stop()
	for {
		if batch := s.batch(offset); len(batch) > 0 {
			return 200, `{"ok":true,"result":[` + strings.Join(batch, ",") + `]}`, nil
		}
		select {
		case <-s.added:
		case <-timer.C:
			return 200, `{"ok":true,"result":[]}`, nil
		case <-ctx.Done():
			return 0, "", ctx.Err()
		}
	}
}

func (s *pollServer) batch(offset int64) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var last int64
	if len(s.queue) > 0 {
		last = idOf(s.queue[len(s.queue)-1])
	}
	if offset > last+10 { // a bogus offset is ignored
		offset = 0
	}
	for offset > 0 && len(s.queue) > 0 && idOf(s.queue[0]) < offset {
		s.queue = s.queue[1:]
	}
	return append([]string(nil), s.queue...)
}

func idOf(raw string) int64 {
	var u struct {
		ID int64 `json:"update_id"`
	}
	_ = json.Unmarshal([]byte(raw), &u)
	return u.ID
}

// run polls inside the bubble until the returned stop is called.
func (s *pollServer) run(t *testing.T, handle Handler, options ...func(*PollOptions)) (*Poller, func()) {
	t.Helper()
	o := PollOptions{Client: s.client(t)}
	for _, set := range options {
		set(&o)
	}
	p := NewPoller(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, handle) }()
	return p, func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

func ignore(context.Context, Update) error { return nil }

// collect returns a handler that notes ids, and what it noted.
func collect() (Handler, *[]int64) {
	var ids []int64
	return func(_ context.Context, u Update) error {
		ids = append(ids, u.ID)
		return nil
	}, &ids
}

func offsets(calls []apiCall) string {
	var out []string
	for _, c := range calls {
		out = append(out, c.form["offset"])
	}
	return strings.Join(out, ",")
}

func TestPollOffsetMovesOnlyBehindHandledUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPollServer(tapJSON(100, 1), tapJSON(101, 1), tapJSON(102, 1))
		disk := errors.New("disk full")
		var offered []int64
		full := true
		p, stop := s.run(t, func(_ context.Context, u Update) error {
			offered = append(offered, u.ID)
			if u.ID == 101 && full {
				return disk
			}
			return nil
		})
		time.Sleep(30 * time.Second)
		for _, id := range offered[1:] {
			if id != 101 {
				t.Fatalf("update %d was offered before 101 was stored", id)
			}
		}
		if got := offsets(s.made("getUpdates")); got != "" {
			t.Errorf("offsets %q while 101 is not stored", got)
		}
		if h := p.Health(); !strings.Contains(h.Error, "update 101 could not be stored") || !strings.Contains(h.Error, "disk full") {
			t.Errorf("health %+v", h)
		}
		time.Sleep(30 * time.Second)
		if p.Health().Healthy {
			t.Error("healthy after a minute without a poll")
		}
		full = false
		time.Sleep(10 * time.Second)
		if last := offered[len(offered)-1]; last != 102 {
			t.Errorf("last offered %d, want 102", last)
		}
		if got := offsets(s.made("getUpdates")); got != ",103" {
			t.Errorf("offsets %q, want 103 after all three", got)
		}
		stop()
		if tries := len(offered); tries > 40 {
			t.Errorf("%d tries in a minute", tries)
		}
	})
}

func TestPollSendsAllowedUpdatesAndHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPollServer()
		_, stop := s.run(t, ignore)
		time.Sleep(60 * time.Second)
		stop()
		calls := s.made("getUpdates")
		for i, c := range calls {
			if c.form["allowed_updates"] != `["message","callback_query","my_chat_member"]` {
				t.Errorf("call %d: allowed_updates %q", i, c.form["allowed_updates"])
			}
			if want := map[bool]string{true: "", false: "25"}[i == 0]; c.form["timeout"] != want {
				t.Errorf("call %d: timeout %q, want %q", i, c.form["timeout"], want)
			}
		}
		if len(calls) != 4 { // at 0, 0, 25 and 50 s
			t.Errorf("%d polls in a quiet minute, want 4", len(calls))
		}
	})
}

func TestPollAdoptsLowerIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPollServer(tapJSON(700_000_000, 1))
		handle, ids := collect()
		_, stop := s.run(t, handle)
		time.Sleep(time.Second)
		// The server returns it whatever the offset, and again and again.
		s.fault = func(c apiCall) (int, string, error, bool) {
			if c.form["offset"] == "100000008" {
				return 0, "", nil, false
			}
			return 200, `{"ok":true,"result":[` + tapJSON(100_000_007, 1) + `]}`, nil, c.method == "getUpdates"
		}
		time.Sleep(30 * time.Second)
		stop()
		if got := fmt.Sprint(*ids); got != "[700000000 100000007]" {
			t.Errorf("handled %s", got)
		}
		calls := s.made("getUpdates")
		if last := calls[len(calls)-1].form["offset"]; last != "100000008" {
			t.Errorf("last offset %s", last)
		}
	})
}

// A server that answers at once, for ever, is not asked in a tight loop.
func TestPollNeverSpins(t *testing.T) {
	var replay []string
	for id := range int64(20) {
		replay = append(replay, tapJSON(500+id, 1))
	}
	for name, answer := range map[string]func(int) (int, string, error){
		"replays whatever the offset": func(int) (int, string, error) {
			return 200, `{"ok":true,"result":[` + strings.Join(replay, ",") + `]}`, nil
		},
		"empty at once":      func(int) (int, string, error) { return 200, okResult([]int{}), nil },
		"unreadable at once": func(int) (int, string, error) { return 200, `{"ok":true,"result":["x"]}`, nil },
		"connection reset":   func(int) (int, string, error) { return 0, "", errors.New("connection reset by peer") },
		"alternating": func(n int) (int, string, error) {
			if n%2 == 0 {
				return 200, okResult([]int{}), nil
			}
			return refusal(502, "Bad Gateway")
		},
		"500":         func(int) (int, string, error) { return refusal(500, "Internal Server Error: restart") },
		"html":        func(int) (int, string, error) { return 502, "<html>", nil },
		"not a batch": func(int) (int, string, error) { return 200, okResult("x"), nil },
		"limited 0":   func(int) (int, string, error) { return refusal(429, "Too Many Requests") },
		"token":       func(int) (int, string, error) { return refusal(401, "Unauthorized") },
		"other poller": func(int) (int, string, error) {
			return refusal(409, "Conflict: terminated by other getUpdates request")
		},
		"webhook there": func(int) (int, string, error) {
			return refusal(409, "Conflict: can't use getUpdates method while webhook is active")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newPollServer()
				n := 0
				s.fault = func(c apiCall) (int, string, error, bool) {
					if c.method != "getUpdates" && name != "token" {
						return 0, "", nil, false
					}
					n++
					status, body, err := answer(n)
					return status, body, err, true
				}
				_, stop := s.run(t, ignore)
				time.Sleep(10 * time.Minute)
				stop()
				calls := s.made("getUpdates")
				if len(calls) > 20+10*60 {
					t.Errorf("%d polls in 10 minutes", len(calls))
				}
				for i := 5; i < len(calls); i++ {
					if calls[i].at.Sub(calls[i-5].at) < time.Second {
						t.Fatalf("more than 5 polls within a second, from %s on", calls[i-5].at)
					}
				}
				for i := 1; i < len(calls); i++ {
					if gap := calls[i].at.Sub(calls[i-1].at); gap > 15*time.Second && name != "token" {
						t.Fatalf("%s without a poll", gap)
					}
				}
			})
		})
	}
}

func TestPollSurvivesEveryFailure(t *testing.T) {
	failures := []func() (int, string, error){
		func() (int, string, error) { return 0, "", errors.New("connection reset by peer") },
		func() (int, string, error) { return 0, "", context.DeadlineExceeded },
		func() (int, string, error) { return 502, "<html>", nil },
		func() (int, string, error) { return 200, "", nil },
		func() (int, string, error) { return 200, `{"ok":true,"result":[{"upd`, nil },
		func() (int, string, error) { return refusal(400, "Bad Request: whatever") },
		func() (int, string, error) { return refusal(401, "Unauthorized") },
		func() (int, string, error) { return refusal(403, "Forbidden") },
		func() (int, string, error) { return refusal(404, "Not Found") },
		func() (int, string, error) { return refusal(409, "Conflict: terminated by other getUpdates request") },
		func() (int, string, error) { return refusal(413, "x") },
		func() (int, string, error) { return refusal(418, "x") },
		func() (int, string, error) { return refusal(429, "Too Many Requests") },
		func() (int, string, error) { return refusal(500, "Internal Server Error: restart") },
		func() (int, string, error) { return 301, "", nil },
	}
	synctest.Test(t, func(t *testing.T) {
		s := newPollServer()
		var queue []func() (int, string, error)
		s.fault = func(c apiCall) (int, string, error, bool) {
			if c.method != "getUpdates" || len(queue) == 0 {
				return 0, "", nil, false
			}
			status, body, err := queue[0]()
			queue = queue[1:]
			return status, body, err, true
		}
		handle, ids := collect()
		p, stop := s.run(t, handle)
		for i, f := range failures {
			queue = append(queue, f, f)
			s.push(tapJSON(int64(1000+i), 1))
			time.Sleep(2 * time.Minute)
			if len(*ids) != i+1 {
				t.Fatalf("failure %d: the tap after it did not arrive: %v", i, *ids)
			}
			if h := p.Health(); !h.Healthy || h.Error != "" {
				t.Errorf("failure %d: health afterwards %+v", i, h)
			}
		}
		stop()
	})
}

func TestPollConflictsDifferInRemedy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPollServer()
		start := time.Now()
		s.fault = func(c apiCall) (int, string, error, bool) {
			status, body, err := refusal(409, "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running")
			return status, body, err, c.method == "getUpdates" && time.Since(start) < 90*time.Second
		}
		handle, ids := collect()
		p, stop := s.run(t, handle)
		s.push(tapJSON(5, 1))
		time.Sleep(60 * time.Second)
		h := p.Health()
		if h.Healthy || !h.ConflictSince.Equal(start) || !strings.Contains(h.Error, "another program polls") {
			t.Errorf("health %+v", h)
		}
		if n := len(s.made("getUpdates")); n > 12 {
			t.Errorf("%d polls in a minute of conflict, want at most one in 5 s", n)
		}
		if n := len(s.made("deleteWebhook")); n != 0 {
			t.Error("a conflict with another poller removed a webhook")
		}
		time.Sleep(60 * time.Second)
		if len(*ids) != 1 || !p.Health().Healthy || !p.Health().ConflictSince.IsZero() {
			t.Errorf("after the conflict: %v, %+v", *ids, p.Health())
		}
		stop()
	})
}

func TestPollAndAWebhookThatAppears(t *testing.T) {
	for name, own := range map[string]bool{"foreign": false, "own leftover": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const secretPath = "https://hooks.example.com/secret-path"
				s := newPollServer(tapJSON(5, 1))
				url := secretPath
				s.fault = func(c apiCall) (int, string, error, bool) {
					switch c.method {
					case "getUpdates":
						status, body, err := refusal(409, "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first")
						return status, body, err, url != ""
					case "getWebhookInfo":
						return 200, okResult(map[string]any{"url": url}), nil, true
					case "deleteWebhook":
						url = ""
						if c.form["drop_pending_updates"] != "" {
							t.Error("pending updates dropped")
						}
					}
					return 0, "", nil, false
				}
				handle, ids := collect()
				p, stop := s.run(t, handle, func(o *PollOptions) { o.Own = func(u string) bool { return own && u == secretPath } })
				time.Sleep(time.Minute)
				h := p.Health()
				if own {
					if len(*ids) != 1 || !h.Healthy {
						t.Errorf("own leftover not removed: %v, %+v", *ids, h)
					}
				} else if len(s.made("deleteWebhook")) != 0 || h.Healthy || !strings.Contains(h.Error, "hooks.example.com:") || strings.Contains(h.Error, "secret-path") {
					t.Errorf("foreign webhook: %+v", h)
				}
				stop()
			})
		})
	}
}

func TestPollToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPollServer(tapJSON(5, 1))
		revoked, refuseMe := true, true
		s.fault = func(c apiCall) (int, string, error, bool) {
			status, body, err := refusal(401, "Unauthorized")
			return status, body, err, revoked && (c.method != "getMe" || refuseMe)
		}
		handle, ids := collect()
		p, stop := s.run(t, handle)
		time.Sleep(10 * time.Minute)
		if h := p.Health(); h.Healthy || !strings.Contains(h.Error, "rejects the bot token") {
			t.Errorf("health %+v", h)
		}
		if n := len(s.made("getUpdates")); n < 15 || n > 40 {
			t.Errorf("%d polls in 10 minutes with a dead token", n)
		}
		revoked = false
		time.Sleep(time.Minute)
		if len(*ids) != 1 || !p.Health().Healthy {
			t.Errorf("after the token works again: %v, %+v", *ids, p.Health())
		}
		stop()
	})
}

func TestPollObeysRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPollServer()
		s.fault = func(c apiCall) (int, string, error, bool) {
			return 429, `{"ok":false,"error_code":429,"description":"Too Many Requests: retry after 40","parameters":{"retry_after":40}}`, nil, len(s.made("getUpdates")) == 1
		}
		_, stop := s.run(t, ignore)
		time.Sleep(2 * time.Minute)
		stop()
		calls := s.made("getUpdates")
		if gap := calls[1].at.Sub(calls[0].at); gap < 40*time.Second || gap > 45*time.Second {
			t.Errorf("next poll after %s, want 40 s", gap)
		}
	})
}

// A half-open connection is given up 15 s after the answer was due.
func TestPollHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPollServer()
		hang := false
		plain := s.answer
		s.answer = func(ctx context.Context, c apiCall) (int, string, error) {
			if hang && c.method == "getUpdates" {
				<-ctx.Done()
				return 0, "", ctx.Err()
			}
			return plain(ctx, c)
		}
		handle, ids := collect()
		p, stop := s.run(t, handle)
		time.Sleep(time.Second)
		hang = true
		time.Sleep(25 * time.Second) // the poll in hand ends, the next one hangs
		time.Sleep(38 * time.Second) // 64 s: one second before it is given up
		if h := p.Health(); h.Error != "" {
			t.Errorf("given up too early: %+v", h)
		}
		time.Sleep(13 * time.Second)
		if h := p.Health(); h.Healthy || h.Error == "" {
			t.Errorf("not noticed: %+v", h)
		}
		hang = false
		s.push(tapJSON(9, 1))
		time.Sleep(50 * time.Second)
		if len(*ids) != 1 || !p.Health().Healthy {
			t.Errorf("did not resume: %v %+v", *ids, p.Health())
		}
		stop()
	})
}

func TestPollSkipsPoisonOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPollServer(
			tapJSON(100, 1),
			`{"update_id":101,"callback_query":{"id":"1","from":{"id":"one"}}}`,
			`{"update_id":102,"callback_query":`+strings.Repeat("[", 200)+strings.Repeat("]", 200)+`}`,
			`{"update_id":"103"}`,
			tapJSON(104, 5_000_000_001),
		)
		core, logs := observer.New(zapcore.WarnLevel)
		handle, ids := collect()
		p, stop := s.run(t, handle, func(o *PollOptions) { o.Logger = zap.New(core) })
		time.Sleep(10 * time.Second)
		stop()
		if fmt.Sprint(*ids) != "[100 104]" || p.Health().Skipped != 3 || logs.Len() != 3 {
			t.Errorf("handled %v, skipped %d, %d log lines", *ids, p.Health().Skipped, logs.Len())
		}
		if got := offsets(s.made("getUpdates")); got != ",105" {
			t.Errorf("offsets %q", got)
		}
	})
}

// An update that hides even its id at the head of the queue is passed as well.
func TestPollPassesANamelessUpdate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPollServer(tapJSON(100, 1))
		handle, ids := collect()
		_, stop := s.run(t, handle)
		time.Sleep(time.Second)
		s.fault = func(c apiCall) (int, string, error, bool) {
			return 200, `{"ok":true,"result":[{"update_id":"101"}]}`, nil, c.form["offset"] == "101"
		}
		s.push(tapJSON(102, 1))
		time.Sleep(time.Minute)
		stop()
		if fmt.Sprint(*ids) != "[100 102]" {
			t.Errorf("handled %v", *ids)
		}
	})
}

func TestPollStop(t *testing.T) {
	t.Run("ends a held poll at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newPollServer()
			_, stop := s.run(t, ignore)
			time.Sleep(5 * time.Second)
			start := time.Now()
			stop()
			if took := time.Since(start); took != 0 {
				t.Errorf("took %s", took)
			}
		})
	})
	confirming := func(o *PollOptions) { o.ConfirmOnStop = func() bool { return true } }
	t.Run("confirms what was handled and no more", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newPollServer(tapJSON(100, 1), tapJSON(101, 1), tapJSON(102, 1))
			var stop func()
			entered := make(chan struct{})
			_, stop = s.run(t, func(ctx context.Context, u Update) error {
				if u.ID == 101 {
					close(entered)
					<-ctx.Done() // the stop comes while this one is in hand, and it fails
					return ctx.Err()
				}
				return nil
			}, confirming)
			<-entered
			start := time.Now()
			stop()
			if took := time.Since(start); took != handleGrace {
				t.Errorf("the update in hand got %s, want %s", took, handleGrace)
			}
			calls := s.made("getUpdates")
			last := calls[len(calls)-1].form
			if last["offset"] != "101" || last["timeout"] != "" || last["limit"] != "1" {
				t.Errorf("confirmation %v", last)
			}
			if left := s.batch(0); len(left) != 2 || idOf(left[0]) != 101 {
				t.Errorf("left on the server: %v", left)
			}
		})
	})
	t.Run("finishes the update in hand", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newPollServer(tapJSON(100, 1))
			entered := make(chan struct{})
			_, stop := s.run(t, func(ctx context.Context, u Update) error {
				close(entered)
				time.Sleep(time.Second)
				return ctx.Err()
			}, confirming)
			<-entered
			stop()
			if left := s.batch(0); len(left) != 0 {
				t.Errorf("handled but not confirmed: %v", left)
			}
		})
	})
	t.Run("does not wait for a dead network", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newPollServer(tapJSON(100, 1))
			handled := make(chan struct{})
			plain := s.answer
			s.answer = func(ctx context.Context, c apiCall) (int, string, error) {
				if len(s.made("getUpdates")) > 1 {
					<-ctx.Done()
					return 0, "", ctx.Err()
				}
				return plain(ctx, c)
			}
			_, stop := s.run(t, func(context.Context, Update) error { close(handled); return nil }, confirming)
			<-handled
			synctest.Wait()
			start := time.Now()
			stop()
			if took := time.Since(start); took > confirmTimeout {
				t.Errorf("took %s", took)
			}
		})
	})
	t.Run("says nothing when it may not", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newPollServer(tapJSON(100, 1))
			entered := make(chan struct{})
			_, stop := s.run(t, func(context.Context, Update) error {
				close(entered)
				time.Sleep(time.Second)
				return nil
			}, func(o *PollOptions) { o.ConfirmOnStop = func() bool { return false } })
			<-entered
			stop()
			if n := len(s.made("getUpdates")); n != 1 {
				t.Errorf("%d polls", n)
			}
		})
	})
}

func TestPollForgetsAnOldOffset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPollServer(tapJSON(100, 1))
		_, stop := s.run(t, ignore)
		time.Sleep(23 * time.Hour)
		calls := s.made("getUpdates")
		if last := calls[len(calls)-1].form["offset"]; last != "101" {
			t.Errorf("offset %q after 23 h", last)
		}
		time.Sleep(2 * time.Hour)
		stop()
		calls = s.made("getUpdates")
		if last := calls[len(calls)-1].form["offset"]; last != "" {
			t.Errorf("offset %q after 25 quiet hours", last)
		}
	})
}

func TestPollReadyAndHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPollServer()
		down := true
		s.fault = func(apiCall) (int, string, error, bool) { return 0, "", errors.New("network is unreachable"), down }
		p, stop := s.run(t, ignore)
		time.Sleep(time.Minute)
		select {
		case <-p.Ready():
			t.Error("ready without contact")
		default:
		}
		if h := p.Health(); h.Healthy || h.Mode != "poll" || !strings.Contains(h.Error, "network is unreachable") {
			t.Errorf("health %+v", h)
		}
		down = false
		select {
		case <-p.Ready():
		case <-time.After(15 * time.Second):
			t.Error("not ready 15 s after the network came back")
		}
		if h := p.Health(); !h.Healthy || h.Error != "" || h.LastSuccess.IsZero() {
			t.Errorf("health %+v", h)
		}
		stop()
	})
}

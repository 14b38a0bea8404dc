package transport

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

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
			s.change(func() { queue = append(queue, f, f) })
			s.push(tapJSON(int64(1000+i), 1))
			time.Sleep(2 * time.Minute)
			if len(ids()) != i+1 {
				t.Fatalf("failure %d: the tap after it did not arrive: %v", i, ids())
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
		if h.Healthy || h.Cause != CauseConflict || !h.ConflictSince.Equal(start) || !strings.Contains(h.Error, "another program polls") {
			t.Errorf("health %+v", h)
		}
		if n := len(s.made("getUpdates")); n > 12 {
			t.Errorf("%d polls in a minute of conflict, want at most one in 5 s", n)
		}
		if n := len(s.made("deleteWebhook")); n != 0 {
			t.Error("a conflict with another poller removed a webhook")
		}
		time.Sleep(60 * time.Second)
		if len(ids()) != 1 || !p.Health().Healthy || p.Health().Cause != "" || !p.Health().ConflictSince.IsZero() {
			t.Errorf("after the conflict: %v, %+v", ids(), p.Health())
		}
		stop()
	})
}

// What is wrong now is told, not what was wrong before it.
func TestPollNamesTheNewestCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPollServer()
		start := time.Now()
		s.fault = func(c apiCall) (int, string, error, bool) {
			if time.Since(start) < 30*time.Second {
				status, body, err := refusal(409, "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running")
				return status, body, err, c.method == "getUpdates"
			}
			return 502, "Bad Gateway", nil, c.method == "getUpdates"
		}
		handle, _ := collect()
		p, stop := s.run(t, handle)
		time.Sleep(20 * time.Second)
		if h := p.Health(); h.Cause != CauseConflict {
			t.Errorf("during the conflict: %+v", h)
		}
		time.Sleep(40 * time.Second)
		if h := p.Health(); h.Healthy || h.Cause != "" || strings.Contains(h.Error, "another program") {
			t.Errorf("after it, while the server fails: %+v", h)
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
					if len(ids()) != 1 || !h.Healthy {
						t.Errorf("own leftover not removed: %v, %+v", ids(), h)
					}
				} else if len(s.made("deleteWebhook")) != 0 || h.Healthy || h.Cause != CauseDisplaced || !strings.Contains(h.Error, "hooks.example.com:") || strings.Contains(h.Error, "secret-path") {
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
		if h := p.Health(); h.Healthy || h.Cause != CauseToken || !strings.Contains(h.Error, "rejects the bot token") {
			t.Errorf("health %+v", h)
		}
		if n := len(s.made("getUpdates")); n < 15 || n > 40 {
			t.Errorf("%d polls in 10 minutes with a dead token", n)
		}
		s.change(func() { revoked = false })
		time.Sleep(time.Minute)
		if len(ids()) != 1 || !p.Health().Healthy {
			t.Errorf("after the token works again: %v, %+v", ids(), p.Health())
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
			var hung bool
			s.change(func() { hung = hang })
			if hung && c.method == "getUpdates" {
				<-ctx.Done()
				return 0, "", ctx.Err()
			}
			return plain(ctx, c)
		}
		handle, ids := collect()
		p, stop := s.run(t, handle)
		time.Sleep(time.Second)
		s.change(func() { hang = true })
		time.Sleep(25 * time.Second) // the poll in hand ends, the next one hangs
		time.Sleep(38 * time.Second) // 64 s: one second before it is given up
		if h := p.Health(); h.Error != "" {
			t.Errorf("given up too early: %+v", h)
		}
		time.Sleep(13 * time.Second)
		if h := p.Health(); h.Healthy || h.Error == "" {
			t.Errorf("not noticed: %+v", h)
		}
		s.change(func() { hang = false })
		s.push(tapJSON(9, 1))
		time.Sleep(50 * time.Second)
		if len(ids()) != 1 || !p.Health().Healthy {
			t.Errorf("did not resume: %v %+v", ids(), p.Health())
		}
		stop()
	})
}

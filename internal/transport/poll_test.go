package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	state sync.Mutex // of what fault and handlers share with the test
}

// change runs f while neither fault nor a collecting handler runs.
func (s *pollServer) change(f func()) {
	s.state.Lock()
	defer s.state.Unlock()
	f()
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
	s.state.Lock()
	fault := s.fault
	var ok bool
	var status int
	var body string
	var err error
	if fault != nil {
		status, body, err, ok = fault(c)
	}
	s.state.Unlock()
	if ok {
		return status, body, err
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
func collect() (Handler, func() []int64) {
	var mu sync.Mutex
	var ids []int64
	return func(_ context.Context, u Update) error {
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, u.ID)
			return nil
		}, func() []int64 {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(ids)
		}
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
			var err error
			s.change(func() {
				offered = append(offered, u.ID)
				if u.ID == 101 && full {
					err = disk
				}
			})
			return err
		})
		time.Sleep(30 * time.Second)
		s.change(func() {
			for _, id := range offered[1:] {
				if id != 101 {
					t.Errorf("update %d was offered before 101 was stored", id)
				}
			}
		})
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
		s.change(func() { full = false })
		time.Sleep(10 * time.Second)
		stop()
		if last := offered[len(offered)-1]; last != 102 {
			t.Errorf("last offered %d, want 102", last)
		}
		if got := offsets(s.made("getUpdates")); got != ",103" {
			t.Errorf("offsets %q, want 103 after all three", got)
		}
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
		s.change(func() {
			s.fault = func(c apiCall) (int, string, error, bool) {
				if c.form["offset"] == "100000008" {
					return 0, "", nil, false
				}
				return 200, `{"ok":true,"result":[` + tapJSON(100_000_007, 1) + `]}`, nil, c.method == "getUpdates"
			}
		})
		time.Sleep(30 * time.Second)
		stop()
		if got := fmt.Sprint(ids()); got != "[700000000 100000007]" {
			t.Errorf("handled %s", got)
		}
		calls := s.made("getUpdates")
		if last := calls[len(calls)-1].form["offset"]; last != "100000008" {
			t.Errorf("last offset %s", last)
		}
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
		if fmt.Sprint(ids()) != "[100 104]" || p.Health().Skipped != 3 || logs.Len() != 3 {
			t.Errorf("handled %v, skipped %d, %d log lines", ids(), p.Health().Skipped, logs.Len())
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
		s.change(func() {
			s.fault = func(c apiCall) (int, string, error, bool) {
				return 200, `{"ok":true,"result":[{"update_id":"101"}]}`, nil, c.form["offset"] == "101"
			}
		})
		s.push(tapJSON(102, 1))
		time.Sleep(time.Minute)
		stop()
		if fmt.Sprint(ids()) != "[100 102]" {
			t.Errorf("handled %v", ids())
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
		p, stop := s.run(t, ignore)
		time.Sleep(23 * time.Hour)
		calls := s.made("getUpdates")
		if late := time.Since(p.Health().Due); late > time.Second {
			t.Errorf("the loop is %s overdue", late)
		}
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
		s.change(func() { down = false })
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

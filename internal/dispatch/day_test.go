package dispatch

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/transport"
)

// daySender answers as Telegram does on an ordinary day: most calls work, some are limited, fail, or are of unknown outcome.
type daySender struct {
	mu    sync.Mutex
	calls int
	sent  chan transport.Tap // what a press of the first button of a new message looks like
}

func (s *daySender) call(method string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	switch {
	case s.calls%41 == 0:
		return &transport.Error{Method: method, Class: transport.ClassLimited, Code: 429, Description: "Too Many Requests", RetryAfter: 7 * time.Second}
	case s.calls%59 == 0:
		return &transport.Error{Method: method, Class: transport.ClassTransient, Code: 502, Description: "Bad Gateway"}
	case s.calls%83 == 0:
		return &transport.Error{Method: method, Class: transport.ClassUnknownOutcome, Description: "no answer in time"}
	default:
		return nil
	}
}

func (s *daySender) SendMessage(_ context.Context, m transport.SendMessage) (transport.Message, error) {
	if err := s.call("sendMessage"); err != nil {
		return transport.Message{}, err
	}
	s.mu.Lock()
	id := int64(s.calls)
	s.mu.Unlock()
	if len(m.Keyboard) > 0 {
		s.sent <- transport.Tap{ID: fmt.Sprint("tap", id), From: transport.User{ID: 111}, ChatID: m.ChatID, MessageID: id, Data: m.Keyboard[0][0].Data}
	}
	return transport.Message{ID: id}, nil
}

func (s *daySender) SendDocument(context.Context, transport.SendDocument) (transport.Message, error) {
	return transport.Message{}, s.call("sendDocument")
}

func (s *daySender) EditMessageText(context.Context, transport.EditMessageText) error {
	return s.call("editMessageText")
}

func (s *daySender) EditMessageReplyMarkup(context.Context, transport.EditMessageReplyMarkup) error {
	return s.call("editMessageReplyMarkup")
}

func (s *daySender) AnswerCallbackQuery(context.Context, transport.AnswerCallbackQuery) error {
	return s.call("answerCallbackQuery")
}

func (s *daySender) SetMyCommands(context.Context, []transport.Command) error { return nil }

// held counts what the core remembers, apart from askings with a copy whose send was never answered: those are kept, so that the copy
// can be settled when somebody taps it after all.
func (c *Core) held() (held map[string]int, unanswered int) {
	kept := map[string]bool{}
	for _, o := range c.ops {
		for d := range c.deliveries.Of(o.id) {
			if !o.pending() && d.Phase == PhaseUnknown && d.MessageID == 0 {
				kept[o.id.Key] = true
			}
		}
	}
	count := func(id string) int {
		if d, ok := c.deliveries.ByID(id); ok && kept[d.Cycle.Key] {
			return 0
		}
		return 1
	}
	held = map[string]int{
		"ops": len(c.ops) - len(kept), "current": len(c.current) - len(kept), "recording": len(c.recording), "calls": len(c.calls),
		"digests": len(c.digests), "timers": len(c.timers), "lanes": len(c.lanes), "nonces": 0, "progress": 0, "deliveries": 0,
	}
	for id := range c.nonces {
		held["nonces"] += count(id)
	}
	for id := range c.progressShown {
		held["progress"] += count(id)
	}
	for id := range c.deliveries.byID {
		held["deliveries"] += count(id)
	}
	return held, len(kept)
}

// TestADayLeavesNothingBehind runs 24 hours of a gate's life on a simulated clock: requests that are granted and carried out, rejected,
// withdrawn or left to expire, taps, limits and failures. At its end the loop holds no more than after its first hour.
func TestADayLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests, deliveries := approvallog.NewRequests(), NewDeliveries()
		log, journal := newMemLog(time.Now, requests), newMemLog(time.Now, deliveries)
		sender := &daySender{sent: make(chan transport.Tap, 1024)}
		loop := New(Options{
			Log: log, Journal: journal, Requests: requests, Deliveries: deliveries, Sender: sender, Payloads: emptyPayload{}, Pacer: transport.NewPacer(),
			Rules: testRules{rule: Rule{Quorum: 1, Approvers: []Approver{alice}}}, Chat: Chat{ID: 111}, Deputy: Chat{ID: 222}, Reminder: 0.5,
			Check: func() error { return nil },
		})
		if err := loop.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := loop.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		write := func(event, key, actor string, payload map[string]any) {
			_, err := log.Update(t.Context(), func(tx Tx) error {
				_, err := tx.Append(approvallog.Draft{Event: event, Actor: actor, ActionKey: key, Payload: payload})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		var unanswered int
		look := func() (held map[string]int, goroutines int) {
			if _, err := loop.ask(t.Context(), func() { held, unanswered = loop.core.held() }); err != nil {
				t.Fatal(err)
			}
			return held, runtime.NumGoroutine()
		}
		var firstHour map[string]int
		var goroutines int
		asked := 0
		for minute := range 24 * 60 {
			for i := range 2 {
				asked++
				key := fmt.Sprintf("k%d", asked)
				write(approvallog.EventRequested, key, fmt.Sprintf("agent:%d", asked%7), map[string]any{
					"class": "c", "summary": "s", "payload_hash": hashOf([]byte("{}")), "wait_until": time.Now().Add(20 * time.Minute).UTC().Format(time.RFC3339),
				})
				if (minute+i)%5 == 0 {
					write(approvallog.EventWithdrawn, key, fmt.Sprintf("agent:%d", asked%7), map[string]any{"reason": "cancelled"})
				}
			}
			time.Sleep(30 * time.Second)
			for taps := true; taps; {
				select {
				case tap := <-sender.sent:
					if asked%3 == 0 {
						continue // nobody answers this one
					}
					if err := loop.HandleUpdate(t.Context(), transport.Update{ID: int64(asked), Tap: &tap}); err != nil {
						t.Fatal(err)
					}
				default:
					taps = false
				}
			}
			for i := asked - 60; i <= asked; i++ { // what was granted is carried out
				key := fmt.Sprintf("k%d", i)
				var state approvallog.State
				if err := log.View(func() {
					r, _ := requests.Get(key)
					state = r.State
				}); err != nil {
					t.Fatal(err)
				}
				if state == approvallog.StateGranted {
					write(approvallog.EventExecutionStarted, key, "agent:0", map[string]any{})
					write(approvallog.EventExecutionCompleted, key, "agent:0", map[string]any{"exit_code": 0})
				}
			}
			if minute%10 == 0 {
				loop.Configure(*loop.policy())
			}
			loop.Contact(time.Now())
			time.Sleep(30 * time.Second)
			if minute == 59 {
				firstHour, goroutines = look()
			}
		}
		last, now := look()
		t.Logf("%d requests, %d calls; after an hour %v and %d goroutines, after the day %v and %d", asked, sender.calls, firstHour, goroutines, last, now)
		for what, n := range last {
			if n > 2*firstHour[what]+64 {
				t.Errorf("%s grew from %d to %d", what, firstHour[what], n)
			}
		}
		if now > goroutines+8 {
			t.Errorf("goroutines grew from %d to %d", goroutines, now)
		}
		time.Sleep(2 * time.Hour) // all that was left expires and is settled
		end, _ := look()
		t.Logf("at rest: %v, and %d askings with a copy that was never answered for", end, unanswered)
		if unanswered > sender.calls/83+1 {
			t.Errorf("%d askings are kept for copies that were never answered for, of %d sends of that kind", unanswered, sender.calls/83)
		}
		if end["ops"] != 0 || end["current"] != 0 || end["calls"] != 0 || end["nonces"] != 0 || end["progress"] != 0 || end["recording"] != 0 || end["timers"] != 0 {
			t.Errorf("held at rest: %v", end)
		}
		if s := loop.Stats(); s.Pending != 0 || s.Unsettled != 0 {
			t.Errorf("left: %+v", s)
		}
		cancel()
		running.Wait()
	})
}

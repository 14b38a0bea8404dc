package dispatch

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/telegramtest"
	"github.com/approvald/approvald/internal/transport"
)

var floodRequests = flag.Int("flood.requests", 300, "how many requests of a flood wait for one chat")

// TestFloodKeepsThePace: however many requests wait for a chat, they go out as fast as Telegram allows and no faster,
// and nothing is called before a retry_after has ended. Time is simulated: ten thousand requests take hours of it.
func TestFloodKeepsThePace(t *testing.T) {
	limits := telegramtest.TelegramLimits()
	for _, c := range []struct {
		name  string
		chat  int64
		limit telegramtest.Bucket
	}{{"a person", 111, limits.Chat}, {"a group", -1009, limits.Group}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { flood(t, c.chat, c.limit, *floodRequests) })
		})
	}
}

func flood(t *testing.T, chat int64, limit telegramtest.Bucket, n int) {
	server := telegramtest.New(telegramtest.Options{Limits: telegramtest.TelegramLimits()})
	server.AddUser(telegramtest.User{ID: 111, FirstName: "alice"})
	server.AddChat(telegramtest.Chat{ID: -1009, Type: telegramtest.Supergroup, Members: telegramtest.Members(111)})
	if _, err := server.Phone(111).Text("/start"); err != nil {
		t.Fatal(err)
	}
	requests, deliveries := approvallog.NewRequests(), NewDeliveries()
	log, journal := newMemLog(time.Now, requests), newMemLog(time.Now, deliveries)
	_, err := log.Update(t.Context(), func(tx Tx) error {
		for i := range n {
			_, err := tx.Append(approvallog.Draft{Event: approvallog.EventRequested, Actor: fmt.Sprintf("agent:%d", i%20), ActionKey: fmt.Sprint("k", i), Payload: map[string]any{
				"class": "c", "summary": "s", "payload_hash": hashOf([]byte("{}")), "wait_until": tx.Now().Add(24 * 30 * time.Hour),
			}})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sender := &floodSender{server: server}
	loop := New(Options{
		Log: log, Journal: journal, Requests: requests, Deliveries: deliveries, Sender: sender, Payloads: emptyPayload{}, Pacer: transport.NewPacer(),
		Rules: testRules{rule: Rule{Quorum: 1, Approvers: []Approver{alice}}}, Chat: Chat{ID: chat}, Check: func() error { return nil },
	})
	if err := loop.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := loop.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	// Now and then Telegram takes nothing for half a minute.
	const every, pause = 17 * time.Minute, 30 * time.Second
	var muted time.Duration
	for next := began.Add(every); sender.count() < n; time.Sleep(time.Second) {
		if time.Now().After(next) {
			server.Mute(chat, pause)
			muted += pause
			next = next.Add(every)
		}
		if time.Since(began) > 100*time.Hour {
			t.Fatalf("%d of %d cards after %v", sender.count(), n, time.Since(began))
		}
	}
	took := sender.last.Sub(began)
	cancel()
	running.Wait()
	sender.checkWaits(t)
	// Each pause lets the chat's bucket fill up again.
	allowed := float64(limit.Burst) + limit.Rate*(took-muted).Seconds() + float64(muted/pause)*min(float64(limit.Burst), limit.Rate*pause.Seconds())
	share := float64(n) / allowed
	t.Logf("%d cards in %v of which muted %v: %.1f %% of what Telegram allows, %d answers of 429", n, took.Round(time.Second), muted, 100*share, len(sender.limits))
	if share < 0.95 {
		t.Errorf("only %.1f %% of the allowed rate", 100*share)
	}
}

type emptyPayload struct{}

func (emptyPayload) Payload(string) (canonical, file []byte, err error) {
	return []byte("{}"), nil, nil
}

// floodSender calls the server without a network, which simulated time could not wait for, and notes the limits it is told.
type floodSender struct {
	server *telegramtest.Server
	mu     sync.Mutex
	sent   int
	last   time.Time
	calls  []time.Time
	limits []limitTold
}

type limitTold struct {
	at    time.Time
	until time.Time
}

func (f *floodSender) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent
}

func (f *floodSender) call(method string, args url.Values) (transport.Message, error) {
	req := httptest.NewRequest(http.MethodPost, "/bot"+f.server.Token()+"/"+method, strings.NewReader(args.Encode()))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	now := time.Now()
	f.server.ServeHTTP(w, req)
	var answer struct {
		Result     json.RawMessage `json:"result"`
		Parameters struct {
			RetryAfter int `json:"retry_after"`
		} `json:"parameters"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		return transport.Message{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, now)
	if w.Code == http.StatusTooManyRequests {
		wait := time.Duration(answer.Parameters.RetryAfter) * time.Second
		f.limits = append(f.limits, limitTold{now, now.Add(wait)})
		return transport.Message{}, &transport.Error{Method: method, Class: transport.ClassLimited, Code: w.Code, RetryAfter: wait}
	}
	if w.Code != http.StatusOK {
		return transport.Message{}, fmt.Errorf("%s: %s", method, w.Body)
	}
	f.sent++
	f.last = now
	var m struct {
		ID int64 `json:"message_id"`
	}
	err := json.Unmarshal(answer.Result, &m)
	return transport.Message{ID: m.ID}, err
}

// checkWaits holds that no call was made while a limit ran that had been told.
func (f *floodSender) checkWaits(t *testing.T) {
	for _, l := range f.limits {
		i, _ := slices.BinarySearchFunc(f.calls, l.at, time.Time.Compare)
		for ; i < len(f.calls) && f.calls[i].Before(l.until); i++ {
			if f.calls[i].After(l.at) {
				t.Fatalf("a call %v before the retry_after told %v ago was over", l.until.Sub(f.calls[i]), f.calls[i].Sub(l.at))
			}
		}
	}
}

func (f *floodSender) SendMessage(_ context.Context, m transport.SendMessage) (transport.Message, error) {
	keys, err := json.Marshal(m.Keyboard)
	if err != nil {
		return transport.Message{}, err
	}
	return f.call("sendMessage", url.Values{
		"chat_id": {strconv.FormatInt(m.ChatID, 10)}, "text": {m.Text}, "parse_mode": {m.ParseMode}, "reply_markup": {string(keys)},
	})
}

func (f *floodSender) SendDocument(context.Context, transport.SendDocument) (transport.Message, error) {
	panic("no payload of the flood needs a document")
}
func (f *floodSender) EditMessageText(context.Context, transport.EditMessageText) error { return nil }
func (f *floodSender) EditMessageReplyMarkup(context.Context, transport.EditMessageReplyMarkup) error {
	return nil
}
func (f *floodSender) AnswerCallbackQuery(context.Context, transport.AnswerCallbackQuery) error {
	return nil
}
func (f *floodSender) SetMyCommands(context.Context, []transport.Command) error { return nil }

package dispatch

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/telegramtest"
	"github.com/approvald/approvald/internal/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testChat = -1001234

// house is a gate's home with the Bot API server and its people; daemons come and go in it.
type house struct {
	t      testing.TB
	dir    string
	server *telegramtest.Server
	rules  testRules
	chat   Chat
	pacer  Pacer // nil for one with Telegram's pace
	// handled is told when an update has been dealt with: its outcome is on disk.
	handled func(transport.Update)

	mu       sync.Mutex
	payloads map[string][]byte
}

func newHouse(t testing.TB) *house {
	h := &house{
		t: t, dir: t.TempDir(), server: telegramtest.RunT(t, telegramtest.Options{}), payloads: map[string][]byte{}, chat: Chat{ID: testChat},
		rules: testRules{
			rule:    Rule{Quorum: 1, Approvers: []Approver{alice, bob}, RejectReasons: []string{"wrong environment", "not now"}},
			byClass: map[string]Rule{"two": {Quorum: 2, Approvers: []Approver{alice, bob}}},
		},
	}
	for _, a := range []Approver{alice, bob} {
		h.server.AddUser(telegramtest.User{ID: a.TelegramID, FirstName: a.ID})
	}
	h.server.AddUser(telegramtest.User{ID: 444, FirstName: "stranger"})
	h.server.AddChat(telegramtest.Chat{ID: testChat, Type: "supergroup", Members: telegramtest.Members(111, 222, 444)})
	return h
}

func (h *house) Payload(hash string) (canonical, file []byte, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	data, ok := h.payloads[hash]
	if !ok {
		return nil, nil, errors.New("no such payload")
	}
	return data, nil, nil
}

// files are one process' handles on the gate.
type files struct {
	log, journal *approvallog.Log
	requests     *approvallog.Requests
	deliveries   *Deliveries
}

func (h *house) open(guard func() error) *files {
	h.t.Helper()
	f := &files{requests: approvallog.NewRequests(), deliveries: NewDeliveries()}
	var err error
	if f.log, err = approvallog.Open(approvallog.Options{Path: filepath.Join(h.dir, "log", "events.jsonl"), Fold: f.requests, Guard: guard}); err != nil {
		h.t.Fatal(err)
	}
	if err := f.log.Ensure(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	if f.journal, err = approvallog.Open(approvallog.Options{Path: filepath.Join(h.dir, "daemon", "deliveries.jsonl"), Fold: f.deliveries}); err != nil {
		h.t.Fatal(err)
	}
	return f
}

func (f *files) close() {
	_ = f.log.Close()
	_ = f.journal.Close()
}

// daemon is one life of the loop with its poller.
type daemon struct {
	*files
	loop *Loop
	stop func()
	done chan error
}

func (h *house) start() *daemon {
	h.t.Helper()
	d := &daemon{files: h.open(nil), done: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	client, err := transport.New(transport.Options{Token: transport.NewSecret(h.server.Token()), APIBase: h.server.URL()})
	if err != nil {
		h.t.Fatal(err)
	}
	pacer := h.pacer
	if pacer == nil {
		pacer = transport.NewPacer()
	}
	log, journal := WrapLog(d.log), WrapLog(d.journal)
	epoch, err := OpenEpoch(ctx, log, journal, d.deliveries, EpochInfo{Program: "test"})
	if err != nil {
		h.t.Fatal(err)
	}
	d.loop = New(Options{
		Log: log, Journal: journal, Requests: d.requests, Deliveries: d.deliveries, Sender: client, Payloads: h, Pacer: pacer,
		Rules: h.rules, Chat: h.chat, Epoch: epoch, ConfigHash: "c0ffee", Check: func() error { return nil }, Drain: time.Second,
	})
	if err := d.loop.Recover(ctx); err != nil {
		h.t.Fatal(err)
	}
	poller := transport.NewPoller(transport.PollOptions{Client: client, Hold: time.Second})
	polled := make(chan struct{})
	go func() {
		defer close(polled)
		_ = poller.Run(ctx, func(ctx context.Context, u transport.Update) error {
			err := d.loop.HandleUpdate(ctx, u)
			if h.handled != nil && err == nil {
				h.handled(u)
			}
			return err
		})
	}()
	go func() { d.done <- d.loop.Run(ctx) }()
	d.stop = sync.OnceFunc(func() {
		cancel()
		<-polled
		if err := <-d.done; err != nil {
			h.t.Errorf("Run: %v", err)
		}
		client.Close()
		d.close()
	})
	h.t.Cleanup(d.stop)
	return d
}

// ask appends a request as an agent in another process does.
func (h *house) ask(f *files, key, class string, payload any) {
	h.t.Helper()
	h.file(f, "agent:ci", key, class, payload, false)
}

// askAs is ask by another agent, for something that can perhaps be undone.
func (h *house) askAs(f *files, asker, key string, reversible bool) {
	h.t.Helper()
	h.file(f, asker, key, "one", command("/srv", "make", key), reversible)
}

func (h *house) file(f *files, asker, key, class string, payload any, reversible bool) {
	h.t.Helper()
	body := bodyOf(h.t, payload, nil)
	raw, err := approvallog.Canonicalize(mustJSON(h.t, payload))
	if err != nil {
		h.t.Fatal(err)
	}
	h.mu.Lock()
	h.payloads[body.Hash] = raw
	h.mu.Unlock()
	_, err = f.log.Update(h.t.Context(), func(tx *approvallog.Tx) error {
		_, err := tx.Append(approvallog.Draft{Event: approvallog.EventRequested, Actor: asker, Task: key, ActionKey: key, Payload: map[string]any{
			"class": class, "summary": "a summary", "payload_hash": body.Hash, "reversible": reversible,
			"approvald": map[string]any{"quorum": 1, "expires_at": tx.Now().Add(time.Hour).Format(time.RFC3339Nano)},
		}})
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) waitFor(what string, cond func(telegramtest.State) bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 20*time.Second)
	defer cancel()
	if err := h.server.WaitFor(ctx, cond); err != nil {
		h.t.Fatalf("%s: %v\n%+v", what, err, h.server.Messages(testChat))
	}
}

// card waits for the newest card of a key that satisfies cond.
func (h *house) card(key string, cond func(telegramtest.Message) bool) telegramtest.Message {
	h.t.Helper()
	var found telegramtest.Message
	h.waitFor("a card for "+key, func(s telegramtest.State) bool {
		for _, m := range slices.Backward(s.Messages(testChat)) {
			if m.Document == nil && strings.Contains(m.Text, key) && cond(m) {
				found = m
				return true
			}
		}
		return false
	})
	return found
}

func withButtons(m telegramtest.Message) bool { return len(m.Buttons) > 0 }
func settled(m telegramtest.Message) bool     { return len(m.Buttons) == 0 }

func (h *house) tap(who Approver, m telegramtest.Message, label string) telegramtest.Answer {
	h.t.Helper()
	tap, err := h.server.Phone(who.TelegramID).TapMessage(m, label)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), 20*time.Second)
	defer cancel()
	answer, err := tap.Wait(ctx)
	if err != nil {
		h.t.Fatalf("%s taps %s: %v", who.ID, label, err)
	}
	return answer
}

func (h *house) state(f *files, key string) (req approvallog.Request) {
	h.t.Helper()
	if err := f.log.Refresh(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	_ = f.log.View(func() { req, _ = f.requests.Get(key) })
	return req
}

// stats waits until the loop's state satisfies cond. Asking goes through the loop, so this is no spinning.
func (h *house) stats(d *daemon, cond func(Stats) bool) {
	h.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		s := d.loop.Stats()
		if cond(s) {
			return
		}
		if time.Now().After(end) {
			h.t.Fatalf("stats %+v", s)
		}
	}
}

func (h *house) sends() int { return len(h.server.Calls("sendMessage")) }

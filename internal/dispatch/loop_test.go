package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/telegramtest"
	"github.com/approvald/approvald/internal/transport"
)

func TestRequestToDecision(t *testing.T) {
	h := newHouse(t)
	agent := h.open(nil)
	t.Cleanup(agent.close)
	h.start()
	h.ask(agent, "deploy-1", "one", command("/srv", "make", "deploy"))
	m := h.card("deploy-1", withButtons)
	if !strings.Contains(m.Text, "argv  make deploy\ncwd   /srv") {
		t.Errorf("the card does not show the command:\n%s", m.Text)
	}
	if a := h.tap(Approver{ID: "stranger", TelegramID: 444}, m, "Approve"); !a.Alert || !strings.Contains(a.Text, "Not yours") {
		t.Errorf("a stranger was told %+v", a)
	}
	if got := h.state(agent, "deploy-1").State; got != approvallog.StatePending {
		t.Fatalf("a stranger's tap made it %s", got)
	}
	if a := h.tap(alice, m, "Approve"); a.Text != "Granted." {
		t.Errorf("alice was told %+v", a)
	}
	if req := h.state(agent, "deploy-1"); req.State != approvallog.StateGranted || req.Decision.By != "human:alice" {
		t.Fatalf("the log says %s by %+v", req.State, req.Decision)
	}
	m = h.card("deploy-1", settled)
	if !strings.HasPrefix(m.Text, "✅ granted · alice") || !strings.Contains(m.Text, "make deploy") {
		t.Errorf("settled to\n%s", m.Text)
	}
	if h.sends() != 1 {
		t.Errorf("%d messages were sent", h.sends())
	}
}

func TestRejectBecause(t *testing.T) {
	h := newHouse(t)
	d := h.start()
	h.ask(d.files, "k", "one", text("x"))
	m := h.card("k", withButtons)
	h.tap(alice, m, "Reject because…")
	m = h.card("k", func(m telegramtest.Message) bool {
		return withButtons(m) && m.Buttons[0][0].Text == "wrong environment"
	})
	h.tap(alice, m, "wrong environment")
	if req := h.state(d.files, "k"); req.State != approvallog.StateRejected || req.Decision.Note != "wrong environment" {
		t.Errorf("the log says %s %+v", req.State, req.Decision)
	}
	h.card("k", settled)
}

func TestQuorum(t *testing.T) {
	h := newHouse(t)
	d := h.start()
	h.ask(d.files, "k", "two", text("x"))
	m := h.card("k", withButtons)
	if a := h.tap(alice, m, "Approve"); !strings.Contains(a.Text, "1 of 2: alice") {
		t.Errorf("alice was told %q", a.Text)
	}
	m = h.card("k", func(m telegramtest.Message) bool { return withButtons(m) && strings.Contains(m.Text, "1 of 2: alice") })
	d.stop()
	d = h.start() // what was noted outlives the daemon
	if a := h.tap(bob, m, "Approve"); a.Text != "Granted." {
		t.Errorf("bob was told %q", a.Text)
	}
	if req := h.state(d.files, "k"); len(req.Approvals) != 2 {
		t.Errorf("approvals %+v", req.Approvals)
	}
	if m = h.card("k", settled); !strings.Contains(m.Text, "alice") || !strings.Contains(m.Text, "bob") {
		t.Errorf("settled to\n%s", m.Text)
	}
}

func TestRestartSendsNothingTwice(t *testing.T) {
	h := newHouse(t)
	d := h.start()
	h.ask(d.files, "old", "one", text("x"))
	m := h.card("old", withButtons)
	d.stop()
	agent := h.open(nil)
	t.Cleanup(agent.close)
	h.ask(agent, "new", "one", text("y")) // while no daemon runs
	d = h.start()
	h.card("new", withButtons)
	if h.sends() != 2 {
		t.Errorf("%d messages were sent, want one for each request", h.sends())
	}
	h.tap(alice, m, "Approve")
	h.card("old", settled)
	h.stats(d, func(s Stats) bool { return s.Pending == 1 && s.Undelivered == 0 && s.Unsettled == 0 })
}

// TestLostAnswer: a send whose answer is lost is made once more; whichever copy is tapped counts, and both are settled.
func TestLostAnswer(t *testing.T) {
	h := newHouse(t)
	h.server.Fault(telegramtest.Fault{Method: "sendMessage", After: true, Do: telegramtest.Drop()})
	d := h.start()
	h.ask(d.files, "k", "one", text("x"))
	var copies []telegramtest.Message
	h.waitFor("two copies", func(s telegramtest.State) bool {
		copies = s.Messages(testChat)
		return len(copies) == 2
	})
	h.tap(alice, copies[0], "Approve")
	if got := h.state(d.files, "k").State; got != approvallog.StateGranted {
		t.Fatalf("the first copy's tap made it %s", got)
	}
	h.waitFor("both copies settled", func(s telegramtest.State) bool {
		return !slices.ContainsFunc(s.Messages(testChat), withButtons)
	})
}

func TestDocumentGoesFirst(t *testing.T) {
	h := newHouse(t)
	d := h.start()
	long := strings.Repeat("echo harmless\n", 2000) + "evil"
	h.ask(d.files, "k", "one", text(long))
	h.card("k", withButtons)
	all := h.server.Messages(testChat)
	if len(all) != 2 || all[0].Document == nil || string(h.server.Calls("sendDocument")[0].Files[0].Data) != long {
		t.Errorf("messages %+v", all)
	}
}

// TestOneBadRequestStopsNoOther: a payload that is not there is told, and the others are delivered.
func TestOneBadRequestStopsNoOther(t *testing.T) {
	h := newHouse(t)
	d := h.start()
	h.ask(d.files, "good", "one", text("x"))
	h.card("good", withButtons)
	h.ask(d.files, "bad", "one", text("y"))
	h.mu.Lock()
	clear(h.payloads)
	h.mu.Unlock()
	h.ask(d.files, "later", "one", text("z"))
	h.card("later", withButtons)
	h.stats(d, func(s Stats) bool { return s.Undelivered == 1 && len(s.Failing) == 1 && s.Failing[0].Key == "bad" })
}

// TestTapWhileMuted: a limit on sends does not hold up a decision or its answer.
func TestTapWhileMuted(t *testing.T) {
	h := newHouse(t)
	d := h.start()
	h.ask(d.files, "k", "one", text("x"))
	m := h.card("k", withButtons)
	h.server.Fault(telegramtest.Fault{Method: "sendMessage", Count: telegramtest.Always, Do: telegramtest.Limited(time.Hour)})
	h.ask(d.files, "waits", "one", text("y"))
	h.waitFor("the limit", func(s telegramtest.State) bool { return s.Count("sendMessage") == 2 })
	if a := h.tap(bob, m, "Reject"); a.Text != "Rejected." {
		t.Errorf("bob was told %q", a.Text)
	}
	h.stats(d, func(s Stats) bool { return s.MutedUntil.After(time.Now().Add(50*time.Minute)) && s.Undelivered == 1 })
}

func TestTerminal(t *testing.T) {
	h := newHouse(t)
	d := h.start()
	h.ask(d.files, "k", "two", text("x"))
	m := h.card("k", withButtons)
	desk := h.open(nil) // another process
	t.Cleanup(desk.close)
	at := Desk{Log: WrapLog(desk.log), Journal: WrapLog(desk.journal), Requests: desk.requests, Deliveries: desk.deliveries, Rules: h.rules, Person: "alice", UID: 1000}
	got, err := DecideAtTerminal(t.Context(), at, "k", Approve, "")
	if err != nil || !got.Noted || got.Have != 1 || got.Need != 2 {
		t.Fatalf("alice at a terminal: %+v, %v", got, err)
	}
	if a := h.tap(bob, m, "Approve"); a.Text != "Granted." {
		t.Errorf("bob was told %q", a.Text)
	}
	for _, c := range []struct {
		key, person, code string
	}{{"k", "bob", gate.CodeAlreadyDecided}, {"none", "alice", gate.CodeNotFound}, {"k", "mallory", gate.CodeNotAllowed}} {
		other := at
		other.Person = c.person
		if _, err := DecideAtTerminal(t.Context(), other, c.key, Reject, ""); gate.ErrorCode(err) != c.code {
			t.Errorf("%s rejects %s: %v, want %s", c.person, c.key, err, c.code)
		}
	}
	if req, err := RevokeAtTerminal(t.Context(), at, "k", "second thoughts"); err != nil || req.State != approvallog.StateRevoked {
		t.Errorf("revoke: %s, %v", req.State, err)
	}
	if _, err := RevokeAtTerminal(t.Context(), at, "k", ""); gate.ErrorCode(err) != gate.CodeNotGranted {
		t.Errorf("revoke again: %v", err)
	}
	h.card("k", func(m telegramtest.Message) bool { return strings.HasPrefix(m.Text, "⛔ revoked") })
}

// TestFence: a daemon whose epoch has ended writes nothing more, and its loop ends.
func TestFence(t *testing.T) {
	h := newHouse(t)
	f := h.open(nil)
	t.Cleanup(f.close)
	log, journal := WrapLog(f.log), WrapLog(f.journal)
	fence := NewFence(func() error { return nil }, journal, f.deliveries)
	first, err := OpenEpoch(t.Context(), log, journal, f.deliveries, EpochInfo{WebhookURL: "https://x"})
	if err != nil {
		t.Fatal(err)
	}
	fence.Bind(first)
	if err := fence.Guard(); err != nil {
		t.Fatal(err)
	}
	other := h.open(nil)
	t.Cleanup(other.close)
	if _, err := OpenEpoch(t.Context(), WrapLog(other.log), WrapLog(other.journal), other.deliveries, EpochInfo{}); err != nil {
		t.Fatal(err)
	}
	if err := fence.Guard(); !errors.Is(err, approvallog.ErrFenced) {
		t.Errorf("the older epoch is told %v", err)
	}
	if err := CloseEpoch(t.Context(), log, journal, f.deliveries, first); err != nil {
		t.Fatal(err)
	}
	if _, closed := f.deliveries.LastEpoch(); closed {
		t.Error("the older epoch closed the newer one")
	}
}

// TestLeaseLost: nothing is sent without the lease.
func TestLeaseLost(t *testing.T) {
	h := newHouse(t)
	f := h.open(nil)
	t.Cleanup(f.close)
	lost := errors.New("the lease is lost")
	loop := New(Options{
		Log: WrapLog(f.log), Journal: WrapLog(f.journal), Requests: f.requests, Deliveries: f.deliveries, Payloads: h, Pacer: transport.NewPacer(),
		Rules: h.rules, Chat: h.chat, Check: func() error { return lost },
	})
	h.ask(f, "k", "one", text("x"))
	if err := loop.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := loop.Run(t.Context()); !errors.Is(err, lost) {
		t.Errorf("Run: %v", err)
	}
	if n := h.sends(); n != 0 {
		t.Errorf("%d messages were sent", n)
	}
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(fmt.Errorf("marshal: %w", err))
	}
	return raw
}

// BenchmarkAppendToSend is the time from the append of a request by another process to the call of sendMessage.
func BenchmarkAppendToSend(b *testing.B) {
	h := newHouse(b)
	agent := h.open(nil)
	b.Cleanup(agent.close)
	h.start()
	var took []time.Duration
	for i := range b.N {
		key := fmt.Sprintf("k%d", i)
		h.ask(agent, key, "one", text("x"))
		asked := time.Now()
		h.waitFor("the call", func(s telegramtest.State) bool { return s.Count("sendMessage") > i })
		calls := h.server.Calls("sendMessage")
		took = append(took, calls[i].Time.Sub(asked))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-median")
}

// TestFullDiskOfTheJournal: while the journal cannot be written nothing is sent and nothing decided; once it can, the
// loop goes on by itself.
func TestFullDiskOfTheJournal(t *testing.T) {
	requests, deliveries := approvallog.NewRequests(), NewDeliveries()
	log, journal := newMemLog(time.Now, requests), newMemLog(time.Now, deliveries)
	h := newHouse(t)
	client, err := transport.New(transport.Options{Token: transport.NewSecret(h.server.Token()), APIBase: h.server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	loop := New(Options{
		Log: log, Journal: journal, Requests: requests, Deliveries: deliveries, Sender: client, Payloads: h, Pacer: transport.NewPacer(),
		Rules: h.rules, Chat: h.chat, Check: func() error { return nil }, Drain: time.Second,
	})
	if err := loop.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- loop.Run(ctx) }()
	d := &daemon{loop: loop}

	full := func(err error) {
		journal.mu.Lock()
		defer journal.mu.Unlock()
		journal.fail = err
	}
	full(fmt.Errorf("append: nothing was recorded: %w", syscall.ENOSPC))
	body := bodyOf(t, text("x"), nil)
	h.payloads[body.Hash] = []byte(`{"kind":"text","text":"x"}`)
	_, err = log.Update(ctx, func(tx Tx) error {
		_, err := tx.Append(approvallog.Draft{Event: approvallog.EventRequested, Actor: "agent:ci", ActionKey: "k", Payload: map[string]any{
			"class": "one", "payload_hash": body.Hash, "wait_until": time.Now().Add(time.Hour),
		}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	h.stats(d, func(s Stats) bool { return strings.Contains(s.StorageProblem, "no space left") && s.Undelivered == 1 })
	if n := h.sends(); n != 0 {
		t.Errorf("%d messages were sent without a recorded intent", n)
	}
	full(nil)
	h.card("k", withButtons)
	h.stats(d, func(s Stats) bool { return s.StorageProblem == "" && s.Undelivered == 0 })
	if err := loop.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/approvald/approvald/internal/telegramtest"
)

// foreignLog makes the log of another implementation: its event names, amounts as decimal strings, members that approvald does not know,
// requests that it decided, started, or left to be decided.
func (w *world) foreignLog() {
	w.t.Helper()
	payload := []byte(`{"amount":"12.50","to":"acme"}`)
	sum := sha256.Sum256(payload)
	hash := hex.EncodeToString(sum[:])
	ask := func(key string, more map[string]any) map[string]any {
		p := map[string]any{
			"class": "pay.invoice", "summary": "pay the invoice", "payload_hash": hash, "reversible": false, "est_cost_usd": "12.50",
			"execution": "token", "wait_until": "2099-01-01T00:00:00.000Z", "policy": map[string]any{"version": "3", "limits": []any{nil, "0.10", true}},
		}
		for name, value := range more {
			p[name] = value
		}
		return map[string]any{"event": "approval.requested", "actor": "agent:buyer", "task": "t-1", "action_key": key, "payload": p}
	}
	decide := func(event, actor, key string) map[string]any {
		return map[string]any{"event": event, "actor": actor, "task": "t-1", "action_key": key, "channel": "slack", "payload": map[string]any{
			"class": "pay.invoice", "payload_hash": hash, "note": "fine", "sender": map[string]any{"channel": "slack", "id": "U123"},
		}}
	}
	records := []map[string]any{
		{"event": "policy.updated", "actor": "human:root", "payload": map[string]any{"sha256": hash}},
		{"event": "task.registered", "actor": "system:gate", "task": "t-1", "payload": map[string]any{"budget_usd": "100.00"}},
		ask("pay:1", nil),
		decide("approval.granted", "human:carol", "pay:1"),
		{"event": "execution.started", "actor": "agent:buyer", "task": "t-1", "action_key": "pay:1", "payload": map[string]any{"class": "pay.invoice", "payload_hash": hash, "token": "tok_1"}},
		{"event": "execution.completed", "actor": "agent:buyer", "task": "t-1", "action_key": "pay:1", "payload": map[string]any{"cost_usd": "12.49"}},
		ask("pay:2", nil),
		decide("approval.rejected", "human:carol", "pay:2"),
		{"event": "budget.exceeded", "actor": "system:gate", "task": "t-1", "payload": map[string]any{"spent_usd": "101.00", "limit_usd": 100}},
		{"event": "audit.anchored", "actor": "system:audit", "ts": "2026-08-04T11:14:02+02:00"},
		ask("pay:3", map[string]any{"est_cost_usd": 12.5}),
		{"event": "something.newer", "actor": "agent:x", "task": "t-1", "action_key": "pay:3", "payload": map[string]any{"approvald": "not ours"}},
	}
	var text []byte
	prev := any(nil)
	for i, r := range records {
		if r["ts"] == nil {
			r["ts"] = fmt.Sprintf("2026-08-04T09:14:%02d.000Z", i)
		}
		r["alg"], r["seq"], r["prev"] = "sha256/jcs", i+1, prev
		plain, err := json.Marshal(r) // sorted by name, which is the canonical order of these
		w.must(err)
		sum := sha256.Sum256(plain)
		r["hash"] = hex.EncodeToString(sum[:])
		prev = r["hash"]
		line, err := json.Marshal(r)
		w.must(err)
		text = append(append(text, line...), '\n')
	}
	for name, b := range map[string][]byte{w.logFile(): text, filepath.Join(w.home, "payloads", hash+".json"): payload} {
		w.must(os.MkdirAll(filepath.Dir(name), 0o700))
		w.must(os.WriteFile(name, b, 0o600))
	}
}

// TestAnotherImplementationsLogIsGoneOnWith: it verifies, folds, and what it left pending is asked, decided and waited for.
func TestAnotherImplementationsLogIsGoneOnWith(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.foreignLog()
	before, err := os.ReadFile(w.logFile())
	w.must(err)
	w.run(0, "log", "verify", "--semantic")
	if got := w.run(0, "log", "export").stdout.String(); got != string(before) {
		t.Errorf("exported:\n%s", got)
	}
	if rows := w.run(0, "log", "export", "--format", "csv").stdout.String(); strings.Count(rows, "\n") != 3 || !strings.Contains(rows, "human:carol,slack,fine") {
		t.Errorf("the table:\n%s", rows)
	}
	w.run(0, "wait", "pay:1")
	w.run(3, "wait", "pay:2")
	w.run(6, "wait", "pay:3", "--timeout", "50ms")
	if queue := w.run(0, "queue").stdout.String(); strings.Count(queue, "pay:") != 1 || !strings.Contains(queue, "pay:3") {
		t.Errorf("the queue:\n%s", queue)
	}
	w.run(0, "doctor") // as docs/coming-from-approval-md.md has it before the first start
	daemon := w.up()
	card := w.card(daemon, "pay:3")
	if !strings.Contains(card.Body(), "acme") {
		t.Errorf("the card does not show the payload:\n%s", card.Body())
	}
	w.tap(card, "Approve")
	w.settled(daemon, card)
	w.run(0, "wait", "pay:3")
	w.wantEvents("pay:3", "approval.requested", "something.newer", "approval.granted")
	after, err := os.ReadFile(w.logFile())
	w.must(err)
	if !bytes.HasPrefix(after, before) {
		t.Error("the other's records were changed")
	}
	w.run(0, "log", "verify", "--semantic")
}

// formatMembers are the payload members that the format has for each event that approvald writes; its own stand in approvald.
var formatMembers = map[string][]string{
	"approval.requested":  {"class", "summary", "payload_hash", "reversible", "est_cost_usd", "execution", "wait_until", "approvald"},
	"approval.granted":    {"class", "payload_hash", "note", "sender", "batch_delivery_id", "approvald"},
	"approval.rejected":   {"class", "payload_hash", "note", "sender", "batch_delivery_id", "approvald"},
	"approval.expired":    {"approvald"},
	"approval.revoked":    {"note", "approvald"},
	"approval.withdrawn":  {"action_key", "reason", "approvald"},
	"execution.started":   {"class", "payload_hash", "approvald"},
	"execution.completed": {"class", "payload_hash", "exit_code", "approvald"},
	"execution.failed":    {"class", "payload_hash", "exit_code", "approvald"},
}

// TestOwnLogHoldsOnlyWhatTheFormatHas plays every kind of end that a request can have, archives in between, and looks at each member of
// each record.
func TestOwnLogHoldsOnlyWhatTheFormatHas(t *testing.T) {
	t.Parallel()
	w := newWorld(t, top("[requests]\nquorum = 1\n[[rules]]\nclass = \"two.*\"\nquorum = 2\n"))
	daemon := w.up()
	w.wantServes(daemon, "granted")
	decide := func(key, button string, want int) telegramtest.Message {
		t.Helper()
		waiter, card := w.request(daemon, key, "--task", "t", "--irreversible", "--exclusive", "x")
		w.tap(card, button)
		if code := waiter.code(); code != want {
			t.Fatalf("%s: exit code %d", key, code)
		}
		return w.settled(daemon, card)
	}
	decide("rejected", "Reject", 3)
	granted := decide("revoked", "Approve", 0)
	if _, err := w.telegram.Phone(alice).Reply(granted, "revoke not now"); err != nil {
		t.Fatal(err)
	}
	w.until("the grant to be taken back", func() bool { return slices.Contains(w.events("revoked"), "approval.revoked") })
	w.run(0, "request", "withdrawn", "--class", "a.b", "--summary", "s", "--as", "ci")
	w.run(0, "withdraw", "withdrawn", "--reason", "superseded", "--as", "ci")
	w.run(4, "request", "expired", "--class", "a.b", "--summary", "s", "--ttl", "1s", "--wait")
	for key, command := range map[string]string{"ran": "true", "ran-and-failed": "false"} {
		runner := w.start("run", key, "--class", "a.b", "--summary", "s", "--", command)
		w.tap(w.card(daemon, key), "Approve")
		if code := runner.code(); (code == 0) != (command == "true") {
			t.Errorf("%s: exit code %d: %s", key, code, runner.stderr.String())
		}
	}
	w.run(0, "request", "pending", "--class", "a.b", "--summary", "s", "--on-behalf-of", "human:bob")
	w.run(0, "log", "archive", "--carry")
	w.run(0, "log", "verify", "--semantic")

	files, err := filepath.Glob(filepath.Join(w.home, "log", "archive", "*", "events.jsonl"))
	w.must(err)
	seen := map[string]bool{}
	for _, file := range append(files, w.logFile()) {
		text, err := os.ReadFile(file)
		w.must(err)
		w.chain(text)
		for line := range bytes.Lines(text) {
			var r struct {
				Event, Actor, Task string
				Key                string `json:"action_key"`
				Payload            map[string]json.RawMessage
			}
			w.must(json.Unmarshal(line, &r))
			seen[r.Event] = true
			members, known := formatMembers[r.Event]
			if !known || r.Task == "" || r.Key == "" {
				t.Errorf("not of the format: %s", line)
			}
			for name := range r.Payload {
				if !slices.Contains(members, name) {
					t.Errorf("%s has no payload member %s: %s", r.Event, name, line)
				}
			}
			person := r.Event == "approval.granted" || r.Event == "approval.rejected" || r.Event == "approval.revoked"
			switch {
			case person && !strings.HasPrefix(r.Actor, "human:"), r.Event == "approval.withdrawn" && strings.HasPrefix(r.Actor, "system:"),
				r.Event == "approval.expired" && r.Actor != "system:gate":
				t.Errorf("%s by %s", r.Event, r.Actor)
			}
		}
	}
	for event := range formatMembers {
		if !seen[event] {
			t.Errorf("the test has played no %s", event)
		}
	}
}

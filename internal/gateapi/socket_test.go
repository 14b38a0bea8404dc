package gateapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
)

func fullRequest(key string) approvallog.Request {
	at := time.Date(2026, 8, 4, 9, 14, 2, 1e6, time.UTC)
	exit := 3
	return approvallog.Request{
		Key: key, Task: "t", Class: "a.b", Summary: "s <&> \u202e", Requester: "agent:x", State: approvallog.StateCompleted,
		PayloadHash: "h", Seq: 7, RequestedAt: at, ExpiresAt: at.Add(time.Hour), Quorum: 2,
		Decision:  &approvallog.Decision{By: "human:a", At: at, Note: "n", Seq: 9, Channel: "telegram"},
		WaitUntil: at, Reversible: true, EstCostUSD: "1.50", Exclusive: "e", FollowUp: "f", FollowUpKey: "k/then-7", Digest: "d",
		Peer: &approvallog.Peer{UID: 1, PID: 2}, Revision: 3, Previous: approvallog.StateExpired,
		Ending:    &approvallog.Ending{By: "human:a", At: at, Reason: "r", Seq: 10},
		Approvals: []approvallog.Approval{{By: "human:a", At: at}},
		Execution: &approvallog.Execution{By: "agent:x", StartedAt: at, StartedSeq: 11, EndedAt: at, EndedSeq: 12, ExitCode: &exit},
	}
}

func TestRequestSurvivesTheSocketWhole(t *testing.T) {
	for _, key := range []string{"k", "../x", "a/b?c=d&e#f", "__proto__", "🔑 with spaces", "%2e%2e%2f", "a+b", strings.Repeat("é", 128)} {
		want := fullRequest(key)
		path := socketPath(t)
		stop := serve(t, path, newFakeOps(want))
		got, err := client(t, path).Get(t.Context(), key)
		if err != nil {
			t.Fatalf("Get(%q): %v", key, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("request %q changed on its way (-want +got):\n%s", key, d)
		}
		stop()
	}
}

func TestCreateCarriesEverythingAndThePeer(t *testing.T) {
	path, ops := socketPath(t), newFakeOps()
	serve(t, path, ops)
	cost := 0.1
	want := gate.NewRequest{
		Key: "k", Class: "a.b", Summary: "s", Task: "t", Requester: "agent:x",
		Payload: []byte(`{"a":"<&>"}`), File: []byte{0, 0xff}, TTL: 90*time.Second + 7*time.Nanosecond, Quorum: 2,
		Exclusive: "e", Reversible: true, EstCostUSD: &cost, Again: true, WaitFor: time.Minute, OnBehalfOf: "human:alice",
		Peer: &gate.Peer{UID: 4242, PID: 1}, // a claim, to be ignored
		Then: &gate.FollowUp{
			Class: "c.d", Summary: "s2", Task: "t2", OnBehalfOf: "human:bob", Payload: []byte(`{"b":1}`), File: []byte{1}, TTL: time.Hour, Quorum: 3,
			Exclusive: "e2", Reversible: true, Then: &gate.FollowUp{Class: "e.f", Payload: []byte("{}")},
		},
	}
	_, created, err := client(t, path).Create(t.Context(), want)
	if err != nil || !created {
		t.Fatalf("Create: created %v, %v", created, err)
	}
	want.Peer = &gate.Peer{UID: uint32(os.Getuid()), PID: int32(os.Getpid())}
	if d := cmp.Diff(want, ops.created[0]); d != "" {
		t.Errorf("request changed on its way (-want +got):\n%s", d)
	}
}

func TestBigPayloadsPass(t *testing.T) {
	path, ops := socketPath(t), newFakeOps()
	serve(t, path, ops)
	big := make([]byte, gate.MaxPayload)
	if _, _, err := client(t, path).Create(t.Context(), gate.NewRequest{Key: "k", File: big}); err != nil {
		t.Fatalf("Create with %d bytes: %v", len(big), err)
	}
	if got := len(ops.created[0].File); got != len(big) {
		t.Errorf("%d bytes arrived, want %d", got, len(big))
	}
	_, _, err := client(t, path).Create(t.Context(), gate.NewRequest{Key: "k2", File: make([]byte, 2*gate.MaxPayload)})
	wantCode(t, err, gate.CodeInvalidRequest)
}

func TestAskerOperationsCarryThePeer(t *testing.T) {
	path, ops := socketPath(t), newFakeOps(approvallog.Request{Key: "k"})
	serve(t, path, ops)
	c, by := client(t, path), Asker{Key: "k", Requester: "agent:x"}
	r, err := c.Withdraw(t.Context(), Withdrawal{Asker: by, Reason: "cancelled"})
	if err != nil || r.Ending == nil || r.Ending.Reason != "cancelled" || r.Ending.By != "agent:x" {
		t.Errorf("Withdraw = %+v, %v", r, err)
	}
	if r, err = c.StartExecution(t.Context(), by, "hash"); err != nil || r.PayloadHash != "hash" {
		t.Errorf("StartExecution = %+v, %v", r, err)
	}
	if r, err = c.FinishExecution(t.Context(), by, 42); err != nil || *r.Execution.ExitCode != 42 {
		t.Errorf("FinishExecution = %+v, %v", r, err)
	}
	for i, p := range ops.peers {
		if p == nil || p.UID != uint32(os.Getuid()) || p.PID != int32(os.Getpid()) {
			t.Errorf("operation %d came from %+v, want this process", i, p)
		}
	}
}

func TestReadsOverTheSocket(t *testing.T) {
	path := socketPath(t)
	serve(t, path, newFakeOps(fullRequest("k")))
	c := client(t, path)
	canonical, file, err := c.Payload(t.Context(), "known")
	if err != nil || string(canonical) != `{"a":"<&>"}` || string(file) != "\x00\xff\n" {
		t.Errorf("Payload = %q, %q, %v", canonical, file, err)
	}
	_, _, err = c.Payload(t.Context(), "other")
	wantCode(t, err, gate.CodeInternal)
	if list, err := c.List(t.Context()); err != nil || len(list) != 1 || list[0].Key != "k" {
		t.Errorf("List = %v, %v", list, err)
	}
	if st, err := c.Status(t.Context()); err != nil || st.Gate != "g" || st.Holder.Epoch != 3 {
		t.Errorf("Status = %+v, %v", st, err)
	}
}

func TestRefusalsCrossWhole(t *testing.T) {
	path := socketPath(t)
	ops := newFakeOps()
	ops.err = &gate.Error{Code: gate.CodeQueueFull, Message: "200 requests are pending", Hint: "wait"}
	serve(t, path, ops)
	_, _, err := client(t, path).Create(t.Context(), gate.NewRequest{Key: "k"})
	e, ok := errors.AsType[*gate.Error](err)
	if !ok || e.Code != gate.CodeQueueFull || e.Message != "200 requests are pending" || e.Hint != "wait" {
		t.Errorf("Create: %#v, want the gate's own error", err)
	}
}

// No path of the socket decides, and none leads elsewhere.
func TestSocketHasNoOperationThatDecides(t *testing.T) {
	path := socketPath(t)
	serve(t, path, newFakeOps(approvallog.Request{Key: "k", State: approvallog.StatePending}))
	for _, verb := range []string{"approve", "grant", "reject", "decide", "decision", "revoke", "requests/k/approve"} {
		for _, method := range []string{http.MethodPost, http.MethodPut} {
			status, _ := rawCall(t, path, method, "/v1/"+verb, `{"key":"k","requester":"human:alice"}`)
			if status != http.StatusNotFound {
				t.Errorf("%s /v1/%s answers %d, want 404", method, verb, status)
			}
		}
	}
}

func TestForeignBodiesAreRefused(t *testing.T) {
	path := socketPath(t)
	ops := newFakeOps()
	serve(t, path, ops)
	for name, body := range map[string]string{
		"not JSON":           `key=k`,
		"empty":              ``,
		"array":              `[]`,
		"unknown member":     `{"key":"k","peer":{"uid":0}}`,
		"name twice":         `{"key":"k","key":"l"}`,
		"lone surrogate":     `{"key":"\ud800"}`,
		"invalid UTF-8":      "{\"key\":\"\xff\"}",
		"two values":         `{"key":"k"}{"key":"l"}`,
		"duration of no use": `{"key":"k","ttl":"soon"}`,
		"payload not base64": `{"key":"k","payload":"<"}`,
	} {
		status, reply := rawCall(t, path, http.MethodPost, "/v1/requests", body)
		var e errorReply
		if err := json.Unmarshal(reply, &e); err != nil || status != http.StatusBadRequest || e.Error.Code != gate.CodeInvalidRequest {
			t.Errorf("%s: answer %d %s, want 400 invalid-request", name, status, reply)
		}
	}
	if len(ops.created) > 0 {
		t.Errorf("%d requests were made of foreign bodies", len(ops.created))
	}
}

// rawCall speaks to the socket as any program could.
func rawCall(t *testing.T, path, method, target, body string) (int, []byte) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://x"+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, b
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	if e, ok := errors.AsType[*gate.Error](err); !ok || e.Code != code {
		t.Errorf("error is %v, want code %s", err, code)
	}
}

func FuzzDecodeStrict(f *testing.F) {
	f.Add([]byte(`{"key":"k","payload":"e30=","ttl":"1h"}`))
	f.Add([]byte(`{"key":"\ud83d\ude00"}`))
	f.Add([]byte("{}{}"))
	f.Fuzz(func(t *testing.T, body []byte) {
		var b createBody
		if decodeStrict(body, &b) != nil {
			return
		}
		again, err := json.Marshal(b)
		if err != nil {
			t.Fatalf("accepted body does not encode: %v", err)
		}
		var c createBody
		if err := decodeStrict(again, &c); err != nil {
			t.Fatalf("own encoding %s is refused: %v", again, err)
		}
		if d := cmp.Diff(b, c); d != "" {
			t.Errorf("body changed (-want +got):\n%s", d)
		}
	})
}

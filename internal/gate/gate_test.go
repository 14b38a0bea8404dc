package gate

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/durable"
)

// testClock is a clock that only the test moves.
type testClock struct {
	mu  sync.Mutex
	now time.Time
}

func newTestClock() *testClock {
	return &testClock{now: time.Date(2026, 8, 4, 9, 0, 0, 0, time.UTC)}
}

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func openGate(t *testing.T, cfg Config, o OpenOptions) *Gate {
	t.Helper()
	g, err := Open(cfg, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func testGate(t *testing.T) *Gate {
	return openGate(t, testConfig(filepath.Join(t.TempDir(), ".approval")), OpenOptions{})
}

func mustCreate(t *testing.T, g *Gate, r NewRequest) approvallog.Request {
	t.Helper()
	req, created, err := g.Create(t.Context(), r)
	if err != nil || !created {
		t.Fatalf("create %q: created %t, %v", r.Key, created, err)
	}
	return req
}

// record appends what the operations of this package cannot: decisions of people, and records of
// other writers.
func record(t *testing.T, g *Gate, event, actor, key string) {
	t.Helper()
	_, err := g.Log().Update(t.Context(), func(tx *approvallog.Tx) error {
		_, err := tx.Append(approvallog.Draft{Event: event, Actor: actor, Task: key, ActionKey: key})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func grant(t *testing.T, g *Gate, key string) {
	t.Helper()
	record(t, g, approvallog.EventGranted, "human:alice", key)
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	if ErrorCode(err) != code {
		t.Errorf("error = %v (code %q), want code %q", err, ErrorCode(err), code)
	}
}

// records answers how many records the log holds, and that it verifies.
func records(t *testing.T, g *Gate) int64 {
	t.Helper()
	report, err := approvallog.Verify(t.Context(), g.Paths().Log, approvallog.VerifyOptions{Semantic: true})
	if err != nil {
		t.Fatal(err)
	}
	if report.Status != approvallog.StatusClean || len(report.Findings) > 0 {
		t.Errorf("log is %s: %+v", report.Status, report)
	}
	return report.Records
}

func TestRecordOfARequestIsTheFormats(t *testing.T) {
	clock := newTestClock()
	g := openGate(t, testConfig(filepath.Join(t.TempDir(), ".approval")), OpenOptions{Now: clock.Now})
	cost := 12.5
	full := NewRequest{
		Key: "deploy:api#41", Class: "deploy.production", Summary: "restart", Task: "T-1", Requester: "agent:ci",
		Payload: []byte(`{"argv":["kubectl"]}`), TTL: time.Hour, Quorum: 2, Exclusive: "prod",
		Reversible: true, EstCostUSD: &cost, WaitFor: 10 * time.Minute, Peer: &Peer{UID: 1004, PID: 77},
	}
	req := mustCreate(t, g, full)
	least := mustCreate(t, g, newRequest("k"))

	hash := hashHex(full.Payload)
	want := map[string]string{
		"deploy:api#41": `{"approvald":{"exclusive":"prod","expires_at":"2026-08-04T10:00:00.000Z","pid":77,"quorum":2,` +
			`"request_digest":"` + req.Digest + `","uid":1004},"class":"deploy.production","est_cost_usd":12.5,"execution":"harness","payload_hash":"` + hash + `",` +
			`"reversible":true,"summary":"restart","wait_until":"2026-08-04T09:10:00.000Z"}`,
		"k": `{"approvald":{"expires_at":"2026-08-05T09:00:00.000Z","quorum":1,"request_digest":"` + least.Digest + `"},` +
			`"class":"deploy.api","execution":"harness","payload_hash":"` + hashHex([]byte("{}")) + `",` +
			`"reversible":false,"summary":"restart the api","wait_until":"2026-08-05T09:00:00.000Z"}`,
	}
	reader := g.Log().NewReader(0)
	for range 2 {
		rec, err := reader.Next()
		if err != nil {
			t.Fatal(err)
		}
		if got := string(rec.Payload); got != want[rec.ActionKey] {
			t.Errorf("%s\n got %s\nwant %s", rec.ActionKey, got, want[rec.ActionKey])
		}
		if task := map[string]string{"deploy:api#41": "T-1", "k": "k"}[rec.ActionKey]; rec.Task != task || rec.Actor != "agent:ci" || rec.Event != "approval.requested" {
			t.Errorf("record: %+v", rec)
		}
	}
	if req.ExpiresAt.Sub(clock.Now()) != time.Hour || req.Quorum != 2 || req.State != approvallog.StatePending || req.Seq != 1 {
		t.Errorf("answered: %+v", req)
	}
	records(t, g)
}

func TestPayloadIsOnDiskBeforeItsRecord(t *testing.T) {
	home := filepath.Join(t.TempDir(), ".approval")
	var g *Gate
	failed := false
	hook := func(op, path string) error {
		if !failed && op == "payload.sync" {
			failed = true
			return errors.New("no space left")
		}
		return nil
	}
	g = openGate(t, testConfig(home), OpenOptions{FS: durable.FS{Hook: hook}})
	in := newRequest("k")
	var err error
	if in.Payload, in.File, err = BindPayload("blob", []byte("\xff\xfe")); err != nil {
		t.Fatal(err)
	}
	_, _, err = g.Create(t.Context(), in)
	wantCode(t, err, CodeInternal)
	if n := records(t, g); n != 0 {
		t.Errorf("%d records although the payload is not on disk", n)
	}
	if left, _ := os.ReadDir(g.Paths().Payloads); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}

	r := mustCreate(t, g, in)
	for path, mode := range map[string]fs.FileMode{
		home: 0o700, g.Paths().Payloads: 0o700, filepath.Dir(g.Paths().Log): 0o700, g.Paths().Log: 0o600,
		filepath.Join(g.Paths().Payloads, r.PayloadHash+".json"):              0o600,
		filepath.Join(g.Paths().Payloads, hashHex([]byte("\xff\xfe"))+".bin"): 0o600,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want %04o", path, info.Mode(), err, mode)
		}
	}
	canonical, file, err := g.Payload(r.PayloadHash)
	if err != nil || string(canonical) != string(in.Payload) || string(file) != "\xff\xfe" {
		t.Errorf("read back %s, %q, %v", canonical, file, err)
	}
}

func TestDamagedPayloadsAreNeverAnswered(t *testing.T) {
	g := testGate(t)
	in := newRequest("k")
	var err error
	if in.Payload, in.File, err = BindPayload("blob", []byte("\xff")); err != nil {
		t.Fatal(err)
	}
	r := mustCreate(t, g, in)
	bin := filepath.Join(g.Paths().Payloads, hashHex(in.File)+".bin")
	if err := os.WriteFile(bin, []byte("\xfe"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = g.Payload(r.PayloadHash)
	wantCode(t, err, CodePayloadDamaged)
	if err := os.Remove(filepath.Join(g.Paths().Payloads, r.PayloadHash+".json")); err != nil {
		t.Fatal(err)
	}
	_, _, err = g.Payload(r.PayloadHash)
	wantCode(t, err, CodePayloadDamaged)
	for _, hash := range []string{"", "../../etc/passwd", strings.Repeat("A", 64), strings.Repeat("0", 63)} {
		_, _, err = g.Payload(hash)
		wantCode(t, err, CodeInvalidRequest)
	}
	// The name says which bytes are right, so that a new request repairs them.
	again := in
	again.Key = "k2"
	mustCreate(t, g, again)
	if _, file, err := g.Payload(r.PayloadHash); err != nil || string(file) != "\xff" {
		t.Errorf("after the repair: %q, %v", file, err)
	}
}

func TestKeysNeverBecomePaths(t *testing.T) {
	g := testGate(t)
	files := func() (names []string) {
		t.Helper()
		err := filepath.WalkDir(filepath.Dir(g.Paths().Home), func(path string, d fs.DirEntry, err error) error {
			names = append(names, path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	mustCreate(t, g, newRequest("plain"))
	before := files()
	for _, key := range []string{
		"../x", "../../../../tmp/x", "/abs", "__proto__", "🚀", ".", "..", " ", "a\\b", strings.Repeat("é", 128), "k?x=1#y",
	} {
		r := mustCreate(t, g, newRequest(key))
		got, err := g.Get(t.Context(), key)
		if err != nil || got.Key != key || got.Seq != r.Seq {
			t.Errorf("%q: %+v, %v", key, got, err)
		}
	}
	if after := files(); !slices.Equal(before, after) {
		t.Errorf("the keys made files: %q", after)
	}
	for _, key := range []string{"", "a\x00", "\xff", strings.Repeat("x", 257)} {
		_, err := g.Get(t.Context(), key)
		wantCode(t, err, CodeInvalidRequest)
		_, _, err = g.Create(t.Context(), newRequest(key))
		wantCode(t, err, CodeInvalidRequest)
	}
	_, err := g.Get(t.Context(), "unheard of")
	wantCode(t, err, CodeNotFound)
}

func TestLookingAtAGateWritesNothing(t *testing.T) {
	g := testGate(t)
	if list, err := g.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("list: %v, %v", list, err)
	}
	_, err := g.Get(t.Context(), "k")
	wantCode(t, err, CodeNotFound)
	if _, err := os.Stat(g.Paths().Home); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the home was made: %v", err)
	}
}

func TestDamagedGateIsReadOnly(t *testing.T) {
	cfg := testConfig(filepath.Join(t.TempDir(), ".approval"))
	g := openGate(t, cfg, OpenOptions{})
	for _, key := range []string{"a", "b", "c"} {
		mustCreate(t, g, newRequest(key))
	}
	lines, err := os.ReadFile(g.Paths().Log)
	if err != nil {
		t.Fatal(err)
	}
	damaged := strings.Replace(string(lines), `"action_key":"b"`, `"action_key":"B"`, 1)
	if err := os.WriteFile(g.Paths().Log, []byte(damaged), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open(cfg, OpenOptions{})
	wantCode(t, err, CodeLogCorrupt)

	look := openGate(t, cfg, OpenOptions{ReadDamaged: true})
	wantCode(t, look.Damage(), CodeLogCorrupt)
	if r, err := look.Get(t.Context(), "a"); err != nil || r.Key != "a" {
		t.Errorf("what is intact cannot be read: %v", err)
	}
	if list, err := look.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("list: %v, %v", list, err)
	}
	_, _, err = look.Create(t.Context(), newRequest("d"))
	wantCode(t, err, CodeLogCorrupt)
	if after, err := os.ReadFile(g.Paths().Log); err != nil || string(after) != damaged {
		t.Errorf("the damaged log was changed: %v", err)
	}
}

func TestGateWhoseLogIsMissingIsDamagedAndNotFresh(t *testing.T) {
	cfg := testConfig(filepath.Join(t.TempDir(), ".approval"))
	g := openGate(t, cfg, OpenOptions{})
	mustCreate(t, g, newRequest("k"))
	if err := os.Remove(g.Paths().Log); err != nil {
		t.Fatal(err)
	}
	_, err := Open(cfg, OpenOptions{})
	wantCode(t, err, CodeLogCorrupt)
	_, _, err = g.Create(t.Context(), newRequest("k2"))
	wantCode(t, err, CodeLogCorrupt)
	if _, err := os.Stat(g.Paths().Log); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a new log was begun: %v", err)
	}
}

func TestGuardRefusesEveryChange(t *testing.T) {
	cfg := testConfig(filepath.Join(t.TempDir(), ".approval"))
	g := openGate(t, cfg, OpenOptions{})
	mustCreate(t, g, newRequest("k"))
	fenced := openGate(t, cfg, OpenOptions{Guard: func() error { return approvallog.ErrFenced }})
	_, _, err := fenced.Create(t.Context(), newRequest("k2"))
	wantCode(t, err, CodeFenced)
	_, err = fenced.Withdraw(t.Context(), "k", "agent:ci", nil, "cancelled")
	wantCode(t, err, CodeFenced)
	if n := records(t, g); n != 1 {
		t.Errorf("%d records", n)
	}
}

// race runs n processes that begin their jobs together and answers what each got.
func race(t *testing.T, n int, job func(i int) helperJob) []helperResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	type child struct {
		cmd *exec.Cmd
		out *bufio.Reader
		in  func(helperJob) error
	}
	children := make([]child, n)
	for i := range children {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), helperEnv+"=1")
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		children[i] = child{cmd, bufio.NewReader(stdout), func(job helperJob) error { return json.NewEncoder(stdin).Encode(job) }}
	}
	for _, c := range children {
		if line, err := c.out.ReadString('\n'); err != nil || line != "ready\n" {
			t.Fatalf("helper: %q, %v", line, err)
		}
	}
	for i, c := range children {
		if err := c.in(job(i)); err != nil {
			t.Fatal(err)
		}
	}
	results := make([]helperResult, n)
	for i, c := range children {
		if err := json.NewDecoder(c.out).Decode(&results[i]); err != nil {
			t.Errorf("helper %d: %v", i, err)
		}
		if err := c.cmd.Wait(); err != nil {
			t.Errorf("helper %d: %v", i, err)
		}
	}
	return results
}

func TestFullDiskRefusesAndRecordsNothing(t *testing.T) {
	var full atomic.Bool
	var at string
	hook := func(op, _ string) error {
		if full.Load() && op == at {
			return &durable.Partial{N: 3, Err: syscall.ENOSPC}
		}
		return nil
	}
	for _, at = range []string{"payload.write", "append.write"} {
		full.Store(false)
		g := openGate(t, testConfig(filepath.Join(t.TempDir(), ".approval")), OpenOptions{FS: durable.FS{Hook: hook}})
		mustCreate(t, g, newRequest("before"))
		in := newRequest("k")
		in.Payload = []byte(`{"at":"` + at + `"}`)
		full.Store(true)
		_, _, err := g.Create(t.Context(), in)
		wantCode(t, err, CodeInternal)
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: err = %v", at, err)
		} else if e, _ := errors.AsType[*Error](err); !strings.Contains(e.Hint, "space") {
			t.Errorf("%s: hint = %q", at, e.Hint)
		}
		if n := records(t, g); n != 1 {
			t.Errorf("%s: %d records", at, n)
		}
		// With space again the same process goes on.
		full.Store(false)
		mustCreate(t, g, in)
	}
}

package gate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/durable"
)

// followed is a request with a follow-up of its own payload.
func followed(key string) NewRequest {
	r := newRequest(key)
	r.Peer = &Peer{UID: 1004, PID: 77}
	r.Then = &FollowUp{Class: "deploy.verify", Summary: "does it hold?", Payload: []byte(`{"verify":1}`), TTL: time.Hour, Quorum: 2}
	return r
}

// complete has a pending request granted and executed.
func complete(t testing.TB, g *Gate, r approvallog.Request) approvallog.Request {
	t.Helper()
	decide(t, g, approvallog.EventGranted, r.Key)
	if _, err := g.StartExecution(t.Context(), r.Key, r.PayloadHash, r.Requester, r.Peer); err != nil {
		t.Fatal(err)
	}
	done, err := g.FinishExecution(t.Context(), r.Key, r.Requester, r.Peer, 0)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func due(t testing.TB, g *Gate) (list []approvallog.Request) {
	t.Helper()
	if err := g.read(t.Context(), func() { list = g.reqs.Due() }); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestAFollowUpIsARequestLikeAnyOther(t *testing.T) {
	g := testGate(t)
	in := followed("k")
	in.OnBehalfOf, in.Task = "human:carol", "the-task"
	in.Then.Exclusive, in.Then.Reversible = "lane", true
	var err error
	in.Then.Then = &FollowUp{Class: "deploy.last", Summary: "and then?", OnBehalfOf: "human:dave"}
	if in.Then.Then.Payload, in.Then.Then.File, err = BindPayload("blob", []byte("\xff\x00")); err != nil {
		t.Fatal(err)
	}
	parent := mustCreate(t, g, in)
	if parent.FollowUpKey != "k/then-1" || len(parent.FollowUp) != 64 {
		t.Fatalf("%+v", parent)
	}
	if _, err := g.OpenFollowUp(t.Context(), parent); ErrorCode(err) != CodeNotYet || records(t, g) != 1 {
		t.Errorf("opened too early: %v", err)
	}
	parent = complete(t, g, parent)
	child, err := g.OpenFollowUp(t.Context(), parent)
	if err != nil {
		t.Fatal(err)
	}
	want := child
	want.Key, want.Class, want.Summary, want.Task, want.Requester, want.OnBehalfOf = "k/then-1", "deploy.verify", "does it hold?", "the-task", "agent:ci", "human:carol"
	want.State, want.Quorum, want.Exclusive, want.Reversible, want.Peer = approvallog.StatePending, 2, "lane", true, child.Peer
	if fmt.Sprintf("%+v", child) != fmt.Sprintf("%+v", want) || *child.Peer != *in.Peer || child.ExpiresAt.Sub(child.RequestedAt) != time.Hour {
		t.Errorf("the follow-up: %+v", child)
	}
	if payload, _, err := g.Payload(child.PayloadHash); err != nil || string(payload) != `{"verify":1}` {
		t.Errorf("its payload: %s, %v", payload, err)
	}

	// Opening it again is harmless, and so is a retry by one who asks for the same.
	n := records(t, g)
	if again, err := g.OpenFollowUp(t.Context(), parent); err != nil || again.Seq != child.Seq {
		t.Errorf("opened again: %+v, %v", again, err)
	}
	retry := in.Then.after(in)
	retry.Key = child.Key
	if r, created, err := g.Create(t.Context(), retry); err != nil || created || r.Seq != child.Seq {
		t.Errorf("retry: %+v, created %v, %v", r, created, err)
	}
	if m := records(t, g); m != n || len(due(t, g)) != 0 {
		t.Errorf("%d records, then %d; due %+v", n, m, due(t, g))
	}

	last, err := g.OpenFollowUp(t.Context(), complete(t, g, child))
	if err != nil || last.Key != "k/then-1/then-5" || last.Class != "deploy.last" || last.FollowUpKey != "" || last.Requester != "agent:ci" || last.OnBehalfOf != "human:dave" {
		t.Fatalf("%+v, %v", last, err)
	}
	if _, file, err := g.Payload(last.PayloadHash); err != nil || string(file) != "\xff\x00" {
		t.Errorf("its file: %q, %v", file, err)
	}
}

// The plan's bytes are what the digest of the request before it holds, so they may not change with a version.
func TestAPlanIsKeptAsTheFormatSays(t *testing.T) {
	g := testGate(t)
	parent := mustCreate(t, g, followed("k"))
	canonical, _, err := g.Payload(parent.FollowUp)
	const want = `{"class":"deploy.verify","kind":"follow-up","payload_hash":"%s","quorum":2,"reversible":false,"summary":"does it hold?","ttl":"1h0m0s"}`
	if err != nil || string(canonical) != fmt.Sprintf(want, hashHex([]byte(`{"verify":1}`))) {
		t.Errorf("%s, %v", canonical, err)
	}
}

func TestAnotherFollowUpIsAConflict(t *testing.T) {
	g := testGate(t)
	first := mustCreate(t, g, followed("k"))
	if r, created, err := g.Create(t.Context(), followed("k")); err != nil || created || r.Seq != first.Seq {
		t.Errorf("retry: %+v, created %v, %v", r, created, err)
	}
	for name, change := range map[string]func(*FollowUp){
		"class": func(f *FollowUp) { f.Class = "a.b" }, "summary": func(f *FollowUp) { f.Summary = "x" }, "payload": func(f *FollowUp) { f.Payload = nil },
		"ttl": func(f *FollowUp) { f.TTL = 0 }, "quorum": func(f *FollowUp) { f.Quorum = 1 }, "exclusive": func(f *FollowUp) { f.Exclusive = "x" },
		"reversible": func(f *FollowUp) { f.Reversible = true }, "task": func(f *FollowUp) { f.Task = "x" },
		"on behalf": func(f *FollowUp) { f.OnBehalfOf = "human:x" }, "then": func(f *FollowUp) { f.Then = &FollowUp{Class: "a.b", Summary: "s"} },
	} {
		in := followed("k")
		change(in.Then)
		_, _, err := g.Create(t.Context(), in)
		wantCode(t, err, CodeRequestConflict)
		if err == nil || !strings.Contains(err.Error(), "what differs: follow-up ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, _, err := g.Create(t.Context(), newRequest("k"))
	wantCode(t, err, CodeRequestConflict)
}

func TestWhatFollowsIsCheckedWithTheRequest(t *testing.T) {
	cfg := testConfig(filepath.Join(t.TempDir(), ".approval"))
	cfg.Approvers[0].UID = uid(1004)
	cfg.Rules = []ClassRule{{Class: "eyes.*", FourEyes: true}}
	g := openGate(t, cfg, OpenOptions{})
	deep := &FollowUp{Class: "a.b", Summary: "s"}
	for range MaxFollowUps {
		deep = &FollowUp{Class: "a.b", Summary: "s", Then: deep}
	}
	for name, f := range map[string]*FollowUp{
		"class": {Class: "A", Summary: "s"}, "summary": {Class: "a.b"}, "ttl": {Class: "a.b", Summary: "s", TTL: 1},
		"quorum": {Class: "a.b", Summary: "s", Quorum: 3}, "four eyes": {Class: "eyes.x", Summary: "s", Quorum: 2},
		"payload": {Class: "a.b", Summary: "s", Payload: []byte("{ }")}, "task": {Class: "a.b", Summary: "s", Task: "\n"},
		"exclusive": {Class: "a.b", Summary: "s", Exclusive: "\n"}, "on behalf": {Class: "a.b", Summary: "s", OnBehalfOf: "alice"},
		"what follows it": {Class: "a.b", Summary: "s", Then: &FollowUp{Class: "A", Summary: "s"}}, "depth": deep,
		"size": {Class: "a.b", Summary: "s", Payload: fmt.Appendf(nil, "%q", strings.Repeat("x", MaxPayload-3))},
	} {
		in := followed("k")
		in.Then = f
		_, _, err := g.Create(t.Context(), in)
		if ErrorCode(err) != CodeInvalidRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(g.Paths().Log); err == nil {
		t.Error("what was refused made a log")
	}
	in := followed("k")
	in.Then = deep.Then
	mustCreate(t, g, in)
}

// A follow-up goes by the limits and the rules that hold when it is asked for, and waits for room: it stays due.
func TestAFollowUpWaitsForRoom(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Config)
		code   string
	}{
		"queue":     {func(c *Config) { c.Requests.MaxPending = 1 }, CodeQueueFull},
		"requester": {func(c *Config) { c.Requests.PerRequesterPerHour = 2 }, CodeRateLimited},
		"exclusive": {func(*Config) {}, CodeBusy},
		"quorum":    {func(c *Config) { c.Approvers = c.Approvers[:1] }, CodeInvalidRequest},
		"payload":   {func(c *Config) { os.Remove(filepath.Join(c.Paths().Payloads, hashHex([]byte(`{"verify":1}`))+".json")) }, CodePayloadDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			g := testGate(t)
			in := followed("k")
			in.Then.Exclusive = "lane"
			parent := complete(t, g, mustCreate(t, g, in))
			other := newRequest("other")
			other.Peer = in.Peer
			if tt.code == CodeBusy {
				other.Exclusive = "lane"
			}
			mustCreate(t, g, other)
			cfg := g.Config()
			tt.change(&cfg)
			narrow := openGate(t, cfg, OpenOptions{})
			_, err := narrow.OpenFollowUp(t.Context(), parent)
			wantCode(t, err, tt.code)
			if list := due(t, g); len(list) != 1 || list[0].Key != "k" {
				t.Fatalf("due: %+v", list)
			}
			if _, err := g.Withdraw(t.Context(), "other", "agent:ci", nil, "cancelled"); err != nil {
				t.Fatal(err)
			}
			if err := g.keepPayload(hashHex([]byte(`{"verify":1}`)), []byte(`{"verify":1}`), nil); err != nil {
				t.Fatal(err)
			}
			if r, err := g.OpenFollowUp(t.Context(), parent); err != nil || r.State != approvallog.StatePending {
				t.Errorf("with room: %+v, %v", r, err)
			}
		})
	}
}

// Whatever is missing of a plan or a payload was refused before a record named it.
func TestPlanAndPayloadAreOnDiskBeforeTheRecord(t *testing.T) {
	for n := 1; ; n++ {
		seen := 0
		hook := func(op, _ string) error {
			if op == "payload.sync" {
				if seen++; seen == n {
					return errors.New("no space left")
				}
			}
			return nil
		}
		g := openGate(t, testConfig(filepath.Join(t.TempDir(), ".approval")), OpenOptions{FS: durable.FS{Hook: hook}})
		_, _, err := g.Create(t.Context(), followed("k"))
		if err == nil {
			if n != 4 {
				t.Errorf("%d files are kept, want those of the request, the follow-up and the plan", n-1)
			}
			return
		}
		if records(t, g) != 0 {
			t.Errorf("write %d failed, and there is a record", n)
		}
	}
}

func TestOnlyTheGateAsksUnderTheKeyOfAFollowUp(t *testing.T) {
	g := testGate(t)
	parent := mustCreate(t, g, followed("k"))
	for key, code := range map[string]string{
		"k/then-1": CodeNotYet, "k/then-2": CodeInvalidRequest, "nobody/then-7": CodeInvalidRequest,
		approvallog.FollowUpKey(strings.Repeat("k", 256), 3): CodeInvalidRequest,
	} {
		_, _, err := g.Create(t.Context(), newRequest(key))
		wantCode(t, err, code)
	}
	// Its asker may ask for it anew once it has ended, like for any other request.
	child, err := g.OpenFollowUp(t.Context(), complete(t, g, parent))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Withdraw(t.Context(), child.Key, "agent:ci", nil, "cancelled"); err != nil {
		t.Fatal(err)
	}
	again := followed("k").Then.after(followed("k"))
	again.Key, again.Again = child.Key, true
	mustCreate(t, g, again)
}

func TestWhatIsSaidOfAFollowUpThatNobodyAskedFor(t *testing.T) {
	finish := func(code int) func(*Gate, approvallog.Request) error {
		return func(g *Gate, r approvallog.Request) error {
			decide(t, g, approvallog.EventGranted, r.Key)
			if _, err := g.StartExecution(t.Context(), r.Key, r.PayloadHash, r.Requester, nil); err != nil {
				return err
			}
			_, err := g.FinishExecution(t.Context(), r.Key, r.Requester, nil, code)
			return err
		}
	}
	for name, tt := range map[string]struct {
		do   func(*Gate, approvallog.Request) error
		code string
		says string
	}{
		"pending":   {func(*Gate, approvallog.Request) error { return nil }, CodeNotYet, `follows "k", which is pending`},
		"granted":   {func(g *Gate, _ approvallog.Request) error { decide(t, g, approvallog.EventGranted, "k"); return nil }, CodeNotYet, "which is granted"},
		"completed": {finish(0), CodeNotYet, "which is completed"},
		"failed":    {finish(3), CodeNotFound, "which is failed"},
		"rejected":  {func(g *Gate, _ approvallog.Request) error { decide(t, g, approvallog.EventRejected, "k"); return nil }, CodeNotFound, "which is rejected"},
		"withdrawn": {func(g *Gate, r approvallog.Request) error {
			_, err := g.Withdraw(t.Context(), "k", r.Requester, nil, "cancelled")
			return err
		}, CodeNotFound, "which is withdrawn"},
		"asked again": {func(g *Gate, r approvallog.Request) error {
			if _, err := g.Withdraw(t.Context(), "k", r.Requester, nil, "cancelled"); err != nil {
				return err
			}
			in := followed("k")
			in.Again = true
			_, _, err := g.Create(t.Context(), in)
			return err
		}, CodeNotFound, "no request has the key"},
	} {
		t.Run(name, func(t *testing.T) {
			g := testGate(t)
			if err := tt.do(g, mustCreate(t, g, followed("k"))); err != nil {
				t.Fatal(err)
			}
			_, err := g.Get(t.Context(), "k/then-1")
			wantCode(t, err, tt.code)
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v", err)
			}
			if tt.code == CodeNotFound {
				_, err := g.Wait(t.Context(), "k/then-1")
				wantCode(t, err, tt.code)
			}
		})
	}
}

func TestAWaitForAFollowUpBeginsBeforeIt(t *testing.T) {
	g := testGate(t)
	parent := mustCreate(t, g, followed("k"))
	type answer struct {
		r   approvallog.Request
		err error
	}
	got := make(chan answer, 1)
	other := openGate(t, g.Config(), OpenOptions{})
	go func() {
		r, err := other.Wait(t.Context(), "k/then-1")
		got <- answer{r, err}
	}()
	if _, err := g.OpenFollowUp(t.Context(), complete(t, g, parent)); err != nil {
		t.Fatal(err)
	}
	decide(t, g, approvallog.EventGranted, "k/then-1")
	if a := <-got; a.err != nil || a.r.State != approvallog.StateGranted {
		t.Errorf("%+v", a)
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	mustCreate(t, g, followed("k2"))
	if _, err := g.Wait(ended, "k2/then-7"); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that has no time: %v", err)
	}
}

func TestArchiveRefusesToForgetAFollowUp(t *testing.T) {
	g := testGate(t)
	parent := complete(t, g, mustCreate(t, g, followed("k")))
	mustCreate(t, g, newRequest("other"))
	if _, err := g.Withdraw(t.Context(), "other", "agent:ci", nil, "cancelled"); err != nil {
		t.Fatal(err)
	}
	_, err := g.Archive(t.Context(), ArchiveOptions{})
	wantCode(t, err, CodePending)
	if err == nil || !strings.Contains(err.Error(), `the follow-up "k/then-1" of "k" was not asked for yet`) {
		t.Errorf("%v", err)
	}
	done, err := g.Archive(t.Context(), ArchiveOptions{Carry: true})
	if err != nil || len(done.Carried) != 1 || done.Carried[0].Key != "k" {
		t.Errorf("%+v, %v", done, err)
	}
	if list := due(t, g); len(list) != 1 || list[0].Seq != parent.Seq {
		t.Fatalf("due after the archive: %+v", list)
	}
	if r, err := g.OpenFollowUp(t.Context(), parent); err != nil || r.Key != "k/then-1" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestFollowUpFile(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"p.json": `{"b": 2, "a": 1}`, "sub/t.txt": "text", "twice.json": `{"a":1,"a":2}`} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(doc string) (*FollowUp, error) {
		path := filepath.Join(dir, "then.toml")
		if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		return ReadFollowUp(path)
	}
	f, err := read(`class = "a.b"
summary = "s"
payload = "p.json"
task = "t"
ttl = "90m"
quorum = 2
exclusive = "x"
irreversible = true
on-behalf-of = "human:alice"
[then]
class = "c.d"
summary = "s2"
payload = "sub/t.txt"
[then.then]
class = "e.f"
summary = "s3"
command = ["make", "deploy"]
cwd = "/srv"
`)
	if err != nil {
		t.Fatal(err)
	}
	last := f.Then.Then
	if f.Class != "a.b" || f.Summary != "s" || string(f.Payload) != `{"a":1,"b":2}` || f.Task != "t" || f.TTL != 90*time.Minute || f.Quorum != 2 || f.Exclusive != "x" ||
		f.Reversible || f.OnBehalfOf != "human:alice" || string(f.Then.Payload) != `{"kind":"text","text":"text"}` || !f.Then.Reversible ||
		string(last.Payload) != `{"argv":["make","deploy"],"cwd":"/srv","kind":"command"}` || last.Then != nil {
		t.Errorf("%+v %+v %+v", f, f.Then, last)
	}
	const good = "class = \"a.b\"\nsummary = \"s\"\n"
	for doc, want := range map[string]string{
		"":                                  `:1: class: is missing`,
		"class = \"a.b\"\n":                 `:1: summary: is missing`,
		"class = 7\n":                       `:1: class: is the integer 7`,
		good + "payload = \"none\"":         `:3: payload: open `,
		good + "payload = \"twice.json\"":   `:3: payload: the payload is JSON that cannot be bound`,
		good + "payload = 1":                `:3: payload: is the integer 1`,
		good + "command = []":               `:3: command: is empty`,
		good + "command = [\"a\", 1]":       `:3: command[1]: is the integer 1`,
		good + "cwd = \"/\"":                `:3: cwd: belongs to a command`,
		good + "command=[\"a\"]\ncwd=\"x\"": `:4: cwd: "x" is not an absolute path`,
		good + "then = 1":                   `:3: then: is the integer 1`,
		good + "[then]\nclass=\"a.b\"":      `:3: then.summary: is missing`,
		good + "key = \"k\"":                `:3: key: unknown key`,
		good + "again = true":               `:3: again: unknown key`,
		good + "irreversible = 1":           `:3: irreversible: is the integer 1`,
		good + "ttl = \"1ms\"":              `:3: ttl: 1ms is out of range`,
		good + "summary = \"s\"":            `:3: summary: is not valid TOML`,
		good + "on-behalf-of = \"alice\"":   `:3: on-behalf-of: the request is made on behalf of "alice"`,
	} {
		_, err := read(doc)
		wantCode(t, err, CodeInvalidRequest)
		if err == nil || !strings.Contains(err.Error(), "then.toml"+want) {
			t.Errorf("%q: %v, want %s", doc, err, want)
		}
	}
	big := good + "# " + strings.Repeat("x", maxFollowUpFile)
	if _, err := read(big); err == nil || !strings.Contains(err.Error(), "larger than 1 MiB") {
		t.Errorf("%v", err)
	}
	if _, err := ReadFollowUp(filepath.Join(dir, "none.toml")); ErrorCode(err) != CodeInvalidRequest {
		t.Errorf("%v", err)
	}
}

// The names in the file are those of the flags, as far as a follow-up has them.
func FuzzFollowUpFile(f *testing.F) {
	f.Add("class = \"a.b\"\nsummary = \"s\"\n[then]\nclass=\"a\"\nsummary=\"t\"\ncommand=[\"x\"]\n")
	f.Add("then = {then = {then = {then = {then = {}}}}}")
	f.Add("payload = [1]\ncommand = \"x\"\ncwd = 3")
	known := []string{"class", "summary", "task", "ttl", "quorum", "exclusive", "irreversible", "on-behalf-of", "payload", "command", "cwd", "then"}
	f.Fuzz(func(t *testing.T, doc string) {
		follow, err := parseFollowUp("f", t.TempDir(), []byte(doc))
		if err == nil {
			if follow == nil || CheckClass(follow.Class) != nil || CheckSummary(follow.Summary) != nil {
				t.Errorf("%q: %+v", doc, follow)
			}
			return
		}
		list, ok := errors.AsType[*ConfigError](err)
		if !ok || len(list.Faults) == 0 {
			t.Fatalf("%q: %v", doc, err)
		}
		for _, fault := range list.Faults {
			if fault.File != "f" || fault.Line < 1 || fault.What == "" {
				t.Errorf("%q: %+v", doc, fault)
			}
			if fault.What == "unknown key" {
				last := fault.Key[strings.LastIndexByte(fault.Key, '.')+1:]
				if slices.Contains(known, last) {
					t.Errorf("%q: %s is not known", doc, fault.Key)
				}
			}
		}
	})
}

// FuzzPlan: what is kept is read back as it was, or refused.
func FuzzPlan(f *testing.F) {
	f.Add(`{"class":"a","kind":"follow-up","payload_hash":"` + strings.Repeat("a", 64) + `","reversible":true,"summary":"s"}`)
	f.Add(`{"kind":"follow-up"}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ReadPlan([]byte(text))
		if err == nil && (p.Kind != planKind || !isHash(p.PayloadHash)) || err != nil && ErrorCode(err) != CodePayloadDamaged {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	})
}

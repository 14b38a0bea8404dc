package gate

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/approvald/approvald/internal/approvallog"
)

// twins are two gates that are asked the same at the same time. The log of the second is archived now
// and then, by a handle that was open all the time or by one that was not; the first never is.
type twins struct {
	dir   string
	clock *testClock
	whole *Gate
	cut   [2]*Gate
}

// Whatever is archived, and when, and whoever looks: a gate answers as if its log had never been cut.
func TestArchiveChangesNoAnswer(t *testing.T) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		if err := flag.Set("rapid.checks", "25"); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := flag.Set("rapid.checks", f.DefValue); err != nil {
				t.Fatal(err)
			}
		}()
	}
	base := memoryDir(t)
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(base, "")
		if err != nil {
			t.Fatal(err)
		}
		tw := &twins{dir: dir, clock: newTestClock()}
		tw.whole = tw.open(t, "whole")
		for i := range tw.cut {
			tw.cut[i] = tw.open(t, "cut")
		}
		t.Cleanup(func() {
			for _, g := range []*Gate{tw.whole, tw.cut[0], tw.cut[1]} {
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			}
		})
		t.Repeat(map[string]func(*rapid.T){
			"create":  tw.create,
			"decide":  tw.decide,
			"change":  tw.change,
			"archive": tw.archive,
			"reopen": func(t *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(t, "handle")
				if err := tw.cut[i].Close(); err != nil {
					t.Fatal(err)
				}
				tw.cut[i] = tw.open(t, "cut")
			},
			"time passes": func(t *rapid.T) {
				tw.clock.advance(time.Duration(rapid.IntRange(1, 50).Draw(t, "minutes")) * time.Minute)
			},
			"": tw.compare,
		})
		for _, path := range tw.segments(t) {
			if err := verifyAlone(path); err != nil {
				t.Errorf("%s is not sound by itself: %v", path, err)
			}
		}
	})
}

func (tw *twins) open(t *rapid.T, name string) *Gate {
	cfg := testConfig(filepath.Join(tw.dir, name, ".approval"))
	cfg.Requests.PerRequesterPerHour = 6
	g, err := Open(cfg, OpenOptions{Now: tw.clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func (tw *twins) segments(t *rapid.T) []string {
	p := tw.cut[0].Paths()
	files, err := filepath.Glob(filepath.Join(p.Archive, "*", "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p.Log); err == nil {
		files = append(files, p.Log)
	}
	return files
}

var twinKeys = []string{"a", "b", "c"}

// both asks both gates and wants the same answer.
func (tw *twins) both(t *rapid.T, ask func(g *Gate) (approvallog.Request, string, error)) {
	i := rapid.IntRange(0, 1).Draw(t, "handle")
	want := answer(ask(tw.whole))
	if got := answer(ask(tw.cut[i])); got != want {
		t.Fatalf("after an archive the answer is\n%s\nand without one\n%s", got, want)
	}
}

// answer is an answer but for the numbers of records: a carried record has one too.
func answer(r approvallog.Request, more string, err error) string {
	r.Seq, r.Peer = 0, nil
	if r.Decision != nil {
		d := *r.Decision
		d.Seq = 0
		r.Decision = &d
	}
	if r.Ending != nil {
		e := *r.Ending
		e.Seq = 0
		r.Ending = &e
	}
	if r.Execution != nil {
		x := *r.Execution
		x.StartedSeq, x.EndedSeq = 0, 0
		r.Execution = &x
	}
	shown, _ := json.Marshal(r)
	ending, _ := json.Marshal(r.Ending)
	execution, _ := json.Marshal(r.Execution)
	return fmt.Sprintf("%s revision %d, before %q, ending %s, execution %s, approvals %v, digest %s, %s %s",
		shown, r.Revision, r.Previous, ending, execution, r.Approvals, r.Digest, more, ErrorCode(err))
}

func (tw *twins) create(t *rapid.T) {
	in := newRequest(rapid.SampledFrom(twinKeys).Draw(t, "key"))
	in.Summary = rapid.SampledFrom([]string{"one", "one", "one", "two"}).Draw(t, "summary")
	in.Exclusive = rapid.SampledFrom([]string{"", "", "lock"}).Draw(t, "exclusive")
	in.Again = rapid.Bool().Draw(t, "again")
	in.TTL = 90 * time.Minute
	tw.both(t, func(g *Gate) (approvallog.Request, string, error) {
		r, created, err := g.Create(context.Background(), in)
		return r, fmt.Sprintf("created %t", created), err
	})
}

// decide appends what people decide, also where that decides nothing.
func (tw *twins) decide(t *rapid.T) {
	key := rapid.SampledFrom(twinKeys).Draw(t, "key")
	event := rapid.SampledFrom([]string{approvallog.EventGranted, approvallog.EventGranted, approvallog.EventRejected, approvallog.EventRevoked}).Draw(t, "event")
	tw.both(t, func(g *Gate) (approvallog.Request, string, error) {
		_, err := g.Log().Update(context.Background(), func(tx *approvallog.Tx) error {
			r, known := g.Requests().Get(key)
			needs := approvallog.StatePending
			if event == approvallog.EventRevoked {
				needs = approvallog.StateGranted
			}
			if !known || r.StateAt(tx.Now()) != needs {
				return nil
			}
			return g.appendTo(tx, approvallog.Draft{Event: event, Actor: "human:alice", Task: key, ActionKey: key})
		})
		if err != nil {
			t.Fatal(err)
		}
		r, err := g.Get(context.Background(), key)
		return r, "", err
	})
}

// change does what the requester does with a request.
func (tw *twins) change(t *rapid.T) {
	key := rapid.SampledFrom(twinKeys).Draw(t, "key")
	op := rapid.SampledFrom([]string{"withdraw", "start", "start", "finish"}).Draw(t, "op")
	ctx := context.Background()
	tw.both(t, func(g *Gate) (r approvallog.Request, _ string, err error) {
		switch op {
		case "withdraw":
			r, err = g.Withdraw(ctx, key, "agent:ci", nil, "cancelled")
		case "start":
			r, err = g.StartExecution(ctx, key, hashHex(emptyPayload), "agent:ci", nil)
		default:
			r, err = g.FinishExecution(ctx, key, "agent:ci", nil, 3)
		}
		return r, "", err
	})
}

func (tw *twins) archive(t *rapid.T) {
	g := tw.cut[rapid.IntRange(0, 1).Draw(t, "handle")]
	carry := rapid.Bool().Draw(t, "carry")
	_, err := g.Archive(context.Background(), ArchiveOptions{Carry: carry})
	if err != nil && (carry || ErrorCode(err) != CodePending) {
		t.Fatal(err)
	}
	// An archive records what has expired by then.
	err = tw.whole.update(context.Background(), "expire", func(tx *approvallog.Tx) error {
		for _, r := range tw.whole.reqs.Pending() {
			if err := tw.whole.recordExpiry(tx, r.Key); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// compare looks at every key through every handle.
func (tw *twins) compare(t *rapid.T) {
	ctx := context.Background()
	all := func(g *Gate) (text string) {
		for _, key := range twinKeys {
			r, err := g.Get(ctx, key)
			text += answer(r, "", err) + "\n"
		}
		list, err := g.List(ctx)
		for _, r := range list {
			text += r.Key + " "
		}
		return text + ErrorCode(err)
	}
	want := all(tw.whole)
	for _, g := range tw.cut {
		if got := all(g); got != want {
			t.Fatalf("after an archive the answers are\n%s\nand without one\n%s", got, want)
		}
	}
}

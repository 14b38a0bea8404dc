package approvallog

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if work := os.Getenv(workerVariable); work != "" {
		os.Exit(runWorker(work))
	}
	goleak.VerifyTestMain(m)
}

func canonicalOf(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	canonical, err := Canonicalize(b)
	if err != nil {
		t.Fatal(err)
	}
	return canonical
}

func digest(t testing.TB, v any) string {
	t.Helper()
	sum := sha256.Sum256(canonicalOf(t, v))
	return hex.EncodeToString(sum[:])
}

// The vector of the format, which other implementations check as well.
func TestKnownAnswer(t *testing.T) {
	const hash = "0e1395f075452e903a475bcc1bcb0304801b4f06b1d12cd49e9be96ddfdff468"
	const line = `{"action_key":"k","actor":"agent:drafter","alg":"sha256/jcs","event":"approval.withdrawn","hash":"` + hash +
		`","payload":{"action_key":"k","reason":"timeout"},"prev":null,"seq":1,"task":"t","ts":"2026-08-04T09:14:02.000Z"}` + "\n"

	path := logPath(t)
	record := mustAppend(t, openTest(t, path), "k")[0]
	if record.Hash != hash {
		t.Errorf("hash %s, want %s", record.Hash, hash)
	}
	if got := string(readFile(t, path)); got != line {
		t.Errorf("stored line\n%swant\n%s", got, line)
	}
	if report := wantClean(t, path, 1); report.Head != (Head{1, hash}) {
		t.Errorf("head %v", report.Head)
	}
}

func TestAppendReadsBackAsWritten(t *testing.T) {
	path := logPath(t)
	l := openTest(t, path)
	ctx := context.Background()
	drafts := []Draft{
		{Event: "task.registered", Actor: "system:gate"},
		{Event: "x", Actor: "human:Zoë \"Z\" \\ \x01\u2028😀", Task: "\t", ActionKey: "../x", Channel: "telegram", Payload: map[string]any{"b": 1.5, "a": "é"}},
		{Event: "y", Actor: "agent:a", Payload: json.RawMessage(` { "z" : [ ] , "a" : 1e0 } `)},
	}
	written, err := l.Append(ctx, Head{}, drafts...)
	if err != nil {
		t.Fatal(err)
	}
	h := &recorder{}
	openTest(t, path, func(o *Options) { o.Fold = h })
	if len(h.records) != len(drafts) {
		t.Fatalf("%d records, want %d", len(h.records), len(drafts))
	}
	for i, read := range h.records {
		w := written[i]
		if !read.TS.Equal(w.TS) || read.Seq != w.Seq || read.Event != w.Event || read.Actor != w.Actor || read.Hash != w.Hash || read.Prev != w.Prev ||
			read.Task != w.Task || read.ActionKey != w.ActionKey || read.Channel != w.Channel ||
			!bytes.Equal(read.Payload, w.Payload) || !bytes.Equal(read.Raw, w.Raw) {
			t.Errorf("record %d read as %+v, written as %+v", i+1, read, w)
		}
		if read.Actor != drafts[i].Actor || read.ActionKey != drafts[i].ActionKey {
			t.Errorf("record %d: %+v, drafted as %+v", i+1, read, drafts[i])
		}
	}
	if got := string(h.records[2].Payload); got != `{"a":1,"z":[]}` {
		t.Errorf("payload %s", got)
	}
}

func TestAppendRefusesInvalidDrafts(t *testing.T) {
	path := logPath(t)
	l := openTest(t, path)
	mustAppend(t, l, "k")
	before := readFile(t, path)
	for name, d := range map[string]Draft{
		"no event":                 {Actor: "agent:a"},
		"no actor":                 {Event: "x"},
		"actor without a name":     {Event: "x", Actor: "agent:"},
		"actor of another kind":    {Event: "x", Actor: "robot:x"},
		"invalid UTF-8 in a key":   {Event: "x", Actor: "agent:a", ActionKey: "\xff"},
		"payload is an array":      {Event: "x", Actor: "agent:a", Payload: []int{1}},
		"payload not JSON":         {Event: "x", Actor: "agent:a", Payload: json.RawMessage(`{`)},
		"payload with a key twice": {Event: "x", Actor: "agent:a", Payload: json.RawMessage(`{"a":1,"a":1}`)},
		"payload beyond 2^53":      {Event: "x", Actor: "agent:a", Payload: map[string]any{"n": int64(1) << 60}},
		"payload invalid UTF-8":    {Event: "x", Actor: "agent:a", Payload: map[string]any{"s": "\xff"}},
		"payload unmarshalable":    {Event: "x", Actor: "agent:a", Payload: func() {}},
		"too long":                 {Event: "x", Actor: "agent:a", Payload: map[string]any{"s": strings.Repeat("x", maxLine)}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := l.Append(context.Background(), l.Head(), d); !errors.Is(err, ErrInvalid) {
				t.Fatalf("error %v, want ErrInvalid", err)
			}
		})
	}
	if !bytes.Equal(before, readFile(t, path)) {
		t.Fatal("a refused draft changed the file")
	}
	if _, err := l.Append(context.Background(), l.Head(), Draft{Event: "x", Actor: "agent:a", Payload: map[string]any{"s": "\ufffd and `\\ufffd`"}}); err != nil {
		t.Fatalf("a real U+FFFD and its escape as text: %v", err)
	}
}

func TestAppendComparesTheHead(t *testing.T) {
	path := logPath(t)
	a, b := openTest(t, path), openTest(t, path)
	ctx := context.Background()
	mustAppend(t, a, "1")
	if _, err := b.Append(ctx, Head{}, draft("2")); !errors.Is(err, ErrHeadMoved) {
		t.Fatalf("error %v, want ErrHeadMoved", err)
	}
	if _, err := b.Append(ctx, b.Head(), draft("2")); err != nil {
		t.Fatal(err)
	}
	wantClean(t, path, 2)
}

func TestDeciderErrorAppendsNothing(t *testing.T) {
	path := logPath(t)
	h := &recorder{}
	l := openTest(t, path, func(o *Options) { o.Fold = h })
	mustAppend(t, l, "1")
	refused := errors.New("refused")
	_, err := l.Update(context.Background(), func(tx *Tx) error {
		if _, err := tx.Append(draft("2")); err != nil {
			return err
		}
		return refused
	})
	if err != refused {
		t.Fatalf("error %v, want the decider's own", err)
	}
	mustAppend(t, l, "3")
	wantClean(t, path, 2)
	if len(h.records) != 2 {
		t.Fatalf("fold has %d records", len(h.records))
	}
}

func TestDeciderPanicsInItsOwnCaller(t *testing.T) {
	path := logPath(t)
	l := openTest(t, path)
	func() {
		defer func() {
			if recover() != "mine" {
				t.Error("the panic did not come back")
			}
		}()
		l.Update(context.Background(), func(*Tx) error { panic("mine") })
	}()
	mustAppend(t, l, "1")
	wantClean(t, path, 1)
}

func TestGuardIsAskedInsideTheLock(t *testing.T) {
	path := logPath(t)
	fenced := true
	l := openTest(t, path, func(o *Options) {
		o.Guard = func() error {
			if _, err := os.Lstat(path + ".lock"); err != nil {
				t.Errorf("the guard ran without the lock: %v", err)
			}
			if fenced {
				return ErrFenced
			}
			return nil
		}
	})
	if _, err := l.Append(context.Background(), Head{}, draft("1")); !errors.Is(err, ErrFenced) {
		t.Fatalf("error %v, want ErrFenced", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Fatal("a fenced writer made the log")
	}
	fenced = false
	mustAppend(t, l, "1")
}

// Two handles in one process are as apart as two processes: 100 goroutines, one chain.
func TestTwoHandlesHundredGoroutines(t *testing.T) {
	path := logPath(t)
	var handles [2]*Log
	for i := range handles {
		handles[i] = openTest(t, path, func(o *Options) { o.LockWait = 10 * time.Second; o.Fold = &recorder{} })
	}
	var group sync.WaitGroup
	for i := range 100 {
		group.Go(func() {
			if _, err := handles[i%2].Update(context.Background(), func(tx *Tx) error {
				_, err := tx.Append(draft(fmt.Sprint(i)))
				return err
			}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	wantClean(t, path, 100)
	if left := listed(t, filepath.Dir(path)); !bytes.Equal([]byte(left), []byte("events.jsonl events.jsonl.queue")) {
		// The prepared files go with their handles.
		for _, h := range handles {
			h.Close()
		}
		if left = listed(t, filepath.Dir(path)); left != "events.jsonl events.jsonl.queue" {
			t.Errorf("left behind: %s", left)
		}
	}
}

func listed(t testing.TB, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

func TestLaterDecidersSeeEarlierOnesInTheFold(t *testing.T) {
	path := logPath(t)
	h := &recorder{}
	l := openTest(t, path, func(o *Options) { o.Fold = h; o.LockWait = 10 * time.Second })
	var group sync.WaitGroup
	var created int
	for range 50 {
		group.Go(func() {
			l.Update(context.Background(), func(tx *Tx) error {
				for _, r := range h.records {
					if r.ActionKey == "once" {
						return nil
					}
				}
				created++ // deciders run one after the other
				_, err := tx.Append(draft("once"))
				return err
			})
		})
	}
	group.Wait()
	if created != 1 {
		t.Fatalf("%d deciders created the key", created)
	}
	wantClean(t, path, 1)
}

func TestUpdateWithoutRecordsWritesNothing(t *testing.T) {
	path := logPath(t)
	lines := makeLog(t, path, 2)
	writeFile(t, path, join(lines[0], lines[1][:20]))
	l := openTest(t, path)
	if !l.Torn() {
		t.Error("the torn tail was not noted")
	}
	if records, err := l.Update(context.Background(), func(*Tx) error { return nil }); err != nil || len(records) != 0 {
		t.Fatal(records, err)
	}
	if !bytes.Equal(readFile(t, path), join(lines[0], lines[1][:20])) {
		t.Fatal("the file has changed")
	}
}

func TestViewAndCallsAfterClose(t *testing.T) {
	l := openTest(t, logPath(t))
	mustAppend(t, l, "1")
	if err := l.View(func() {}); err != nil {
		t.Fatal(err)
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := l.View(func() { t.Error("ran") }); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := l.Append(context.Background(), Head{}, draft("2")); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestFileModes(t *testing.T) {
	path := logPath(t)
	lines := makeLog(t, path, 1)
	writeFile(t, path, join(lines[0], []byte("{")))
	mustAppend(t, openTest(t, path), "2")
	err := filepath.WalkDir(filepath.Dir(path), func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", p, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

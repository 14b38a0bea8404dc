package approvallog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// await fails the test when nothing arrives; the limit is for a broken build, not a measure.
func await(t *testing.T, changed <-chan struct{}) {
	t.Helper()
	select {
	case <-changed:
	case <-time.After(20 * time.Second):
		t.Fatal("not woken")
	}
}

func TestChangedWakesForEveryWriter(t *testing.T) {
	path := logPath(t)
	ctx := context.Background()
	reader, writer := openTest(t, path), openTest(t, path)
	changed, stop := reader.Changed()
	defer stop()
	waitFor := func(seq int64) {
		t.Helper()
		for reader.Head().Seq < seq {
			await(t, changed)
			if err := reader.Refresh(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustAppend(t, writer, "1") // makes the directory and the file
	waitFor(1)
	mustAppend(t, writer, "2")
	waitFor(2)
	mustAppend(t, reader, "3")
	await(t, changed)
	// A foreign writer: bytes come without any call of ours.
	other := logPath(t)
	lines := makeLog(t, other, 4)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	third, err := reader.NewReader(2).Next()
	if err != nil {
		t.Fatal(err)
	}
	line := resealed(t, lines[3], func(m map[string]any) { m["prev"] = third.Hash })
	if _, err := f.Write(line); err != nil {
		t.Fatal(err)
	}
	waitFor(4)
}

func TestChangedEndsItsGoroutine(t *testing.T) {
	l := openTest(t, logPath(t))
	_, stop1 := l.Changed()
	_, stop2 := l.Changed()
	stop1()
	stop2()
	_, _ = l.Changed()
	l.Close() // goleak in TestMain sees what is left
}

func TestReaderFollows(t *testing.T) {
	path := logPath(t)
	l, other := openTest(t, path), openTest(t, path)
	r := l.NewReader(2)
	if _, err := r.Next(); err != io.EOF {
		t.Fatalf("empty log: %v", err)
	}
	mustAppend(t, other, "1", "2", "3")
	mustAppend(t, l, "4")
	for want := int64(3); want <= 4; want++ {
		record, err := r.Next()
		if err != nil || record.Seq != want {
			t.Fatalf("record %d, %v; want %d", record.Seq, err, want)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Fatal(err)
	}
	mustAppend(t, other, "5")
	if record, err := r.Next(); err != nil || record.ActionKey != "5" {
		t.Fatal(record, err)
	}
	l.Close()
	if _, err := r.Next(); !errors.Is(err, ErrClosed) {
		t.Fatalf("after Close: %v", err)
	}
}

// Readers start anywhere, also far from the places that the log remembers.
func TestReaderStartsAnywhere(t *testing.T) {
	path := logPath(t)
	l := openTest(t, path)
	const records = 3*indexStep + 10
	for l.Head().Seq < records {
		drafts := make([]Draft, min(500, records-l.Head().Seq))
		for i := range drafts {
			drafts[i] = draft(fmt.Sprintf("%d", l.Head().Seq+int64(i)+1))
		}
		if _, err := l.Append(context.Background(), l.Head(), drafts...); err != nil {
			t.Fatal(err)
		}
	}
	for _, log := range []*Log{l, openTest(t, path)} {
		for _, after := range []int64{0, 1, indexStep - 1, indexStep, indexStep + 1, 2*indexStep + 500, records - 1} {
			r := log.NewReader(after)
			for want := after + 1; want <= records; want++ {
				record, err := r.Next()
				if err != nil || record.Seq != want || record.ActionKey != fmt.Sprint(want) {
					t.Fatalf("after %d: record %d, %v; want %d", after, record.Seq, err, want)
				}
			}
			if _, err := r.Next(); err != io.EOF {
				t.Fatal(err)
			}
		}
	}
}

// A record that is being written is not there yet, and never damage.
func TestReadersTolerateAHalfWrittenRecord(t *testing.T) {
	path := logPath(t)
	lines := makeLog(t, path, 3)
	writeFile(t, path, join(lines[:2]...))
	h := &recorder{}
	l := openTest(t, path, func(o *Options) { o.Fold = h })
	r := l.NewReader(0)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range lines[2] {
		if _, err := f.Write(lines[2][i : i+1]); err != nil {
			t.Fatal(err)
		}
		if err := l.Refresh(context.Background()); err != nil {
			t.Fatalf("after %d bytes: %v", i+1, err)
		}
		for {
			if _, err := r.Next(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("after %d bytes: %v", i+1, err)
			}
		}
	}
	if len(h.records) != 3 || l.Torn() {
		t.Fatalf("%d records, torn %v", len(h.records), l.Torn())
	}
	mustAppend(t, l, "4")
	wantClean(t, path, 4)
}

// Verify beside a writer waits for the end of what is being written.
func TestVerifyBesideAWriter(t *testing.T) {
	path := logPath(t)
	l := openTest(t, path)
	mustAppend(t, l, "0")
	done := make(chan struct{})
	go func() {
		defer close(done)
		pad := map[string]string{"pad": strings.Repeat("x", 200_000)}
		for range 50 {
			if _, err := l.Append(context.Background(), l.Head(), Draft{Event: "x", Actor: "agent:a", Payload: pad}); err != nil {
				t.Error(err)
			}
		}
	}()
	for writing := true; writing; {
		select {
		case <-done:
			writing = false
		default:
		}
		if report := verify(t, path); report.Status != StatusClean {
			t.Errorf("%+v", report)
		}
	}
}

// Reading works without any right to write, and leaves every byte and time as it was.
func TestReadingChangesNothing(t *testing.T) {
	path := logPath(t)
	lines := makeLog(t, path, 3)
	content := join(lines[0], lines[1], lines[2][:30])
	writeFile(t, path, content)
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	names := listed(t, filepath.Dir(path))
	verify(t, path)
	l := openTest(t, path)
	if _, err := l.NewReader(0).Next(); err != nil {
		t.Fatal(err)
	}
	changed, stop := l.Changed()
	_ = changed
	stop()
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := Export(context.Background(), path, &out, ExportOptions{}); err != nil {
		t.Fatal(err)
	}
	l.Close()
	after, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(readFile(t, path), content) || !after.ModTime().Equal(before.ModTime()) || listed(t, filepath.Dir(path)) != names {
		t.Error("something has changed")
	}
}

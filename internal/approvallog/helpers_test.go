package approvallog

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// testClock is a fixed time for records.
var testClock = time.Date(2026, 8, 4, 9, 14, 2, 0, time.UTC)

// recorder is a fold that keeps the records.
type recorder struct{ records []Record }

func (h *recorder) Apply(r Record) error {
	if want := int64(len(h.records)) + 1; r.Seq != want {
		return fmt.Errorf("fed record %d, want %d", r.Seq, want)
	}
	h.records = append(h.records, r)
	return nil
}

func logPath(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "home", "log", "events.jsonl")
}

func openTest(t testing.TB, path string, change ...func(*Options)) *Log {
	t.Helper()
	o := Options{Path: path, Now: func() time.Time { return testClock }, LockWait: 200 * time.Millisecond}
	for _, f := range change {
		f(&o)
	}
	l, err := Open(o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func draft(key string) Draft {
	return Draft{
		Event: EventWithdrawn, Actor: "agent:drafter", Task: "t", ActionKey: key,
		Payload: json.RawMessage(`{"action_key":"k","reason":"timeout"}`),
	}
}

func mustAppend(t testing.TB, l *Log, keys ...string) []Record {
	t.Helper()
	var all []Record
	for _, key := range keys {
		records, err := l.Update(context.Background(), func(tx *Tx) error {
			_, err := tx.Append(draft(key))
			return err
		})
		if err != nil {
			t.Fatalf("append %s: %v", key, err)
		}
		all = append(all, records...)
	}
	return all
}

// makeLog writes a log of n records and returns its bytes, line by line with their LF.
func makeLog(t testing.TB, path string, n int) [][]byte {
	t.Helper()
	l := openTest(t, path)
	for i := range n {
		mustAppend(t, l, fmt.Sprintf("key-%d", i+1))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return splitLines(readFile(t, path))
}

func splitLines(b []byte) [][]byte {
	var lines [][]byte
	for len(b) > 0 {
		end := 0
		for end < len(b) && b[end] != '\n' {
			end++
		}
		end = min(end+1, len(b))
		lines = append(lines, b[:end:end])
		b = b[end:]
	}
	return lines
}

func join(lines ...[]byte) []byte {
	var b []byte
	for _, line := range lines {
		b = append(b, line...)
	}
	return b
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeFile(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func verify(t testing.TB, path string) Report {
	t.Helper()
	report, err := Verify(context.Background(), path, VerifyOptions{})
	if err != nil {
		t.Fatalf("verify: %v", err)
	}
	return report
}

func wantClean(t testing.TB, path string, records int64) Report {
	t.Helper()
	report := verify(t, path)
	if report.Status != StatusClean || report.Records != records {
		t.Fatalf("verify: %s after %d records (%s: %s), want %d clean ones", report.Status, report.Records, report.Reason, report.Detail, records)
	}
	return report
}

// resealed gives the line with its hash computed anew after a change to its members.
func resealed(t testing.TB, line []byte, change func(m map[string]any)) []byte {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(line, &m); err != nil {
		t.Fatal(err)
	}
	change(m)
	delete(m, "hash")
	m["hash"] = digest(t, m)
	return append(canonicalOf(t, m), '\n')
}

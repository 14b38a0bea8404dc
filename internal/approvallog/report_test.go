package approvallog

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"strings"
	"testing"
	"time"
)

// story writes the life of some requests, one record a minute.
func story(t *testing.T, path string, drafts ...Draft) {
	t.Helper()
	now := testClock
	l := openTest(t, path, func(o *Options) { o.Now = func() time.Time { return now } })
	defer l.Close()
	for _, d := range drafts {
		if _, err := l.Append(context.Background(), l.Head(), d); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Minute)
	}
}

func event(name, actor, key string, payload map[string]any) Draft {
	return Draft{Event: name, Actor: actor, ActionKey: key, Task: key, Payload: payload}
}

func TestSemanticFindings(t *testing.T) {
	soon := testClock.Add(90 * time.Second).Format(time.RFC3339)
	ask := func(key string) Draft { return event(EventRequested, "agent:a", key, nil) }
	grant := func(key string) Draft { return event(EventGranted, "human:h", key, nil) }
	tests := map[string]struct {
		records []Draft
		want    string // codes and sequence numbers
	}{
		"in order":      {[]Draft{ask("k"), grant("k"), event(EventExecutionStarted, "agent:a", "k", nil), event(EventExecutionCompleted, "agent:a", "k", nil)}, ""},
		"asked again":   {[]Draft{ask("k"), event(EventExpired, "system:gate", "k", nil), ask("k"), grant("k")}, ""},
		"nobody asked":  {[]Draft{grant("k")}, "decision-without-request 1"},
		"decided twice": {[]Draft{ask("k"), grant("k"), event(EventRejected, "human:h", "k", nil)}, "second-decision 3"},
		"too late":      {[]Draft{event(EventRequested, "agent:a", "k", map[string]any{"wait_until": soon}), ask("x"), grant("k")}, "grant-after-deadline 3"},
		"too late, own deadline": {[]Draft{
			event(EventRequested, "agent:a", "k", map[string]any{"approvald": map[string]any{"expires_at": soon}}), ask("x"), grant("k"),
		}, "grant-after-deadline 3"},
		"not granted":       {[]Draft{ask("k"), event(EventExecutionStarted, "agent:a", "k", nil)}, "execution-without-grant 2"},
		"revoked":           {[]Draft{ask("k"), grant("k"), event(EventRevoked, "human:h", "k", nil), event(EventExecutionStarted, "agent:a", "k", nil)}, "execution-without-grant 4"},
		"revoked too early": {[]Draft{ask("k"), event(EventRevoked, "human:h", "k", nil)}, "decision-without-request 2"},
		"another payload is granted": {[]Draft{
			event(EventRequested, "agent:a", "k", map[string]any{"payload_hash": "aa"}), event(EventGranted, "human:h", "k", map[string]any{"payload_hash": "bb"}),
			event(EventGranted, "human:h", "k", map[string]any{"payload_hash": "aa"}),
		}, "grant-of-other-payload 2"},
		"rejected too late": {[]Draft{
			event(EventRequested, "agent:a", "k", map[string]any{"wait_until": soon}), ask("x"), event(EventRejected, "human:h", "k", nil),
			event(EventExpired, "system:gate", "k", nil),
		}, "end-after-deadline 3"},
		"an agent rejects":   {[]Draft{ask("k"), event(EventRejected, "agent:a", "k", nil), event(EventExpired, "system:gate", "k", nil)}, "decision-without-person 2, second-decision 3"},
		"used twice":         {[]Draft{ask("k"), grant("k"), event(EventExecutionStarted, "agent:a", "k", nil), event(EventExecutionStarted, "agent:a", "k", nil)}, "execution-without-grant 4"},
		"revoked too late":   {[]Draft{ask("k"), grant("k"), event(EventExecutionStarted, "agent:a", "k", nil), event(EventRevoked, "human:h", "k", nil)}, "decision-without-request 4"},
		"ended, not granted": {[]Draft{ask("k"), event(EventExecutionCompleted, "agent:a", "k", nil)}, "execution-without-grant 2"},
		"an agent grants":    {[]Draft{ask("k"), event(EventGranted, "agent:a", "k", nil), event(EventExecutionStarted, "agent:a", "k", nil)}, "decision-without-person 2, execution-without-grant 3"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := logPath(t)
			story(t, path, test.records...)
			report, err := Verify(context.Background(), path, VerifyOptions{Semantic: true})
			if err != nil || report.Status != StatusClean {
				t.Fatalf("%+v, %v", report, err)
			}
			var got []string
			for _, f := range report.Findings {
				got = append(got, f.Code+" "+string(rune('0'+f.Seq)))
			}
			if strings.Join(got, ", ") != test.want || report.FindingsTotal != int64(len(got)) {
				t.Errorf("findings %v, want %s", report.Findings, test.want)
			}
			if plain := verify(t, path); len(plain.Findings) != 0 {
				t.Errorf("found without being asked: %v", plain.Findings)
			}
		})
	}
}

// The order of the log is its sequence; a clock that was set back is worth a note and no more.
func TestTimeThatStepsBackIsReported(t *testing.T) {
	path := logPath(t)
	now := testClock
	l := openTest(t, path, func(o *Options) { o.Now = func() time.Time { return now } })
	mustAppend(t, l, "1")
	now = now.Add(-time.Hour)
	mustAppend(t, l, "2", "3")
	report := verify(t, path)
	if report.Status != StatusClean || len(report.Findings) != 1 || report.Findings[0].Code != FindingTimeSteppedBack ||
		report.Findings[0].Seq != 2 || report.Findings[0].Line != 2 || report.Findings[0].Offset != int64(len(splitLines(readFile(t, path))[0])) {
		t.Fatalf("%+v", report)
	}
}

func TestExport(t *testing.T) {
	path := logPath(t)
	story(t, path,
		event(EventRequested, "agent:a", "deploy", map[string]any{"class": "deploy.production", "summary": "=cmd|' /C calc'!A0", "payload_hash": "ab"}),
		event("task.registered", "system:gate", "", nil),
		event(EventGranted, "human:alice", "deploy", map[string]any{"note": "ok,\n\"go\"", "approvald": map[string]any{
			"approvals": []any{map[string]any{"by": "human:bob", "at": "2026-08-04T09:15:00.000Z"}, map[string]any{"by": "human:alice", "at": "2026-08-04T09:16:02.000Z"}},
		}}),
		event(EventRequested, "agent:b", "other", nil),
		event(EventExpired, "system:gate", "other", nil),
	)
	lines := splitLines(readFile(t, path))
	ctx := context.Background()
	ranges := map[string]struct {
		o        ExportOptions
		from, to int
	}{
		"all":       {ExportOptions{}, 0, 5},
		"sequences": {ExportOptions{FromSeq: 2, ToSeq: 3}, 1, 3},
		"times":     {ExportOptions{Since: testClock.Add(time.Minute), Until: testClock.Add(4 * time.Minute)}, 1, 4},
		"nothing":   {ExportOptions{FromSeq: 9}, 0, 0},
	}
	head := verify(t, path).Head
	for name, test := range ranges {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			result, err := Export(ctx, path, &out, test.o)
			if err != nil || !bytes.Equal(out.Bytes(), join(lines[test.from:test.to]...)) {
				t.Fatalf("%v, %s", err, out.String())
			}
			wantHead := Head{}
			if test.to > 0 {
				wantHead.Seq = int64(test.to)
			}
			if result.Records != int64(test.to-test.from) || result.Head.Seq != wantHead.Seq || result.LogHead != head {
				t.Errorf("%+v", result)
			}
		})
	}
	t.Run("csv", func(t *testing.T) {
		var out bytes.Buffer
		result, err := Export(ctx, path, &out, ExportOptions{Format: ExportCSV})
		if err != nil || result.Records != 2 {
			t.Fatalf("%+v, %v", result, err)
		}
		rows, err := csv.NewReader(&out).ReadAll()
		if err != nil || len(rows) != 3 {
			t.Fatalf("%v, %v", rows, err)
		}
		want := []string{"3", "2026-08-04T09:16:02.000Z", EventGranted, "deploy", "deploy", "deploy.production", "'=cmd|' /C calc'!A0", "agent:a",
			"1", "2026-08-04T09:14:02.000Z", "human:alice", "", "ok,\n\"go\"", "ab"}
		if got := rows[1][:len(want)]; strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("row %q, want %q", got, want)
		}
		if by := rows[1][15]; rows[0][15] != "approved_by" || by != "human:bob human:alice" || rows[2][15] != "" {
			t.Errorf("approved by %q, expired: %q", by, rows[2][15])
		}
		if rows[2][2] != EventExpired || rows[2][10] != "system:gate" {
			t.Errorf("row %q", rows[2])
		}
	})
	t.Run("damaged", func(t *testing.T) {
		writeFile(t, path, join(lines[0], lines[1], lines[3]))
		var out bytes.Buffer
		if _, err := Export(ctx, path, &out, ExportOptions{}); !errors.Is(err, ErrCorrupt) || !bytes.Equal(out.Bytes(), join(lines[:2]...)) {
			t.Fatalf("%v, %s", err, out.String())
		}
	})
	t.Run("format", func(t *testing.T) {
		if _, err := Export(ctx, path, &bytes.Buffer{}, ExportOptions{Format: "xml"}); err == nil {
			t.Fatal("accepted")
		}
	})
}

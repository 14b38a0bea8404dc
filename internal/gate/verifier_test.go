package gate

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"unicode/utf16"

	"github.com/approvald/approvald/internal/approvallog"
)

// verifyAlone verifies the log of one segment as a program does that knows the format and nothing of
// approvald: the frame, the chain from its own first record, the events that the format has, and that
// each record of a request's life has its ground in the same file.
func verifyAlone(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if len(data) > 0 && data[len(data)-1] != '\n' {
		return errors.New("the last line has no LF")
	}
	prev, states := "", make(map[string]string)
	for i, line := range bytes.Split(data, []byte("\n")) {
		if i == bytes.Count(data, []byte("\n")) {
			break
		}
		r, err := parseAlone(line)
		if err == nil {
			err = r.chained(i+1, prev)
		}
		if err == nil {
			err = r.grounded(states)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", i+1, err)
		}
		prev = r["hash"].(string)
	}
	return nil
}

type aloneRecord map[string]any

func parseAlone(line []byte) (aloneRecord, error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	var r aloneRecord
	if err := d.Decode(&r); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more than one value")
	}
	if again := jcs(map[string]any(r)); again != string(line) {
		return nil, fmt.Errorf("not canonical: %s", line)
	}
	return r, nil
}

var timeStamp = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`)

func (r aloneRecord) str(name string) string {
	s, _ := r[name].(string)
	return s
}

func (r aloneRecord) chained(seq int, prev string) error {
	allowed := []string{"seq", "ts", "event", "actor", "alg", "hash", "prev", "task", "action_key", "channel", "payload"}
	for name := range r {
		if !slices.Contains(allowed, name) {
			return fmt.Errorf("the format has no member %s", name)
		}
	}
	without := maps.Clone(r)
	delete(without, "hash")
	sum := sha256.Sum256([]byte(jcs(map[string]any(without))))
	switch {
	case r.str("alg") != "sha256/jcs":
		return errors.New("alg")
	case r["seq"] != json.Number(strconv.Itoa(seq)):
		return fmt.Errorf("seq is %v, want %d", r["seq"], seq)
	case r.str("prev") != prev || (seq == 1) != (r["prev"] == nil):
		return fmt.Errorf("prev is %v, want %q", r["prev"], prev)
	case !timeStamp.MatchString(r.str("ts")):
		return fmt.Errorf("ts is %v", r["ts"])
	case !approvallog.ValidActor(r.str("actor")):
		return fmt.Errorf("actor is %v", r["actor"])
	case r.str("hash") != hex.EncodeToString(sum[:]):
		return errors.New("hash")
	}
	return nil
}

// grounded walks the state of the record's key on.
func (r aloneRecord) grounded(states map[string]string) error {
	event, key := r.str("event"), r.str("action_key")
	if key == "" || r.str("task") == "" {
		return errors.New("no key or no task")
	}
	needs := map[string]string{
		"approval.granted": "approval.requested", "approval.rejected": "approval.requested", "approval.expired": "approval.requested",
		"approval.withdrawn": "approval.requested", "approval.revoked": "approval.granted", "execution.started": "approval.granted",
		"execution.completed": "execution.started", "execution.failed": "execution.started",
	}
	payload, _ := r["payload"].(map[string]any)
	if event == "approval.requested" {
		for _, name := range []string{"class", "summary", "payload_hash", "reversible", "execution", "wait_until"} {
			if _, ok := payload[name]; !ok {
				return fmt.Errorf("a request without %s", name)
			}
		}
	} else if before, ok := needs[event]; !ok {
		return fmt.Errorf("the format has no event %s", event)
	} else if states[key] != before {
		return fmt.Errorf("%s of %s, which stands at %q", event, key, states[key])
	}
	states[key] = event
	return nil
}

// jcs writes a value of whole numbers, strings and what is made of them by RFC 8785.
func jcs(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(v)
	case json.Number:
		return v.String()
	case string:
		return jcsString(v)
	case []any:
		var b []byte
		for i, one := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, jcs(one)...)
		}
		return "[" + string(b) + "]"
	case map[string]any:
		names := slices.SortedFunc(maps.Keys(v), func(a, b string) int {
			return slices.CompareFunc(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)), cmp.Compare)
		})
		var b []byte
		for i, name := range names {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, jcsString(name)+":"+jcs(v[name])...)
		}
		return "{" + string(b) + "}"
	default:
		panic(fmt.Sprintf("%T is not of JSON", v))
	}
}

func jcsString(s string) string {
	b := []byte{'"'}
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r < 0x20:
			b = append(b, fmt.Sprintf(`\u%04x`, r)...)
		default:
			b = append(b, string(r)...)
		}
	}
	return string(append(b, '"'))
}

// wantSound verifies every segment of the gate's log alone, and all of them together.
func wantSound(t testing.TB, p Paths) approvallog.Report {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(p.Archive, "*", "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(files, p.Log) {
		if err := verifyAlone(path); err != nil {
			t.Errorf("%s is not sound by itself: %v", path, err)
		}
	}
	report, err := approvallog.VerifyAll(t.Context(), p.Log, p.Journal, approvallog.VerifyOptions{Semantic: true})
	if err != nil {
		t.Fatal(err)
	}
	if report.Status != approvallog.StatusClean || len(report.Findings) > 0 {
		t.Errorf("the log is %s: %s %s %v", report.Status, report.Reason, report.Detail, report.Findings)
	}
	return report
}

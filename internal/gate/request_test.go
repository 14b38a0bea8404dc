package gate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

func TestActionKeys(t *testing.T) {
	for _, key := range []string{
		"deploy:api#41", "../x", "../../etc/passwd", "/", ".", "__proto__", "constructor", "🚀 émoji", " ", "a b", "-rf", "%00", "\\", `"`, "'; DROP",
		strings.Repeat("x", 256), strings.Repeat("é", 128), "\u200b", "\u2028", "\ufeff", "\uFFFD",
	} {
		if err := CheckKey(key); err != nil {
			t.Errorf("%q: %v", key, err)
		}
	}
	for key, want := range map[string]string{
		"":                       "the action key is empty",
		strings.Repeat("x", 257): "the action key has 257 bytes, and at most 256 are allowed",
		"a\x00b":                 `the action key "a\u{0}b" has the control character U+0000 at byte 1`,
		"a\n":                    `the action key "a\u{a}" has the control character U+000A at byte 1`,
		"é\u0085":                `the action key "é\u{85}" has the control character U+0085 at byte 2`,
		"\x7f":                   `the action key "\u{7f}" has the control character U+007F at byte 0`,
		"\xff":                   `the action key "\x{ff}" is not valid UTF-8`,
	} {
		err := CheckKey(key)
		if err == nil || err.Error() != want || ErrorCode(err) != CodeInvalidRequest {
			t.Errorf("%q: %v, want %s", key, err, want)
		}
	}
}

func TestClasses(t *testing.T) {
	for class, ok := range map[string]bool{
		"deploy": true, "deploy.production": true, "a-b.c_d.9": true, strings.Repeat("x", 128): true,
		"": false, "Deploy": false, ".a": false, "a.": false, "a..b": false, "a b": false, "a/b": false, "*": false, "deploy.*": false,
		"-a": false, "ä": false, "a\n": false, strings.Repeat("x", 129): false,
	} {
		if err := CheckClass(class); (err == nil) != ok || (err != nil && ErrorCode(err) != CodeInvalidRequest) {
			t.Errorf("%q: %v", class, err)
		}
	}
}

func TestSummaries(t *testing.T) {
	for summary, want := range map[string]string{
		"restart":                 "",
		strings.Repeat("é", 1000): "",
		"":                        "the summary is empty",
		"  \t":                    "the summary is empty",
		strings.Repeat("é", 1001): "the summary has 1001 characters, and at most 1000 are allowed",
		"a\nb":                    "the summary has more than one line",
		"a\rb":                    "the summary has more than one line",
		"a\u2028b":                "the summary has more than one line",
		"a\u0085b":                "the summary has more than one line",
		"a\tb":                    "the summary has the control character U+0009 at byte 1",
		"a\x1b[31mb":              "the summary has the control character U+001B at byte 1",
		"\xc3(":                   "the summary is not valid UTF-8",
	} {
		err := CheckSummary(summary)
		if got := fmt.Sprint(err); (want == "") != (err == nil) || (err != nil && got != want) {
			t.Errorf("%q: %v, want %q", clip(summary), err, want)
		}
	}
}

func TestRequesters(t *testing.T) {
	for actor, ok := range map[string]bool{
		"agent:ci": true, "agent:a b": true, "agent:human:alice": true, "agent:": false, "agent: ": false, "ci": false, "": false,
		"human:alice": false, "system:gate": false, "agent:a\nb": false, "agent:" + strings.Repeat("x", 129): false, "agent:\xff": false,
		"Agent:ci": false, "agent:" + strings.Repeat("é", 65): false,
	} {
		if err := CheckRequester(actor); (err == nil) != ok {
			t.Errorf("%q: %v", actor, err)
		}
	}
}

func TestBindingKeepsEveryByte(t *testing.T) {
	const sum = "b3d510ef04275ca8e698e5b3cbb0ece3949ef9252f0cdc839e9ee347409a2209" // of the two bytes ff fe
	tests := []struct {
		name, file, data, want string
		keepsFile              bool
	}{
		{"object", "p.json", "{ \"b\": 1.0,\n\"a\": [true, null]}", `{"a":[true,null],"b":1}`, false},
		{"scalar", "p.json", " 17\n", "17", false},
		{"string", "p.json", `"\u00e9\u2028<"`, "\"é\u2028<\"", false},
		{"text", "notes.txt", "a <b>\n\tö\u2028", "{\"kind\":\"text\",\"text\":\"a <b>\\n\\tö\u2028\"}", false},
		{"text with control characters", "x", "\x1b[31m", `{"kind":"text","text":"\u001b[31m"}`, false},
		{"nothing", "x", "", `{"kind":"text","text":""}`, false},
		{"two JSON values are text", "x", "{} {}", `{"kind":"text","text":"{} {}"}`, false},
		{"byte order mark", "x", "\ufeff{}", "{\"kind\":\"text\",\"text\":\"\ufeff{}\"}", false},
		{"bytes", "/srv/dir/blob.bin", "\xff\xfe", `{"kind":"file","name":"blob.bin","sha256":"` + sum + `","size":2}`, true},
		{"bytes from a pipe", "-", "\xff\xfe", `{"kind":"file","name":"stdin","sha256":"` + sum + `","size":2}`, true},
		{"text with NUL", "a\x00b\xff", "a\x00b", `{"kind":"file","name":"a\u0000b�","sha256":"` + hashHex([]byte("a\x00b")) + `","size":3}`, true},
		{"JSON with bad UTF-8", "x", "\"\xff\"", `{"kind":"file","name":"x","sha256":"` + hashHex([]byte("\"\xff\"")) + `","size":3}`, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			canonical, file, err := BindPayload(tt.file, []byte(tt.data))
			if err != nil || string(canonical) != tt.want {
				t.Fatalf("bound %s, %v\nwant  %s", canonical, err, tt.want)
			}
			if (file != nil) != tt.keepsFile || (tt.keepsFile && string(file) != tt.data) {
				t.Errorf("file = %q", file)
			}
			if err := checkPayload(canonical, file); err != nil {
				t.Errorf("what was bound is refused: %v", err)
			}
		})
	}
}

func TestBindingRefusesWhatTwoReadersWouldReadDifferently(t *testing.T) {
	for _, data := range []string{`{"a":1,"a":2}`, `"\ud800"`, `{"n":9007199254740993}`, `[1e400]`} {
		if canonical, _, err := BindPayload("x", []byte(data)); ErrorCode(err) != CodeInvalidRequest {
			t.Errorf("%s: %s, %v", data, canonical, err)
		}
	}
}

func TestBindingStopsAtTheLimit(t *testing.T) {
	if _, _, err := BindPayload("x", bytes.Repeat([]byte("x"), MaxPayload+1)); ErrorCode(err) != CodeInvalidRequest {
		t.Errorf("one byte too many: %v", err)
	}
	most := bytes.Repeat([]byte("\xff"), MaxPayload)
	if _, file, err := BindPayload("x", most); err != nil || len(file) != MaxPayload {
		t.Errorf("exactly the limit: %v", err)
	}
	// Each of these characters takes six bytes in JSON.
	escaped := bytes.Repeat([]byte("\x01"), MaxPayload/6)
	canonical, file, err := BindPayload("x", escaped)
	if err != nil || !bytes.Equal(file, escaped) || len(canonical) > 1024 {
		t.Errorf("text that outgrows the limit in JSON is not bound as a file: %v", err)
	}
	if err := checkPayload([]byte("{}"), most); err == nil {
		t.Error("bytes that no payload names are accepted")
	}
}

func TestPayloadMustMatchTheFileThatComesAlong(t *testing.T) {
	canonical, file, err := BindPayload("x", []byte("\xff"))
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ payload, file []byte }{
		"no bytes":        {canonical, nil},
		"other bytes":     {canonical, []byte("\xfe")},
		"more bytes":      {canonical, []byte("\xff\xff")},
		"not canonical":   {[]byte("{ }"), nil},
		"not JSON":        {[]byte("x"), nil},
		"bytes unnamed":   {[]byte(`{"kind":"text","text":"x"}`), file},
		"empty but named": {[]byte(strings.Replace(string(canonical), `"size":1`, `"size":0`, 1)), nil},
	} {
		if err := checkPayload(tt.payload, tt.file); ErrorCode(err) != CodeInvalidRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDigestHoldsAllThatMakesTwoRequestsTheSame(t *testing.T) {
	base := NewRequest{Key: "k", Class: "c", Summary: "s", Requester: "agent:a"}
	followUp := ""
	digest := func(r NewRequest, gate, hash string) string {
		d, err := r.digest(gate, hash, followUp)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	seen := map[string]string{digest(base, "g", "h"): "base"}
	for name, change := range map[string]func(*NewRequest){
		"class":      func(r *NewRequest) { r.Class = "d" },
		"summary":    func(r *NewRequest) { r.Summary = "t" },
		"reversible": func(r *NewRequest) { r.Reversible = true },
		"exclusive":  func(r *NewRequest) { r.Exclusive = "x" },
		"follow-up":  func(*NewRequest) { followUp = "x" },
		"ttl":        func(r *NewRequest) { r.TTL = time.Hour },
		"quorum":     func(r *NewRequest) { r.Quorum = 1 },
		"on behalf":  func(r *NewRequest) { r.OnBehalfOf = "human:x" },
	} {
		r := base
		change(&r)
		d := digest(r, "g", "h")
		followUp = ""
		if other, ok := seen[d]; ok {
			t.Errorf("%s has the digest of %s", name, other)
		}
		seen[d] = name
	}
	for name, d := range map[string]string{"gate": digest(base, "g2", "h"), "payload": digest(base, "g", "h2")} {
		if other, ok := seen[d]; ok {
			t.Errorf("%s has the digest of %s", name, other)
		}
	}
	same := base
	same.Key, same.Requester, same.Task, same.Again, same.Peer = "other", "agent:b", "t", true, &Peer{UID: 1, PID: 2}
	if digest(same, "g", "h") != digest(base, "g", "h") {
		t.Error("key, requester, task or peer are in the digest")
	}
	// Pinned, so that a later version still tells a retry from a conflict.
	const want = "91fbf15578386af2a2e1d01e9580a1b6823f50e86e9f9be8a1545ac525abbf84"
	full := NewRequest{Class: "deploy.production", Summary: "restart", TTL: 90 * time.Minute, Quorum: 2, Exclusive: "x", Reversible: true}
	followUp = "f"
	if got := digest(full, "prod", "aa"); got != want {
		t.Errorf("digest = %s", got)
	}
}

func TestLimitsThatAnAskerGives(t *testing.T) {
	for name, change := range map[string]func(*NewRequest){
		"ttl too short":     func(r *NewRequest) { r.TTL = time.Second - 1 },
		"ttl negative":      func(r *NewRequest) { r.TTL = -time.Hour },
		"ttl too long":      func(r *NewRequest) { r.TTL = MaxTTL + 1 },
		"quorum negative":   func(r *NewRequest) { r.Quorum = -1 },
		"wait negative":     func(r *NewRequest) { r.WaitFor = -1 },
		"cost negative":     func(r *NewRequest) { x := -0.5; r.EstCostUSD = &x },
		"cost not a number": func(r *NewRequest) { x := math.NaN(); r.EstCostUSD = &x },
		"cost infinite":     func(r *NewRequest) { x := math.Inf(1); r.EstCostUSD = &x },
		"task":              func(r *NewRequest) { r.Task = "a\nb" },
		"exclusive":         func(r *NewRequest) { r.Exclusive = "a\nb" },
	} {
		r := NewRequest{Key: "k", Class: "c", Summary: "s", Requester: "agent:a", Payload: []byte("{}")}
		if err := r.check(); err != nil {
			t.Fatal(err)
		}
		change(&r)
		if err := r.check(); ErrorCode(err) != CodeInvalidRequest {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzCheckKey(f *testing.F) {
	for _, key := range []string{"", "k", "../x", "\x00", "\xff", "é\u0085", strings.Repeat("x", 257)} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		want := key != "" && len(key) <= MaxKeyBytes && utf8.ValidString(key)
		for _, r := range key {
			want = want && !unicode.IsControl(r)
		}
		err := CheckKey(key)
		if (err == nil) != want {
			t.Errorf("%q: %v", key, err)
		}
		if err != nil && strings.ContainsFunc(err.Error(), unicode.IsControl) {
			t.Errorf("%q: the message %q repeats control characters", key, err)
		}
	})
}

func FuzzBindPayload(f *testing.F) {
	f.Add([]byte(`{"a":1}`))
	f.Add([]byte("text\n"))
	f.Add([]byte("\xff\x00"))
	f.Add([]byte(`"\ud800"`))
	f.Fuzz(func(t *testing.T, data []byte) {
		canonical, file, err := BindPayload("name", data)
		if err != nil {
			if !json.Valid(data) {
				t.Errorf("bytes that are no JSON are refused: %v", err)
			}
			return
		}
		if err := checkPayload(canonical, file); err != nil {
			t.Errorf("what was bound is refused: %v", err)
		}
		if json.Valid(data) && utf8.Valid(data) {
			return
		}
		var text textEnvelope
		if err := json.Unmarshal(canonical, &text); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(file, data) && text.Text != string(data) {
			t.Errorf("the bytes of %q are lost in %s", data, canonical)
		}
	})
}

package approvallog

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/gowebpki/jcs"
)

func TestCanonicalize(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"sorted and without space", ` { "b" : 1 , "a" : [ true , null ] } `, `{"a":[true,null],"b":1}`},
		{"UTF-16 order, not code point order", "{\"\uffff\":1,\"\U00010000\":2}", "{\"\U00010000\":2,\"\uffff\":1}"},
		{"escaped name in order", `{"b":1,"\n":2}`, `{"\n":2,"b":1}`},
		{"prefix first", `{"ab":1,"a":2,"":3}`, `{"":3,"a":2,"ab":1}`},
		{"short escapes", `"\u0008\u000c\u000a\u000d\u0009\u0022\u005c\/"`, `"\b\f\n\r\t\"\\/"`},
		{"other control characters", `"\u0000\u001F\u007f"`, "\"\\u0000\\u001f\u007f\""},
		{"surrogate pair", `"\ud83d\ude00"`, `"😀"`},
		{"numbers", `[1.0,-0,0.000001,1e-7,1E21,1e22,333333333.33333329,4.50,2e-3]`,
			`[1,0,0.000001,1e-7,1e+21,1e+22,333333333.3333333,4.5,0.002]`},
		{"largest integer", `[9007199254740992,-9007199254740992]`, `[9007199254740992,-9007199254740992]`},
		{"smallest and largest double", `[5e-324,1.7976931348623157e308]`, `[5e-324,1.7976931348623157e+308]`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Canonicalize([]byte(test.in))
			if err != nil || string(got) != test.want {
				t.Fatalf("Canonicalize(%s) = %s, %v; want %s", test.in, got, err, test.want)
			}
			again, err := Canonicalize(got)
			if err != nil || !bytes.Equal(got, again) {
				t.Fatalf("not stable: %s, %v", again, err)
			}
		})
	}
}

func TestCanonicalizeRefuses(t *testing.T) {
	tests := map[string]string{
		"empty":                    "",
		"white space only":         " ",
		"two values":               "{} {}",
		"trailing comma":           `{"a":1,}`,
		"byte order mark":          "\ufeff{}",
		"name twice":               `{"a":1,"a":1}`,
		"name twice, escaped":      `{"a":1,"\u0061":2}`,
		"name twice, deep":         `[{"x":{"a":1,"b":2,"a":3}}]`,
		"invalid UTF-8":            "\"\xff\"",
		"overlong UTF-8":           "\"\xc0\x80\"",
		"UTF-8 of a surrogate":     "\"\xed\xa0\x80\"",
		"lone high surrogate":      `"\ud800"`,
		"lone low surrogate":       `"\udc00 "`,
		"high surrogate and text":  `"\ud800\n"`,
		"two high surrogates":      `"\ud800\ud800"`,
		"integer beyond 2^53":      `9007199254740993`,
		"negative beyond 2^53":     `-9007199254740993`,
		"integral double beyond":   `1e20`,
		"integral with a fraction": `9007199254740994.0`,
		"huge integer token":       `1000000000000000000000000`,
		"not finite":               `1e400`,
		"NaN":                      `NaN`,
		"leading zero":             `01`,
		"lonely minus":             `-`,
		"raw control character":    "\"\x01\"",
		"unknown escape":           `"\x"`,
		"too deep":                 strings.Repeat("[", maxDepth+2) + strings.Repeat("]", maxDepth+2),
	}
	for name, in := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := Canonicalize([]byte(in)); !errors.Is(err, ErrInvalid) {
				t.Fatalf("Canonicalize(%q) = %s, %v; want ErrInvalid", in, got, err)
			}
		})
	}
}

// FuzzCanonical holds the own canonical form against two other libraries: what is accepted must come
// out the same from all, and the one-pass check must accept exactly the canonical texts.
func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{
		`{"b":1,"a":[true,null,1.5e-9,"\u0001é\ud83d\ude00"]}`, `{"\u0061":1,"b":{"":0}}`, `[1e21,-0.0,123456789012345680]`,
		`"\u007f\u0080\u2028"`, "{\"\uffff\":1,\"\U00010000\":2}", `[0.1e1,100e-2,1E-7,4.35]`, `{"a":1,"a":2}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := Canonicalize(in)
		if isCanonical(in) && checkStrict(in) != nil {
			t.Fatalf("isCanonical(%q), although %v", in, checkStrict(in))
		}
		if isCanonical(in) != (err == nil && bytes.Equal(got, in)) {
			t.Fatalf("isCanonical(%q) = %v, but Canonicalize gives %q, %v", in, isCanonical(in), got, err)
		}
		if err != nil {
			return
		}
		value := jsontext.Value(append([]byte(nil), in...))
		if err := value.Canonicalize(); err != nil {
			t.Fatalf("jsontext refuses %q: %v", in, err)
		}
		if !bytes.Equal(value, got) {
			t.Fatalf("Canonicalize(%q) = %q, jsontext %q", in, got, value)
		}
		if other, err := jcs.Transform(in); err != nil || !bytes.Equal(other, got) {
			t.Fatalf("Canonicalize(%q) = %q, gowebpki %q, %v", in, got, other, err)
		}
	})
}

// FuzzNumber compares the number format with the library's for every bit pattern.
func FuzzNumber(f *testing.F) {
	for _, bits := range []uint64{0, 1, 1 << 63, 0x3ff0000000000000, 0x4340000000000001, 0x44b52d02c7e14af6, 0x7fefffffffffffff, 0x3eb0c6f7a0b5ed8d} {
		f.Add(bits)
	}
	f.Fuzz(func(t *testing.T, bits uint64) {
		value := math.Float64frombits(bits)
		want, err := jcs.NumberToJSON(value)
		if err != nil {
			t.Skip("not finite")
		}
		if got := string(appendNumber(nil, value)); got != want {
			t.Fatalf("appendNumber(%x) = %s, want %s", bits, got, want)
		}
	})
}

func TestAppendStringIsCanonical(t *testing.T) {
	var all strings.Builder
	for r := rune(0); r < 0x300; r++ {
		all.WriteRune(r)
	}
	all.WriteString("\u2028\ufffd\U0001f600")
	text := appendString(nil, all.String())
	if !isCanonical(text) {
		t.Fatalf("not canonical: %s", text)
	}
	if got := unquote(text[1 : len(text)-1]); got != all.String() {
		t.Fatalf("unquote gives %q", got)
	}
	var back string
	if err := json.Unmarshal(text, &back); err != nil || back != all.String() {
		t.Fatalf("encoding/json reads %q, %v", back, err)
	}
}

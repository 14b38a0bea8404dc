package transport

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func TestSecretNeverPrints(t *testing.T) {
	s := NewSecret(canary)
	exported := struct{ S Secret }{s}
	unexported := struct{ s Secret }{s}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, v := range []any{s, &s, exported, &exported, unexported, &unexported, []Secret{s}, map[string]Secret{"k": s}} {
			if out := fmt.Sprintf(verb, v); strings.Contains(out, "canary") || strings.Contains(out, fmt.Sprintf("%x", "canary")) {
				t.Errorf("%s of %T prints the secret: %s", verb, v, out)
			}
		}
	}
	data, err := json.Marshal(map[string]any{"a": s, "b": exported, "c": unexported})
	if err != nil || strings.Contains(string(data), "canary") {
		t.Errorf("JSON %s, %v", data, err)
	}
	if s.Reveal() != canary || s.IsZero() || !s.Equal(NewSecret(canary)) || s.Equal(NewSecret(canary+"x")) {
		t.Error("Reveal, IsZero or Equal is wrong")
	}
	if !(Secret{}).IsZero() || (Secret{}).Reveal() != "" {
		t.Error("the zero Secret is not empty")
	}
}

func TestClientNeverPrintsItsToken(t *testing.T) {
	c := newTestClient(t, "")
	for _, verb := range []string{"%v", "%+v", "%#v"} {
		for _, v := range []any{c, *c, c.redactor.String} {
			if out := fmt.Sprintf(verb, v); strings.Contains(out, "canary") {
				t.Errorf("%s of %T prints the token", verb, v)
			}
		}
	}
}

func TestParseToken(t *testing.T) {
	for _, good := range []string{"1:A", canary, "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"} {
		if _, err := ParseToken(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "abc", "1:", ":A", "0:A", "01:A", "1:A ", "1:A\n", "1:A/B", "1:A%2f", "-1:A", "1234567890123456789:A", "1:A:B", "１:A"} {
		if _, err := ParseToken(bad); err == nil {
			t.Errorf("%q accepted", bad)
		} else if len(bad) > 3 && strings.Contains(err.Error(), bad) {
			t.Errorf("the error repeats %q", bad)
		}
	}
}

func TestParseWebhookSecret(t *testing.T) {
	for s, good := range map[string]bool{
		"A-z_0-9-": true, strings.Repeat("a", 256): true,
		"": false, "a:b": false, strings.Repeat("a", 257): false, "a b": false, "ä": false, "a\n": false, canary: false,
	} {
		if _, err := ParseWebhookSecret(s, NewSecret(canary)); (err == nil) != good {
			t.Errorf("%q: %v", s, err)
		}
	}
	// A token whose characters would all be allowed is refused for what it is.
	if _, err := ParseWebhookSecret("abc", NewSecret("abc")); err == nil || !strings.Contains(err.Error(), "is the bot token") {
		t.Errorf("the token as webhook secret: %v", err)
	}
}

// leaks reports whether text holds the canary in any encoding used here.
func leaks(text string) bool {
	for range 3 {
		if strings.Contains(text, "canary") || strings.Contains(text, "CANARY") {
			return true
		}
		decoded, err := url.QueryUnescape(text)
		if err != nil {
			return false
		}
		text = decoded
	}
	return false
}

func percent(s, format string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, format, s[i])
	}
	return b.String()
}

func TestRedactor(t *testing.T) {
	r := NewRedactor(NewSecret(canary), NewSecret("hook-SECRET"), Secret{})
	_, part, _ := strings.Cut(canary, ":")
	for _, text := range []string{
		"x " + canary + " y", "/bot" + canary + "/getMe", part, url.QueryEscape(canary), url.PathEscape(canary),
		percent(canary, "%%%02x"), percent(canary, "%%%02X"), percent(canary, "%%25%02x"), percent(canary, "%%2525%02X"),
		strings.Replace(canary, ":", "%3a", 1), strings.Replace(canary, "c", "%63", 2), canary + canary,
		fmt.Sprintf("%q", canary), `{"t":"` + canary + `"}`,
	} {
		if out := r.String(text); leaks(out) || !strings.Contains(out, Redacted) {
			t.Errorf("%q became %q", text, out)
		}
	}
	if out := r.String("header hook-SECRET"); strings.Contains(out, "SECRET") {
		t.Errorf("webhook secret left: %q", out)
	}
	for in, want := range map[string]string{
		"100% of nothing":                        "100% of nothing",
		"http://u:p@proxy:3128/x and https://h/": "http://" + Redacted + "@proxy:3128/x and https://h/",
		"mail a@b":                               "mail a@b",
	} {
		if out := r.String(in); out != want {
			t.Errorf("%q became %q", in, out)
		}
		if out := (*Redactor)(nil).String(in); out != want {
			t.Errorf("nil Redactor: %q became %q", in, out)
		}
	}
}

type hidden struct{ text, token string }

func (h hidden) Error() string { return h.text }

func TestRedactorError(t *testing.T) {
	r := NewRedactor(NewSecret(canary))
	plain := errors.New("fine")
	if got := r.Error(plain); got != plain {
		t.Error("an error without a secret was replaced")
	}
	if r.Error(nil) != nil {
		t.Error("nil became an error")
	}
	for _, err := range []error{
		&url.Error{Op: "Post", URL: "https://x/bot" + canary + "/getMe", Err: plain},
		fmt.Errorf("wrapped: %w", errors.New(canary)), hidden{"harmless text", canary},
	} {
		got := r.Error(err)
		for e := got; e != nil; e = errors.Unwrap(e) {
			if leaks(fmt.Sprintf("%v %+v %#v", e, e, e)) {
				t.Errorf("%T still leaks: %#v", err, e)
			}
		}
	}
}

type loud struct{ Token string }

func (l loud) String() string { return l.Token }

func TestRedactCore(t *testing.T) {
	var out strings.Builder
	core := RedactCore(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(&out), zap.InfoLevel), NewRedactor(NewSecret(canary)))
	log := zap.New(core).Named(canary)
	sent := errors.New("post " + canary)
	fields := []zap.Field{
		zap.String("s", canary), zap.Error(sent), zap.NamedError("e", fmt.Errorf("w: %w", sent)), zap.Any("any", loud{canary}),
		zap.Stringer("str", loud{canary}), zap.Strings("list", []string{"a", canary}), zap.ByteString("b", []byte(canary)), zap.Binary("bin", []byte("ok")),
		zap.Reflect("r", map[string]any{"k" + canary: []any{canary, 1, nil, true}}), zap.Dict("d", zap.String("x", canary)), zap.Errors("es", []error{sent}),
		zap.Int("n", 7), zap.Bool("yes", true), zap.Any("sec", NewSecret(canary)), zap.Any("raw", json.RawMessage(`{"a":"`+canary+`"}`)), zap.Any("chan", make(chan int)),
		zap.Namespace("ns"), zap.String("last", "kept"),
	}
	log.Info("message "+canary, fields...)
	log.With(fields...).Warn("again", zap.Stack("stack"))
	log.Debug("not enabled")
	if leaks(out.String()) {
		t.Errorf("the log leaks: %s", out.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines, want 2", len(lines))
	}
	var first map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil {
		t.Fatal(err)
	}
	if first["n"] != 7.0 || first["yes"] != true || first["ns"].(map[string]any)["last"] != "kept" {
		t.Errorf("harmless fields changed: %v", first)
	}
	if err := core.Sync(); err != nil {
		t.Error(err)
	}
}

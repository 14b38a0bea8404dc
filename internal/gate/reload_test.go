package gate

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func parse(t *testing.T, doc string) Config {
	t.Helper()
	cfg, err := ParseConfig("prod", "prod.toml", []byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestWhatNeedsARestartIsNamed(t *testing.T) {
	started := parse(t, fullConfig)
	for _, c := range []struct{ from, to, want string }{
		{`home = "/var`, `home = "/srv`, "home"},
		{"prod.token", "other.token", "telegram.token_file"},
		{`token_file = "/etc/approvald/prod.token"`, `token_env = "TOKEN"`, "telegram.token_file telegram.token_env"},
		{"chat_id = -1001234567890", "chat_id = -5", "telegram.chat_id"},
		{"127.0.0.1:8081", "127.0.0.1:8082", "telegram.api_base"},
		{`mode = "webhook"`, `mode = "poll"`, "transport.mode"},
		{"telegram/prod", "telegram/other", "transport.webhook.url"},
		{"prod/webhook.sock", "prod/other.sock", "transport.webhook.listen"},
		{"prod.secret", "other.secret", "transport.webhook.secret_file"},
		{"replace = true", "replace = false", "transport.webhook.replace"},
		{":9464", ":9465", "metrics.listen"},

		{"message_thread_id = 7", "message_thread_id = 8", ""},
		{"reminder = 0.5", "reminder = 0.6", ""},
		{"deputy_chat_id = 222", "deputy_chat_id = 333", ""},
		{"page-me", "page-us", ""},
		{"telegram_user_id = 111", "telegram_user_id = 112", ""},
		{`ttl = "12h"`, `ttl = "13h"`, ""},
		{`approvers = ["bob"]`, `approvers = ["alice"]`, ""},
		{"max_pending = 10", "max_pending = 11", ""},
		{"per_requester_per_hour = 20", "per_requester_per_hour = 21", ""},
		{"four_eyes = true", "four_eyes = false", ""},
		{"not now", "later", ""},
	} {
		if !strings.Contains(fullConfig, c.from) {
			t.Fatalf("the full configuration has no %s", c.from)
		}
		now := parse(t, strings.Replace(fullConfig, c.from, c.to, 1))
		if got := strings.Join(RestartFor(started, now), " "); got != c.want {
			t.Errorf("%s -> %s needs a restart for %q, want %q", c.from, c.to, got, c.want)
		}
	}
	if got := RestartFor(started, started); got != nil {
		t.Errorf("a configuration that is the same needs a restart for %q", got)
	}
	small := smallConfig + "[[approvers]]\nid = \"bob\"\ntelegram_user_id = 112\n[requests]\nquorum = "
	if got := RestartFor(parse(t, small+"1\n"), parse(t, small+"2\n")); got != nil {
		t.Errorf("another quorum needs a restart for %q", got)
	}
	polling := strings.Replace(fullConfig, `mode = "webhook"`, `mode = "poll"`, 1)
	if got := RestartFor(parse(t, polling), parse(t, strings.Replace(polling, "telegram/prod", "x", 1))); got != nil {
		t.Errorf("while polling, the webhook's url needs a restart: %q", got)
	}
}

// TestEveryKeyIsReloadedOrNeedsARestart: a field that is added later has to be put on one of the two sides.
func TestEveryKeyIsReloadedOrNeedsARestart(t *testing.T) {
	count := 0
	var walk func(typ reflect.Type)
	walk = func(typ reflect.Type) {
		if typ.Kind() != reflect.Struct {
			count++
			return
		}
		for i := range typ.NumField() {
			if f := typ.Field(i); f.IsExported() {
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[Config]())
	// Gate, File, Hash and Home; 5 of Telegram; 5 of Transport; Approvers; 4 of Requests; Rules; 3 of Attention; 1 of Metrics.
	if want := 4 + 5 + 5 + 1 + 4 + 1 + 3 + 1; count != want {
		t.Errorf("the configuration has %d values, and RestartFor was written for %d: say there, here and in docs/configuration.md what a change of the new one takes",
			count, want)
	}
}

func TestMetricsAreForThisMachineAlone(t *testing.T) {
	for listen, ok := range map[string]bool{
		"127.0.0.1:9464": true, "127.1.2.3:1": true, "[::1]:9464": true, "127.0.0.1:0": true, "unix:/run/approvald/metrics.sock": true,
		"0.0.0.0:9464": false, ":9464": false, "[::]:9464": false, "192.168.1.1:9464": false, "localhost:9464": false,
		"127.0.0.1": false, "127.0.0.1:http": false, "127.0.0.1:65536": false, "unix:metrics.sock": false, "systemd": false, "": false,
	} {
		_, err := ParseConfig("prod", "prod.toml", []byte(fmt.Sprintf("%s[metrics]\nlisten = %q\n", smallConfig, listen)))
		switch {
		case ok && err != nil:
			t.Errorf("%s: %v", listen, err)
		case !ok && (err == nil || !strings.Contains(err.Error(), "prod.toml:8: metrics.listen: ")):
			t.Errorf("%q is taken, or refused without its place: %v", listen, err)
		}
	}
	_, err := ParseConfig("prod", "prod.toml", []byte(smallConfig+"[metrics]\nport = 1\n"))
	if err == nil || !strings.Contains(err.Error(), "metrics.port") {
		t.Errorf("an unknown key: %v", err)
	}
}

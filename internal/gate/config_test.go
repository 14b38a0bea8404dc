package gate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/durable"
)

// fullConfig sets every key there is.
const fullConfig = `home = "/var/lib/approvald/prod/.approval"
on_trouble = ["/usr/local/bin/page-me", "--gate", "prod"]
reminder = 0.5
deputy_chat_id = 222

[telegram]
token_file = "/etc/approvald/prod.token"
chat_id = -1001234567890
api_base = "http://127.0.0.1:8081/"
message_thread_id = 7

[transport]
mode = "webhook"
[transport.webhook]
url = "https://approve.example.com/telegram/prod"
listen = "unix:/run/approvald/prod/webhook.sock"
secret_file = "/etc/approvald/prod.secret"
replace = true

[[approvers]]
id = "alice"
telegram_user_id = 111

[[approvers]]
id = "bob"
telegram_user_id = 222

[requests]
ttl = "12h"
quorum = 1
max_pending = 10
per_requester_per_hour = 20

[[rules]]
class = "deploy.*"
quorum = 2
ttl = "1h"
four_eyes = true
reject_reasons = ["wrong environment", "not now"]

[[rules]]
class = "*"
approvers = ["bob"]

[metrics]
listen = "127.0.0.1:9464"
`

// smallConfig is the least that is accepted; a test appends to it.
const smallConfig = `home = "/srv/gate"
[telegram]
chat_id = 5
[[approvers]]
id = "alice"
telegram_user_id = 111
`

func TestConfigurationIsReadWhole(t *testing.T) {
	got, err := ParseConfig("prod", "prod.toml", []byte(fullConfig))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Gate: "prod", File: "prod.toml", Hash: hashHex([]byte(fullConfig)), Home: "/var/lib/approvald/prod/.approval",
		Telegram: Telegram{
			TokenFile: "/etc/approvald/prod.token", ChatID: -1001234567890, MessageThreadID: 7, APIBase: "http://127.0.0.1:8081",
		},
		Transport: Transport{Mode: ModeWebhook, Webhook: Webhook{
			URL: "https://approve.example.com/telegram/prod", Listen: "unix:/run/approvald/prod/webhook.sock",
			SecretFile: "/etc/approvald/prod.secret", Replace: true,
		}},
		Approvers: []Approver{{ID: "alice", TelegramUserID: 111}, {ID: "bob", TelegramUserID: 222}},
		Requests:  Limits{TTL: 12 * time.Hour, Quorum: 1, MaxPending: 10, PerRequesterPerHour: 20},
		Rules: []ClassRule{
			{Class: "deploy.*", Quorum: 2, TTL: time.Hour, FourEyes: true, RejectReasons: []string{"wrong environment", "not now"}},
			{Class: "*", Approvers: []string{"bob"}},
		},
		Attention: Attention{OnTrouble: []string{"/usr/local/bin/page-me", "--gate", "prod"}, Reminder: 0.5, DeputyChatID: 222},
		Metrics:   Metrics{Listen: "127.0.0.1:9464"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %#v\nwant %#v", got, want)
	}
}

func TestConfigurationHasDefaults(t *testing.T) {
	got, err := ParseConfig("default", "f", []byte(smallConfig))
	if err != nil {
		t.Fatal(err)
	}
	if got.Transport.Mode != ModePoll || got.Telegram.APIBase != "https://api.telegram.org" ||
		got.Requests != (Limits{TTL: 24 * time.Hour, Quorum: 1, MaxPending: 200, PerRequesterPerHour: 120}) {
		t.Errorf("defaults: %+v", got)
	}
}

// faultLines answers each fault as LINE key: what.
func faultLines(t *testing.T, doc string) []string {
	t.Helper()
	_, err := ParseConfig("prod", "f.toml", []byte(doc))
	if err == nil {
		return nil
	}
	if ErrorCode(err) != CodeConfig {
		t.Errorf("code = %s", ErrorCode(err))
	}
	var lines []string
	config, ok := errors.AsType[*ConfigError](err)
	if !ok {
		t.Fatalf("error without faults: %v", err)
	}
	for _, f := range config.Faults {
		if f.Remedy == "" {
			t.Errorf("%s: says not what to do", f)
		}
		lines = append(lines, fmt.Sprintf("%d %s: %s", f.Line, f.Key, f.What))
	}
	return lines
}

func TestEveryFaultIsFoundAtOnceWithItsLineAndKey(t *testing.T) {
	doc := `home = "~/gate"
hom = 1
reminder = 2.0
on_trouble = ["page", 7]
deputy_chat_id = 0

[telegram]
token = "123:abc"
token_env = "123:ABC"
chat_id = "@ops"
api_base = "http://api.example.com"
message_thread_id = -1

[transport]
mode = "push"
webhook = { url = "ftp://x", listen = "8443", secrets = "x", replace = "yes" }

[[approvers]]
id = "alice"
telegram_user_id = 111

[[approvers]]
id = "alice"
telegram_user_id = "@bob"

[[approvers]]
id = "human:carol"
telegram_user_id = 1087968824
name = "Carol"

[[approvers]]
telegram_user_id = 111

[[approvers]]
id = "dora"
telegram_user_id = -100123

[requests]
ttl = "1 day"
quorum = 9
max_pending = 0
per_requester_per_hour = 1.5

[[rules]]
class = "Deploy.*"
quorum = 2
ttl = "500ms"

[[rules]]
class = "db.*"
approvers = ["alice", "eve", "alice"]
reject_reasons = ["one\ntwo", ""]
quorum = 3

[[rules]]
quorum = 1
"quoted.key" = 1
approvers = []
`
	want := []string{
		`1 home: ~ is not expanded here`,
		`2 hom: unknown key`,
		`3 reminder: 2 is out of range`,
		`4 on_trouble[1]: is the integer 7`,
		`5 deputy_chat_id: 0 is no chat`,
		`8 telegram.token: a token has no place in the configuration`,
		`9 telegram.token_env: is not the name of an environment variable`,
		`10 telegram.chat_id: is the string "@ops"`,
		`11 telegram.api_base: http is allowed to this machine alone, and api.example.com is another`,
		`12 telegram.message_thread_id: -1 is no topic`,
		`15 transport.mode: "push" is no way to get updates`,
		`16 transport.webhook.url: is neither https nor http`,
		`16 transport.webhook.listen: "8443" is no HOST:PORT`,
		`16 transport.webhook.replace: is the string "yes"`,
		`16 transport.webhook.secrets: unknown key`,
		`23 approvers[1].id: alice is named at approvers[0] already`,
		`24 approvers[1].telegram_user_id: is the string "@bob"`,
		`27 approvers[2].id: "human:carol" is no approver's name`,
		`28 approvers[2].telegram_user_id: 1087968824 is the id of every anonymous group admin (GroupAnonymousBot), not a person's`,
		`29 approvers[2].name: unknown key`,
		`31 approvers[3].id: is missing`,
		`32 approvers[3].telegram_user_id: 111 belongs to approvers[0] already`,
		`36 approvers[4].telegram_user_id: -100123 is a group or channel`,
		`39 requests.ttl: "1 day" is not a duration`,
		`40 requests.quorum: needs 9 different approvers, and the gate has 5`,
		`41 requests.max_pending: 0 is out of range`,
		`42 requests.per_requester_per_hour: is the number 1.5`,
		`45 rules[0].class: "Deploy.*" is no class or pattern`,
		`46 rules[0].quorum: needs 9 different approvers for Deploy.*, and 5 are allowed`,
		`47 rules[0].ttl: 500ms is out of range`,
		`51 rules[1].approvers[1]: "eve" is no approver of this gate`,
		`51 rules[1].approvers[2]: alice is named twice`,
		`52 rules[1].reject_reasons[0]: has more than one line`,
		`52 rules[1].reject_reasons[1]: is empty`,
		`53 rules[1].quorum: needs 9 different approvers for db.*, and 2 are allowed`,
		`55 rules[2].class: is missing`,
		`57 rules[2]."quoted.key": unknown key`,
		`58 rules[2].approvers: nobody is named, so nobody could ever decide`,
	}
	got := faultLines(t, doc)
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("unexpected: %s", line)
		}
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("missing:    %s", line)
		}
	}
	if !slices.IsSortedFunc(got, func(a, b string) int {
		var x, y int
		fmt.Sscan(a, &x)
		fmt.Sscan(b, &y)
		return x - y
	}) {
		t.Error("faults are not in the order of their lines")
	}
}

func TestAttentionKeys(t *testing.T) {
	for line, want := range map[string]string{
		`reminder = 0`:                      `1 reminder: 0 is out of range`,
		`reminder = 1`:                      `1 reminder: 1 is out of range`,
		`reminder = nan`:                    `1 reminder: NaN is out of range`,
		`reminder = "50%"`:                  `1 reminder: is the string "50%"`,
		`reminder = 0.01`:                   "",
		`on_trouble = []`:                   `1 on_trouble: names no program`,
		`on_trouble = "/bin/true"`:          `1 on_trouble: is the string "/bin/true"`,
		`on_trouble = ["page", "me"]`:       `1 on_trouble[0]: "page" is not an absolute path`,
		`on_trouble = ["/bin/a", "\u0000"]`: `1 on_trouble: holds a NUL character`,
		`on_trouble = ["/bin/true", ""]`:    "",
		`deputy_chat_id = 5`:                `1 deputy_chat_id: is telegram.chat_id itself`,
		`deputy_chat_id = "@ops"`:           `1 deputy_chat_id: is the string "@ops"`,
		`deputy_chat_id = -100123`:          "",
	} {
		if got := strings.Join(faultLines(t, line+"\n"+smallConfig), "\n"); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

func TestEndpointsSpeakTLSUnlessTheyAreLocal(t *testing.T) {
	for base, ok := range map[string]bool{
		"https://api.telegram.org": true, "https://bots.example.com/x/": true, "http://localhost:8081": true,
		"http://127.0.0.5": true, "http://[::1]:80": true, "http://10.0.0.1": false, "http://localhost.example.com": false,
		"http://127.0.0.1@evil.example": false, "https://u:p@api.telegram.org": false, "https://api.telegram.org?x=1": false,
		"https://api.telegram.org#x": false, "api.telegram.org": false, "https://": false, "": false, "unix:/x": false, "http://127.0.0.1.": false,
	} {
		doc := strings.Replace(smallConfig, "chat_id = 5", "chat_id = 5\napi_base = "+quoteTOML(base), 1)
		if got := faultLines(t, doc); (len(got) == 0) != ok {
			t.Errorf("api_base %q: faults %q", base, got)
		}
	}
}

func TestWebhookModeNeedsItsKeys(t *testing.T) {
	got := faultLines(t, smallConfig+"[transport]\nmode = \"webhook\"\n")
	want := []string{
		`7 transport.webhook.url: is missing, and transport.mode is "webhook"`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("faults %q", got)
	}
}

func TestSyntaxFaultsNameTheirLine(t *testing.T) {
	for doc, want := range map[string]string{
		"home = \"/x\"\nhome = \"/y\"\n":                              "f.toml:2: ",
		"home = \"/x\"\n[telegram ] x\n":                              "f.toml:2: ",
		"a = 1\nb = \"\\q\"\n":                                        "f.toml:2: ",
		"a = \"\xff\"\n":                                              "f.toml:1: ",
		"[[approvers]]\nid = \"x\"\n[approvers]\nid = \"y\"\n":        "f.toml:3: ",
		"\n\n\ntoken_file /etc/x\n":                                   "f.toml:4: ",
		"[requests]\nttl = 24h\n":                                     "f.toml:2: ",
		"telegram = {chat_id = 1}\n[telegram]\nmessage_thread_id=2\n": "f.toml:2: ",
	} {
		_, err := ParseConfig("prod", "f.toml", []byte(doc))
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want one line from %s", doc, err, want)
		}
	}
}

func TestConfigurationThatOthersMayWriteIsRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "prod.toml")
	if err := os.WriteFile(path, []byte(smallConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, ok := range map[fs.FileMode]bool{0o600: true, 0o644: true, 0o640: true, 0o660: false, 0o666: false, 0o602: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := LoadConfig("prod", path)
		if (err == nil) != ok || (err != nil && ErrorCode(err) != CodeConfig) {
			t.Errorf("mode %04o: %v", mode, err)
		}
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadConfig("prod", path); err == nil || !strings.Contains(err.Error(), "directory") {
		t.Errorf("in a directory that everybody may write: %v", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadConfig("prod", dir); ErrorCode(err) != CodeConfig {
		t.Errorf("a directory as configuration: %v", err)
	}
	fifo := filepath.Join(dir, "fifo.toml")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadConfig("prod", fifo); ErrorCode(err) != CodeConfig || !strings.Contains(err.Error(), "regular file") {
		t.Errorf("a FIFO as configuration: %v", err)
	}
	if _, err := LoadConfig("prod", filepath.Join(dir, "missing.toml")); !errors.Is(err, fs.ErrNotExist) || ErrorCode(err) != CodeConfig {
		t.Errorf("a missing configuration: %v", err)
	}
}

func TestConfigurationIsNeverTakenFromTheWorkingDirectory(t *testing.T) {
	xdg, work := t.TempDir(), t.TempDir()
	t.Chdir(work)
	t.Setenv("XDG_CONFIG_HOME", xdg)
	for _, trap := range []string{"prod.toml", ".config/approvald/prod.toml", "approvald/prod.toml"} {
		path := filepath.Join(work, trap)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(smallConfig), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, err := FindConfig("prod", "")
	if !errors.Is(err, fs.ErrNotExist) || ErrorCode(err) != CodeConfig {
		t.Fatalf("err = %v", err)
	}
	for _, place := range []string{filepath.Join(xdg, "approvald/prod.toml"), "/etc/approvald/prod.toml"} {
		if !strings.Contains(err.Error(), place) {
			t.Errorf("%v does not name %s", err, place)
		}
	}
	// A relative XDG directory would be the working directory's.
	t.Setenv("XDG_CONFIG_HOME", ".config")
	t.Setenv("HOME", ".")
	if path, err := FindConfig("prod", ""); err == nil {
		t.Errorf("found %s", path)
	}

	want := filepath.Join(xdg, "approvald/prod.toml")
	t.Setenv("XDG_CONFIG_HOME", xdg)
	if err := WriteConfig(durable.FS{}, want, Template{Gate: "prod", ChatID: 5, Home: "/srv/gate", Approvers: []Approver{{ID: "a", TelegramUserID: 1}}}); err != nil {
		t.Fatal(err)
	}
	if got, err := FindConfig("prod", ""); err != nil || got != want {
		t.Errorf("found %q, %v, want %q", got, err, want)
	}
	if got, err := FindConfig("prod", "here.toml"); err != nil || got != filepath.Join(work, "here.toml") {
		t.Errorf("--config here.toml: %q, %v", got, err)
	}
}

func TestGateNamesAreFitForFilesAndUnits(t *testing.T) {
	for name, ok := range map[string]bool{
		"default": true, "prod-2": true, "A_1": true, strings.Repeat("x", 64): true,
		"": false, ".": false, "../x": false, "a/b": false, "-x": false, "a.b": false, "a b": false, "a\n": false, "ä": false, strings.Repeat("x", 65): false,
	} {
		if err := CheckGateName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestTemplateIsWrittenWholeOrNotAtAll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "prod.toml")
	full := Template{
		Gate: "prod", Home: "/srv/\"odd\"\\\u0007\u007f/é", TokenFile: "/etc/x.token", ChatID: -100, MessageThreadID: 3,
		APIBase: "https://bots.example.com", Mode: ModeWebhook, WebhookURL: "https://a.example/x", SecretFile: "/etc/x.secret",
		Approvers: []Approver{{ID: "alice", TelegramUserID: 1}, {ID: "bob", TelegramUserID: 2}}, TTL: "2h", Quorum: 2,
	}
	failing := durable.FS{Hook: func(op, _ string) error {
		if op == "config.link" {
			return errors.New("no space")
		}
		return nil
	}}
	if err := WriteConfig(failing, path, full); ErrorCode(err) != CodeInternal {
		t.Errorf("err = %v", err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := WriteConfig(durable.FS{}, path, full); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	cfg, err := LoadConfig("prod", path)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Home != full.Home || cfg.Requests.Quorum != 2 || cfg.Requests.TTL != 2*time.Hour || len(cfg.Approvers) != 2 ||
		cfg.Telegram.ChatID != -100 || cfg.Transport.Webhook.URL != full.WebhookURL || cfg.Telegram.APIBase != full.APIBase {
		t.Errorf("read back: %+v", cfg)
	}
	if err := WriteConfig(durable.FS{}, path, full); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over an existing file: %v", err)
	}
	if err := WriteConfig(durable.FS{}, path+"2", Template{Gate: "prod", Home: "relative"}); ErrorCode(err) != CodeConfig {
		t.Errorf("a template that would be refused: %v", err)
	}
	if _, err := os.Stat(path + "2"); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a refused template was written")
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(fullConfig))
	f.Add([]byte(smallConfig))
	f.Add([]byte("a = [[1, {b = 'x'}], \"\"\"y\"\"\"\"\"]\n[c.'d.e'.\"f\\u0041\"]\n[[g.h]]\n[[g.h]]\n[g.h.i]\nj=1"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		t.Setenv("HOME", "/home/u")
		cfg, err := ParseConfig("prod", "f.toml", doc)
		if err != nil {
			config, ok := errors.AsType[*ConfigError](err)
			if !ok || len(config.Faults) == 0 {
				t.Fatalf("error without faults: %v", err)
			}
			lines := strings.Count(string(doc), "\n") + 1
			for _, fault := range config.Faults {
				if fault.Line < 1 || fault.Line > lines {
					t.Errorf("line %d of %d: %s", fault.Line, lines, fault)
				}
			}
			return
		}
		if len(cfg.Approvers) == 0 || cfg.Telegram.ChatID == 0 || !filepath.IsAbs(cfg.Home) {
			t.Errorf("accepted: %+v", cfg)
		}
		for _, class := range []string{"deploy.production", "a", "x.y.z"} {
			rule := cfg.Rule(class)
			if rule.Quorum < cfg.Requests.Quorum || rule.TTL > cfg.Requests.TTL || rule.Quorum > len(rule.Approvers) {
				t.Errorf("%s: %+v widens %+v", class, rule, cfg.Requests)
			}
		}
	})
}

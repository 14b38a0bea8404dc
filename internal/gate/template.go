package gate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/approvald/approvald/internal/durable"
	"github.com/approvald/approvald/internal/visible"
)

// Template is what `init` asks for. Empty members are left at their defaults, which the file then
// shows as comments.
type Template struct {
	Gate            string
	Home            string
	TokenFile       string
	TokenEnv        string
	ChatID          int64
	MessageThreadID int64
	APIBase         string
	Mode            string
	WebhookURL      string
	WebhookListen   string
	SecretFile      string
	Approvers       []Approver
	TTL             string
	Quorum          int
}

// Render answers the commented configuration. It is checked: the error is that of [LoadConfig], with
// the faults of the text that would have been written to file.
func (t Template) Render(file string) ([]byte, error) {
	doc := []byte(t.text())
	if _, err := ParseConfig(t.Gate, file, doc); err != nil {
		return nil, err
	}
	return doc, nil
}

// WriteConfig writes the configuration to a new file of mode 0600, whole or not at all, and makes
// the directory where it is missing. A file that is there is left alone: the error is then
// fs.ErrExist.
func WriteConfig(fsys durable.FS, path string, t Template) error {
	doc, err := t.Render(path)
	if err != nil {
		return err
	}
	if err := fsys.MkdirAll("config", filepath.Dir(path), 0o700); err != nil {
		return internalError(err, "make the configuration's directory")
	}
	err = fsys.CreateExclusive("config", path, doc, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return &Error{Code: CodeConfig, Err: err, Message: path + ": there is a configuration already",
			Hint: "edit it, or move it away first"}
	}
	if err != nil {
		return internalError(err, "write the configuration %s", path)
	}
	return nil
}

// tomlWriter writes one key a line: with its value, or with its default behind a comment sign.
type tomlWriter struct{ strings.Builder }

func (w *tomlWriter) str(key, value, fallback, comment string) {
	w.line(key, quoteTOML(value), value != "", quoteTOML(fallback), comment)
}

func (w *tomlWriter) num(key string, value, fallback int64, comment string) {
	w.line(key, fmt.Sprint(value), value != 0, fmt.Sprint(fallback), comment)
}

func (w *tomlWriter) line(key, value string, given bool, fallback, comment string) {
	if !given {
		key, value = "# "+key, fallback
	}
	fmt.Fprintf(w, "%-52s # %s\n", key+" = "+value, comment)
}

// quoteTOML writes a basic string; the escapes of JSON are among those of TOML.
func quoteTOML(s string) string {
	quoted, _ := json.Marshal(s) // a string always has a JSON form
	return strings.ReplaceAll(string(quoted), "\x7f", `\u007f`)
}

func (t Template) text() string {
	var w tomlWriter
	fmt.Fprintf(&w, "# Gate %s of approvald. Unknown keys are an error; durations are written \"90s\", \"30m\", \"24h\".\n", t.Gate)
	w.WriteString("# Whoever can write this file names the approvers: keep it out of reach of agents.\n\n")
	w.str("home", t.Home, "/var/lib/approvald/"+t.Gate+"/.approval", "log, payloads and state")
	w.line("reminder", "", false, "0.5", "remind after half of a request's time")
	w.line("deputy_chat_id", "", false, "-1001234567890", "ask there too when nobody answers")
	w.line("on_trouble", "", false, "[\"/usr/local/bin/page-me\"]", "told when people cannot be asked or heard")

	w.WriteString("\n[telegram]\n")
	if t.TokenEnv != "" {
		w.str("token_env", t.TokenEnv, "", "the variable that holds the bot token")
	} else {
		w.str("token_file", t.TokenFile, "/etc/approvald/"+t.Gate+".token", "mode 0600; else the systemd credential telegram-token")
	}
	fmt.Fprintf(&w, "%-52s # %s\n", fmt.Sprintf("chat_id = %d", t.ChatID), "where the cards go; negative for a group")
	w.num("message_thread_id", t.MessageThreadID, 7, "a forum topic")
	w.str("api_base", t.APIBase, defaultAPIBase, "a self-hosted Bot API server")

	w.WriteString("\n[transport]\n")
	w.str("mode", t.Mode, ModePoll, "\"poll\" or \"webhook\"")
	if t.Mode == ModeWebhook {
		w.WriteString("[transport.webhook]\n")
		w.str("url", t.WebhookURL, "https://approve.example.com/telegram/"+t.Gate, "what Telegram calls")
		w.str("listen", t.WebhookListen, defaultListen, "or \"unix:/run/…/webhook.sock\", or \"systemd\"")
		w.str("secret_file", t.SecretFile, "/etc/approvald/"+t.Gate+".secret", "mode 0600")
	}

	w.WriteString("\n# Who may decide. Only numeric ids count; user names can change hands.\n")
	for _, a := range t.Approvers {
		fmt.Fprintf(&w, "[[approvers]]\nid = %s\ntelegram_user_id = %d\n\n", quoteTOML(a.ID), a.TelegramUserID)
	}

	w.WriteString("[requests]\n")
	w.str("ttl", t.TTL, visible.Duration(defaultTTL), "how long a request waits for a person")
	w.num("quorum", int64(t.Quorum), defaultQuorum, "how many different approvers must agree")
	w.num("max_pending", 0, defaultMaxPending, "more are refused (queue-full)")
	w.num("per_requester_per_hour", 0, defaultPerRequesterPerHour, "more are refused (rate-limited)")

	w.WriteString("\n# The first rule that matches a request's class counts; it can only narrow.\n")
	w.WriteString("# [[rules]]\n# class = \"deploy.*\"\n# quorum = 2\n# ttl = \"1h\"\n# approvers = [\"alice\", \"bob\"]\n# reject_reasons = [\"wrong environment\", \"not now\"]\n")
	return w.String()
}

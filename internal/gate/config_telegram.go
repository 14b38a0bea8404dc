package gate

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
)

func (c *Config) readTelegram(n *node) {
	const chatWant = "the chat's numeric id, negative for a group"
	t := &c.Telegram
	t.TokenFile = n.absPath("token_file")
	t.TokenEnv, _ = n.str("token_env", "the name of an environment variable in quotes")
	if n.has("token") {
		n.take("token")
		n.fault("token", "put it into a file of mode 0600 and name that in token_file; revoke a token that others could read with @BotFather",
			"a token has no place in the configuration")
	}
	if n.has("token_env") && !isEnvName(t.TokenEnv) {
		// What stands here may be the token itself, so it is not repeated.
		n.fault("token_env", "write the variable's name, not its value", "is not the name of an environment variable")
	}
	if n.has("token_file") && n.has("token_env") {
		n.fault("token_env", "keep one of the two", "token_file is given as well")
	}
	id, ok := typed[int64](n, "chat_id", chatWant)
	switch {
	case !n.has("chat_id"):
		n.fault("chat_id", "write "+chatWant, "is missing")
	case ok && id == 0:
		n.fault("chat_id", "write "+chatWant, "0 is no chat")
	}
	t.ChatID = id
	if thread, ok := typed[int64](n, "message_thread_id", "the forum topic's number"); ok {
		if thread <= 0 {
			n.fault("message_thread_id", "write the forum topic's number, or leave the key out", "%d is no topic", thread)
		}
		t.MessageThreadID = thread
	}
	t.APIBase = defaultAPIBase
	if base, ok := n.str("api_base", "a URL in quotes"); ok {
		t.APIBase = strings.TrimRight(base, "/")
		if what := checkEndpoint(base); what != "" {
			n.fault("api_base", `write the server's address, such as "https://api.telegram.org"`, "%s", what)
		}
	}
	n.rest()
}

// absPath answers an absolute path, or "" when the key is missing or holds none.
func (n *node) absPath(name string) string {
	s, ok := n.str(name, "an absolute path in quotes")
	switch {
	case !ok:
		return ""
	case strings.HasPrefix(s, "~"):
		n.fault(name, "write the path in full, from / on", "~ is not expanded here")
	case !filepath.IsAbs(s):
		n.fault(name, "write the path in full, from / on", "is not an absolute path")
	default:
		return filepath.Clean(s)
	}
	return ""
}

// checkEndpoint says what is wrong with an address that secrets are sent to: https, or http to this
// machine alone, and nothing but a host and a path.
func checkEndpoint(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Hostname() == "":
		return "is not a URL with a host"
	case u.User != nil:
		return "holds a user name or password"
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "holds a query or fragment"
	case u.Scheme == "http" && !loopback(u.Hostname()):
		return fmt.Sprintf("http is allowed to this machine alone, and %s is another", u.Hostname())
	case u.Scheme != "https" && u.Scheme != "http":
		return "is neither https nor http"
	default:
		return ""
	}
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func (c *Config) readTransport(n *node) {
	t := &c.Transport
	t.Mode = ModePoll
	if mode, ok := n.str("mode", `"poll" or "webhook"`); ok {
		t.Mode = mode
		if mode != ModePoll && mode != ModeWebhook {
			n.fault("mode", `write "poll" or "webhook"`, "%q is no way to get updates", clip(mode))
		}
	}
	t.Webhook.read(n.table("webhook"), t.Mode == ModeWebhook)
	n.rest()
}

func (w *Webhook) read(n *node, needed bool) {
	const urlRemedy = `write the https address that Telegram is to call, such as "https://approve.example.com/telegram/prod"`
	var ok bool
	if w.URL, ok = n.str("url", "an https URL in quotes"); ok {
		if what := checkEndpoint(w.URL); what != "" {
			n.fault("url", urlRemedy, "%s", what)
		}
	} else if needed && !n.has("url") {
		n.fault("url", urlRemedy, `is missing, and transport.mode is "webhook"`)
	}
	w.Listen = defaultListen
	if listen, ok := n.str("listen", "an address in quotes"); ok {
		w.Listen = listen
		if what := checkListen(listen); what != "" {
			n.fault("listen", `write "127.0.0.1:4683", "unix:/run/…/webhook.sock" or "systemd"`, "%s", what)
		}
	}
	w.SecretFile = n.absPath("secret_file")
	w.Replace = n.boolean("replace")
	n.rest()
}

func checkListen(s string) string {
	if s == "systemd" {
		return ""
	}
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		if !filepath.IsAbs(path) {
			return "the path of the socket is not absolute"
		}
		return ""
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Sprintf("%q is no HOST:PORT", clip(s))
	}
	if p, err := strconv.ParseUint(port, 10, 16); err != nil || p == 0 && !loopback(host) {
		return fmt.Sprintf("%q is no port number", clip(port))
	}
	return ""
}

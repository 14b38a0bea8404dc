package doctor

import (
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/transport"
)

// What is left of an id: enough to tell two of one's own apart, and to nobody else the person or chat.
const idDigits = 3

var patterns = sync.OnceValue(func() (p struct{ number, address, token *regexp.Regexp }) {
	// A word of its own: numbers in paths are none of anybody's, and have to stay for the path to lead anywhere.
	p.number = regexp.MustCompile(`(^|[\s"'(=])(-?\d{8,})($|[\s"'),.;:])`)
	p.address = regexp.MustCompile(`\b\d{1,3}(?:\.\d{1,3}){3}\b|\[[0-9a-fA-F:.%a-z]*:[0-9a-fA-F:.%a-z]*\]`)
	p.token = regexp.MustCompile(`\b\d{3,}:[A-Za-z0-9_-]{16,}`) // also one that stands where none should
	return p
})

// public makes text fit to be pasted anywhere: secrets are taken out, ids shortened, the names of hosts that the configuration
// names and addresses of other machines replaced, and the user's home directory written as ~.
func (p *patient) public(text string) string {
	if home := strings.TrimRight(os.Getenv("HOME"), "/"); home != "" {
		// A shell does not expand it within quotes.
		text = strings.NewReplacer("'"+home+"/", "~/'", home+"/", "~/").Replace(text)
	}
	botID := ""
	if !p.abandoned { // else somebody else is at work on p, and what is said is our own words alone
		text = transport.NewRedactor(p.secrets...).String(text)
		botID = strconv.FormatInt(p.botID, 10)
		for _, host := range p.hosts() {
			text = strings.ReplaceAll(text, host.name, host.as)
		}
		for _, id := range p.ids() {
			text = replaceNumber(text, id)
		}
	}
	text = patterns().token.ReplaceAllLiteralString(text, transport.Redacted)
	text = patterns().address.ReplaceAllStringFunc(text, publicAddress)
	for range 2 { // one separates two of them
		text = patterns().number.ReplaceAllStringFunc(text, func(match string) string {
			part := patterns().number.FindStringSubmatch(match)
			if part[2] == botID {
				return match // it names the bot, which helpers have to know, and nobody can do anything with it
			}
			return part[1] + short(part[2]) + part[3]
		})
	}
	return text
}

func short(id string) string {
	if len(id) <= idDigits {
		return "…"
	}
	return "…" + id[len(id)-idDigits:]
}

// ids are those of people and chats, as they are written.
func (p *patient) ids() []string {
	list := []string{strconv.FormatInt(p.cfg.Telegram.ChatID, 10), strconv.FormatInt(p.cfg.Attention.DeputyChatID, 10)}
	for _, a := range p.cfg.Approvers {
		list = append(list, strconv.FormatInt(a.TelegramUserID, 10))
	}
	return list
}

// replaceNumber shortens an id that is too short to be known by its length, where it stands as a number of its own.
func replaceNumber(text, id string) string {
	if len(id) < 5 { // no real one; a number like 404 means something else
		return text
	}
	isDigit := func(i int) bool { return i >= 0 && i < len(text) && text[i] >= '0' && text[i] <= '9' }
	var b strings.Builder
	for {
		i := strings.Index(text, id)
		if i < 0 {
			b.WriteString(text)
			return b.String()
		}
		b.WriteString(text[:i])
		if isDigit(i-1) || isDigit(i+len(id)) {
			b.WriteString(id)
		} else {
			b.WriteString(short(id))
		}
		text = text[i+len(id):]
	}
}

type hostAs struct{ name, as string }

// hosts are the names that the configuration and the machine have.
func (p *patient) hosts() []hostAs {
	var list []hostAs
	add := func(rawURL, as string) {
		u, err := url.Parse(rawURL)
		if err != nil || u.Hostname() == "" || local(u.Hostname()) {
			return
		}
		list = append(list, hostAs{u.Hostname(), as})
	}
	add(p.cfg.Transport.Webhook.URL, "WEBHOOK-HOST")
	if p.cfg.Telegram.APIBase != transport.DefaultAPIBase {
		add(p.cfg.Telegram.APIBase, "API-HOST")
	}
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"} {
		add(os.Getenv(name), "PROXY-HOST")
	}
	if name, err := os.Hostname(); err == nil && len(name) > 3 && !local(name) {
		list = append(list, hostAs{name, "THIS-HOST"})
	}
	return list
}

func local(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func publicAddress(text string) string {
	ip, err := netip.ParseAddr(strings.Trim(text, "[]"))
	if err != nil || ip.IsLoopback() || ip.IsUnspecified() {
		return text
	}
	return "ADDRESS"
}

// quote writes a word for a shell.
func quote(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:@%=,", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// commandIn finds the command that a hint of ours tells to run, empty when it tells none.
func commandIn(hint string) string {
	for _, mark := range []string{"run as root: ", "run: ", "with: "} {
		if _, cmd, ok := strings.Cut(hint, mark); ok {
			cmd, _, _ = strings.Cut(cmd, " (")
			return cmd
		}
	}
	if _, rest, ok := strings.Cut(hint, "`"); ok {
		cmd, _, _ := strings.Cut(rest, "`")
		return cmd
	}
	return ""
}

// edit opens a file in the person's editor, at a line when that is known.
func edit(file string, line int) string {
	if line > 0 {
		return "${EDITOR:-vi} +" + strconv.Itoa(line) + " " + quote(file)
	}
	return "${EDITOR:-vi} " + quote(file)
}

// polls says that a check is about webhooks, when the gate has none.
func polls(p *patient) string {
	if p.cfg.Transport.Mode == gate.ModeWebhook {
		return ""
	}
	return `the gate polls (transport.mode = "poll")`
}

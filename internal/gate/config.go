package gate

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/BurntSushi/toml"
)

// DefaultGate is the gate that a command means when it names none.
const DefaultGate = "default"

// Bounds and defaults of the configuration.
const (
	MinTTL = time.Second
	MaxTTL = 30 * 24 * time.Hour

	defaultTTL                 = 24 * time.Hour
	defaultQuorum              = 1
	defaultMaxPending          = 200
	defaultPerRequesterPerHour = 120
	defaultListen              = "127.0.0.1:4683"
	defaultAPIBase             = "https://api.telegram.org"

	maxConfigBytes = 1 << 20
)

// Ways to get updates.
const (
	ModePoll    = "poll"
	ModeWebhook = "webhook"
)

// Config is the checked configuration of one gate.
type Config struct {
	Gate string // the gate's name
	File string // where the configuration came from
	Hash string // SHA-256 of the file's bytes, lowercase hex; decisions record it
	Home string // the gate home, absolute

	homeDerived bool // the file names no home

	Telegram  Telegram
	Transport Transport
	Approvers []Approver
	Requests  Limits
	Rules     []ClassRule
	Attention Attention
	Metrics   Metrics
}

// Telegram is where the gate's cards go, and with which bot.
type Telegram struct {
	TokenFile       string // one of TokenFile and TokenEnv at most; neither means the systemd credential
	TokenEnv        string
	ChatID          int64
	MessageThreadID int64  // a forum topic, 0 for none
	APIBase         string // no slash at the end
}

// Transport is how updates arrive.
type Transport struct {
	Mode    string // ModePoll or ModeWebhook
	Webhook Webhook
}

// Webhook is what the webhook mode needs.
type Webhook struct {
	URL        string // what Telegram is told
	Listen     string // HOST:PORT, unix:PATH or systemd
	SecretFile string
	Replace    bool // take over a registration that is not ours
}

// Approver is a person who may decide, known to Telegram by a numeric id alone.
type Approver struct {
	ID             string
	TelegramUserID int64
	// UID is the person's user id on this machine, nil when the configuration names none.
	UID *uint32
}

// Actor is the approver's name in the log.
func (a Approver) Actor() string { return "human:" + a.ID }

// Limits are what holds for requests that no rule narrows.
type Limits struct {
	TTL                 time.Duration
	Quorum              int
	MaxPending          int
	PerRequesterPerHour int
}

// PendingShare is how many requests of one asker may be pending at a time: half of what the gate takes, rounded up, so
// that there is room for somebody else's however many one asks.
func (l Limits) PendingShare() int { return (l.MaxPending + 1) / 2 }

// FindConfig answers the path of the gate's configuration: the one named by flag, else
// $XDG_CONFIG_HOME/approvald/GATE.toml (by default under ~/.config), else
// /etc/approvald/GATE.toml. It never looks into the working directory, where an agent can write.
func FindConfig(gate, flag string) (string, error) {
	if err := CheckGateName(gate); err != nil {
		return "", err
	}
	if dir := Rehearsal(); dir != "" {
		return filepath.Join(dir, "config", "approvald", "default.toml"), nil
	}
	if flag != "" {
		path, err := filepath.Abs(flag)
		if err != nil {
			return "", internalError(err, "--config %s", flag)
		}
		return path, nil
	}
	candidates := []string{filepath.Join("/etc/approvald", gate+".toml")}
	if path := UserConfigPath(gate); path != "" {
		candidates = []string{path, candidates[0]}
	}
	hidden := ""
	for i, path := range candidates {
		_, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrPermission) && i+1 < len(candidates):
			// HOME is another user's, as setpriv and the like leave it: what stands there is not this user's.
			hidden = path
		case err == nil || !errors.Is(err, fs.ErrNotExist):
			return path, nil
		}
	}
	if hidden != "" {
		return hidden, nil
	}
	return "", &Error{Code: CodeConfig, Err: fs.ErrNotExist,
		Message: fmt.Sprintf("gate %s has no configuration: there is no %s", gate, strings.Join(candidates, " and no ")),
		Hint:    "make one with `approvald init`, or name one with --config FILE"}
}

// UserConfigPath is where the invoking user's configuration of the gate stands, which is where
// `init` writes it; empty when the user has neither XDG_CONFIG_HOME nor a home directory.
func UserConfigPath(gate string) string {
	dir := xdgDir("XDG_CONFIG_HOME", ".config")
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, "approvald", gate+".toml")
}

// xdgDir answers an XDG base directory. A relative value is ignored, as the XDG specification says.
func xdgDir(env, underHome string) string {
	if dir := os.Getenv(env); filepath.IsAbs(dir) {
		return dir
	}
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, underHome)
	}
	return ""
}

// CheckGateName refuses a name that cannot stand in the names of files and units.
func CheckGateName(name string) error {
	if isGateName(name) {
		return nil
	}
	return refuse(CodeConfig, "use 1 to 64 letters, digits, - and _, the first a letter or digit",
		"%q is not a gate's name", clip(name))
}

// LoadConfig reads and checks the configuration of the gate. All that is wrong with it comes in one
// error, an [*Error] of [CodeConfig] whose cause is a [*ConfigError].
func LoadConfig(gate, path string) (Config, error) {
	if err := CheckGateName(gate); err != nil {
		return Config{}, err
	}
	doc, err := readConfig(path)
	if err != nil {
		return Config{}, err
	}
	return ParseConfig(gate, path, doc)
}

// readConfig reads the file if nobody but its user, or root, can have written it.
func readConfig(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO would make it wait for a writer
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{Code: CodeConfig, Err: err, Message: path + ": there is no such configuration file",
			Hint: "make one with `approvald init`, or name another with --config FILE"}
	}
	if err != nil {
		return nil, &Error{Code: CodeConfig, Err: err, Message: "read configuration: " + err.Error()}
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, &Error{Code: CodeConfig, Err: err, Message: "read configuration: " + err.Error()}
	}
	if err := checkTrusted(path, info); err != nil {
		return nil, err
	}
	doc, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err != nil {
		return nil, &Error{Code: CodeConfig, Err: err, Message: "read configuration: " + err.Error()}
	}
	if len(doc) > maxConfigBytes {
		return nil, refuse(CodeConfig, "check that this is the file you meant", "%s: is larger than 1 MiB", path)
	}
	return doc, nil
}

// checkTrusted refuses a configuration that somebody else could have written: who writes it names
// the approvers.
func checkTrusted(path string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return refuse(CodeConfig, "name a TOML file", "%s: is not a regular file", path)
	}
	if perm := info.Mode().Perm(); perm&0o022 != 0 {
		return refuse(CodeConfig, "check its content, then run: chmod go-w "+path,
			"%s: others may write this file (mode %04o)", path, perm)
	}
	if owner, mine := ownerOf(info), os.Geteuid(); owner != 0 && owner != mine {
		return refuse(CodeConfig, "it must belong to root or to the user that runs approvald",
			"%s: belongs to uid %d, and this is uid %d", path, owner, mine)
	}
	dir := filepath.Dir(path)
	if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return refuse(CodeConfig, "run: chmod o-w "+dir,
			"%s: everybody may replace files in its directory %s", path, dir)
	}
	return nil
}

func ownerOf(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

// ParseConfig checks a configuration that is in memory; file is what its faults call it. Errors are
// those of [LoadConfig].
func ParseConfig(gate, file string, doc []byte) (Config, error) {
	if err := CheckGateName(gate); err != nil {
		return Config{}, err
	}
	cfg, err := parseConfig(gate, file, doc)
	if err != nil {
		return Config{}, &Error{Code: CodeConfig, Message: err.Error(), Err: err}
	}
	return cfg, nil
}

// parseConfig checks the document as a whole; its error is a *ConfigError.
func parseConfig(gate, file string, doc []byte) (Config, error) {
	f := &faults{file: file}
	values := make(map[string]any)
	if _, err := toml.Decode(string(doc), &values); err != nil {
		f.list = append(f.list, syntaxFault(file, err))
		return Config{}, f.err()
	}
	f.lines = keyLines(string(doc))
	sum := sha256.Sum256(doc)
	cfg := Config{Gate: gate, File: file, Hash: hex.EncodeToString(sum[:])}
	cfg.read((&node{faults: f}).child("", values))
	if err := f.err(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

// syntaxFault turns the TOML library's error into a fault. What it says of duplicate keys and bad
// escapes is clear enough to be passed on.
func syntaxFault(file string, err error) Fault {
	fault := Fault{File: file, Line: 1, What: "is not valid TOML: " + err.Error(), Remedy: "see https://toml.io"}
	if parse, ok := errors.AsType[toml.ParseError](err); ok {
		fault.Line = max(1, parse.Position.Line)
		fault.Key = parse.LastKey
		fault.What = "is not valid TOML: " + parse.Message
	}
	return fault
}

// readHome takes the gate home, or derives it when the file names none.
func (c *Config) readHome(n *node) {
	given, ok := n.str("home", "an absolute path in quotes")
	switch {
	case ok && strings.HasPrefix(given, "~"):
		n.fault("home", "write the path in full, from / on", "~ is not expanded here")
	case ok && !filepath.IsAbs(given):
		n.fault("home", "write the path in full, from / on", "%q is not an absolute path", clip(given))
	case ok:
		c.Home = filepath.Clean(given)
	case !n.has("home"):
		c.Home, c.homeDerived = defaultHome(c.Gate), true
		if c.Home == "" {
			n.fault("home", "write home = \"/…\"", "is missing, and there is neither STATE_DIRECTORY nor XDG_STATE_HOME nor HOME to derive it from")
		}
	}
}

// DefaultHome is the home of a gate whose configuration names none, empty when it has to.
func DefaultHome(gate string) string { return defaultHome(gate) }

// defaultHome is $STATE_DIRECTORY (of a systemd unit; the first of several) or
// $XDG_STATE_HOME/approvald/GATE, and /.approval below it.
func defaultHome(gate string) string {
	if dir, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":"); filepath.IsAbs(dir) {
		return filepath.Join(dir, ".approval")
	}
	if dir := xdgDir("XDG_STATE_HOME", ".local/state"); dir != "" {
		return filepath.Join(dir, "approvald", gate, ".approval")
	}
	return ""
}

// read takes the whole document.
func (c *Config) read(n *node) {
	c.readHome(n)
	c.readTelegram(n.table("telegram"))
	c.readTransport(n.table("transport"))
	c.readApprovers(n)
	c.readLimits(n.table("requests"))
	c.readRules(n)
	c.readAttention(n)
	c.Metrics.read(n.table("metrics"))
	n.rest()
}

func (c *Config) readLimits(n *node) {
	c.Requests = Limits{
		TTL:                 n.duration("ttl", defaultTTL, MinTTL, MaxTTL),
		Quorum:              n.integer("quorum", defaultQuorum, 1, 100),
		MaxPending:          n.integer("max_pending", defaultMaxPending, 1, 100_000),
		PerRequesterPerHour: n.integer("per_requester_per_hour", defaultPerRequesterPerHour, 1, 100_000),
	}
	if have := len(c.Approvers); have > 0 && c.Requests.Quorum > have {
		n.fault("quorum", "lower it, or add [[approvers]]",
			"needs %d different approvers, and the gate has %d", c.Requests.Quorum, have)
	}
	n.rest()
}

// String names the configuration without its content.
func (c Config) String() string { return fmt.Sprintf("gate %s (%s)", c.Gate, c.File) }

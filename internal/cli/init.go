package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/approvald/approvald/internal/durable"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/transport"
	"github.com/approvald/approvald/internal/visible"
)

// maxToken is more than any token has.
const maxToken = 4096

// setup is everything that init needs to know. Flags fill it, and on a terminal
// questions fill the rest.
type setup struct {
	chatID, threadID int64
	approvers        []string // NAME=ID
	home, apiBase    string
	mode             string
	webhookURL       string
	webhookListen    string
	ttl              time.Duration
	quorum           int
	tokenFile        string
	tokenEnv         string
	tokenStdin       bool
	secretFile       string
	force            bool
	pair             string // NAME of whoever presents the code
	pairTimeout      time.Duration
	test             bool

	bot    transport.User // once getMe answered
	paired bool           // the approver presented a code
	config string         // where the configuration goes
	token  string         // to be written to tokenFile; empty when that is there already
}

func newInitCommand(e *env) *cobra.Command {
	var s setup
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Set a gate up, from the bot's token to a first approved request",
		Long: `Write the configuration of a gate, its token file and, for webhook mode, its
secret, all readable by you alone. On a terminal it asks for what the flags leave
open: the bot's token, which it tries, and then who approves. For that it shows a
code, as a link and to scan; whoever presents it to the bot is shown, and you are asked
whether they are the one. In a group an administrator presents it, and the cards go
there. A first request to try the gate follows if you like. Nothing is written before
all is known.

The token comes from a question without echo, from --token-stdin, from a file or from
an environment variable; no flag takes it. In scripts --pair NAME accepts whoever
presents the code, which then stands on stderr, and --chat-id with --approver needs
no Telegram at all.`,
		Example: `  approvald init
  approvald init --token-stdin --pair alice < token
  approvald init --chat-id -1001234567890 --approver alice=111 --token-stdin < token`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := withSignals(cmd.Context(), "")
			defer stop()
			if s.pair != "" && !gate.IsApproverID(s.pair) {
				return usagef("approvald init --pair alice", "--pair %s is no approver's name", visible.Quote(s.pair))
			}
			return e.initGate(ctx, &s)
		},
	}
	f := cmd.Flags()
	f.Int64Var(&s.chatID, "chat-id", 0, "chat that the cards go to; negative for a group")
	f.Int64Var(&s.threadID, "message-thread-id", 0, "forum topic in that chat")
	f.StringArrayVar(&s.approvers, "approver", nil, "who may decide, as `NAME=ID` with the numeric Telegram user id; repeat for more")
	f.StringVar(&s.tokenFile, "token-file", "", "`FILE` with the bot's token, mode 0600; made from the question or from stdin when it is not there")
	f.BoolVar(&s.tokenStdin, "token-stdin", false, "read the bot's token from stdin")
	f.StringVar(&s.tokenEnv, "token-env", "", "environment variable `NAME` that holds the token when the daemon starts")
	f.StringVar(&s.home, "home", "", "gate home, an absolute `DIR`")
	f.StringVar(&s.apiBase, "api-base", "", "`URL` of a self-hosted Bot API server")
	f.StringVar(&s.mode, "mode", "", "poll or webhook (default poll)")
	f.StringVar(&s.webhookURL, "webhook-url", "", "public https `URL` that Telegram is to call")
	f.StringVar(&s.webhookListen, "webhook-listen", "", "where the daemon listens for it: HOST:PORT, unix:PATH or systemd")
	f.StringVar(&s.secretFile, "secret-file", "", "`FILE` for the webhook's secret (default beside the configuration)")
	f.DurationVar(&s.ttl, "ttl", 0, "how long a request may be decided (default 24h)")
	f.IntVar(&s.quorum, "quorum", 0, "how many approvers must agree (default 1)")
	f.StringVar(&s.pair, "pair", "", "take whoever presents the code for the approver `NAME`, without asking")
	f.DurationVar(&s.pairTimeout, "pair-timeout", defaultPairTimeout, "how long to wait for that; ten minutes at most for one code")
	f.BoolVar(&s.test, "test", false, "start the gate for a first test request, and wait for its decision")
	f.BoolVar(&s.force, "force", false, "replace the files that are there")
	return cmd
}

// initGate asks first, checks then, and writes last: a break before the writing
// leaves nothing behind.
func (e *env) initGate(ctx context.Context, s *setup) error {
	if err := e.locate(s); err != nil {
		return err
	}
	if err := s.refuseExisting(); err != nil {
		return err
	}
	if err := e.readToken(ctx, s); err != nil {
		return err
	}
	if err := e.pairFirst(ctx, s); err != nil {
		return err
	}
	if err := e.askRest(ctx, s); err != nil {
		return err
	}
	if err := s.complete(e.interactive()); err != nil {
		return err
	}
	t, err := s.template(e.gate)
	if err != nil {
		return err
	}
	text, err := t.Render(s.config)
	if err != nil {
		return err
	}
	cfg, err := gate.ParseConfig(e.gate, s.config, text)
	if err != nil {
		return err
	}
	if s.token == "" && s.tokenEnv == "" {
		if _, err := cfg.Token(); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := s.write(text); err != nil {
		return err
	}
	if err := e.tellNext(s, cfg); err != nil {
		return err
	}
	return e.offerTest(ctx, s)
}

// locate decides where the files go.
func (e *env) locate(s *setup) error {
	s.config = gate.UserConfigPath(e.gate)
	if e.config != "" {
		path, err := absolute(e.config)
		if err != nil {
			return err
		}
		s.config = path
	}
	if s.config == "" {
		return usagef("--config FILE", "there is neither XDG_CONFIG_HOME nor HOME to put the configuration into")
	}
	if s.apiBase != "" {
		if err := transport.ValidateAPIBase(s.apiBase); err != nil {
			return usagef("--api-base URL", "%s", err)
		}
	}
	base := strings.TrimSuffix(s.config, ".toml")
	switch {
	case s.tokenEnv != "" && (s.tokenFile != "" || s.tokenStdin):
		return usagef("--token-file FILE or --token-env NAME", "the token comes from one place: a file or the environment")
	case s.tokenFile != "":
		path, err := absolute(s.tokenFile)
		if err != nil {
			return err
		}
		s.tokenFile = path
	case s.tokenEnv == "":
		s.tokenFile = base + ".token"
	}
	if s.secretFile == "" {
		s.secretFile = base + ".secret"
	}
	path, err := absolute(s.secretFile)
	s.secretFile = path
	return err
}

// refuseExisting refuses to replace a configuration that is there, before any
// question is asked.
func (s *setup) refuseExisting() error {
	if s.force {
		return nil
	}
	switch _, err := os.Lstat(s.config); {
	case err == nil:
		return &gate.Error{Code: gate.CodeConfig, Message: s.config + " exists and was left as it is", Hint: "replace it with --force, or name another gate with --gate"}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("look for a configuration: %w", err)
	}
	return nil
}

// readToken gets the token from where the flags say. A token file that is there
// is used as it is.
func (e *env) readToken(ctx context.Context, s *setup) error {
	var text string
	switch {
	case s.tokenEnv != "":
		return nil
	case s.tokenStdin:
		data, err := io.ReadAll(io.LimitReader(e.stdin, maxToken))
		if err != nil {
			return fmt.Errorf("read token from stdin: %w", err)
		}
		text = string(data)
	case exists(s.tokenFile):
		return nil
	case e.interactive():
		var err error
		text, err = e.askSecret(ctx, "Bot token, as @BotFather shows it (not echoed): ", func(answer string) error {
			if _, err := transport.ParseToken(strings.TrimSpace(answer)); err != nil {
				return fmt.Errorf("what was given is %w", err)
			}
			return e.tryToken(ctx, s, strings.TrimSpace(answer))
		})
		if err != nil {
			return err
		}
	default:
		return usagef("approvald init --token-stdin ... < TOKENFILE", "there is no token: %s does not exist", s.tokenFile)
	}
	s.token = strings.TrimSpace(text)
	if _, err := transport.ParseToken(s.token); err != nil {
		return &gate.Error{Code: gate.CodeConfig, Message: "the token that was given is " + err.Error(), Hint: "nothing was written"}
	}
	if s.tokenStdin && exists(s.tokenFile) && !s.force {
		return &gate.Error{Code: gate.CodeConfig, Message: s.tokenFile + " exists and was left as it is", Hint: "replace it with --force, or leave --token-stdin out to use it"}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// complete refuses a set-up that lacks what it cannot do without, all at once.
// The rest is checked with the configuration as a whole.
func (s *setup) complete(asked bool) error {
	if s.mode == "" {
		s.mode = gate.ModePoll
		if s.webhookURL != "" {
			s.mode = gate.ModeWebhook
		}
	}
	var missing []string
	if s.chatID == 0 {
		missing = append(missing, "--chat-id")
	}
	if len(s.approvers) == 0 {
		missing = append(missing, "--approver")
	}
	if s.mode == gate.ModeWebhook && s.webhookURL == "" {
		missing = append(missing, "--webhook-url")
	}
	if len(missing) == 0 {
		return nil
	}
	what := "not given, and there is no terminal to ask at"
	if asked {
		what = "not given"
	}
	return usagef("approvald init --chat-id -1001234567890 --approver alice=111 --token-stdin", "%s: %s", strings.Join(missing, ", "), what)
}

// template is the set-up as the gate's configuration.
func (s *setup) template(gateName string) (gate.Template, error) {
	t := gate.Template{
		Gate: gateName, Home: s.home, TokenEnv: s.tokenEnv, TokenFile: s.tokenFile,
		ChatID: s.chatID, MessageThreadID: s.threadID, APIBase: s.apiBase,
		Mode: s.mode, WebhookURL: s.webhookURL, WebhookListen: s.webhookListen,
		Quorum: s.quorum,
	}
	if s.mode == gate.ModeWebhook {
		t.SecretFile = s.secretFile
	}
	if s.ttl != 0 {
		t.TTL = s.ttl.String()
	}
	for _, a := range s.approvers {
		person, err := parseApprover(a)
		if err != nil {
			return gate.Template{}, err
		}
		t.Approvers = append(t.Approvers, person)
	}
	return t, nil
}

func parseApprover(s string) (gate.Approver, error) {
	name, number, ok := strings.Cut(s, "=")
	id, err := strconv.ParseInt(number, 10, 64)
	if !ok || name == "" || err != nil {
		return gate.Approver{}, usagef("--approver alice=111", "approver %s is not NAME=ID with a numeric Telegram user id", visible.Quote(s))
	}
	return gate.Approver{ID: name, TelegramUserID: id}, nil
}

// write puts the files in place, the configuration last: without it the others
// mean nothing. What was made is taken away again when a later one fails.
func (s *setup) write(text []byte) error {
	var disk durable.FS
	var made []string
	undo := func(err error) error {
		for _, path := range made {
			err = errors.Join(err, os.Remove(path))
		}
		return err
	}
	put := func(what, path string, data []byte) error {
		if err := disk.MkdirAll("init", filepath.Dir(path), 0o700); err != nil {
			return fmt.Errorf("make directory for %s: %w", what, err)
		}
		fresh := !exists(path)
		write := disk.CreateExclusive
		if s.force {
			write = disk.WriteFile
		}
		if err := write("init", path, data, 0o600); err != nil {
			return fmt.Errorf("write %s %s: %w", what, path, err)
		}
		if fresh {
			made = append(made, path)
		}
		return nil
	}
	if s.token != "" {
		if err := put("token file", s.tokenFile, []byte(s.token+"\n")); err != nil {
			return undo(err)
		}
	}
	if s.mode == gate.ModeWebhook && (s.force || !exists(s.secretFile)) {
		if err := put("secret file", s.secretFile, newSecret()); err != nil {
			return undo(err)
		}
	}
	if err := put("configuration", s.config, text); err != nil {
		return undo(err)
	}
	return nil
}

// newSecret is a webhook secret: 256 random bits in characters that Telegram
// takes.
func newSecret() []byte {
	var b [32]byte
	// crypto/rand.Read never fails.
	_, _ = rand.Read(b[:])
	return []byte(hex.EncodeToString(b[:]) + "\n")
}

func (e *env) tellNext(s *setup, cfg gate.Config) error {
	secretFile := ""
	if s.mode == gate.ModeWebhook {
		secretFile = s.secretFile
	}
	var paired struct { // whom a script did not know before
		chat, user int64
		id         string
	}
	if last := len(cfg.Approvers) - 1; s.paired {
		paired.chat, paired.id, paired.user = cfg.Telegram.ChatID, cfg.Approvers[last].Actor(), cfg.Approvers[last].TelegramUserID
	}
	if e.json {
		return e.ui.emit(struct {
			Gate       string `json:"gate"`
			Config     string `json:"config"`
			Home       string `json:"home"`
			TokenFile  string `json:"token_file,omitempty"`
			SecretFile string `json:"secret_file,omitempty"`
			ChatID     int64  `json:"chat_id,omitempty"`
			Approver   string `json:"approver,omitempty"`
			UserID     int64  `json:"telegram_user_id,omitempty"`
		}{e.gate, s.config, cfg.Home, s.tokenFile, secretFile, paired.chat, paired.id, paired.user})
	}
	e.ui.line("%s", s.config)
	if s.tokenFile != "" {
		e.ui.say("the bot's token is in %s", s.tokenFile)
	}
	if secretFile != "" {
		e.ui.say("the webhook's secret is in %s", secretFile)
	}
	gateFlag := e.gateFlags()
	e.ui.say("next: approvald up%s", gateFlag)
	e.ui.say("then, in another terminal: approvald request --class test.hello --summary 'first try' --wait%s", gateFlag)
	if s.paired {
		e.ui.say("more approvers: approvald pair%s", gateFlag)
	}
	return nil
}

// gateFlags are the flags that name this gate in a command to type.
func (e *env) gateFlags() string {
	switch {
	case e.config != "":
		return " --gate " + e.gate + " --config " + quoteArg(e.config)
	case e.gate != gate.DefaultGate:
		return " --gate " + e.gate
	default:
		return ""
	}
}

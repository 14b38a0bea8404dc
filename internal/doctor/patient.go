package doctor

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/transport"
)

// Telegram is what the checks ask of Telegram. None of it changes anything there.
type Telegram interface {
	GetMe(ctx context.Context) (transport.User, error)
	GetChat(ctx context.Context, chatID int64) (transport.Chat, error)
	GetChatMember(ctx context.Context, chatID, userID int64) (transport.ChatMember, error)
	GetWebhookInfo(ctx context.Context) (transport.WebhookInfo, error)
	Close()
}

// Options are the gate to look at, and the ways to look. Of the latter the zero value is the real thing.
type Options struct {
	Gate   string
	Config string // the file that --config names, empty for the usual places

	Connect func(transport.Options) (Telegram, error)
	Statfs  func(path string, st *unix.Statfs_t) error
	// Systemctl runs systemctl and answers its stdout; ErrNoSystemd where systemd does not run.
	Systemctl func(ctx context.Context, args ...string) (string, error)
	// Proxy is asked for the webhook's public address.
	Proxy http.RoundTripper
}

// ErrNoSystemd: systemd does not run this machine.
var ErrNoSystemd = errors.New("systemd does not run this machine")

// The times that single steps may take. Together they stay below limit.
const (
	callLimit   = 4 * time.Second
	daemonLimit = 2 * time.Second
)

// patient is the gate, and what the checks so far found out about it.
type patient struct {
	o Options

	cfg       gate.Config
	token     transport.Secret
	tokenFile string // empty when it comes from elsewhere
	secrets   []transport.Secret
	telegram  Telegram
	remote    context.Context // of all calls to Telegram together
	botID     int64
	abandoned bool

	clock struct {
		sync.Mutex
		said, read time.Time
	}

	asked     bool
	status    *gateapi.Status // of the daemon, nil when none answers
	daemonErr error           // why it does not, nil when none is there
}

func newPatient(o Options) *patient {
	if o.Connect == nil {
		o.Connect = func(t transport.Options) (Telegram, error) { return transport.New(t) }
	}
	if o.Statfs == nil {
		o.Statfs = unix.Statfs
	}
	if o.Systemctl == nil {
		o.Systemctl = systemctl
	}
	if o.Proxy == nil {
		// Never a connection from before: the way there is what is looked at.
		o.Proxy = &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, TLSHandshakeTimeout: callLimit}
	}
	return &patient{o: o}
}

// gateFlags are what an approvald command needs to be about this gate.
func (p *patient) gateFlags() string {
	flags := ""
	if p.o.Gate != gate.DefaultGate {
		flags += " --gate " + p.o.Gate
	}
	if p.o.Config != "" {
		file := p.o.Config
		if abs, err := filepath.Abs(file); err == nil {
			file = abs
		}
		flags += " --config " + quote(file)
	}
	return flags
}

// daemon asks the gate's daemon how it does, once; nil when none answers.
func (p *patient) daemon(ctx context.Context) *gateapi.Status {
	if p.asked {
		return p.status
	}
	p.asked = true
	ctx, cancel := context.WithTimeout(ctx, daemonLimit)
	defer cancel()
	for _, socket := range p.cfg.Paths().Sockets {
		client := gateapi.NewClient(socket, p.cfg.Identity())
		st, err := client.Status(ctx)
		client.Close()
		if err == nil {
			p.status, p.daemonErr = &st, nil
			return p.status
		}
		if u, ok := errors.AsType[*gateapi.UnreachableError](err); (!ok || !u.NobodyThere()) && p.daemonErr == nil {
			p.daemonErr = err
		}
	}
	return nil
}

func systemctl(ctx context.Context, args ...string) (string, error) {
	if _, err := os.Lstat("/run/systemd/system"); err != nil {
		return "", ErrNoSystemd
	}
	return output(ctx, "systemctl", args...)
}

// output runs a program, which is told nothing of our environment: the token may be in it.
func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	return out.String(), err
}

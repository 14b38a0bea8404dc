package demopage

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/approvald/approvald/internal/stage"
	"github.com/approvald/approvald/internal/telegramtest"
)

const (
	aliceID = 111
	bobID   = 222
	groupID = -1001
	// stepLimit bounds what a machine has to do for one button. It is long, so that a slow machine shows the same.
	stepLimit = 30 * time.Second
	// muteTime is how long Telegram answers 429 after its button was pressed.
	muteTime = 10 * time.Second
	// webhookURL is what Telegram is told to call; the Bot API server brings it to the daemon's listener, as a reverse proxy would.
	webhookURL = "https://approve.example.com/telegram/demo"
)

// play is what goes on behind the page.
type play struct {
	stage   *stage.Stage
	people  []person
	webhook string // the address that the daemon listens on in webhook mode

	ctx     context.Context // of everything that the page started
	workers sync.WaitGroup
	changed chan struct{} // has room for one: something is to be shown again

	doing sync.Mutex // one button at a time

	mu       sync.Mutex
	programs []*program
	filed    map[string]int // how often each kind of request was made
	daemon   *program       // nil before the first
	mode     string
	online   bool
	muted    time.Time // until when Telegram answers 429
	log      []byte    // whole lines
	verified verification
}

// person is an approver with a phone.
type person struct {
	name  string
	phone *telegramtest.Phone
}

// verification is what `approvald log verify --json` said last.
type verification struct {
	Status  string `json:"status"`
	Records int64  `json:"records"`
	Reason  string `json:"reason,omitempty"`
	Head    struct {
		Seq  int64  `json:"seq"`
		Hash string `json:"hash"`
	} `json:"head"`
}

func newPlay(name string) (*play, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	set, err := stage.New(stage.Options{Program: name, Name: "demo", Telegram: telegramtest.Options{
		Bot:     telegramtest.User{FirstName: "approvald", Username: "approvald_demo_bot"},
		Webhook: telegramtest.WebhookOptions{Transport: telegramtest.RouteTo("http://" + address)},
	}})
	if err != nil {
		return nil, err
	}
	p := &play{stage: set, webhook: address, changed: make(chan struct{}, 1), filed: map[string]int{}, mode: "poll", online: true}
	for _, u := range []telegramtest.User{{ID: aliceID, FirstName: "Alice"}, {ID: bobID, FirstName: "Bob"}} {
		set.Telegram.AddUser(u)
		p.people = append(p.people, person{u.FirstName, set.Telegram.Phone(u.ID)})
	}
	set.Telegram.AddChat(telegramtest.Chat{ID: groupID, Type: telegramtest.Supergroup, Title: "Approvals", Members: telegramtest.Members(aliceID, bobID)})
	if err := errors.Join(set.Write("webhook.secret", rand.Text()+"\n"), p.configure()); err != nil {
		return nil, errors.Join(err, set.Close())
	}
	return p, nil
}

// freeAddress is a loopback address that nobody listens on at the moment.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}

// configure writes the gate's configuration for the mode of the moment.
func (p *play) configure() error {
	return p.stage.Configure(groupID, fmt.Sprintf(`[transport]
mode = %q

[transport.webhook]
url = %q
listen = %q
secret_file = %q

[[approvers]]
id = "alice"
telegram_user_id = %d

[[approvers]]
id = "bob"
telegram_user_id = %d

[requests]
ttl = "30m"

[[rules]]
class = "deploy.*"
quorum = 2

[[rules]]
class = "*"
reject_reasons = ["not now", "wrong environment", "ask me first"]
`, p.mode, webhookURL, p.webhook, p.stage.Dir+"/webhook.secret", aliceID, bobID))
}

// begin starts what runs as long as the page does: the daemon, and the watching of phones and log.
func (p *play) begin(ctx context.Context) {
	p.ctx = ctx
	p.workers.Go(p.watchTelegram)
	p.workers.Go(p.followLog)
	p.workers.Go(func() {
		_ = p.press(func(ctx context.Context) error { return p.startDaemon(ctx) }) // what it said stands on the page
	})
}

func (p *play) wait() { p.workers.Wait() }

func (p *play) close() error { return p.stage.Close() }

// touch has the page shown again.
func (p *play) touch() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// press does what a button is for. One is done at a time; each is bounded.
func (p *play) press(do func(context.Context) error) error {
	p.doing.Lock()
	defer p.doing.Unlock()
	ctx, cancel := context.WithTimeoutCause(p.ctx, stepLimit, fmt.Errorf("this took longer than %s", stepLimit))
	defer cancel()
	defer p.touch()
	return do(ctx)
}

// watchTelegram touches the page whenever something on the phones has changed.
func (p *play) watchTelegram() {
	last := ""
	for {
		err := p.stage.Telegram.WaitFor(p.ctx, func(s telegramtest.State) bool {
			var now fingerprint
			for _, m := range s.Messages(groupID) {
				now.add(m.ID, int64(m.Edits), int64(len(m.Buttons)), m.Deleted)
			}
			for _, t := range s.Taps() {
				now.add(t.MessageID, 0, 0, t.Answer != nil)
			}
			changed := now.String() != last
			last = now.String()
			return changed
		})
		if err != nil {
			return
		}
		p.touch()
	}
}

// fingerprint tells whether a list of things is as it was.
type fingerprint struct{ bytes.Buffer }

func (f *fingerprint) add(values ...any) { fmt.Fprintln(f, values...) }

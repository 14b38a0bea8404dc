package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/rescue"
	"github.com/approvald/approvald/internal/visible"
)

const (
	// checkEvery keeps a displaced webhook from going unnoticed for a minute.
	checkEvery = 50 * time.Second
	// setEvery is Telegram's own limit for setWebhook.
	setEvery = time.Second
	// drainTimeout and removeTimeout bound the two steps of a stop.
	drainTimeout  = handleGrace + 500*time.Millisecond
	removeTimeout = 2 * time.Second
)

// WebhookOptions configure a Webhook.
type WebhookOptions struct {
	Client *Client
	Logger *zap.Logger
	// URL is what Telegram posts to; requests have to arrive with its path.
	URL string
	// Listen is "host:port" or "unix:/path"; ignored when Listener is set.
	Listen string
	// Listener is an already open socket, as systemd passes one. Run closes it.
	Listener net.Listener
	// Secret is required: without it anybody could post taps.
	Secret Secret
	// Replace allows displacing another registration at the start. One that
	// appears later is reported and never fought over.
	Replace bool
	// Own tells whether a registration found at the start is this gate's leftover.
	Own func(webhookURL string) bool
	// RemoveOnStop is asked on stop whether Telegram may still be talked to, to
	// take the registration down if it is still ours; nil means no.
	RemoveOnStop func() bool
	// CheckEvery is how often the registration is read back; 0 means 50 s.
	CheckEvery time.Duration
}

// Webhook receives updates as Telegram's HTTP posts.
type Webhook struct {
	client       *Client
	log          *zap.Logger
	url, path    string
	listen       string
	listener     net.Listener
	secret       Secret
	replace      bool
	own          func(string) bool
	removeOnStop func() bool
	checkEvery   time.Duration

	conns     *connTable
	delivered atomic.Int64 // updates that were taken
	refused   atomic.Int64 // posts without the right secret
	alarm     chan struct{}
	inHand    atomic.Int64 // updates that the handler is at
	stopping  atomic.Bool

	ready     chan struct{}
	readyOnce sync.Once

	mu      sync.Mutex
	health  Health
	storing string // what is wrong with storing updates
}

// ValidateWebhookURL checks what setWebhook would refuse: Telegram posts to https
// on port 443, 80, 88 or 8443 only.
func ValidateWebhookURL(raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" {
		return errors.New("the webhook url must be a URL such as https://approve.example.com/telegram/prod")
	}
	switch {
	case u.Scheme != "https":
		return fmt.Errorf("the webhook url must start with https://, not %q", u.Scheme+"://")
	case u.Port() != "" && !slices.Contains([]string{"443", "80", "88", "8443"}, u.Port()):
		return fmt.Errorf("the webhook url has port %s: Telegram posts to 443, 80, 88 and 8443 only", u.Port())
	case u.User != nil || u.Fragment != "" || u.RawQuery != "":
		return errors.New("the webhook url must not have a user, a query or a fragment")
	}
	return nil
}

// NewWebhook checks the options; Run starts it.
func NewWebhook(o WebhookOptions) (*Webhook, error) {
	if err := ValidateWebhookURL(o.URL); err != nil {
		return nil, err
	}
	secret, err := ParseWebhookSecret(o.Secret.Reveal(), o.Client.token)
	if err != nil {
		return nil, err
	}
	if o.Listener == nil && o.Listen == "" {
		return nil, errors.New("the webhook has nothing to listen on: set listen to host:port or unix:/path")
	}
	u, err := url.Parse(o.URL)
	if err != nil {
		return nil, errors.New("the webhook url is not a URL")
	}
	return &Webhook{
		client: o.Client, log: cmp.Or(o.Logger, zap.NewNop()),
		url: o.URL, path: cmp.Or(u.EscapedPath(), "/"),
		listen: o.Listen, listener: o.Listener,
		secret: secret, replace: o.Replace, own: o.Own, removeOnStop: o.RemoveOnStop,
		checkEvery: cmp.Or(o.CheckEvery, checkEvery),
		conns:      newConnTable(maxConns),
		alarm:      make(chan struct{}, 1),
		ready:      make(chan struct{}),
		health:     Health{Mode: "webhook", Error: "no contact with Telegram yet"},
	}, nil
}

// Ready is closed once the registration was read back as ours.
func (w *Webhook) Ready() <-chan struct{} { return w.ready }

// Health reports the age of the last success: the registration was read back as
// ours without a delivery error, or an update arrived. Three check intervals
// without either is unhealthy.
func (w *Webhook) Health() Health {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.health
	h.Error = cmp.Or(h.Error, w.storing)
	if w.storing != "" && h.Cause == "" {
		h.Cause = CauseStorage
	}
	h.Patience = 3 * w.checkEvery
	age := time.Since(h.LastSuccess)
	h.Healthy = h.Error == "" && age <= h.Patience
	if !h.Healthy && h.Error == "" {
		h.Error = fmt.Sprintf("the webhook's registration could not be checked for %s", visible.Duration(age.Round(time.Second)))
	}
	return h
}

// Run listens, then registers the webhook and keeps it registered until ctx ends.
// It then takes no new update, lets those in hand finish, takes the registration
// down if it is still ours, and returns nil; all of that within 5 s. It
// returns early only when the listener fails or another registration is in the
// way at the start (*RegistrationError).
//
// handle may be called from several goroutines at once. A post is answered 200
// after handle returned nil, and 503 otherwise, on which Telegram sends it again.
func (w *Webhook) Run(ctx context.Context, handle Handler) error {
	listener, err := w.open(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	server := w.server(ctx, handle)
	var running sync.WaitGroup
	running.Go(func() {
		rescue.Go("webhook listener", cancel, func() {
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				cancel(fmt.Errorf("webhook listener: %w", err))
			}
		})
	})
	running.Go(func() {
		rescue.Go("webhook registration", cancel, func() {
			if err := w.keepRegistered(ctx); err != nil {
				cancel(err)
			}
		})
	})
	<-ctx.Done()
	w.stopping.Store(true)
	draining, stop := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer stop()
	if err := server.Shutdown(draining); err != nil {
		if n := w.inHand.Load(); n > 0 {
			w.log.Warn("stopped with updates in hand; Telegram sends them again", zap.Int64("updates", n))
		}
		_ = server.Close() // connections that never sent anything
	}
	running.Wait()
	w.deregister(ctx)
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && !errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return nil
}

// due notes that the loop is alive and comes round again after wait.
func (w *Webhook) due(wait time.Duration) {
	w.mu.Lock()
	w.health.Due = time.Now().Add(wait)
	w.mu.Unlock()
}

// failed notes why the registration could not be looked after.
func (w *Webhook) failed(err error) {
	cause := Cause("")
	if ClassOf(err) == ClassToken {
		cause = CauseToken
	}
	w.note(err.Error(), cause)
}

func (w *Webhook) note(text string, cause Cause) {
	w.mu.Lock()
	changed := w.health.Error != text
	w.health.Error, w.health.Cause = text, cause
	w.mu.Unlock()
	if changed && text != "" {
		w.log.Warn("webhook: " + text)
	}
}

func (w *Webhook) succeeded() {
	w.mu.Lock()
	was := w.health.Error
	w.health.LastSuccess, w.health.Error, w.health.Cause, w.health.ConflictSince = time.Now(), "", "", time.Time{}
	w.mu.Unlock()
	w.readyOnce.Do(func() { close(w.ready) })
	if was != "" {
		w.log.Info("webhook works", zap.String("before", was))
	}
}

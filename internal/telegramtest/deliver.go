package telegramtest

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	maxRetryAfter = 3600 * time.Second
	unhealthy     = 10 * time.Second // of failures only
	slowPace      = 2 * time.Second  // between attempts while unhealthy
	goneLimit     = 23 * time.Hour   // of nothing but 410
)

// hook delivers the queue to one webhook. Updates with one key go out one after
// the other, others in parallel. Its fields are guarded by Server.mu.
type hook struct {
	s           *Server
	url         string
	target      *url.URL
	secret      string
	ip          string
	maxConns    int
	certificate []byte
	lastError   string
	lastErrorAt time.Time

	ctx       context.Context
	cancel    context.CancelFunc
	kicked    chan struct{}
	inFlight  int
	failing   time.Time // since the first failure after a success; zero = healthy
	lastTry   time.Time
	goneSince time.Time // first of an unbroken row of 410s
	transport http.RoundTripper
	posts     sync.WaitGroup
}

func (h *hook) same(o *hook) bool {
	return h.url == o.url && h.secret == o.secret && h.maxConns == o.maxConns && (o.ip == "" || o.ip == h.ip) &&
		o.certificate == nil && h.certificate == nil
}

func (h *hook) start() {
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.kicked = make(chan struct{}, 1)
	for _, e := range h.s.queue.events {
		e.inFlight, e.nextTry, e.attempts = false, time.Time{}, 0
	}
	h.transport = h.s.opts.Webhook.Transport
	var own *http.Transport
	if h.transport == nil {
		own = h.newTransport()
		h.transport = own
	}
	h.s.wg.Go(func() {
		h.run()
		h.posts.Wait()
		if own != nil {
			own.CloseIdleConnections()
		}
	})
}

// newTransport connects to the address of the hook, whatever the name in the
// URL says, and trusts the uploaded certificate or else the system's. It never
// leaves the machine.
func (h *hook) newTransport() *http.Transport {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if h.certificate != nil {
		conf.RootCAs = x509.NewCertPool()
		conf.RootCAs.AppendCertsFromPEM(h.certificate)
	}
	ip := h.ip
	return &http.Transport{
		TLSClientConfig: conf, DisableCompression: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			if a, err := netip.ParseAddr(ip); err != nil || !a.IsLoopback() {
				return nil, syscall.ETIMEDOUT
			}
			var d net.Dialer
			return d.DialContext(ctx, network, net.JoinHostPort(ip, port))
		},
	}
}

// RouteTo returns a transport that sends every request to base, "http://host:port",
// keeping path, query and headers, as a reverse proxy would that ends TLS.
func RouteTo(base string) http.RoundTripper {
	u, err := url.Parse(base)
	t := &http.Transport{DisableCompression: true}
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.Host = r.URL.Host
		r.URL.Scheme, r.URL.Host = u.Scheme, u.Host
		r.Close = true
		return t.RoundTrip(r)
	})
}

// RouteTLS returns a transport that connects every request to address, "host:port", and speaks TLS there as Telegram
// would to the host in the URL: it sends that name, verifies the certificate for it against roots, and keeps connections.
// Redirects are not followed.
func RouteTLS(address string, roots *x509.CertPool) *http.Transport {
	return &http.Transport{
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, DisableCompression: true, MaxIdleConnsPerHost: defaultMaxConns,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, address)
		},
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (h *hook) kick() {
	select {
	case h.kicked <- struct{}{}:
	default:
	}
}

// run starts deliveries until the hook is removed.
func (h *hook) run() {
	for {
		h.s.mu.Lock()
		if h.s.hook.cur != h || h.s.closed {
			h.s.mu.Unlock()
			return
		}
		wait := h.dispatch()
		var timer <-chan time.Time
		stop := func() {}
		if wait > 0 {
			timer, stop = h.s.clock.After(wait)
		}
		h.s.mu.Unlock()
		select {
		case <-h.kicked:
		case <-timer:
		case <-h.ctx.Done():
		}
		stop()
	}
}

// dispatch starts what may start now and returns the time until more may, 0 for
// never. The caller holds mu.
func (h *hook) dispatch() time.Duration {
	now := h.s.clock.Now()
	h.s.queue.remove(func(e *event) bool { return e.expires.Before(now) && !e.inFlight })
	conns := h.maxConns
	if !h.failing.IsZero() && now.Sub(h.failing) > unhealthy {
		conns = 1
		if wait := h.lastTry.Add(slowPace).Sub(now); wait > 0 && len(h.s.queue.events) > 0 {
			return wait
		}
	}
	blocked := map[string]bool{}
	var wait time.Duration
	for i, e := range h.s.queue.events {
		if i >= 2*h.maxConns {
			break
		}
		if blocked[e.key] {
			continue
		}
		blocked[e.key] = true
		if e.inFlight {
			continue
		}
		if d := e.nextTry.Sub(now); d > 0 {
			if wait == 0 || d < wait {
				wait = d
			}
			continue
		}
		if h.inFlight >= conns {
			continue
		}
		e.inFlight = true
		h.inFlight++
		h.lastTry = now
		h.posts.Go(func() { h.deliver(e) })
	}
	return wait
}

// outcome is how a delivery ended.
type outcome struct {
	status     int // 0 = no answer
	retryAfter time.Duration
	problem    string
	body       []byte
}

func (h *hook) deliver(e *event) {
	out := h.post(e.body)
	ok := out.status/100 == 2
	h.s.mu.Lock()
	h.inFlight--
	current := h.s.hook.cur == h && !h.s.closed
	if current {
		h.settle(e, out, ok)
		h.kick()
		h.s.notify()
	}
	h.s.mu.Unlock()
	if current && ok && len(out.body) > 0 {
		h.s.executeReply(out.body)
	}
}

// settle takes an acknowledged update off the queue, or plans its next try. The
// caller holds mu.
func (h *hook) settle(e *event, out outcome, ok bool) {
	now := h.s.clock.Now()
	e.inFlight = false
	if out.status != http.StatusGone {
		h.goneSince = time.Time{}
	}
	if ok {
		h.failing = time.Time{}
		h.s.queue.remove(func(o *event) bool { return o == e })
		return
	}
	h.lastError, h.lastErrorAt = out.problem, now
	if h.failing.IsZero() {
		h.failing = now
	}
	if out.status == http.StatusGone {
		if h.goneSince.IsZero() {
			h.goneSince = now
		}
		if now.Sub(h.goneSince) >= goneLimit {
			h.s.hook.erase()
			return
		}
	}
	e.attempts++
	e.nextTry = now.Add(h.backoff(e, out))
	if e.nextTry.After(e.expires) {
		h.s.queue.remove(func(o *event) bool { return o == e })
	}
}

// backoff is the time to the next try of an update: none after the first
// failure, then 2, 4, 8 s ... up to a random 60 to 120 s. A Retry-After header
// rules.
func (h *hook) backoff(e *event, out outcome) time.Duration {
	if out.retryAfter > 0 {
		return min(out.retryAfter, maxRetryAfter)
	}
	if e.attempts < 2 {
		return 0
	}
	most := time.Minute + time.Duration(h.s.rng.Int64N(int64(time.Minute)))
	return min(time.Duration(1)<<min(e.attempts-1, 20)*time.Second, most)
}

// post makes one attempt. It is called without mu.
func (h *hook) post(body []byte) outcome {
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	timer, stop := h.s.clock.After(h.s.opts.Webhook.Timeout)
	defer stop()
	late := make(chan struct{})
	finished := make(chan struct{})
	defer close(finished)
	h.posts.Go(func() {
		select {
		case <-timer:
			close(late)
			cancel()
		case <-finished:
		}
	})
	h.s.mu.Lock()
	secret, target := h.secret, *h.target
	h.s.mu.Unlock()
	user := target.User
	target.User = nil
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return outcome{problem: err.Error()}
	}
	r.Header = http.Header{
		"Content-Type":    {"application/json"},
		"Connection":      {"keep-alive"},
		"Accept-Encoding": {"gzip, deflate"},
		"User-Agent":      {""},
	}
	if secret != "" {
		r.Header.Set("X-Telegram-Bot-Api-Secret-Token", secret)
	}
	if user != nil {
		password, _ := user.Password()
		r.SetBasicAuth(user.Username(), password)
	}
	resp, err := h.transport.RoundTrip(r)
	if err == nil {
		defer func() { _ = resp.Body.Close() }()
		var answer []byte
		if answer, err = io.ReadAll(io.LimitReader(resp.Body, 1<<20)); err == nil {
			out := outcome{status: resp.StatusCode, body: answer, problem: "Wrong response from the webhook: " + reason(resp.StatusCode)}
			if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && n > 0 {
				out.retryAfter = time.Duration(n) * time.Second
			}
			return out
		}
	}
	select {
	case <-late:
		return outcome{problem: "Read timeout expired"}
	default:
		return outcome{problem: connectionProblem(err)}
	}
}

// connectionProblem words a failed connection as last_error_message does.
func connectionProblem(err error) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "Connection refused"
	case errors.Is(err, syscall.ETIMEDOUT):
		return "Connection timed out"
	case errors.As(err, &unknown), errors.As(err, &name), strings.Contains(err.Error(), "tls:"):
		return "SSL error {error:0A000086:SSL routines::certificate verify failed}"
	}
	return "Webhook connection closed"
}

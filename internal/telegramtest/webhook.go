package telegramtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	maxCertificate  = 3 << 20
	defaultMaxConns = 40
)

// WebhookInfo is what getWebhookInfo tells, and the secret, which it does not.
type WebhookInfo struct {
	URL            string
	Secret         string
	Certificate    bool
	Pending        int
	IP             string
	MaxConnections int
	LastError      string
	LastErrorDate  time.Time
	AllowedUpdates []string // nil = the default
}

// hookState is the webhook of the bot.
type hookState struct {
	cur       *hook
	verifying chan *reply // ends the setWebhook that is at work
	nextSet   time.Time   // setWebhook is refused before
}

func (h *hookState) active() bool { return h.cur != nil || h.verifying != nil }

// kick makes the delivery look at the queue again.
func (h *hookState) kick() {
	if h.cur != nil {
		h.cur.kick()
	}
}

// stop ends deliveries and forgets nothing.
func (h *hookState) stop() {
	if h.cur != nil {
		h.cur.cancel()
	}
}

// erase removes the webhook; what is in flight stays in the queue.
func (h *hookState) erase() {
	h.stop()
	h.cur = nil
}

// WebhookInfo returns the webhook as it is set.
func (s *Server) WebhookInfo() WebhookInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.webhookInfo()
}

func (s *Server) webhookInfo() WebhookInfo {
	info := WebhookInfo{Pending: len(s.queue.events), AllowedUpdates: s.queue.allowedNames()}
	if h := s.hook.cur; h != nil {
		info.URL, info.Secret, info.Certificate, info.IP, info.MaxConnections = h.url, h.secret, h.certificate != nil, h.ip, h.maxConns
		info.LastError, info.LastErrorDate = h.lastError, h.lastErrorAt
	}
	return info
}

// ForgetWebhookSecret makes deliveries come without the secret header, as after
// a setWebhook by another program that left it out.
func (s *Server) ForgetWebhookSecret() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hook.cur != nil {
		s.hook.cur.secret = ""
	}
}

func (s *Server) getWebhookInfo(*request) (any, *apiError) {
	info := s.webhookInfo()
	out := struct {
		URL         string   `json:"url"`
		Certificate bool     `json:"has_custom_certificate"`
		Pending     int      `json:"pending_update_count"`
		LastErrorAt int64    `json:"last_error_date,omitempty"`
		LastError   string   `json:"last_error_message,omitempty"`
		MaxConns    int      `json:"max_connections,omitempty"`
		IP          string   `json:"ip_address,omitempty"`
		Allowed     []string `json:"allowed_updates,omitempty"`
	}{
		URL: info.URL, Certificate: info.Certificate, Pending: info.Pending, LastError: info.LastError,
		MaxConns: info.MaxConnections, IP: info.IP, Allowed: info.AllowedUpdates,
	}
	if !info.LastErrorDate.IsZero() {
		out.LastErrorAt = info.LastErrorDate.Unix()
	}
	return out, nil
}

func (s *Server) deleteWebhook(q *request) (any, *apiError) {
	return s.removeWebhook(q), nil
}

func (s *Server) removeWebhook(q *request) described {
	if q.boolean("drop_pending_updates") {
		s.queue.remove(func(*event) bool { return true })
	}
	d := described{true, "Webhook is already deleted"}
	if s.hook.cur != nil {
		d.description = "Webhook was deleted"
		s.hook.erase()
	}
	s.notify()
	return d
}

var validSecret = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-]*$`) })

func (s *Server) setWebhook(q *request) *reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.args["url"] == "" {
		d := s.removeWebhook(q)
		return success(d.result, d.description)
	}
	now := s.clock.Now()
	if now.Before(s.hook.nextSet) {
		return failure(tooMany(1))
	}
	s.hook.nextSet = now.Add(time.Second)
	secret := q.args["secret_token"]
	switch {
	case len(secret) > 256:
		return failure(badRequest("secret token is too long"))
	case !validSecret().MatchString(secret):
		return failure(badRequest("secret token contains unallowed characters"))
	}
	if arg, ok := q.args["allowed_updates"]; ok {
		s.queue.setAllowed(arg)
	}
	next := &hook{s: s, url: q.args["url"], secret: secret, ip: q.args["ip_address"]}
	next.maxConns = int(q.integer("max_connections", defaultMaxConns, 1, 100))
	if s.opts.Local {
		next.maxConns = int(q.integer("max_connections", defaultMaxConns, 1, 100_000))
	}
	if f, ok := q.file("certificate"); ok {
		if len(f.Data) > maxCertificate {
			return failure(badRequest("certificate size is too big (%d bytes)", len(f.Data)))
		}
		next.certificate = f.Data
	}
	drop := q.boolean("drop_pending_updates")
	if old := s.hook.cur; old != nil && old.same(next) && !drop {
		return success(true, "Webhook is already set")
	}
	// From here on the old webhook is gone, whatever becomes of the new one.
	s.hook.erase()
	s.notify()
	if s.hook.verifying != nil {
		s.hook.verifying <- failure(&apiError{Code: 409, Description: "Conflict: terminated by other setWebhook"})
	}
	s.polls.terminate(failure(&apiError{Code: 409, Description: errSetWebhook}))
	if rep := s.verify(q, next); rep != nil {
		return rep
	}
	if drop {
		s.queue.remove(func(*event) bool { return true })
	}
	s.hook.cur = next
	next.start()
	s.notify()
	return success(true, "Webhook was set")
}

// verify checks the address of a webhook: its form, its host, and nothing about
// the server behind it. It returns the answer to a request that failed.
func (s *Server) verify(q *request, h *hook) *reply {
	if err := s.checkAddress(h); err != nil {
		return failure(err)
	}
	if s.opts.Webhook.VerifyDelay <= 0 {
		return nil
	}
	mine := make(chan *reply, 1)
	s.hook.verifying = mine
	c, stop := s.clock.After(s.opts.Webhook.VerifyDelay)
	defer stop()
	s.mu.Unlock()
	var rep *reply
	select {
	case <-c:
	case rep = <-mine:
	case <-q.ctx.Done():
		rep = &reply{noResponse: true}
	case <-s.done:
		rep = &reply{noResponse: true}
	}
	s.mu.Lock()
	if s.hook.verifying == mine {
		s.hook.verifying = nil
	}
	return rep
}

var validHost = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9._-]+$|^\[[0-9A-Fa-f:.]+\]$`) })

func (s *Server) checkAddress(h *hook) *apiError {
	address := h.url
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || !validHost().MatchString(strings.TrimSuffix(u.Host, ":"+u.Port())) || u.Scheme != "http" && u.Scheme != "https" {
		return badRequest("invalid webhook URL specified")
	}
	h.target = u
	bad := func(format string, args ...any) *apiError {
		return &apiError{Code: 400, Description: "Bad Request: bad webhook: " + fmt.Sprintf(format, args...)}
	}
	if !s.opts.Local {
		switch port := u.Port(); {
		case u.Scheme != "https":
			return bad("An HTTPS URL must be provided for webhook")
		case port != "" && port != "80" && port != "88" && port != "443" && port != "8443":
			return bad("Webhook can be set up only on ports 80, 88, 443 or 8443")
		}
	}
	var ip netip.Addr
	if h.ip != "" {
		if ip, err = netip.ParseAddr(h.ip); err != nil {
			return bad("Invalid IP address specified")
		}
	} else {
		resolve := s.opts.Webhook.Resolve
		if resolve == nil {
			resolve = resolveNothing
		}
		if ip, err = resolve(u.Hostname()); err != nil {
			return bad("Failed to resolve host: %v", err)
		}
	}
	if !ip.Is4() && !ip.Is4In6() {
		return bad("IPv6-only addresses are not allowed")
	}
	if !s.opts.Local && reserved(ip) {
		return bad("IP address %s is reserved", ip)
	}
	h.ip = ip.String()
	return nil
}

// resolveNothing is the default of WebhookOptions.Resolve.
func resolveNothing(host string) (netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip, nil
	}
	switch {
	case host == "localhost":
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
	case strings.HasSuffix(host, ".invalid"):
		return netip.Addr{}, errors.New("name or service not known")
	}
	return netip.AddrFrom4([4]byte{93, 184, 215, 14}), nil
}

func reserved(ip netip.Addr) bool {
	return ip.IsLoopback() || ip.IsPrivate() || ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() ||
		netip.MustParsePrefix("100.64.0.0/10").Contains(ip.Unmap())
}

// executeReply runs a method that a webhook put into the body of its answer.
// The result goes nowhere.
func (s *Server) executeReply(body []byte) {
	var args map[string]json.RawMessage
	if json.Unmarshal(body, &args) != nil {
		return
	}
	q := &request{args: map[string]string{}}
	_ = q.addJSON(body)
	name := lower(q.args["method"])
	if m, ok := methods[name]; ok && !strings.HasPrefix(name, "get") && name != "setwebhook" && name != "deletewebhook" {
		q.method, q.name = name, m.name
		c := s.arrived(q, "webhook reply")
		rep := m.run(s, q)
		s.finished(c, rep.status, rep.body)
	}
}

// reason names a status as in "500 Internal Server Error".
func reason(status int) string {
	return strings.TrimSpace(strconv.Itoa(status) + " " + http.StatusText(status))
}

package telegramtest

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Server is a Bot API server for one bot, with the Telegram behind it. Make one
// with New, or with RunT in a test. All its methods may be called from any
// goroutine.
type Server struct {
	opts  Options
	clock Clock
	done  chan struct{}
	wg    sync.WaitGroup // requests, deliveries

	mu      sync.Mutex
	changed chan struct{} // closed and replaced by notify
	closed  bool
	rng     *rand.Rand
	addr    string
	web     *http.Server

	token    string
	bot      User
	revoked  bool
	readsAll bool // privacy mode is off
	commands map[string][]command

	calls  []*Call
	faults []*Injected

	world world
	queue queue
	polls pollState
	hook  hookState
	rates rateState
	taps  map[int64]*Tap
}

// New returns a server that does not listen yet: call Start, or use it as an
// http.Handler.
func New(o Options) *Server {
	o = o.withDefaults()
	s := &Server{
		opts:     o,
		clock:    o.Clock,
		done:     make(chan struct{}),
		changed:  make(chan struct{}),
		rng:      rand.New(rand.NewPCG(o.Seed, 0x7465_6c65_6772_616d)),
		token:    o.Token,
		bot:      o.Bot,
		commands: map[string][]command{},
		taps:     map[int64]*Tap{},
		rates:    rateState{muted: map[int64]time.Time{}, chats: map[int64]*bucket{}},
	}
	if s.token == "" {
		secret := make([]byte, 26)
		for i := range secret {
			secret[i] = byte(s.rng.Uint32())
		}
		s.token = fmt.Sprintf("%d:%s", 7_000_000_000+s.rng.Int64N(1_000_000_000), base64.RawURLEncoding.EncodeToString(secret))
	}
	if id, err := strconv.ParseInt(strings.SplitN(s.token, ":", 2)[0], 10, 64); err == nil {
		s.bot.ID = id
	}
	s.bot.IsBot = true
	if s.bot.FirstName == "" {
		s.bot.FirstName = "Test Bot"
	}
	if s.bot.Username == "" {
		s.bot.Username = "telegramtest_bot"
	}
	s.world.init(s)
	s.queue.init(o.FirstUpdateID, s.rng)
	return s
}

// TB is what RunT needs of a *testing.T or *testing.B.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// RunT starts a server that is closed when the test ends.
func RunT(t TB, o Options) *Server {
	t.Helper()
	s := New(o)
	if err := s.Start(); err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(s.Close)
	return s
}

// Start listens on Options.Addr and serves until Close.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addr != "" {
		return errors.New("telegramtest: the server was started before")
	}
	return s.listen(s.opts.Addr)
}

// listen serves on addr. The caller holds mu.
func (s *Server) listen(addr string) error {
	if s.closed {
		return errors.New("telegramtest: the server is closed")
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("telegramtest: listen: %w", err)
	}
	s.addr = ln.Addr().String()
	web := &http.Server{
		Handler:        s,
		MaxHeaderBytes: 256 << 10,
		// Broken connections are what tests ask for; they are in Calls.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	s.web = web
	s.wg.Go(func() { _ = web.Serve(ln) })
	return nil
}

// Offline cuts every connection and refuses new ones until Online: the network
// is gone, the queue and the chats stay.
func (s *Server) Offline() {
	s.mu.Lock()
	web := s.web
	s.web = nil
	s.mu.Unlock()
	if web != nil {
		_ = web.Close()
	}
}

// Online listens again on the address used before Offline.
func (s *Server) Online() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addr == "" {
		return errors.New("telegramtest: the server was never started")
	}
	if s.web != nil {
		return nil
	}
	return s.listen(s.addr)
}

// Close stops the server: it ends waiting polls and deliveries, drops hanging
// requests, and returns when no goroutine of the server is left. Closing twice
// is harmless.
func (s *Server) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	close(s.done)
	web := s.web
	s.web = nil
	s.hook.stop()
	s.notify()
	s.mu.Unlock()
	if web != nil {
		_ = web.Close()
	}
	s.wg.Wait()
}

// URL returns the base address, "http://127.0.0.1:port", without a slash at its
// end. It is empty before Start.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addr == "" {
		return ""
	}
	return "http://" + s.addr
}

// Token returns the bot's current token.
func (s *Server) Token() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token
}

// Bot returns the bot.
func (s *Server) Bot() User {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bot
}

// Now returns the time on the server's clock.
func (s *Server) Now() time.Time { return s.clock.Now() }

// Revoke makes the token invalid: a waiting poll ends with an empty result,
// every later call is answered 401, and the webhook is erased. An empty
// newToken leaves the bot without a token.
func (s *Server) Revoke(newToken string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revoke(newToken)
}

func (s *Server) revoke(newToken string) {
	s.token, s.revoked = newToken, newToken == ""
	s.hook.erase()
	s.polls.endQuietly()
	s.notify()
}

// Unrevoke makes a revoked token valid again, for failures that pass.
func (s *Server) Unrevoke(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token, s.revoked = token, false
	s.notify()
}

// SetPrivacy switches the privacy mode of the bot in groups; it is on at first:
// the bot then sees only commands, replies to it and mentions of it.
func (s *Server) SetPrivacy(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readsAll = !on
}

// ServeHTTP answers one Bot API request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	s.wg.Add(1)
	s.mu.Unlock()
	defer s.wg.Done()

	w.Header().Set("Date", s.clock.Now().UTC().Format(http.TimeFormat))
	if r.Method != http.MethodGet && r.Method != http.MethodPost {
		s.frontError(w, http.StatusNotImplemented)
		return
	}
	token, name, ok := splitPath(r.URL.EscapedPath())
	if !ok {
		write(w, failure(&apiError{Code: 404, Description: "Not Found"}))
		return
	}
	q, status := s.parse(r, name)
	call := s.arrived(q, r.RemoteAddr)
	if status != 0 {
		s.finished(call, status, nil)
		s.frontError(w, status)
		return
	}
	out := &responder{s: s, w: w, r: r, call: call}
	defer out.finish()
	if !out.inject(false, nil) {
		return
	}
	rep := s.answer(q, token)
	if !out.inject(true, rep) {
		return
	}
	out.send(rep)
}

// answer authorises and runs a request.
func (s *Server) answer(q *request, token string) *reply {
	if err := s.authorise(token); err != nil {
		return failure(err)
	}
	m, ok := methods[q.method]
	if !ok {
		return failure(&apiError{Code: 404, Description: "Not Found: method not found"})
	}
	rep := m.run(s, q)
	if !rep.hold.IsZero() {
		s.sleep(q.ctx, rep.hold.Sub(s.clock.Now()))
	}
	return rep
}

// authorise checks the token of a request the way the configured front end
// does: a token that cannot be one is told apart from one that is not valid.
func (s *Server) authorise(token string) *apiError {
	id, secret, colon := strings.Cut(token, ":")
	n, err := strconv.ParseInt(id, 10, 64)
	malformed := token == "" || token[0] == '0' || len(token) > 80 || strings.Contains(token, "/") || !colon
	notANumber := !malformed && err != nil
	malformed = malformed || err == nil && (n < 1 || n >= 1<<54)
	switch {
	case (malformed || notANumber) && s.opts.Frontend == Cloud:
		return &apiError{Code: 404, Description: "Not Found"}
	case malformed:
		return &apiError{Code: 401, Description: "Unauthorized: invalid token specified"}
	case notANumber:
		return &apiError{Code: 421, Description: "Misdirected Request: unallowed token specified"}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.revoked || token != s.token || secret == "" {
		return &apiError{Code: 401, Description: "Unauthorized"}
	}
	return nil
}

// splitPath takes "/bot<token>/<method>" apart; "/bot<token>/test/<method>"
// names the same method on the test servers.
func splitPath(path string) (token, method string, ok bool) {
	rest, ok := strings.CutPrefix(path, "/bot")
	if !ok {
		return "", "", false
	}
	token, method, _ = strings.Cut(rest, "/")
	token = unescapePath(token)
	method = strings.TrimPrefix(method, "test/")
	return token, unescapePath(method), true
}

func unescapePath(p string) string {
	if u, err := url.PathUnescape(p); err == nil {
		return u
	}
	return p
}

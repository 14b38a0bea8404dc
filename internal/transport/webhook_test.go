package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

const (
	hookURL    = "https://approve.example.com/telegram/prod"
	hookPath   = "/telegram/prod"
	hookSecret = "Right-Secret_1"
)

func newTestWebhook(t *testing.T, c *Client, options ...func(*WebhookOptions)) *Webhook {
	t.Helper()
	o := WebhookOptions{Client: c, URL: hookURL, Listen: "127.0.0.1:0", Secret: NewSecret(hookSecret)}
	for _, set := range options {
		set(&o)
	}
	w, err := NewWebhook(o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestValidateWebhookURL(t *testing.T) {
	for url, good := range map[string]bool{
		hookURL: true, "https://h": true, "https://h:8443/x": true, "https://h:88": true, "https://h:80/": true, "https://h:443": true,
		"": false, "h/x": false, "http://h/x": false, "https://h:8123/x": false, "https://": false, "https://u:p@h/": false, "https://h/#f": false, "https://h/?q=1": false, "https://h\x00": false,
	} {
		if err := ValidateWebhookURL(url); (err == nil) != good {
			t.Errorf("%q: %v", url, err)
		}
	}
}

func TestNewWebhookRefuses(t *testing.T) {
	c := newTestClient(t, "")
	for name, o := range map[string]WebhookOptions{
		"no secret":           {URL: hookURL, Listen: ":0"},
		"secret with a colon": {URL: hookURL, Listen: ":0", Secret: NewSecret("a:b")},
		"the token":           {URL: hookURL, Listen: ":0", Secret: NewSecret(canary)},
		"no https":            {URL: "http://h/x", Listen: ":0", Secret: NewSecret("s")},
		"nothing to listen":   {URL: hookURL, Secret: NewSecret("s")},
	} {
		o.Client = c
		if _, err := NewWebhook(o); err == nil {
			t.Errorf("%s: accepted", name)
		} else if leaks(err.Error()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func post(path string, body io.Reader, secrets ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, path, body)
	for _, s := range secrets {
		r.Header.Add(secretHeader, s)
	}
	return r
}

func TestWebhookPosts(t *testing.T) {
	tap := tapJSON(1, 2)
	change := func(r *http.Request, f func(*http.Request)) *http.Request { f(r); return r }
	for name, tc := range map[string]struct {
		request *http.Request
		status  int
		handled int
	}{
		"right":              {post(hookPath, strings.NewReader(tap), hookSecret), 200, 1},
		"with a query":       {post(hookPath+"?x=1", strings.NewReader(tap), hookSecret), 200, 1},
		"no header":          {post(hookPath, strings.NewReader(tap)), 401, 0},
		"empty header":       {post(hookPath, strings.NewReader(tap), ""), 401, 0},
		"wrong":              {post(hookPath, strings.NewReader(tap), "x"), 401, 0},
		"other case":         {post(hookPath, strings.NewReader(tap), strings.ToLower(hookSecret)), 401, 0},
		"prefix":             {post(hookPath, strings.NewReader(tap), hookSecret[:5]), 401, 0},
		"wrong and right":    {post(hookPath, strings.NewReader(tap), "x", hookSecret), 401, 0},
		"right twice":        {post(hookPath, strings.NewReader(tap), hookSecret, hookSecret), 401, 0},
		"joined":             {post(hookPath, strings.NewReader(tap), hookSecret+","+hookSecret), 401, 0},
		"other path":         {post("/", strings.NewReader(tap), hookSecret), 404, 0},
		"path, escaped":      {post("/telegram/%70rod", strings.NewReader(tap), hookSecret), 404, 0},
		"path, doubled":      {post("/telegram//prod", strings.NewReader(tap), hookSecret), 404, 0},
		"path with a slash":  {post(hookPath+"/", strings.NewReader(tap), hookSecret), 404, 0},
		"get":                {change(post(hookPath, nil, hookSecret), func(r *http.Request) { r.Method = http.MethodGet }), 405, 0},
		"put":                {change(post(hookPath, nil, hookSecret), func(r *http.Request) { r.Method = http.MethodPut }), 405, 0},
		"text message":       {post(hookPath, strings.NewReader(`{"update_id":1,"message":{"message_id":1,"chat":{"id":1},"text":"hi"}}`), hookSecret), 200, 1},
		"another kind":       {post(hookPath, strings.NewReader(`{"update_id":1,"poll":{}}`), hookSecret), 200, 1},
		"not JSON":           {post(hookPath, strings.NewReader(`{"update_id`), hookSecret), 200, 0},
		"empty":              {post(hookPath, strings.NewReader(``), hookSecret), 200, 0},
		"poison":             {post(hookPath, strings.NewReader(`{"update_id":1,"callback_query":{"id":7}}`), hookSecret), 200, 0},
		"declared too long":  {post(hookPath, strings.NewReader(strings.Repeat(" ", 1<<20+1)), hookSecret), 413, 0},
		"too long, chunked":  {change(post(hookPath, strings.NewReader(strings.Repeat(" ", 1<<20+1)), hookSecret), func(r *http.Request) { r.ContentLength = -1 }), 413, 0},
		"body breaks off":    {post(hookPath, io.MultiReader(strings.NewReader(tap[:9]), iotest.ErrReader(io.ErrUnexpectedEOF)), hookSecret), 408, 0},
		"a stranger's giant": {post(hookPath, iotest.ErrReader(errors.New("the body was read")), "x"), 401, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestWebhook(t, newTestClient(t, ""))
			handled := 0
			rec := httptest.NewRecorder()
			w.handler(t.Context(), func(context.Context, Update) error { handled++; return nil }).ServeHTTP(rec, tc.request)
			if rec.Code != tc.status || handled != tc.handled || rec.Body.Len() != 0 {
				t.Errorf("status %d, handled %d, body %q; want %d and %d", rec.Code, handled, rec.Body, tc.status, tc.handled)
			}
		})
	}
}

// The 401 says what lacks, for whoever looks at a proxy, and nothing of what would be right.
func TestWebhookSaysWhatLacks(t *testing.T) {
	for want, secrets := range map[string][]string{SecretMissing: nil, SecretWrong: {"x"}, SecretRepeated: {hookSecret, hookSecret}} {
		w := newTestWebhook(t, newTestClient(t, ""))
		rec := httptest.NewRecorder()
		w.handler(t.Context(), func(context.Context, Update) error { return nil }).ServeHTTP(rec, post(hookPath, nil, secrets...))
		if got := rec.Header().Get("WWW-Authenticate"); got != want || strings.Contains(got, hookSecret) {
			t.Errorf("%d secrets: %q, want %q", len(secrets), got, want)
		}
	}
}

func TestWebhookAnswers503UntilStored(t *testing.T) {
	w := newTestWebhook(t, newTestClient(t, ""))
	full := errors.New("no space left on device")
	handler := w.handler(t.Context(), func(context.Context, Update) error { return full })
	send := func() *httptest.ResponseRecorder {
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, post(hookPath, strings.NewReader(tapJSON(1, 2)), hookSecret))
		return rec
	}
	if rec := send(); rec.Code != 503 || rec.Header().Get("Retry-After") != "" {
		t.Errorf("%d with Retry-After %q", rec.Code, rec.Header().Get("Retry-After"))
	}
	w.succeeded() // a good registration does not hide it
	if h := w.Health(); h.Healthy || h.Cause != CauseStorage || !strings.Contains(h.Error, "no space left") {
		t.Errorf("health %+v", h)
	}
	full = nil
	if rec := send(); rec.Code != 200 {
		t.Errorf("%d after the disk has room again", rec.Code)
	}
	if h := w.Health(); !h.Healthy {
		t.Errorf("health %+v", h)
	}
	w.stopping.Store(true)
	if rec := send(); rec.Code != 503 {
		t.Errorf("%d while stopping", rec.Code)
	}
}

// hookAPI is the part of Telegram that holds the registration.
type hookAPI struct {
	fakeAPI
	url, secret, lastError string
	lastErrorDate          int
	pending                int
	// failSet makes setWebhook fail, after it tore the old registration down.
	failSet int
	dead    bool
}

func newHookAPI() *hookAPI {
	a := &hookAPI{}
	a.answer = a.serve
	return a
}

func (a *hookAPI) serve(ctx context.Context, c apiCall) (int, string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dead {
		a.mu.Unlock()
		<-ctx.Done()
		a.mu.Lock()
		return 0, "", ctx.Err()
	}
	if c.form["drop_pending_updates"] != "" {
		return 0, "", errors.New("pending updates dropped")
	}
	switch c.method {
	case "getMe":
		return 200, okResult(map[string]any{"id": 987654321, "is_bot": true, "first_name": "Gate", "username": "gate_bot"}), nil
	case "getWebhookInfo":
		return 200, okResult(map[string]any{"url": a.url, "pending_update_count": a.pending, "last_error_message": a.lastError, "last_error_date": a.lastErrorDate}), nil
	case "setWebhook":
		if a.failSet > 0 {
			a.failSet--
			a.url, a.secret = "", ""
			return refusal(400, "Bad Request: bad webhook: Failed to resolve host: Name or service not known")
		}
		a.url, a.secret = c.form["url"], c.form["secret_token"]
		return 200, okResult(true), nil
	case "deleteWebhook":
		a.url, a.secret = "", ""
		return 200, okResult(true), nil
	}
	return refusal(404, "Not Found: method not found")
}

func (a *hookAPI) set(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

func (a *hookAPI) registered() (string, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.url, a.secret
}

// memoryListener accepts in-memory connections, so that a listener can live in a
// synctest bubble.
type memoryListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newMemoryListener() *memoryListener {
	return &memoryListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *memoryListener) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

// client posts over the listener.
func (l *memoryListener) client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			select {
			case l.conns <- theirs:
				return ours, nil
			case <-l.closed:
				return nil, net.ErrClosed
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	}}
}

func (l *memoryListener) post(t *testing.T, body, secret string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://memory"+hookPath, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(secretHeader, secret)
	response, err := l.client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// run starts a webhook in the bubble; stop ends it and returns Run's error.
func (a *hookAPI) run(t *testing.T, handle Handler, options ...func(*WebhookOptions)) (w *Webhook, l *memoryListener, stop func() error) {
	t.Helper()
	l = newMemoryListener()
	w = newTestWebhook(t, a.client(t), append([]func(*WebhookOptions){func(o *WebhookOptions) {
		o.Listener, o.RemoveOnStop = l, func() bool { return true }
	}}, options...)...)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx, handle) }()
	return w, l, func() error { cancel(); return <-done }
}

func TestWebhookPortTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	w := newTestWebhook(t, newHookAPI().client(t), func(o *WebhookOptions) { o.Listen = taken.Addr().String() })
	if err := w.Run(t.Context(), ignore); err == nil || !strings.Contains(err.Error(), "webhook listener") {
		t.Errorf("%v", err)
	}
}

// A flood of posts without the secret is counted, not logged, and costs a tap
// nothing but its own time.
func TestWebhookStrangersLeaveNoLines(t *testing.T) {
	core, logs := observer.New(zapcore.DebugLevel)
	w := newTestWebhook(t, newTestClient(t, ""), func(o *WebhookOptions) { o.Logger = zap.New(core) })
	handled := 0
	server := httptest.NewServer(w.handler(t.Context(), func(context.Context, Update) error { handled++; return nil }))
	defer server.Close()
	for i := range 200 {
		response, err := http.Post(server.URL+hookPath, "application/json", strings.NewReader(tapJSON(int64(i), 1)))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != 401 {
			t.Fatal(response.Status)
		}
	}
	if handled != 0 || logs.Len() != 0 || w.refused.Load() != 200 {
		t.Errorf("handled %d, %d log lines, %d refused", handled, logs.Len(), w.refused.Load())
	}
}

func BenchmarkWebhookStranger(b *testing.B) {
	c, err := New(Options{Token: NewSecret(canary)})
	if err != nil {
		b.Fatal(err)
	}
	w, err := NewWebhook(WebhookOptions{Client: c, URL: hookURL, Listen: "127.0.0.1:0", Secret: NewSecret(hookSecret)})
	if err != nil {
		b.Fatal(err)
	}
	handler := w.handler(b.Context(), ignore)
	r := post(hookPath, strings.NewReader(""), "x")
	b.ReportAllocs()
	for b.Loop() {
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
}

package telegramtest_test

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/approvald/approvald/internal/telegramtest"
)

// delivery is one attempt at a webhook; the test answers it.
type delivery struct {
	update update
	header http.Header
	path   string
	at     time.Time
	answer chan func(http.ResponseWriter)
}

func (d delivery) status(code int) {
	d.answer <- func(w http.ResponseWriter) { w.WriteHeader(code) }
}

// receiver is a bot with a webhook that does nothing by itself.
func receiver(t *testing.T, clock Clock) (*httptest.Server, chan delivery) {
	t.Helper()
	got := make(chan delivery, 100)
	over := make(chan struct{}) // lets go of what the test left unanswered
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d := delivery{header: r.Header, path: r.URL.RequestURI(), at: clock.Now(), answer: make(chan func(http.ResponseWriter), 1)}
		body, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(body, &d.update)
		got <- d
		select {
		case f := <-d.answer:
			f(w)
		case <-over:
		}
	}))
	t.Cleanup(func() {
		close(over)
		srv.Close()
	})
	return srv, got
}

func next(t *testing.T, got chan delivery) delivery {
	t.Helper()
	select {
	case d := <-got:
		return d
	case <-soon(t).Done():
		t.Fatal("no delivery")
		return delivery{}
	}
}

func TestWebhookDelivery(t *testing.T) {
	s, clock, b := manual(t, Options{Local: true})
	hook, got := receiver(t, clock)
	b.must(nil, "setWebhook", "url", strings.Replace(hook.URL, "http://", "http://me:pw@", 1)+"/tg?x=1", "secret_token", "s3cret")
	texts(t, s, 1)
	d := next(t, got)
	if d.header.Get("X-Telegram-Bot-Api-Secret-Token") != "s3cret" || d.header.Get("Content-Type") != "application/json" || d.path != "/tg?x=1" {
		t.Errorf("headers %v, path %s", d.header, d.path)
	}
	if user, pw, _ := (&http.Request{Header: d.header}).BasicAuth(); user != "me" || pw != "pw" {
		t.Errorf("basic auth %s:%s", user, pw)
	}
	if d.update.Message == nil || d.update.Message.Text != "m0" {
		t.Errorf("update %+v", d.update)
	}
	// Text of a person and taps of the same person are different queues; the
	// second text waits for the first.
	texts(t, s, 1)
	b.must(nil, "sendMessage", "chat_id", "111", "text", "a", "reply_markup", yesNo)
	_, err := s.Phone(111).Tap("Approve")
	check(t, err)
	tap := next(t, got)
	if tap.update.Tap == nil {
		t.Fatalf("a tap did not overtake a text: %+v", tap.update)
	}
	tap.status(204)
	d.status(200)
	d = next(t, got)
	d.status(299)
	check(t, s.WaitFor(soon(t), func(st State) bool { return st.Pending() == 0 }))
	if info := s.WebhookInfo(); info.LastError != "" {
		t.Errorf("last error %q", info.LastError)
	}
}

// TestBackOff follows a tap that is never accepted through all its attempts.
func TestBackOff(t *testing.T) {
	s, clock, b := manual(t, Options{Local: true})
	hook, got := receiver(t, clock)
	b.must(nil, "setWebhook", "url", hook.URL)
	b.must(nil, "sendMessage", "chat_id", "111", "text", "a", "reply_markup", yesNo)
	start := clock.Now()
	tap, err := s.Phone(111).Tap("Approve")
	check(t, err)
	var at []int
	for {
		d := next(t, got)
		at = append(at, int(d.at.Sub(start).Seconds()))
		d.status(500)
		if len(at) == 1 {
			continue // the first retry is at once
		}
		// The update is either planned again or gone.
		check(t, s.WaitFor(soon(t), func(st State) bool {
			return st.Pending() == 0 || st.Webhook().LastErrorDate.Equal(d.at) && !st.InFlight()
		}))
		if pending(s) == 0 {
			break
		}
		check(t, clock.AwaitTimers(soon(t), 1))
		clock.Advance(time.Duration(1<<(len(at)-1)) * time.Second)
	}
	if want := []int{0, 0, 2, 6, 14, 30, 62, 126}; !slices.Equal(at, want) {
		t.Errorf("attempts at %v s, want %v", at, want)
	}
	if info := s.WebhookInfo(); info.LastError != "Wrong response from the webhook: 500 Internal Server Error" {
		t.Errorf("last error %q", info.LastError)
	}
	if _, ok := tap.Answer(); ok {
		t.Error("answered")
	}
}

func pending(s *Server) (n int) {
	s.View(func(st State) { n = st.Pending() })
	return n
}

func TestRetryAfterDestroysATap(t *testing.T) {
	s, clock, b := manual(t, Options{Local: true})
	hook, got := receiver(t, clock)
	b.must(nil, "setWebhook", "url", hook.URL)
	b.must(nil, "sendMessage", "chat_id", "111", "text", "a", "reply_markup", yesNo)
	_, err := s.Phone(111).Tap("Approve")
	check(t, err)
	d := next(t, got)
	d.answer <- func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", "200")
		w.WriteHeader(503)
	}
	check(t, s.WaitFor(soon(t), func(st State) bool { return st.Pending() == 0 }))
}

func TestWebhookTimeoutAndRefusal(t *testing.T) {
	s, clock, b := manual(t, Options{Local: true})
	hook, got := receiver(t, clock)
	b.must(nil, "setWebhook", "url", hook.URL)
	texts(t, s, 1)
	next(t, got) // never answered
	clock.Advance(60 * time.Second)
	next(t, got).status(200)
	check(t, s.WaitFor(soon(t), func(st State) bool { return st.Pending() == 0 }))
	if e := s.WebhookInfo().LastError; e != "Read timeout expired" {
		t.Errorf("last error %q", e)
	}
	check(t, hook.Listener.Close())
	hook.CloseClientConnections()
	texts(t, s, 1)
	check(t, s.WaitFor(soon(t), func(st State) bool { return st.Webhook().LastError == "Connection refused" }))
}

func TestFailedSetWebhookTakesTheOldOneAlong(t *testing.T) {
	s, clock, b := manual(t, Options{})
	b.must(nil, "setWebhook", "url", "https://example.com/hook", "secret_token", "x", "max_connections", "7")
	if a := b.call("setWebhook", "url", "https://example.com/hook"); a.Status != 429 || a.Parameters.RetryAfter != 1 || a.Header.Get("Retry-After") != "1" {
		t.Errorf("twice in a second: %d %q", a.Status, a.Description)
	}
	clock.Advance(time.Second)
	if a := b.must(nil, "setWebhook", "url", "https://example.com/hook", "secret_token", "x", "max_connections", "7"); a.Description != "Webhook is already set" {
		t.Errorf("the same again: %q", a.Description)
	}
	clock.Advance(time.Second)
	texts(t, s, 1)
	b.must(nil, "setWebhook", "url", "https://example.com/hook")
	if info := s.WebhookInfo(); info.Secret != "" || info.MaxConnections != 40 {
		t.Errorf("secret and max_connections are remembered: %+v", info)
	}
	clock.Advance(time.Second)
	if a := b.call("setWebhook", "url", "http://example.com/hook"); a.Status != 400 {
		t.Errorf("plain http: %d", a.Status)
	}
	if info := s.WebhookInfo(); info.URL != "" || info.Pending != 1 {
		t.Errorf("after the failure: %+v", info)
	}
	clock.Advance(time.Second)
	b.must(nil, "setWebhook", "url", "https://example.com/hook", "drop_pending_updates", "True")
	if n := pending(s); n != 0 {
		t.Errorf("%d updates not dropped", n)
	}
}

func TestSetWebhookWhileAnotherVerifies(t *testing.T) {
	s, clock, b := manual(t, Options{Webhook: WebhookOptions{VerifyDelay: 5 * time.Second}})
	first := make(chan answer, 1)
	go func() { first <- b.call("setWebhook", "url", "https://example.com/a") }()
	check(t, clock.AwaitTimers(soon(t), 1))
	if a := b.call("getUpdates"); a.Status != 409 {
		t.Errorf("getUpdates meanwhile: %d", a.Status)
	}
	clock.Advance(time.Second)
	second := make(chan answer, 1)
	go func() { second <- b.call("setWebhook", "url", "https://example.com/b") }()
	if a := <-first; a.Description != "Conflict: terminated by other setWebhook" {
		t.Errorf("first: %q", a.Description)
	}
	check(t, clock.AwaitTimers(soon(t), 1))
	clock.Advance(5 * time.Second)
	if a := <-second; a.Description != "Webhook was set" || s.WebhookInfo().URL != "https://example.com/b" {
		t.Errorf("second: %q", a.Description)
	}
}

func TestGoneForADayRemovesTheWebhook(t *testing.T) {
	s, clock, b := manual(t, Options{Local: true})
	hook, got := receiver(t, clock)
	b.must(nil, "setWebhook", "url", hook.URL)
	for i := range 24 {
		texts(t, s, 1)
		d := next(t, got)
		d.answer <- func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusGone)
		}
		if i == 23 {
			break
		}
		at := clock.Now()
		check(t, s.WaitFor(soon(t), func(st State) bool { return st.Webhook().LastErrorDate.Equal(at) && !st.InFlight() }))
		check(t, clock.AwaitTimers(soon(t), 1))
		clock.Advance(time.Hour)
	}
	check(t, s.WaitFor(soon(t), func(st State) bool { return st.Webhook().URL == "" }))
	if len(b.updates()) == 0 {
		t.Error("the updates are gone too")
	}
}

func TestCallInTheAnswer(t *testing.T) {
	s, clock, b := manual(t, Options{Local: true})
	hook, got := receiver(t, clock)
	b.must(nil, "setWebhook", "url", hook.URL)
	texts(t, s, 1)
	next(t, got).answer <- func(w http.ResponseWriter) {
		_, _ = io.WriteString(w, `{"method":"sendMessage","chat_id":111,"text":"from the answer"}`)
	}
	_, err := s.WaitMessage(soon(t), 111, func(m Message) bool { return m.Text == "from the answer" })
	check(t, err)
	texts(t, s, 1)
	next(t, got).answer <- func(w http.ResponseWriter) { _, _ = io.WriteString(w, `{"method":"deleteWebhook"}`) }
	check(t, s.WaitFor(soon(t), func(st State) bool { return st.Pending() == 0 }))
	if s.WebhookInfo().URL == "" {
		t.Error("deleteWebhook was run from an answer")
	}
}

func TestReplacedWebhookGetsWhatWasNotAcknowledged(t *testing.T) {
	s, clock, b := manual(t, Options{Local: true})
	one, gotOne := receiver(t, clock)
	two, gotTwo := receiver(t, clock)
	b.must(nil, "setWebhook", "url", one.URL)
	texts(t, s, 1)
	first := next(t, gotOne)
	clock.Advance(time.Second)
	b.must(nil, "setWebhook", "url", two.URL)
	second := next(t, gotTwo)
	if first.update.ID != second.update.ID {
		t.Errorf("updates %d and %d", first.update.ID, second.update.ID)
	}
	second.status(200)
	check(t, s.WaitFor(soon(t), func(st State) bool { return st.Pending() == 0 }))
}

// TestCertificates: setting a webhook says nothing about its certificate; the
// deliveries do. An uploaded certificate is the only one that is trusted.
func TestCertificates(t *testing.T) {
	hook := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	hook.Config.ErrorLog = log.New(io.Discard, "", 0)
	hook.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	hook.StartTLS()
	t.Cleanup(hook.Close)
	s, clock, b := manual(t, Options{Local: true})
	b.must(nil, "setWebhook", "url", hook.URL)
	texts(t, s, 1)
	check(t, s.WaitFor(soon(t), func(st State) bool { return strings.HasPrefix(st.Webhook().LastError, "SSL error {") }))
	clock.Advance(time.Second)
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
	ct, body := form(t, [3]string{"url", "", hook.URL}, [3]string{"certificate", "cert.pem", string(cert)})
	if a := b.body("setWebhook", ct, body); !a.OK {
		t.Fatal(a.Body)
	}
	check(t, s.WaitFor(soon(t), func(st State) bool { return st.Pending() == 0 }))
	var info map[string]any
	b.must(&info, "getWebhookInfo")
	if info["has_custom_certificate"] != true || info["ip_address"] != "127.0.0.1" || info["last_error_date"] != nil {
		t.Errorf("info %v", info)
	}
	clock.Advance(time.Second)
	ct, body = form(t, [3]string{"url", "", hook.URL}, [3]string{"certificate", "cert.pem", strings.Repeat("a", 3<<20+1)})
	if a := b.body("setWebhook", ct, body); a.Description != "Bad Request: certificate size is too big ("+strconv.Itoa(3<<20+1)+" bytes)" {
		t.Error(a.Description)
	}
}

func TestRouteTo(t *testing.T) {
	hook, got := receiver(t, RealClock{})
	s := RunT(t, Options{Webhook: WebhookOptions{Transport: RouteTo(hook.URL)}})
	b := newBot(t, s)
	b.must(nil, "setWebhook", "url", "https://gate.example.com/tg", "secret_token", "a")
	s.ForgetWebhookSecret()
	_, err := s.Phone(111).Text("hello")
	check(t, err)
	d := next(t, got)
	if d.path != "/tg" || d.header.Get("X-Telegram-Bot-Api-Secret-Token") != "" {
		t.Errorf("path %s, headers %v", d.path, d.header)
	}
	d.status(200)
}

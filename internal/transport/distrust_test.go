package transport

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestWebhookDeliveryErrorsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHookAPI()
		// What Telegram still says of a failure before the start is no trouble of today, also with an update under way.
		a.lastErrorDate, a.pending, a.lastError = 1, 1, "Connection refused"
		w, l, stop := a.run(t, ignore)
		<-w.Ready()
		time.Sleep(time.Minute)
		if h := w.Health(); !h.Healthy {
			t.Errorf("an error of before the start: %+v", h)
		}
		a.set(func() { a.lastErrorDate, a.pending, a.lastError = 2, 7, "SSL error {certificate verify failed}" })
		time.Sleep(time.Minute)
		if h := w.Health(); h.Healthy || !strings.Contains(h.Error, "7 updates: SSL error") {
			t.Errorf("health %+v", h)
		}
		time.Sleep(time.Minute) // its tries become rare: the date stands still
		if h := w.Health(); h.Healthy {
			t.Errorf("forgotten although nothing was delivered: %+v", h)
		}
		// Telegram never clears the text; what counts is that updates arrive.
		l.post(t, tapJSON(1, 2), hookSecret)
		time.Sleep(time.Minute)
		if h := w.Health(); !h.Healthy {
			t.Errorf("health %+v", h)
		}
		time.Sleep(time.Minute)
		if h := w.Health(); !h.Healthy {
			t.Errorf("in the next quiet minute: %+v", h)
		}
		_ = stop()
	})
}

// The same URL registered by somebody else without our secret: Telegram's posts are
// refused, it says so, and only a new registration can repair that.
func TestWebhookForgottenSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.DebugLevel)
		a := newHookAPI()
		w, l, stop := a.run(t, ignore, func(o *WebhookOptions) { o.Logger = zap.New(core) })
		<-w.Ready()
		time.Sleep(2 * time.Minute)
		refused := func(date int) {
			a.set(func() {
				a.secret, a.pending, a.lastError, a.lastErrorDate = "", 1, "Wrong response from the webhook: 401 Unauthorized", date
			})
			for range refusedBeforeCheck {
				if status := l.post(t, tapJSON(1, 2), "forgotten"); status != 401 {
					t.Fatalf("status %d", status)
				}
			}
		}
		refused(1)
		time.Sleep(15 * time.Second)
		if _, secret := a.registered(); secret != hookSecret {
			t.Error("not registered again")
		}
		if n := logs.FilterMessageSnippet("another program has registered the same URL").Len(); n != 1 {
			t.Errorf("%d lines about it", n)
		}
		// It does not help: told once more, tried on, slowly.
		for minute := range 10 {
			refused(2 + minute)
			time.Sleep(time.Minute)
		}
		if h := w.Health(); h.Healthy || !strings.Contains(h.Error, "the reverse proxy does not pass the header") {
			t.Errorf("health %+v", h)
		}
		if n := len(a.made("setWebhook")); n > 14 {
			t.Errorf("%d setWebhook calls in ten minutes", n)
		}
		if logs.Len() > 4 {
			t.Errorf("log %v", logs.All())
		}
		a.set(func() { a.pending = 0 })
		l.post(t, tapJSON(1, 2), hookSecret)
		time.Sleep(time.Minute)
		if h := w.Health(); !h.Healthy {
			t.Errorf("health %+v", h)
		}
		_ = stop()
	})
}

// Whoever posts without the secret makes the gate look after its registration, at
// most once in ten seconds, and neither set it anew nor write a line.
func TestWebhookStrangersChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.DebugLevel)
		a := newHookAPI()
		a.lastErrorDate, a.lastError = 1, "Wrong response from the webhook: 401 Unauthorized"
		w, l, stop := a.run(t, ignore, func(o *WebhookOptions) { o.Logger = zap.New(core) })
		<-w.Ready()
		synctest.Wait()
		lines := logs.Len()
		for range 10 * 60 {
			l.post(t, tapJSON(1, 2), "stranger")
			time.Sleep(time.Second)
		}
		if n := len(a.made("setWebhook")); n != 1 {
			t.Errorf("strangers caused %d setWebhook calls in ten minutes", n-1)
		}
		if n := len(a.made("getWebhookInfo")); n > 10*6+3 {
			t.Errorf("%d checks in ten minutes", n)
		}
		if logs.Len() != lines {
			t.Errorf("strangers caused log lines: %v", logs.All()[lines:])
		}
		if h := w.Health(); !h.Healthy {
			t.Errorf("health %+v", h)
		}
		_ = stop()
	})
}

// Whoever displaces the webhook and then posts to the old address is noticed at the next look, which their posts bring forward.
func TestWebhookDisplacedIsNoticedSooner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHookAPI()
		w, l, stop := a.run(t, ignore)
		<-w.Ready()
		a.set(func() { a.url = "https://other.example.net/x" })
		for range refusedBeforeCheck {
			l.post(t, tapJSON(1, 2), "stranger")
		}
		time.Sleep(11 * time.Second)
		if h := w.Health(); h.Healthy || h.Cause != CauseDisplaced {
			t.Errorf("health %+v", h)
		}
		_ = stop()
	})
}

package transport

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWebhookRegistersWithSecretAndRemovesOnStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHookAPI()
		w, l, stop := a.run(t, ignore)
		<-w.Ready()
		url, secret := a.registered()
		if url != hookURL || secret != hookSecret {
			t.Errorf("registered %q with %q", url, secret)
		}
		if got := a.made("setWebhook")[0].form["allowed_updates"]; got != `["message","callback_query","my_chat_member"]` {
			t.Errorf("allowed_updates %q", got)
		}
		if status := l.post(t, tapJSON(1, 2), hookSecret); status != 200 {
			t.Errorf("tap answered %d", status)
		}
		if h := w.Health(); !h.Healthy || h.Mode != "webhook" {
			t.Errorf("health %+v", h)
		}
		for range 12 {
			time.Sleep(50 * time.Second)
			if late := time.Since(w.Health().Due); late > time.Second {
				t.Errorf("the loop is %s overdue", late)
			}
		}
		if n := len(a.made("setWebhook")); n != 1 {
			t.Errorf("%d setWebhook calls in ten quiet minutes", n)
		}
		if n := len(a.made("getWebhookInfo")); n < 10 || n > 16 {
			t.Errorf("%d checks in ten minutes", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if url, _ := a.registered(); url != "" {
			t.Error("still registered after the stop")
		}
	})
}

func TestWebhookListensBeforeItRegisters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHookAPI()
		var l *memoryListener
		plain := a.answer
		status := 0
		ready := make(chan struct{})
		a.answer = func(ctx context.Context, c apiCall) (int, string, error) {
			if c.method == "setWebhook" {
				<-ready
				status = l.post(t, tapJSON(1, 2), hookSecret)
			}
			return plain(ctx, c)
		}
		var w *Webhook
		var stop func() error
		w, l, stop = a.run(t, ignore)
		close(ready)
		<-w.Ready()
		if status != 200 {
			t.Errorf("a post during setWebhook was answered %d", status)
		}
		_ = stop()
	})
}

func TestWebhookForeignRegistration(t *testing.T) {
	const foreign = "https://other.example.net/secret-path"
	start := func(t *testing.T, options ...func(*WebhookOptions)) (*hookAPI, *Webhook, func() error) {
		a := newHookAPI()
		a.url = foreign
		w, _, stop := a.run(t, ignore, options...)
		synctest.Wait()
		time.Sleep(5 * time.Second)
		return a, w, stop
	}
	t.Run("refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, _, stop := start(t)
			var e *RegistrationError
			if err := stop(); !errors.As(err, &e) || e.Host != "other.example.net" || strings.Contains(err.Error(), "secret-path") {
				t.Errorf("%v", err)
			}
			if url, _ := a.registered(); url != foreign {
				t.Errorf("registered %q", url)
			}
		})
	})
	for name, option := range map[string]func(*WebhookOptions){
		"replaced when told":   func(o *WebhookOptions) { o.Replace = true },
		"own leftover is used": func(o *WebhookOptions) { o.Own = func(url string) bool { return url == foreign } },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, w, stop := start(t, option)
				if url, _ := a.registered(); url != hookURL || !w.Health().Healthy {
					t.Errorf("registered %q", url)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestWebhookFailingSetIsRetriedOnceASecondAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHookAPI()
		a.failSet = 4
		w, _, stop := a.run(t, ignore)
		time.Sleep(500 * time.Millisecond)
		if h := w.Health(); h.Healthy || !strings.Contains(h.Error, "Failed to resolve host") {
			t.Errorf("health %+v", h)
		}
		<-w.Ready()
		calls := a.made("setWebhook")
		if len(calls) != 5 {
			t.Errorf("%d calls", len(calls))
		}
		for i := 1; i < len(calls); i++ {
			if gap := calls[i].at.Sub(calls[i-1].at); gap < time.Second {
				t.Errorf("%s between two setWebhook calls", gap)
			}
		}
		if !w.Health().Healthy {
			t.Errorf("health %+v", w.Health())
		}
		_ = stop()
	})
}

// setWebhook worked, its answer was lost, and another program came in before the
// next try: the registration is read before anything is set again.
func TestWebhookUnsureRegistration(t *testing.T) {
	for name, taken := range map[string]bool{"nobody came in": false, "another program came in": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newHookAPI()
				plain := a.answer
				lost := false
				a.answer = func(ctx context.Context, c apiCall) (int, string, error) {
					status, body, err := plain(ctx, c)
					if c.method == "setWebhook" && !lost {
						lost = true
						if taken {
							a.set(func() { a.url = "https://other.example.net/x" })
						}
						return 0, "", errors.New("connection reset by peer")
					}
					return status, body, err
				}
				w, _, stop := a.run(t, ignore)
				time.Sleep(5 * time.Second)
				h := w.Health()
				if h.Healthy == taken || strings.Contains(h.Error, "other.example.net") != taken {
					t.Errorf("health %+v", h)
				}
				if n := len(a.made("setWebhook")); (n == 1) != taken {
					t.Errorf("%d setWebhook calls", n)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
				if url, _ := a.registered(); (url != "") != taken {
					t.Errorf("left registered: %q", url)
				}
			})
		})
	}
}

func TestWebhookThatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHookAPI()
		w, _, stop := a.run(t, ignore)
		<-w.Ready()
		a.set(func() { a.url = "" })
		time.Sleep(time.Minute)
		if url, secret := a.registered(); url != hookURL || secret != hookSecret {
			t.Errorf("not registered again within a minute: %q", url)
		}
		// Another program takes it: told, not fought over, left alone on stop.
		const other = "https://other.example.net/x"
		a.set(func() { a.url = other })
		taken := time.Now()
		time.Sleep(time.Minute)
		h := w.Health()
		if h.Healthy || !strings.Contains(h.Error, "other.example.net") || h.ConflictSince.Before(taken) {
			t.Errorf("health %+v", h)
		}
		if n := len(a.made("setWebhook")); n != 2 {
			t.Errorf("%d setWebhook calls", n)
		}
		// It goes: we come back.
		a.set(func() { a.url = "" })
		time.Sleep(time.Minute)
		if url, _ := a.registered(); url != hookURL || !w.Health().Healthy || !w.Health().ConflictSince.IsZero() {
			t.Errorf("registered %q, %+v", url, w.Health())
		}
		a.set(func() { a.url = other })
		if err := stop(); err != nil {
			t.Error(err)
		}
		if url, _ := a.registered(); url != other {
			t.Error("somebody else's webhook was removed on stop")
		}
	})
}

func TestWebhookStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHookAPI()
		var l *memoryListener
		entered := make(chan struct{})
		w, l, stop := a.run(t, func(ctx context.Context, _ Update) error {
			close(entered)
			<-ctx.Done()
			return ctx.Err()
		})
		<-w.Ready()
		answered := make(chan int)
		go func() { answered <- l.post(t, tapJSON(1, 2), hookSecret) }()
		<-entered
		a.set(func() { a.dead = true })
		start := time.Now()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("stop took %s", took)
		}
		if status := <-answered; status != 503 {
			t.Errorf("the update in hand was answered %d", status)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		a := newHookAPI()
		w, _, stop := a.run(t, ignore, func(o *WebhookOptions) { o.RemoveOnStop = func() bool { return false } })
		<-w.Ready()
		if err := stop(); err != nil || len(a.made("deleteWebhook")) != 0 {
			t.Errorf("%v, or talked to Telegram although it must not", err)
		}
	})
}

func TestWebhookWaitsForTheNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newHookAPI()
		a.dead = true
		w, _, stop := a.run(t, ignore)
		time.Sleep(5 * time.Minute)
		if h := w.Health(); h.Healthy || h.Error == "" {
			t.Errorf("health %+v", h)
		}
		a.set(func() { a.dead = false })
		select {
		case <-w.Ready():
		case <-time.After(time.Minute):
			t.Error("not registered a minute after the network came back")
		}
		_ = stop()
	})
}

func TestCheckStartAsksAboutTheBotFirst(t *testing.T) {
	a := newHookAPI()
	a.url = hookURL
	taken := errors.New("bot-owned-elsewhere")
	_, err := CheckStart(t.Context(), a.client(t), StartOptions{Mode: "poll", Own: func(string) bool { return true }, Bot: func(u User) error {
		if u.ID != 987654321 {
			t.Errorf("bot %+v", u)
		}
		return taken
	}})
	if err != taken || len(a.made("getWebhookInfo"))+len(a.made("deleteWebhook")) != 0 {
		t.Errorf("%v after %d look-ups", err, len(a.made("getWebhookInfo")))
	}
}

func TestCheckStart(t *testing.T) {
	const foreign = "https://other.example.net/secret-path"
	own := func(url string) bool { return url == hookURL }
	for name, tc := range map[string]struct {
		registered string
		options    StartOptions
		refused    bool
		removed    bool
	}{
		"poll, free":                   {"", StartOptions{Mode: "poll"}, false, false},
		"poll, foreign":                {foreign, StartOptions{Mode: "poll", Own: own}, true, false},
		"poll, foreign with replace":   {foreign, StartOptions{Mode: "poll", Own: own, Replace: true}, true, false},
		"poll, own leftover":           {hookURL, StartOptions{Mode: "poll", Own: own}, false, true},
		"poll, nobody says it is ours": {hookURL, StartOptions{Mode: "poll"}, true, false},
		"webhook, free":                {"", StartOptions{Mode: "webhook"}, false, false},
		"webhook, foreign":             {foreign, StartOptions{Mode: "webhook", Own: own}, true, false},
		"webhook, replace":             {foreign, StartOptions{Mode: "webhook", Replace: true}, false, false},
		"webhook, own leftover":        {hookURL, StartOptions{Mode: "webhook", Own: own}, false, false},
		"webhook, our URL, not ours":   {hookURL, StartOptions{Mode: "webhook"}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := newHookAPI()
			a.url = tc.registered
			report, err := CheckStart(t.Context(), a.client(t), tc.options)
			var refused *RegistrationError
			if errors.As(err, &refused) != tc.refused || (err != nil && !tc.refused) {
				t.Fatalf("%v", err)
			}
			if err != nil && (strings.Contains(err.Error(), "secret-path") || !strings.Contains(err.Error(), hostOf(tc.registered))) {
				t.Errorf("%v", err)
			}
			if report.Removed != tc.removed || report.Bot.Username != "gate_bot" || report.Webhook.URL != tc.registered {
				t.Errorf("%+v", report)
			}
			url, _ := a.registered()
			if removed := url != tc.registered; removed != tc.removed {
				t.Errorf("left registered: %q", url)
			}
		})
	}
}

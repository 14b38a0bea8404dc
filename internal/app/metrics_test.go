package app

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/approvald/approvald/internal/transport"
)

// watchedGate is a daemon whose metrics are served, and what asks for them.
func watchedGate(t *testing.T) (*App, func(path string) (int, string)) {
	t.Helper()
	o, _ := testGate(t)
	o.Config.Metrics.Listen = "127.0.0.1:0"
	core, logs := observer.New(zap.InfoLevel)
	o.Logger = zap.New(core)
	a := start(t, o)
	awaitClosed(t, "the daemon", a.Ready())
	address := ""
	for _, entry := range logs.FilterMessage("metrics are served").All() {
		address = fmt.Sprint(entry.ContextMap()["address"])
	}
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	return a, func(path string) (int, string) {
		t.Helper()
		response, err := client.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
}

// deafReceiver runs and hears nothing.
type deafReceiver struct {
	receiver
	health transport.Health
}

func (d deafReceiver) Health() transport.Health { return d.health }

// TestReadyzTurnsRedWhenDeaf: the daemon's loops all go round, and /readyz says that nobody is heard.
func TestReadyzTurnsRedWhenDeaf(t *testing.T) {
	a, look := watchedGate(t)
	if status, text := look("/readyz"); status != http.StatusOK || text != "ready\n" {
		t.Fatalf("at first: %d %s", status, text)
	}
	for _, c := range []struct {
		health transport.Health
		want   string
	}{
		{transport.Health{Mode: "poll", LastSuccess: time.Now().Add(-51 * time.Second), Patience: 50 * time.Second, Error: "no answered poll for 51s"}, "not ready: deaf: Telegram was last heard (51s ago): no answered poll for 51s\n"},
		{transport.Health{Mode: "poll", LastSuccess: time.Now(), Patience: 50 * time.Second, Cause: transport.CauseConflict, Error: "another program polls"}, "not ready: updates-taken: another program polls\n"},
		{transport.Health{Mode: "poll", LastSuccess: time.Now(), Patience: 50 * time.Second, Error: "half a trouble"}, "not ready: half a trouble\n"},
	} {
		a.mu.Lock()
		before := a.receiver
		a.receiver = deafReceiver{before, c.health}
		a.mu.Unlock()
		if status, text := look("/readyz"); status != http.StatusServiceUnavailable || text != c.want {
			t.Errorf("%d %q, want %q", status, text, c.want)
		}
		if status, text := look("/healthz"); status != http.StatusOK {
			t.Errorf("a deaf daemon lives all the same: %d %s", status, text)
		}
		_, scrape := look("/metrics")
		for _, line := range []string{"approvald_ready 0\n", "approvald_transport_healthy 0\n"} {
			if !strings.Contains(scrape, line) {
				t.Errorf("the scrape lacks %q", line)
			}
		}
		a.mu.Lock()
		a.receiver = before
		a.mu.Unlock()
	}
	if status, text := look("/readyz"); status != http.StatusOK {
		t.Errorf("at last: %d %s", status, text)
	}
}

// TestHealthzTurnsRedWhenAPartHangs: a loop whose goroutine exists and does nothing is found out.
func TestHealthzTurnsRedWhenAPartHangs(t *testing.T) {
	a, look := watchedGate(t)
	if status, text := look("/healthz"); status != http.StatusOK || text != "alive\n" {
		t.Fatalf("at first: %d %s", status, text)
	}
	for _, part := range a.vitals.vitals {
		if part.probe == nil {
			continue
		}
		// The probe was sent out longer ago than its limit, and is not back.
		part.mu.Lock()
		part.began = time.Now().Add(-part.limit - time.Second)
		part.mu.Unlock()
		want := "not alive: no progress: " + part.name + "\n"
		if status, text := look("/healthz"); status != http.StatusServiceUnavailable || text != want {
			t.Errorf("%d %q, want %q", status, text, want)
		}
		if status, text := look("/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(text, part.name) {
			t.Errorf("/readyz: %d %q", status, text)
		}
		part.mu.Lock()
		part.began = time.Time{}
		part.mu.Unlock()
	}
	if status, text := look("/healthz"); status != http.StatusOK {
		t.Errorf("at last: %d %s", status, text)
	}
}

// TestScrapesFromManySides: none of them waits for another's, and none sees a torn state. It is for the race detector.
func TestScrapesFromManySides(t *testing.T) {
	a, look := watchedGate(t)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 5 {
				for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
					if status, text := look(path); status != http.StatusOK {
						t.Errorf("%s: %d %s", path, status, text)
					}
				}
			}
		})
	}
	wg.Go(func() {
		for range 10 {
			a.reload()
			if _, err := a.status(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	if file := filepath.Base(a.config().File); file != "gate.toml" {
		t.Errorf("the configuration in force is %s", file)
	}
}

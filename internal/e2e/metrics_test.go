package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/approvald/approvald/internal/telegramtest"
)

// watched has the daemon serve its metrics on a socket of the world's.
func watched(w *world, config string) string {
	return config + fmt.Sprintf("[metrics]\nlisten = %q\n", "unix:"+filepath.Join(w.dir, "metrics.sock"))
}

// look asks the daemon for a path of its metrics listener.
func (w *world) look(path string) (status int, text string) {
	w.t.Helper()
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(w.dir, "metrics.sock"))
	}}}
	response, err := client.Get("http://daemon" + path)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	w.must(err)
	return response.StatusCode, string(body)
}

// sample is the value of a series in a scrape, as its text; "" when it is not there.
func sample(scrape, series string) string {
	for line := range strings.Lines(scrape) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), series+" "); ok {
			return value
		}
	}
	return ""
}

// TestMetricsOfADaemonAtWork scrapes a daemon that has asked, heard and refused: the names are as Prometheus wants them, the values
// what happened, and nothing of a request or a secret is in them.
func TestMetricsOfADaemonAtWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, watched)
	m := w.supervise()
	daemon := w.up()
	w.until("READY", func() bool { return m.heard("READY=1") })
	w.telegram.Fault(telegramtest.Fault{Method: "sendMessage", Do: telegramtest.Limited(time.Second), Count: 1})
	waiter, card := w.request(daemon, "deploy:secretive#41", "--as", "whisperer")
	w.tap(card, "Approve")
	if code := waiter.code(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	w.settled(daemon, card)
	if _, err := w.telegram.Phone(alice).TapDataOn(card, "forged"); err != nil {
		t.Fatal(err)
	}
	w.run(0, "request", "deploy:secretive#42", "--class", "deploy.production", "--summary", "s")
	var scrape string
	w.until("the scrape to tell", func() bool {
		var status int
		if status, scrape = w.look("/metrics"); status != http.StatusOK {
			t.Fatalf("%d %s", status, scrape)
		}
		return sample(scrape, `approvald_taps_refused_total{reason="unknown-button"}`) == "1" && sample(scrape, "approvald_messages_unsettled") == "0"
	})
	problems, err := promlint.New(strings.NewReader(scrape)).Lint()
	w.must(err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for series, want := range map[string]string{
		"approvald_ready":                                             "1",
		"approvald_transport_healthy":                                 "1",
		"approvald_requests_pending":                                  "1",
		"approvald_lease_held":                                        "1",
		"approvald_lease_epoch":                                       "1",
		`approvald_taps_total{outcome="granted"}`:                     "1",
		`approvald_taps_total{outcome="rejected"}`:                    "0",
		`approvald_deliveries_total{kind="card",outcome="limited"}`:   "1",
		`approvald_deliveries_total{kind="settle",outcome="done"}`:    "1",
		"approvald_telegram_rate_limited_total":                       "1",
		"approvald_telegram_rate_limit_wait_seconds_total":            "1",
		`approvald_trouble{code="deaf"}`:                              "0",
		"approvald_config_last_reload_successful":                     "1",
		`approvald_telegram_calls_total{method="getMe",outcome="ok"}`: "1",
		`approvald_log_append_duration_seconds_count{log="approval"}`: "", // only that it is there and not 0
		`approvald_log_fsync_duration_seconds_count{log="approval"}`:  "",
		`approvald_log_fsync_duration_seconds_count{log="journal"}`:   "",
		"approvald_updates_age_seconds":                               "",
		"approvald_config_loaded_timestamp_seconds":                   "",
		"process_open_fds":                                            "",
	} {
		got := sample(scrape, series)
		if want == "" && (got == "" || got == "0") || want != "" && got != want {
			t.Errorf("%s is %q, want %q", series, got, want)
		}
	}
	for _, secret := range append(w.secrets, "secretive", "whisperer", "deploy.production", "Alice", w.dir) {
		if strings.Contains(scrape, secret) {
			t.Errorf("the metrics tell %q", secret)
		}
	}
	if n := strings.Count(scrape, "\n"); n > 1000 {
		t.Errorf("%d lines in a scrape", n)
	}
	w.wantDeployed(scrape)

	for _, path := range []string{"/healthz", "/readyz"} {
		if status, text := w.look(path); status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	if status, _ := w.look("/debug/pprof/"); status != http.StatusNotFound {
		t.Errorf("/debug/pprof/: %d", status)
	}
	daemon.signal(syscall.SIGTERM)
	if code := daemon.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Lstat(filepath.Join(w.dir, "metrics.sock")); err == nil {
		t.Error("the metrics' socket is left behind")
	}
}

var (
	metricName = regexp.MustCompile(`\b(approvald|process|go)_[a-z0-9_]+\b`)
	typeLine   = regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`)
	labelNames = regexp.MustCompile(`(\w+)(?:!=|=~|!~|=)"`)
	grouping   = regexp.MustCompile(`by \(([^)]*)\)`)
)

// wantDeployed checks that every metric and label that the dashboard and the alerts ask for is in a scrape.
func (w *world) wantDeployed(scrape string) {
	w.t.Helper()
	known := map[string]bool{}
	for _, m := range typeLine.FindAllStringSubmatch(scrape, -1) {
		known[m[1]] = true
		if m[2] == "histogram" {
			known[m[1]+"_bucket"], known[m[1]+"_sum"], known[m[1]+"_count"] = true, true, true
		}
	}
	labels := []string{"instance", "job", "le"}
	for _, m := range labelNames.FindAllStringSubmatch(scrape, -1) {
		labels = append(labels, m[1])
	}
	check := func(where, expr string) {
		names := metricName.FindAllString(expr, -1)
		if len(names) == 0 && !strings.Contains(expr, "up{") {
			w.t.Errorf("%s asks for no metric: %s", where, expr)
		}
		for _, name := range names {
			if !known[name] {
				w.t.Errorf("%s asks for %s, which the daemon does not have", where, name)
			}
		}
		asked := labelNames.FindAllStringSubmatch(expr, -1)
		for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
			for _, label := range strings.Split(m[1], ",") {
				asked = append(asked, []string{"", strings.TrimSpace(label)})
			}
		}
		for _, m := range asked {
			if !slices.Contains(labels, m[1]) {
				w.t.Errorf("%s goes by the label %s, which no metric has", where, m[1])
			}
		}
		if strings.Count(expr, "(") != strings.Count(expr, ")") || strings.Count(expr, "{") != strings.Count(expr, "}") {
			w.t.Errorf("%s: brackets that do not match: %s", where, expr)
		}
	}
	text, err := os.ReadFile("../../deploy/grafana/approvald.json")
	w.must(err)
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	w.must(json.Unmarshal(text, &board))
	exprs := 0
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			check("the panel "+p.Title, target.Expr)
			exprs++
		}
	}
	text, err = os.ReadFile("../../deploy/prometheus/approvald.rules.yml")
	w.must(err)
	alert := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "- alert: "); ok {
			alert = name
		}
		if expr, ok := strings.CutPrefix(line, "expr: "); ok {
			check("the alert "+alert, expr)
			exprs++
		}
	}
	if exprs < 35 || alert == "" {
		w.t.Errorf("dashboard and alerts have %d expressions: the test reads them wrongly", exprs)
	}
}

// TestReadyzIsHonestAboutTheStart: while Telegram cannot be reached the daemon lives and is not ready, and says what it waits for;
// with its stop it is gone.
func TestReadyzIsHonestAboutTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, watched)
	w.telegram.Offline()
	daemon := w.start("up")
	w.until("the daemon to answer", func() bool {
		status, _ := w.look("/healthz")
		return status == http.StatusOK
	})
	w.until("the reason", func() bool {
		status, text := w.look("/readyz")
		if status != http.StatusServiceUnavailable {
			t.Fatalf("%d %s", status, text)
		}
		return strings.Contains(text, "waiting for bot: telegram getMe")
	})
	if _, scrape := w.look("/metrics"); sample(scrape, "approvald_ready") != "0" || sample(scrape, "approvald_transport_healthy") != "0" {
		t.Errorf("metrics while Telegram is away:\n%s", scrape)
	}
	w.must(w.telegram.Online())
	w.until("readiness", func() bool {
		status, _ := w.look("/readyz")
		return status == http.StatusOK
	})
	daemon.kill() // leaves the socket behind
	daemon = w.up()
	w.until("the next daemon to answer in its place", func() bool {
		status, _ := w.look("/readyz")
		return status == http.StatusOK
	})
	w.stopInTime(daemon)
}

// TestAScraperThatHangsHoldsNothingUp: connections that never ask, or never read, cost neither the stop nor another scrape its time.
func TestAScraperThatHangsHoldsNothingUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, watched)
	daemon := w.up()
	for range 20 {
		conn, err := net.Dial("unix", filepath.Join(w.dir, "metrics.sock"))
		w.must(err)
		defer conn.Close()
		_, err = io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost:")
		w.must(err)
	}
	if status, text := w.look("/metrics"); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	w.stopInTime(daemon)
}

// TestAMetricsAddressThatIsTakenIsNamed: the start is refused by name, in one line, and everything is let go of.
func TestAMetricsAddressThatIsTakenIsNamed(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	w := newWorld(t, func(_ *world, config string) string {
		return config + fmt.Sprintf("[metrics]\nlisten = %q\n", taken.Addr())
	})
	refused := w.run(1, "up")
	if text := refused.stderr.String(); !strings.Contains(text, "metrics.listen") || !strings.Contains(text, "in use") || strings.Count(text, "\n") != 1 {
		t.Errorf("stderr: %s", text)
	}
	taken.Close()
	daemon := w.up()
	client := http.Client{Timeout: time.Minute}
	response, err := client.Get("http://" + taken.Addr().String() + "/healthz")
	w.must(err)
	response.Body.Close()
	w.stopInTime(daemon)
}

// Package metrics is what the daemon shows to a monitoring system: Prometheus metrics, and two plain answers to whether it lives and
// whether it can do its work.
//
// It guarantees that every label has a bounded set of values, all from this program's own words: no key, name, summary or address of
// a request, and no secret, is in a metric. It has a registry of its own, so that two daemons in one process do not meet. A scrape
// asks for the state of the moment; it takes no lock that an append waits for long.
//
// It does not authenticate: it listens where only this machine can reach it, and what it tells is no secret.
package metrics

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Snapshot is the state of the daemon at a scrape.
type Snapshot struct {
	Ready            bool
	TransportHealthy bool
	// UpdatesAge is how long ago updates could last be received for certain, since the start while they never could. It is deaf when
	// that exceeds UpdatesPatience.
	UpdatesAge, UpdatesPatience time.Duration
	UpdatesSkipped              int64
	Pending, Undelivered        int
	Unsettled                   int
	ChatMuted                   time.Duration // how long Telegram takes nothing more for a chat
	LeaseHeld                   bool
	Epoch                       int64
	Troubles                    map[string]bool // by code, every code
	ReloadsGood, ReloadsFailed  int
	LastReloadGood              bool
	ConfigLoaded                time.Time
	NeedsRestart                int // keys of the configuration that wait for a restart
}

// Metrics counts and shows.
type Metrics struct {
	registry    *prometheus.Registry
	deliveries  *prometheus.CounterVec
	taps        *prometheus.CounterVec
	refused     *prometheus.CounterVec
	calls       *prometheus.CounterVec
	callTime    *prometheus.HistogramVec
	limited     prometheus.Counter
	limitedWait prometheus.Counter
	appends     *prometheus.HistogramVec
	syncs       *prometheus.HistogramVec
}

// Vocabulary is every value that labels may have. All series are there from the start, so that a rate over the first event is seen.
type Vocabulary struct {
	Deliveries, DeliveryOutcomes []string
	Taps, RefusedTaps            []string
	Logs                         []string
}

// Buckets for a disk: from a page in memory to one that fails.
var diskBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// New makes the metrics of one daemon. state is called at each scrape.
func New(version string, words Vocabulary, state func() Snapshot) *Metrics {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	times := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	m := &Metrics{
		registry:   prometheus.NewRegistry(),
		deliveries: counters("approvald_deliveries_total", "Messages that were to be sent or edited in a chat, by what they are and what came of it.", "kind", "outcome"),
		taps:       counters("approvald_taps_total", "Taps and replies that were judged, by what became of them.", "outcome"),
		refused:    counters("approvald_taps_refused_total", "Taps and replies by people, or with buttons, that could decide nothing, by reason.", "reason"),
		calls:      counters("approvald_telegram_calls_total", "Calls of the Bot API, by method and outcome.", "method", "outcome"),
		callTime: times("approvald_telegram_call_duration_seconds", "How long calls of the Bot API took, long polls left out.",
			[]float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}, "method"),
		limited:     prometheus.NewCounter(prometheus.CounterOpts{Name: "approvald_telegram_rate_limited_total", Help: "Calls that the Bot API answered with 429."}),
		limitedWait: prometheus.NewCounter(prometheus.CounterOpts{Name: "approvald_telegram_rate_limit_wait_seconds_total", Help: "Waits that the Bot API asked for with its answers of 429."}),
		appends:     times("approvald_log_append_duration_seconds", "How long an append took, from asking for the append lock to the record being on disk.", diskBuckets, "log"),
		syncs:       times("approvald_log_fsync_duration_seconds", "How long fsync of a log took.", diskBuckets, "log"),
	}
	for _, kind := range words.Deliveries {
		for _, outcome := range words.DeliveryOutcomes {
			m.deliveries.WithLabelValues(kind, outcome)
		}
	}
	for _, outcome := range words.Taps {
		m.taps.WithLabelValues(outcome)
	}
	for _, reason := range words.RefusedTaps {
		m.refused.WithLabelValues(reason)
	}
	for _, log := range words.Logs {
		m.appends.WithLabelValues(log)
		m.syncs.WithLabelValues(log)
	}
	build := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "approvald_build_info", Help: "1, labelled with the version of the program and of Go.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	}, func() float64 { return 1 })
	m.registry.MustRegister(m.deliveries, m.taps, m.refused, m.calls, m.callTime, m.limited, m.limitedWait, m.appends, m.syncs, build,
		&snapshots{state}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Delivered counts the outcome of one message.
func (m *Metrics) Delivered(kind, outcome string) { m.deliveries.WithLabelValues(kind, outcome).Inc() }

// Tapped counts a judged tap. refused: by somebody or something that could not have decided.
func (m *Metrics) Tapped(outcome string, refused bool) {
	m.taps.WithLabelValues(outcome).Inc()
	if refused {
		m.refused.WithLabelValues(outcome).Inc()
	}
}

// Called counts a call of the Bot API. outcome is empty for a good one; wait is what a 429 asked for, 0 for any other answer.
func (m *Metrics) Called(method, outcome string, took, wait time.Duration) {
	if outcome == "" {
		outcome = "ok"
	}
	m.calls.WithLabelValues(method, outcome).Inc()
	if method != "getUpdates" {
		m.callTime.WithLabelValues(method).Observe(took.Seconds())
	}
	if wait > 0 {
		m.limited.Inc()
		m.limitedWait.Add(wait.Seconds())
	}
}

// Appended notes how long an append to a log took, and Synced an fsync.
func (m *Metrics) Appended(log string, took time.Duration) {
	m.appends.WithLabelValues(log).Observe(took.Seconds())
}

// Synced is described with Appended.
func (m *Metrics) Synced(log string, took time.Duration) {
	m.syncs.WithLabelValues(log).Observe(took.Seconds())
}

func (m *Metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: scrapeLimit})
}

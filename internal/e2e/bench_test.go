package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/telegramtest"
)

// The design's targets for the medians below.
const (
	targetSend = 10 * time.Millisecond
	targetExit = 15 * time.Millisecond
)

// BenchmarkEndToEnd measures the two times that people feel, with real processes and every fsync done:
// from the request's append to the daemon's sendMessage call, and from the tap to the exit of the program that waits.
func BenchmarkEndToEnd(b *testing.B) {
	w := newWorld(b, func(_ *world, config string) string {
		return config + "\n[requests]\nmax_pending = 100000\nper_requester_per_hour = 1000000\n"
	})
	daemon := w.up()
	config, err := gate.LoadConfig("default", w.dir+"/config/approvald/default.toml")
	if err != nil {
		b.Fatal(err)
	}
	config.Home = w.home
	asker, err := gate.Open(config, gate.OpenOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer asker.Close()

	var toSend, toExit []time.Duration
	for b.Loop() {
		key := fmt.Sprintf("bench:%d", len(toSend))
		sends := len(w.telegram.Calls("sendMessage"))
		_, _, err := asker.Create(b.Context(), gate.NewRequest{
			Key: key, Class: "deploy.production", Summary: "benchmark", Requester: "agent:bench", Payload: json.RawMessage("{}"), Reversible: true,
		})
		appended := time.Now() // Create returns once the record is on disk
		if err != nil {
			b.Fatal(err)
		}
		var sent time.Time
		w.await(daemon, "the message", func(s telegramtest.State) bool {
			calls := s.Calls("sendMessage")
			if len(calls) <= sends {
				return false
			}
			sent = calls[sends].Time
			return true
		})
		// The watch may win against Create's return; that is no negative time.
		toSend = append(toSend, max(0, sent.Sub(appended)))

		waiter := w.start("wait", key)
		card := w.card(daemon, key)
		tapped := time.Now()
		w.tap(card, "Approve")
		<-waiter.done
		toExit = append(toExit, waiter.ended.Sub(tapped))
		if code := waiter.code(); code != 0 {
			b.Fatalf("exit code %d: %s", code, waiter.stderr.String())
		}
		w.settled(daemon, card)
	}
	b.ReportMetric(0, "ns/op")
	report(b, "append-to-sendMessage", toSend, targetSend)
	report(b, "tap-to-exit", toExit, targetExit)
}

func report(b *testing.B, what string, times []time.Duration, target time.Duration) {
	slices.Sort(times)
	median, p99 := times[len(times)/2], times[len(times)*99/100]
	b.ReportMetric(float64(median.Microseconds())/1000, what+"-p50-ms")
	b.ReportMetric(float64(p99.Microseconds())/1000, what+"-p99-ms")
	verdict := "met"
	if median > target {
		verdict = "MISSED"
	}
	fmt.Fprintf(os.Stderr, "%-22s n=%-4d median %6.2f ms (target %d ms: %s)  p99 %6.2f ms\n", what, len(times),
		float64(median.Microseconds())/1000, target.Milliseconds(), verdict, float64(p99.Microseconds())/1000)
}

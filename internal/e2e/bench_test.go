package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/telegramtest"
)

// burst is how many rounds one daemon serves before it is started anew: a card and its outcome each take one call of the burst
// that the chat has before Telegram's pace of one a second begins, and these benchmarks measure the daemon and not that pace.
const burst = 8

// The times that people feel, with real processes and every fsync done. The targets are for the medians.

// BenchmarkAppendToSend measures from the moment before a request is appended, by another process than the daemon, to the daemon's
// sendMessage call: the asker's own wait for the disk is inside, since the daemon may act on a record before its writer has
// come back from there.
func BenchmarkAppendToSend(b *testing.B) {
	w := newWorld(b)
	config, err := gate.LoadConfig("default", filepath.Join(w.dir, "config/approvald/default.toml"))
	w.must(err)
	config.Home = w.home
	var asker *gate.Gate
	bench(b, w, "append -> sendMessage", 10*time.Millisecond, func(daemon *process, key string) time.Duration {
		if asker == nil {
			asker, err = gate.Open(config, gate.OpenOptions{})
			w.must(err)
		}
		sends := len(w.telegram.Calls("sendMessage"))
		began := time.Now()
		_, _, err := asker.Create(b.Context(), gate.NewRequest{
			Key: key, Class: "deploy.production", Summary: "benchmark", Requester: "agent:bench", Payload: json.RawMessage("{}"), Reversible: true,
		})
		w.must(err)
		var sent time.Time
		w.await(daemon, "the message", func(s telegramtest.State) bool {
			calls := s.Calls("sendMessage")
			if len(calls) <= sends {
				return false
			}
			sent = calls[sends].Time
			return true
		})
		return sent.Sub(began)
	})
	w.must(asker.Close())
}

// BenchmarkTapToExit measures from the tap to the exit of the program that waits for it.
func BenchmarkTapToExit(b *testing.B) {
	w := newWorld(b)
	bench(b, w, "tap -> exit of the waiting program", 15*time.Millisecond, func(daemon *process, key string) time.Duration {
		waiter, card := w.request(daemon, key)
		time.Sleep(20 * time.Millisecond) // the program has nothing left to do but to wait, as it will have with a person
		tapped := time.Now()
		w.tap(card, "Approve")
		if code := waiter.code(); code != 0 {
			b.Fatalf("exit code %d: %s", code, waiter.stderr.String())
		}
		return waiter.ended.Sub(tapped)
	})
}

// bench runs rounds and reports their median and 99th percentile.
func bench(b *testing.B, w *world, what string, target time.Duration, round func(daemon *process, key string) time.Duration) {
	var times []time.Duration
	var daemon *process
	for b.Loop() {
		if len(times)%burst == 0 {
			if daemon != nil {
				daemon.signal(syscall.SIGTERM)
				daemon.code()
			}
			daemon = w.up()
		}
		times = append(times, round(daemon, fmt.Sprintf("bench:%d", len(times))))
	}
	report(b, what, target, times)
}

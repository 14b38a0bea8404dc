package e2e

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

// longRecords is how long the long log is.
const longRecords = 1_000_000

// longLog writes a log of n records at path, four to a request that was used, the last two hours ago. It is made without any of the
// product's code, as another implementation of the format would.
func longLog(w *world, path string, n int) {
	w.must(os.MkdirAll(filepath.Dir(path), 0o700))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	w.must(err)
	defer f.Close()
	out := bufio.NewWriterSize(f, 1<<20)
	const payloadHash = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a" // of {}
	const layout = "2006-01-02T15:04:05.000Z"
	first := time.Now().UTC().Add(-2*time.Hour - time.Duration(n)*time.Second)
	prev := "null"
	var head, tail []byte
	for i := range n {
		at := first.Add(time.Duration(i) * time.Second)
		key := fmt.Sprintf("deploy:api#%d", i/4)
		actor, event, channel, payload := "agent:builder", "", "", `{"class":"deploy.production","payload_hash":"`+payloadHash+`"}`
		switch i % 4 {
		case 0:
			until := at.Add(24 * time.Hour).Format(layout)
			event = "approval.requested"
			payload = `{"approvald":{"expires_at":"` + until + `","quorum":1,"request_digest":"` + payloadHash + `"},"class":"deploy.production","execution":"harness","payload_hash":"` +
				payloadHash + `","reversible":true,"summary":"Roll out the new version to all regions","wait_until":"` + until + `"}`
		case 1:
			actor, event, channel = "human:alice", "approval.granted", `"channel":"telegram",`
			payload = `{"class":"deploy.production","note":"","payload_hash":"` + payloadHash + `","sender":{"channel":"telegram","id":111}}`
		case 2:
			event = "execution.started"
		case 3:
			event = "execution.completed"
			payload = `{"class":"deploy.production","exit_code":0,"payload_hash":"` + payloadHash + `"}`
		}
		head = fmt.Appendf(head[:0], `{"action_key":%q,"actor":%q,"alg":"sha256/jcs",%s"event":%q,`, key, actor, channel, event)
		tail = fmt.Appendf(tail[:0], `"payload":%s,"prev":%s,"seq":%d,"task":%q,"ts":%q}`, payload, prev, i+1, key, at.Format(layout))
		sum := sha256.Sum256(append(head[:len(head):len(head)], tail...))
		prev = fmt.Sprintf(`"%x"`, sum)
		fmt.Fprintf(out, "%s\"hash\":%s,%s\n", head, prev, tail)
	}
	w.must(out.Flush())
}

// longWorld is a gate with a long log.
func longWorld(b *testing.B) *world {
	w := newWorldWith(b, telegramtest.Options{}, func(_ *world, config string) string {
		return config + "\n[requests]\nmax_pending = 20000\nper_requester_per_hour = 100000\n"
	})
	longLog(w, filepath.Join(w.home, "log", "events.jsonl"), longRecords)
	return w
}

// BenchmarkRequest measures a whole run of `approvald request` on a gate without a daemon: the target is 15 ms on an empty gate and 30 ms
// on a log of a million records. There the first request, which makes the snapshot, is not counted.
func BenchmarkRequest(b *testing.B) {
	for _, c := range []struct {
		name   string
		world  func(*testing.B) *world
		target time.Duration
	}{
		{"empty", func(b *testing.B) *world {
			return newWorld(b, func(_ *world, config string) string {
				return config + "\n[requests]\nmax_pending = 20000\nper_requester_per_hour = 100000\n"
			})
		}, 15 * time.Millisecond},
		{"million", longWorld, 30 * time.Millisecond},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := c.world(b)
			n := 0
			ask := func() time.Duration {
				n++
				began := time.Now()
				p := w.run(0, "request", fmt.Sprintf("bench#%d", n), "--class", "deploy.production", "--summary", "a benchmark")
				return p.ended.Sub(began)
			}
			ask()
			var times []time.Duration
			for b.Loop() {
				times = append(times, ask())
			}
			report(b, "request, "+c.name, c.target, times)
		})
	}
}

// BenchmarkUp measures from the start of `approvald up` on a log of a million records to its open socket: the target is 300 ms with a
// snapshot, 3 s without.
func BenchmarkUp(b *testing.B) {
	world := sync.OnceValue(func() *world { return longWorld(b) })
	for _, c := range []struct {
		name   string
		target time.Duration
		rounds int
	}{
		{"without a snapshot", 3 * time.Second, 5},
		{"with a snapshot", 300 * time.Millisecond, 20},
	} {
		b.Run(strings.ReplaceAll(c.name, " ", "-"), func(b *testing.B) {
			w := world()
			w.t = b
			snapshot := filepath.Join(w.home, "daemon", "snapshot.json")
			var times []time.Duration
			for b.Loop() {
				if len(times) == c.rounds {
					continue // enough, whatever -benchtime says: a round takes long
				}
				if c.rounds < 10 {
					w.must(os.RemoveAll(snapshot))
				}
				began := time.Now()
				daemon := w.start("up")
				w.until("the daemon to listen", func() bool {
					found, err := filepath.Glob(filepath.Join(w.dir, "run", "approvald", "*.sock"))
					return err == nil && len(found) > 0
				})
				times = append(times, time.Since(began))
				w.until("the snapshot", func() bool {
					_, err := os.Stat(snapshot)
					return err == nil
				})
				daemon.signal(syscall.SIGTERM)
				daemon.code()
			}
			report(b, "up, a million records "+c.name, c.target, times)
		})
	}
}

// report gives the median and the 99th percentile.
func report(b *testing.B, what string, target time.Duration, times []time.Duration) {
	slices.Sort(times)
	milliseconds := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	median, p99 := milliseconds(times[len(times)/2]), milliseconds(times[len(times)*99/100])
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median, "ms-median")
	b.ReportMetric(p99, "ms-p99")
	verdict := "met"
	if median > milliseconds(target) {
		verdict = "MISSED"
	}
	fmt.Fprintf(os.Stderr, "%-35s n=%-4d median %6.2f ms (target %.0f ms: %s), p99 %6.2f ms\n", what, len(times), median, milliseconds(target), verdict, p99)
}

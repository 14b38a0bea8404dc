package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/dispatch"
	"github.com/approvald/approvald/internal/gate"
)

// manyPending is how many requests wait while the daemon is looked at.
const manyPending = 10_000

// BenchmarkTenThousandPending measures the daemon at rest while ten thousand requests wait, each with its card in the chat: the
// memory of the process, and what it takes of one core over atRest. The aims are 60 MB and 0.2 %.
func BenchmarkTenThousandPending(b *testing.B) {
	const atRest = 20 * time.Second
	w := newWorld(b)
	seedPending(b, w, manyPending)
	for b.Loop() {
		began := time.Now()
		daemon := w.up()
		b.ReportMetric(time.Since(began).Seconds(), "s-to-ready")
		time.Sleep(5 * time.Second) // what the start left behind is given back
		before := cpuTime(b, daemon)
		time.Sleep(atRest)
		share := 100 * (cpuTime(b, daemon) - before).Seconds() / atRest.Seconds()
		resident := memory(b, daemon)
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(resident, "MB-resident")
		b.ReportMetric(share, "%-of-a-core")
		fmt.Fprintf(os.Stderr, "%d pending, at rest: %.1f MB resident (aim 60), %.2f %% of a core (aim 0.2)\n", manyPending, resident, share)
		if n := len(w.telegram.Calls("sendMessage")); n != 0 {
			b.Errorf("%d messages were sent for requests whose cards are in the chat", n)
		}
		daemon.kill()
		daemon.code()
	}
}

// seedPending writes what a daemon would have: requests in the log, and in the journal that each has its card.
func seedPending(b *testing.B, w *world, n int) {
	config, err := gate.LoadConfig("default", filepath.Join(w.dir, "config/approvald/default.toml"))
	w.must(err)
	config.Home = w.home
	g, err := gate.Open(config, gate.OpenOptions{})
	w.must(err)
	first, _, err := g.Create(b.Context(), gate.NewRequest{
		Key: "pending:0", Class: "deploy.production", Summary: "restart after config change", Requester: "agent:ci",
		Payload: json.RawMessage(`{"argv":["make","deploy"],"kind":"command"}`),
	})
	w.must(err)
	requests := []approvallog.Record{{Seq: first.Seq, ActionKey: first.Key}}
	for len(requests) < n {
		records, err := g.Log().Update(b.Context(), func(tx *approvallog.Tx) error {
			for i := range min(1000, n-len(requests)) {
				_, err := tx.Append(approvallog.Draft{
					Event: approvallog.EventRequested, Actor: "agent:ci", Task: "deploy", ActionKey: fmt.Sprintf("pending:%d", len(requests)+i),
					Payload: map[string]any{
						"class": first.Class, "summary": first.Summary, "payload_hash": first.PayloadHash, "reversible": false, "execution": "harness",
						"wait_until": first.ExpiresAt, "approvald": map[string]any{"request_digest": first.Digest, "quorum": 1, "expires_at": first.ExpiresAt, "uid": 1004, "pid": 77},
					},
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
		w.must(err)
		requests = append(requests, records...)
	}
	w.must(g.Close())

	w.must(os.MkdirAll(filepath.Dir(config.Paths().Journal), 0o700))
	journal, err := approvallog.Open(approvallog.Options{Path: config.Paths().Journal, Fold: dispatch.NewDeliveries()})
	w.must(err)
	for from := 0; from < n; from += 1000 {
		_, err := journal.Update(b.Context(), func(tx *approvallog.Tx) error {
			for i, r := range requests[from:min(from+1000, n)] {
				sum := fmt.Sprintf("%x", sha256.Sum256([]byte(r.ActionKey)))
				id := sum[:16]
				intended := map[string]any{
					"delivery": id, "kind": "card", "cycle": r.Seq, "epoch": 1, "payload_hash": first.PayloadHash, "chat_id": alice,
					"nonce_sha256": sum,
				}
				if _, err := tx.Append(approvallog.Draft{Event: dispatch.EventDeliveryIntended, Actor: "system:dispatch", ActionKey: r.ActionKey, Payload: intended}); err != nil {
					return err
				}
				sent := map[string]any{"delivery": id, "chat_id": alice, "message_id": 100 + from + i}
				if _, err := tx.Append(approvallog.Draft{Event: dispatch.EventDeliverySent, Actor: "system:dispatch", ActionKey: r.ActionKey, Payload: sent}); err != nil {
					return err
				}
			}
			return nil
		})
		w.must(err)
	}
	w.must(journal.Close())
}

// cpuTime is what a process has used of all cores together.
func cpuTime(b *testing.B, p *process) time.Duration {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(rest)
	const tick = 10 * time.Millisecond
	var total time.Duration
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			b.Fatal(err)
		}
		total += time.Duration(n) * tick
	}
	return total
}

// memory is the resident memory of a process in MB, pages of its program included.
func memory(b *testing.B, p *process) float64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				b.Fatal(err)
			}
			return float64(kb) / 1024
		}
	}
	b.Fatal("no VmRSS")
	return 0
}

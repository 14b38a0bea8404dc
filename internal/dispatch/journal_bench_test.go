package dispatch

import (
	"flag"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/approvald/approvald/internal/approvallog"
)

var journalDeliveries = flag.Int("journal.deliveries", 1_000_000, "how many deliveries the journal of BenchmarkJournalStart has")

// BenchmarkJournalStart opens a long journal, ten of whose messages are not settled: read whole, as without a snapshot, and
// from a snapshot; and looks an old nonce up.
func BenchmarkJournalStart(b *testing.B) {
	dir := b.TempDir()
	o := approvallog.Options{Path: filepath.Join(dir, "deliveries.jsonl"), Snapshot: filepath.Join(dir, "journal", "snapshot.json")}
	nonce := func(i int) (n Nonce) {
		n[0], n[1], n[2], n[3] = byte(i), byte(i>>8), byte(i>>16), byte(i>>24)
		return n
	}
	journal, err := approvallog.Open(approvallog.Options{Path: o.Path})
	if err != nil {
		b.Fatal(err)
	}
	for from := 0; from < *journalDeliveries; from += 1000 {
		if _, err := journal.Update(b.Context(), func(tx *approvallog.Tx) error {
			for i := from; i < min(from+1000, *journalDeliveries); i++ {
				key, sum := fmt.Sprint("deploy-", i), nonce(i).Sum()
				drafts := []approvallog.Draft{
					journalDraft(EventDeliveryIntended, key, intendedPayload{Delivery: sum[:16], Kind: KindCard, Cycle: int64(2*i + 1), Epoch: 1, NonceSHA256: sum, PayloadHash: sum, ChatID: -1001}),
					journalDraft(EventDeliverySent, key, sentPayload{Delivery: sum[:16], ChatID: -1001, MessageID: int64(i + 1)}),
					journalDraft(EventDeliverySettled, key, settledPayload{Delivery: sum[:16], State: approvallog.StateGranted, How: HowEdited}),
				}
				if i >= *journalDeliveries-10 {
					drafts = drafts[:2]
				}
				for _, d := range drafts {
					if _, err := tx.Append(d); err != nil {
						return err
					}
				}
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
	if err := journal.Close(); err != nil {
		b.Fatal(err)
	}
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	open := func(b *testing.B) (*approvallog.Log, *Deliveries) {
		fold := NewDeliveries()
		o.Fold = fold
		journal, err := approvallog.Open(o)
		if err != nil {
			b.Fatal(err)
		}
		return journal, fold
	}
	b.Run("whole", func(b *testing.B) {
		for range b.N {
			before := heap()
			journal, _ := open(b)
			b.ReportMetric(heap()-before, "heap-MB")
			if err := journal.WriteSnapshot(b.Context()); err != nil {
				b.Fatal(err)
			}
			journal.Close()
		}
	})
	b.Run("snapshot", func(b *testing.B) {
		for range b.N {
			before := heap()
			journal, _ := open(b)
			b.ReportMetric(heap()-before, "heap-MB")
			journal.Close()
		}
	})
	b.Run("nonce", func(b *testing.B) {
		journal, fold := open(b)
		defer journal.Close()
		for i := range b.N {
			if err := journal.View(func() {
				if _, ok := fold.ByNonce(nonce(i * 7919 % *journalDeliveries).Sum()); !ok {
					b.Error("an old nonce is not known")
				}
			}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

package dispatch

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/approvald/approvald/internal/approvallog"
)

// TestJournalFoldAgainstAPlainOne: over random histories, with snapshots, damaged snapshots, restarts and cuts at random
// places, a fold that keeps few in memory answers as one that keeps all.
func TestJournalFoldAgainstAPlainOne(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 7))
		s := &shelf{}
		dir, err := os.MkdirTemp("/dev/shm", "dispatch-test-")
		if err != nil {
			dir = t.TempDir()
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		o := approvallog.Options{Path: filepath.Join(dir, "deliveries.jsonl"), Snapshot: filepath.Join(dir, "journal", "snapshot.json")}
		plain := NewDeliveries()
		whole, err := approvallog.Open(approvallog.Options{Path: filepath.Join(dir, "whole"), Fold: keeper{plain}})
		if err != nil {
			t.Fatal(err)
		}
		var journal *approvallog.Log
		var fold *Deliveries
		open := func() {
			fold = NewDeliveries()
			fold.room = rng.IntN(4)
			o.Fold = fold
			if journal, err = approvallog.Open(o); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		open()
		var ids []string
		var seq int64
		for range 120 {
			var d approvallog.Draft
			key := fmt.Sprint("k", rng.IntN(6))
			cycle := int64(rng.IntN(5) + 1)
			id := ""
			if len(ids) > 0 {
				id = ids[rng.IntN(len(ids))]
			}
			switch rng.IntN(12) {
			case 0, 1, 2:
				var n Nonce
				n[0], n[1] = byte(len(ids)), byte(seed)
				sum := n.Sum()
				ids, s.nonces = append(ids, sum[:16]), append(s.nonces, sum)
				kind := []Kind{KindCard, KindCard, KindDigest, KindReminder}[rng.IntN(4)]
				if kind == KindDigest {
					key = ""
				}
				d = journalDraft(EventDeliveryIntended, key, intendedPayload{Delivery: sum[:16], Kind: kind, Cycle: cycle, NonceSHA256: sum, ChatID: 7, Renews: rng.IntN(4) == 0})
			case 3, 4:
				seq++
				d = journalDraft(EventDeliverySent, key, sentPayload{Delivery: id, ChatID: 7, MessageID: seq})
			case 5:
				d = journalDraft(EventDeliveryFailed, key, failedPayload{Delivery: id, ChatID: 7, RetryAt: noon.Add(time.Duration(rng.IntN(9)) * time.Hour), MigrateTo: int64(rng.IntN(2))})
			case 6:
				d = journalDraft(EventDeliveryUnknown, key, unknownPayload{Delivery: id})
			case 7, 8:
				state := []approvallog.State{approvallog.StateGranted, approvallog.StateRejected, stateRenewed}[rng.IntN(3)]
				d = journalDraft(EventDeliverySettled, key, settledPayload{Delivery: id, State: state, How: []How{HowEdited, HowGone}[rng.IntN(2)]})
			case 9:
				d = journalDraft(EventApprovalNoted, key, notedPayload{Cycle: cycle, Approver: []string{"alice", "bob"}[rng.IntN(2)]})
			case 10:
				switch rng.IntN(4) {
				case 0:
					if _, err := journal.Cut(t.Context(), approvallog.Cut{Carry: func() ([]approvallog.Draft, error) { return fold.CarryOver(1) }}); err != nil && err != approvallog.ErrNothingToArchive {
						t.Fatalf("seed %d: cut: %v", seed, err)
					}
					for whole.Last() < journal.Last() { // the carried records count
						if _, err := whole.Update(t.Context(), func(tx *approvallog.Tx) error { _, err := tx.Append(journalDraft("x", "", nil)); return err }); err != nil {
							t.Fatal(err)
						}
					}
				case 1:
					if err := journal.WriteSnapshot(t.Context()); err != nil {
						t.Fatal(err)
					}
				default:
					journal.Close()
					if rng.IntN(3) == 0 {
						_ = os.WriteFile(o.Snapshot, []byte("{}"), 0o600)
					}
					open()
				}
				continue
			default:
				d = journalDraft(EventDeliveryRefreshed, key, refreshedPayload{Delivery: id, Terms: fmt.Sprint(rng.IntN(9))})
			}
			now := noon.Add(time.Duration(seq) * time.Minute)
			d.TS = now
			for _, l := range []*approvallog.Log{whole, journal} {
				if _, err := l.Update(t.Context(), func(tx *approvallog.Tx) error { _, err := tx.Append(d); return err }); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
			if rng.IntN(5) == 0 {
				if got, want := address.ReplaceAllString(s.knows(t, journal, fold), ""), address.ReplaceAllString(s.knows(t, whole, plain), ""); got != want {
					t.Fatalf("seed %d: it knows (+) what the plain one does not (-):\n%s", seed, cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")))
				}
			}
		}
		journal.Close()
		whole.Close()
	}
}

// address is how a pointer is printed.
var address = regexp.MustCompile("0x[0-9a-f]+")

// keeper hides that a fold could find again what it lets go of.
type keeper struct{ approvallog.Folder }

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/durable"
	"github.com/approvald/approvald/internal/gate"
)

// shelf is a gate whose log and journal are archived.
type shelf struct {
	config gate.Config
	nonces []string
}

func newShelf(t *testing.T) *shelf {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "dispatch-test-") // which steps are taken counts, not what the disk does with them
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &shelf{config: gate.Config{
		Gate: "test", Home: filepath.Join(dir, ".approval"), Approvers: []gate.Approver{{ID: "alice", TelegramUserID: 111}},
		Requests: gate.Limits{TTL: time.Hour, Quorum: 1, MaxPending: 100, PerRequesterPerHour: 100},
	}}
	s.fill(t, 0)
	return s
}

func (s *shelf) open(t *testing.T, fs durable.FS) (*gate.Gate, *approvallog.Log, *Deliveries) {
	t.Helper()
	g, err := gate.Open(s.config, gate.OpenOptions{FS: fs, LockWait: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	fold := NewDeliveries()
	journal, err := s.config.Paths().OpenJournal(approvallog.Options{Fold: fold, FS: fs, LockWait: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return g, journal, fold
}

// fill asks for four requests, and writes to the journal what a daemon does for them.
func (s *shelf) fill(t *testing.T, round int) {
	t.Helper()
	g, journal, _ := s.open(t, durable.FS{})
	defer g.Close()
	defer journal.Close()
	var drafts []approvallog.Draft
	for i, kind := range []string{"used", "granted", "lost", "waits"} {
		key := fmt.Sprintf("%s-%d", kind, round)
		var seq int64
		_, err := g.Log().Update(t.Context(), func(tx *approvallog.Tx) error {
			r, err := tx.Append(approvallog.Draft{Event: approvallog.EventRequested, Actor: "agent:ci", Task: key, ActionKey: key, Payload: map[string]any{
				"class": "deploy.x", "summary": "s", "payload_hash": strings.Repeat("ab", 32), "reversible": true,
				"approvald": map[string]any{"quorum": 1, "expires_at": tx.Now().Add(time.Hour).Format(time.RFC3339Nano)},
			}})
			seq = r.Seq
			if err == nil && kind != "waits" {
				_, err = tx.Append(approvallog.Draft{Event: approvallog.EventGranted, Actor: "human:alice", Task: key, ActionKey: key, Payload: map[string]any{}})
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		var n Nonce
		n[0], n[1] = byte(round), byte(i)
		sum := n.Sum()
		id := sum[:16]
		s.nonces = append(s.nonces, sum)
		message := int64(100*round + i + 1)
		drafts = append(drafts, journalDraft(EventDeliveryIntended, key, intendedPayload{Delivery: id, Kind: KindCard, Cycle: seq, Epoch: 3, NonceSHA256: sum, PayloadHash: "h", ChatID: 7}))
		if kind == "lost" {
			drafts = append(drafts, journalDraft(EventDeliveryUnknown, key, unknownPayload{Delivery: id, Reason: "timeout"}))
			continue
		}
		drafts = append(drafts, journalDraft(EventDeliverySent, key, sentPayload{Delivery: id, ChatID: 7, MessageID: message}))
		if kind == "waits" {
			drafts = append(drafts, journalDraft(EventApprovalNoted, key, notedPayload{Cycle: seq, Approver: "alice", PayloadHash: "h", Channel: ChannelTelegram, SenderID: 111}))
			continue
		}
		drafts = append(drafts, journalDraft(EventDeliverySettled, key, settledPayload{Delivery: id, State: approvallog.StateGranted, How: HowEdited}))
	}
	absent := absence{from: noon.Add(time.Duration(round) * time.Hour), until: noon.Add(time.Duration(round)*time.Hour + 5*time.Minute)}
	id := fmt.Sprintf("absence-%d", round)
	drafts = append(drafts,
		journalDraft(EventDeliveryIntended, "", intendedPayload{Delivery: id, Kind: KindAbsence, Epoch: 3, ChatID: 7, From: absent.from, Until: absent.until}),
		journalDraft(EventDeliveryFailed, "", failedPayload{Delivery: id, Class: "limited", Reason: "slow down", ChatID: 7, RetryAt: noon.Add(time.Duration(round+1) * 24 * time.Hour)}),
		journalDraft(EventDeliveryFailed, "", failedPayload{Delivery: s.nonces[0][:16], Class: "migrated", MigrateTo: -100}),
		journalDraft(EventLogFollowed, "", followedPayload{LogSeq: int64(2 + round)}),
		journalDraft(EventEpochOpened, "", epochPayload{Epoch: int64(3 + round), EpochInfo: EpochInfo{Program: "test", WebhookURL: "https://x"}}))
	if _, err := journal.Update(t.Context(), func(tx *approvallog.Tx) error {
		for _, d := range drafts {
			if _, err := tx.Append(d); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// knows is all that the journal answers.
func (s *shelf) knows(t *testing.T, journal *approvallog.Log, d *Deliveries) string {
	t.Helper()
	var b strings.Builder
	if err := journal.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := journal.View(func() {
		info, closed := d.LastEpoch()
		fmt.Fprintln(&b, d.Epoch(), info, closed, d.movedTo, d.muted, d.followed, d.absentUntil)
		for _, sum := range s.nonces {
			p, ok := d.ByNonce(sum)
			byID, _ := d.ByID(sum[:16])
			card, _ := d.cardAt(p.ChatID, p.MessageID)
			byID.Group, card.Group = p.Group, p.Group // each look-up has its own
			fmt.Fprintln(&b, ok, p, byID == p, card == p, d.Notes(p.Cycle))
			for q := range d.Of(p.Cycle) {
				fmt.Fprintln(&b, " ", q)
			}
		}
		for p := range d.Of(CycleID{}) {
			fmt.Fprintln(&b, "absence", p)
		}
		var unsettled []string
		for p := range d.Unsettled() {
			unsettled = append(unsettled, p.ID)
		}
		slices.Sort(unsettled)
		fmt.Fprintln(&b, unsettled)
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func (s *shelf) reopened(t *testing.T) string {
	t.Helper()
	g, journal, fold := s.open(t, durable.FS{})
	defer g.Close()
	defer journal.Close()
	return s.knows(t, journal, fold)
}

func (s *shelf) archive(fs durable.FS) error {
	g, err := gate.Open(s.config, gate.OpenOptions{FS: fs, LockWait: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	defer g.Close()
	_, err = g.Archive(context.Background(), gate.ArchiveOptions{Carry: true, Deliveries: NewDeliveries()})
	return err
}

// TestArchiveCutsTheJournal: after each of several cuts the journal is short, and knows what it knew.
func TestArchiveCutsTheJournal(t *testing.T) {
	s := newShelf(t)
	g, journal, open := s.open(t, durable.FS{})
	defer g.Close()
	defer journal.Close()
	p := s.config.Paths()
	for round := range 3 {
		if round > 0 {
			s.fill(t, round)
		}
		before := s.knows(t, journal, open)
		if err := s.archive(durable.FS{}); err != nil {
			t.Fatal(err)
		}
		if after := s.knows(t, journal, open); after != before {
			t.Errorf("an open handle knows\n%s\nbefore:\n%s", after, before)
		}
		if after := s.reopened(t); after != before {
			t.Errorf("a new handle knows\n%s\nbefore:\n%s", after, before)
		}
		text, err := os.ReadFile(p.Journal)
		if n := strings.Count(string(text), "\n"); err != nil || n != 2 || !strings.Contains(string(text), approvallog.EventArchiveSealed) {
			t.Errorf("the journal has %d records, %v", n, err)
		}
	}
	segments, err := filepath.Glob(filepath.Join(p.Daemon, "archive", "*", "events.jsonl"))
	if err != nil || len(segments) != 3 {
		t.Fatalf("archived: %v, %v", segments, err)
	}
	for _, path := range append(segments, p.Journal) {
		report, err := approvallog.Verify(t.Context(), path, approvallog.VerifyOptions{})
		if err != nil || report.Status != approvallog.StatusClean {
			t.Errorf("%s by itself: %+v, %v", path, report, err)
		}
	}
	if report, err := approvallog.VerifyAll(t.Context(), p.Log, p.Journal, approvallog.VerifyOptions{}); err != nil || report.Status != approvallog.StatusClean {
		t.Errorf("%+v, %v", report, err)
	}
	// A segment of the log that only an archived part of the journal has the seal of is missed all the same.
	logs, err := filepath.Glob(filepath.Join(p.Archive, "*"))
	if err != nil || len(logs) != 3 {
		t.Fatal(logs, err)
	}
	for _, index := range []string{filepath.Join(filepath.Dir(segments[0]), "index"), filepath.Join(filepath.Dir(segments[1]), "index")} {
		if err := os.Remove(index); err != nil {
			t.Fatal(err)
		}
	}
	if without, with := s.reopened(t), s.knows(t, journal, open); without != with {
		t.Errorf("without the indexes it knows\n%s\nwith them:\n%s", without, with)
	}
}

// TestArchiveDiesAtEveryStep: wherever the process that archives comes to its end, nothing is forgotten, and the next
// archives.
func TestArchiveDiesAtEveryStep(t *testing.T) {
	var steps []string
	if err := newShelf(t).archive(durable.FS{Hook: func(op, _ string) error {
		steps = append(steps, op)
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	var commits []int // of the journal and of the log
	for n, op := range steps {
		if op == "archive.rename" {
			commits = append(commits, n)
		}
	}
	if len(commits) != 2 {
		t.Fatalf("commits at %v of %v", commits, steps)
	}
	for n, op := range steps {
		t.Run(fmt.Sprintf("%02d-%s", n, op), func(t *testing.T) {
			s := newShelf(t)
			before := s.reopened(t)
			g, journal, open := s.open(t, durable.FS{})
			defer g.Close()
			defer journal.Close()
			calls := -1
			err := s.archive(durable.FS{Hook: func(string, string) error {
				if calls++; calls >= n {
					return syscall.EIO // nothing more comes to be
				}
				return nil
			}})
			if err == nil && n <= commits[1] {
				t.Error("nothing failed")
			}
			// The kernel frees the locks of the dead; here they are of the living.
			for _, lock := range []string{s.config.Paths().Log, s.config.Paths().Journal} {
				if err := os.Remove(lock + ".lock"); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
			}
			if after := s.knows(t, journal, open); after != before {
				t.Errorf("an open handle knows\n%s\nbefore:\n%s", after, before)
			}
			if after := s.reopened(t); after != before {
				t.Errorf("a new handle knows\n%s\nbefore:\n%s", after, before)
			}
			s.fill(t, 1)
			before = s.reopened(t)
			if err := s.archive(durable.FS{}); err != nil {
				t.Fatalf("the next: %v", err)
			}
			if after := s.reopened(t); after != before {
				t.Errorf("after the next it knows\n%s\nbefore:\n%s", after, before)
			}
			p := s.config.Paths()
			if report, err := approvallog.VerifyAll(t.Context(), p.Log, p.Journal, approvallog.VerifyOptions{}); err != nil || report.Status != approvallog.StatusClean {
				t.Errorf("%+v, %v", report, err)
			}
			if left, _ := filepath.Glob(filepath.Join(p.Daemon, ".deliveries.jsonl.next*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

package gate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// Archived is what [Gate.Archive] did.
type Archived struct {
	approvallog.Seal
	Path    string                // the directory of the segment; empty when there was nothing to archive
	Carried []approvallog.Request // the requests that go on in the new segment: pending ones, and those whose follow-up is to be asked for
}

// ArchiveOptions say how a log is archived.
type ArchiveOptions struct {
	// Carry lets pending requests, and those whose follow-up is to be asked for, go on in the new segment. Without it they refuse the
	// archive.
	Carry bool
	// Deliveries is a new fold of the delivery journal, by which the journal is cut with the log. Nil leaves the journal whole.
	Deliveries JournalFold
	// Progress is told from time to time how many bytes of the log are verified.
	Progress func(done, total int64)
}

// JournalFold is the fold of the delivery journal.
type JournalFold interface {
	approvallog.Indexed
	// CarryOver gives the records with which the journal goes on when all others are archived. logSeq is the number of a record
	// that the approval log has.
	CarryOver(logSeq int64) ([]approvallog.Draft, error)
}

// Archive seals the log, with the requests that have ended, and begins a new one: see
// [approvallog.Log.Cut] for the steps. All of the log and of its archive is verified before. The seal is
// recorded in the delivery journal; locks are taken in the order log, journal, as everywhere.
//
// The journal is cut in the same way right before the log is, so that the seal is among the first records of its new segment.
// Each cut is complete in itself: a journal that was cut beside a log that was not is only shorter.
//
// A daemon may run meanwhile: it goes on in the new segment, as all waiting programs do. What was
// archived is answered as before, a grant in it can be used and revoked, and a tap on an old card is
// told of the decision.
//
// Refusals: [CodePending] for a pending request, or a follow-up that is to be asked for, without o.Carry, [CodeLogCorrupt]. A log without
// anything to archive is left as it is, and the result has no path.
func (g *Gate) Archive(ctx context.Context, o ArchiveOptions) (Archived, error) {
	const doing = "archive the log"
	report, err := approvallog.VerifyAll(ctx, g.paths.Log, g.paths.Journal, approvallog.VerifyOptions{Progress: o.Progress})
	if errors.Is(err, fs.ErrNotExist) {
		return Archived{}, nil // Open has made sure that none is missing
	}
	if err == nil && report.Status == approvallog.StatusCorrupt {
		err = report.Err()
	}
	if err != nil {
		return Archived{}, mapError(err, doing)
	}
	if err := g.fs.MkdirAll("home", g.paths.Daemon, 0o700); err != nil {
		return Archived{}, internalError(err, "%s", doing)
	}
	journal, err := g.openWholeJournal(o.Deliveries)
	if err != nil {
		return Archived{}, err
	}
	defer journal.Close() // what was written through it is on disk

	var done Archived
	var shortened *approvallog.Seal
	announce := func(s approvallog.Seal) (err error) {
		shortened, err = announce(ctx, journal, o.Deliveries, s)
		return err
	}
	done.Seal, err = g.log.Cut(ctx, g.cut(o.Carry, announce, &done.Carried))
	if shortened != nil {
		if err := approvallog.IndexArchive(ctx, g.fs, g.paths.Journal, *shortened, o.Deliveries); err != nil {
			g.logf("the archived delivery journal is complete but has no index, so that looking for its records takes longer: %v", err)
		}
	}
	if errors.Is(err, approvallog.ErrNothingToArchive) {
		return Archived{}, nil
	}
	if err != nil {
		return Archived{}, mapError(err, doing)
	}
	done.Path = filepath.Join(g.paths.Archive, done.Segment)
	if err := approvallog.IndexArchive(ctx, g.fs, g.paths.Log, done.Seal, g.reqs); err != nil {
		g.logf("the archived log is complete but has no index, so that looking for its requests takes longer: %v", err)
	}
	return done, nil
}

// openWholeJournal opens the journal and verifies all of it.
func (g *Gate) openWholeJournal(fold JournalFold) (*approvallog.Log, error) {
	paths := g.paths
	paths.JournalSnapshot = ""
	o := approvallog.Options{Now: g.now, FS: g.fs, Logf: g.logf}
	if fold != nil {
		o.Fold = fold
	}
	return paths.OpenJournal(o)
}

// announce records a seal of the log in the journal, which it cuts when it has the fold of it. It gives the seal of what it
// took off the journal, nil for nothing.
func announce(ctx context.Context, journal *approvallog.Log, fold JournalFold, s approvallog.Seal) (*approvallog.Seal, error) {
	record := approvallog.Draft{Event: approvallog.EventArchiveSealed, Actor: systemActor, Payload: s}
	if fold != nil {
		taken, err := journal.Cut(ctx, approvallog.Cut{Carry: func() ([]approvallog.Draft, error) {
			drafts, err := fold.CarryOver(s.Base + s.Head.Seq)
			return append(drafts, record), err
		}})
		if err == nil {
			return &taken, nil
		}
		if !errors.Is(err, approvallog.ErrNothingToArchive) {
			return nil, fmt.Errorf("archive the delivery journal: %w", err)
		}
	}
	_, err := journal.Update(ctx, func(tx *approvallog.Tx) error { return appendOne(tx, record) })
	if err != nil {
		return nil, fmt.Errorf("record the seal in the delivery journal: %w", err)
	}
	return nil, nil
}

func (g *Gate) cut(carry bool, announce func(approvallog.Seal) error, carried *[]approvallog.Request) approvallog.Cut {
	var now time.Time
	return approvallog.Cut{
		// Afterwards whatever is pending can still be decided.
		Close: func(tx *approvallog.Tx) error {
			now = tx.Now()
			for _, r := range g.reqs.Pending() {
				if err := g.recordExpiry(tx, r.Key); err != nil {
					return err
				}
			}
			return nil
		},
		Carry: func() ([]approvallog.Draft, error) {
			pending := g.reqs.Pending()
			if len(pending) > 0 && !carry {
				return nil, stillPending(pending)
			}
			var drafts []approvallog.Draft
			for _, r := range pending {
				more, err := g.reqs.CarryOver(r.Key)
				if err != nil {
					return nil, err
				}
				drafts = append(drafts, more...)
			}
			due := g.reqs.Due()
			for _, r := range due {
				now, _ := g.reqs.Get(r.Key)
				if !carry || now.Seq != r.Seq {
					return nil, stillDue(r, carry)
				}
				more, err := g.reqs.CarryOver(r.Key)
				if err != nil {
					return nil, err
				}
				drafts = append(drafts, more...)
			}
			*carried = append(pending, due...)
			return drafts, nil
		},
		Recent:   func() map[string][]time.Time { return g.reqs.Recent(now) },
		Announce: announce,
	}
}

// stillPending refuses an archive, naming the request that has waited longest.
func stillPending(pending []approvallog.Request) error {
	others := ""
	if n := len(pending) - 1; n > 0 {
		others = fmt.Sprintf(", and %d more", n)
	}
	return refuse(CodePending, "wait until it is decided, or carry it over: approvald log archive --carry",
		"nothing was archived: the request %q of %s is pending%s", clip(pending[0].Key), pending[0].Requester, others)
}

// stillDue refuses an archive that would forget to ask for what follows r.
func stillDue(r approvallog.Request, carry bool) error {
	hint := "start the daemon, which asks for it, or carry it over: approvald log archive --carry"
	if carry {
		hint = "start the daemon, which asks for it: approvald up"
	}
	return refuse(CodePending, hint, "nothing was archived: the follow-up %q of %q was not asked for yet", clip(r.FollowUpKey), clip(r.Key))
}

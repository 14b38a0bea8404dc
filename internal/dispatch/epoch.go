package dispatch

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/approvald/approvald/internal/approvallog"
)

// OpenEpoch begins a new epoch and returns its number. It is recorded in the journal inside the append lock of the
// approval log, so that no write of an older epoch can come after it. Locks are always taken in this order: log, then
// journal.
//
// It is one more than every epoch that the journal holds and info.Known.
func OpenEpoch(ctx context.Context, log, journal Log, deliveries *Deliveries, info EpochInfo) (int64, error) {
	var epoch int64
	if err := log.Refresh(ctx); err != nil {
		return 0, fmt.Errorf("open an epoch: %w", err)
	}
	last := log.Last()
	_, err := log.Update(ctx, func(Tx) error {
		_, err := journal.Update(ctx, func(tx Tx) error {
			epoch = max(deliveries.Epoch(), info.Known) + 1
			_, err := tx.Append(journalDraft(EventEpochOpened, "", epochPayload{Epoch: epoch, LogSeq: last, EpochInfo: info}))
			return err
		})
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("open an epoch: %w", err)
	}
	return epoch, nil
}

// CloseEpoch records that the holder of the epoch stopped in order, and what it knew of the approval log by then. It
// does nothing when a newer one has begun.
func CloseEpoch(ctx context.Context, log, journal Log, deliveries *Deliveries, epoch int64) error {
	last := log.Last()
	_, err := journal.Update(ctx, func(tx Tx) error {
		if deliveries.Epoch() != epoch {
			return nil
		}
		_, err := tx.Append(journalDraft(EventEpochClosed, "", epochPayload{Epoch: epoch, LogSeq: last}))
		return err
	})
	if err != nil {
		return fmt.Errorf("close epoch %d: %w", epoch, err)
	}
	return nil
}

// NoteWebhook records which webhook of this gate Telegram may have from now on, "" for none. It is for before a webhook
// is registered, and for after Telegram said that none is. A newer epoch is an error that wraps
// [approvallog.ErrFenced]; what is recorded already is not recorded again.
func NoteWebhook(ctx context.Context, journal Log, deliveries *Deliveries, epoch int64, url string) error {
	_, err := journal.Update(ctx, func(tx Tx) error {
		if err := fenced(epoch, deliveries.Epoch()); err != nil {
			return err
		}
		if info, _ := deliveries.LastEpoch(); info.WebhookURL == url {
			return nil
		}
		_, err := tx.Append(journalDraft(EventWebhookNoted, "", epochPayload{Epoch: epoch, EpochInfo: EpochInfo{WebhookURL: url}}))
		return err
	})
	if err != nil {
		return fmt.Errorf("note the webhook in the delivery journal: %w", err)
	}
	return nil
}

// Fence refuses the writes of a daemon that no longer holds its gate, inside the critical section that appends. A
// process that was stopped while another took over finds the newer epoch in the journal, however late it wakes.
type Fence struct {
	check      func() error
	journal    Log
	deliveries *Deliveries
	epoch      atomic.Int64
}

// NewFence makes a Fence. check is the lease's.
func NewFence(check func() error, journal Log, deliveries *Deliveries) *Fence {
	return &Fence{check: check, journal: journal, deliveries: deliveries}
}

// Bind sets the epoch that may write; before it only the lease is asked.
func (f *Fence) Bind(epoch int64) { f.epoch.Store(epoch) }

// Guard is the approval log's [approvallog.Options].Guard. Its refusals wrap [approvallog.ErrFenced] and, when the lease
// is what was lost, the lease's own error.
func (f *Fence) Guard() error {
	if err := f.check(); err != nil {
		return fmt.Errorf("%w: %w", approvallog.ErrFenced, err)
	}
	mine := f.epoch.Load()
	if mine == 0 {
		return nil
	}
	last, err := lastEpoch(f.journal, f.deliveries)
	if err != nil {
		return err
	}
	return fenced(mine, last)
}

// lastEpoch is the newest epoch that any process has opened.
func lastEpoch(journal Log, deliveries *Deliveries) (epoch int64, err error) {
	if err = journal.Refresh(context.Background()); err == nil {
		err = journal.View(func() { epoch = deliveries.Epoch() })
	}
	if err != nil {
		return 0, fmt.Errorf("read the epoch: %w", err)
	}
	return epoch, nil
}

func fenced(mine, last int64) error {
	if last != mine {
		return fmt.Errorf("epoch %d has ended, epoch %d holds the gate: %w", mine, last, approvallog.ErrFenced)
	}
	return nil
}

package dispatch

import (
	"context"
	"fmt"

	"github.com/approvald/approvald/internal/approvallog"
)

// expireAll is every [Expire] of one step.
type expireAll struct{ requests []approvallog.Request }

func (expireAll) isEffect() {}

// batch makes one append of all appends of a step to the journal, and one of all expiries. After a day of being down
// thousands may be due at the same moment; each write is a sync.
func batch(effects []Effect) []Effect {
	var appends AppendJournal
	var expiries expireAll
	var rest []Effect
	for _, e := range effects {
		switch e := e.(type) {
		case AppendJournal:
			appends.Drafts = append(appends.Drafts, e.Drafts...)
		case Expire:
			expiries.requests = append(expiries.requests, e.Request)
		default:
			rest = append(rest, e)
		}
	}
	if len(expiries.requests) > 0 {
		rest = append([]Effect{expiries}, rest...)
	}
	if len(appends.Drafts) > 0 {
		rest = append([]Effect{appends}, rest...)
	}
	return rest
}

// expire appends approval.expired for those that are still pending and past their deadline, all in one append.
func (l *Loop) expire(ctx context.Context, requests []approvallog.Request) ([]Event, error) {
	_, err := l.o.Log.Update(ctx, func(tx Tx) error {
		for _, req := range requests {
			now, ok := l.o.Requests.Get(req.Key)
			if !ok || now.Seq != req.Seq || now.State != approvallog.StatePending || !now.PastDeadline(tx.Now()) {
				continue
			}
			if _, err := tx.Append(*expiredDraft(now)); err != nil {
				return err
			}
		}
		return nil
	})
	why := ""
	if err != nil {
		why = err.Error()
	}
	events := make([]Event, len(requests))
	read := l.o.Log.View(func() {
		for i, req := range requests {
			ev := Expired{Cycle: CycleID{Key: req.Key, Seq: req.Seq}, Request: req, Err: why}
			if now, ok := l.o.Requests.Get(req.Key); ok && err == nil {
				ev.Request = now
			}
			events[i] = ev
		}
	})
	switch {
	case err != nil && fatal(err):
		return events, fmt.Errorf("record an expiry: %w", err)
	case err != nil:
		return events, nil
	}
	return events, read
}

package app

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/gateapi"
)

// When the operator's command is run, at most.
const (
	// troubleGrace is how long a trouble lasts before it is told, and is away before its end is: what passes by itself within that
	// time is nothing to wake anybody for.
	troubleGrace = 10 * time.Second
	// troubleRepeat is how long after its last beginning the beginning of the same trouble is told again.
	troubleRepeat = 5 * time.Minute
	// maxNews is how much may wait for the command; more waits for a later look.
	maxNews = 16
)

// The states of a trouble, as the command is told them.
const (
	stateBegin = "begin"
	stateEnd   = "end"
)

// news is one run of the operator's command.
type news struct {
	state   string
	trouble gateapi.Trouble
}

// notifier decides when the operator's command is run, and runs it, one at a time.
type notifier struct {
	queue  chan news
	wanted func() bool // is there a command at the moment?
	run    func(context.Context, news) error
	log    *zap.Logger

	// Of the goroutine that calls consider.
	told  map[string]gateapi.Trouble // beginnings that were told, until their end is
	gone  map[string]time.Time       // since when one of those is away
	begun map[string]time.Time       // the last beginning that was told
}

func newNotifier(wanted func() bool, run func(context.Context, news) error, log *zap.Logger) *notifier {
	return &notifier{
		queue: make(chan news, maxNews), wanted: wanted, run: run, log: log,
		told: make(map[string]gateapi.Trouble), gone: make(map[string]time.Time), begun: make(map[string]time.Time),
	}
}

// consider takes the troubles of this moment and queues what is to be told about them.
func (n *notifier) consider(now time.Time, troubles []gateapi.Trouble) {
	if !n.wanted() {
		// A command that comes later is told what is wrong then.
		clear(n.told)
		clear(n.gone)
		clear(n.begun)
		return
	}
	present := make(map[string]bool, len(troubles))
	for _, t := range troubles {
		present[t.Code] = true
		delete(n.gone, t.Code)
		_, told := n.told[t.Code]
		if told || now.Sub(t.Since) < troubleGrace || now.Sub(n.begun[t.Code]) < troubleRepeat {
			continue
		}
		if n.offer(news{stateBegin, t}) {
			n.told[t.Code], n.begun[t.Code] = t, now
		}
	}
	for code, t := range n.told {
		since, away := n.gone[code]
		switch {
		case present[code]:
		case !away:
			n.gone[code] = now
		case now.Sub(since) >= troubleGrace && n.offer(news{stateEnd, t}):
			delete(n.told, code)
			delete(n.gone, code)
		}
	}
}

func (n *notifier) offer(item news) bool {
	select {
	case n.queue <- item:
		return true
	default:
		return false
	}
}

// serve runs the command for what is queued, until ctx ends. A command that fails is logged and not run again: what it is for may
// be over by then.
func (n *notifier) serve(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case item := <-n.queue:
			if err := n.run(ctx, item); err != nil && ctx.Err() == nil {
				n.log.Warn("the on_trouble command failed", zap.String("code", item.trouble.Code), zap.String("state", item.state), zap.Error(err))
			}
		}
	}
}

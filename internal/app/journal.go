package app

import (
	"fmt"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/dispatch"
)

// knownEpoch is the highest epoch that is known from elsewhere than the journal: from the decisions in the log, and from the lease
// of a daemon that did not stop in order. Epochs must not begin anew because the journal was lost.
func (a *App) knownEpoch() (int64, error) {
	var decided int64
	if err := a.gate.Log().View(func() { decided = a.gate.Requests().Epoch() }); err != nil {
		return 0, fmt.Errorf("read the epochs in the approval log: %w", err)
	}
	return max(decided, a.lease.EpochBefore()), nil
}

// missJournal tells the operator of a journal that is not what this gate had before. The daemon runs on: nobody can be harmed by
// it, but people see their requests once more.
func (a *App) missJournal(journal *approvallog.Log, deliveries *dispatch.Deliveries, known int64) {
	const so = "requests that wait are shown again, and the buttons of their earlier cards are no longer known. " +
		"If there is a newer copy of it, stop, put it back, and start again"
	path, own := a.opts.Config.Paths().Journal, deliveries.Epoch()
	switch {
	case journal.Last() > 0 && known > own:
		a.tellf("the delivery journal %s is an old copy: its last epoch is %d, and there was an epoch %d: %s", path, own, known, so)
	case journal.Last() == 0 && known > 0:
		a.tellf("the delivery journal %s was lost: it is empty, and there was an epoch %d: %s", path, known, so)
	case journal.Last() == 0 && !a.lastContact().IsZero():
		a.tellf("the delivery journal %s was lost: it is empty, and a daemon of this gate has run before: %s", path, so)
	}
}

package gate

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/approvald/approvald/internal/approvallog"
)

// OpenJournal opens the gate's delivery journal by o, whose paths it sets.
func (p Paths) OpenJournal(o approvallog.Options) (*approvallog.Log, error) {
	o.Path, o.Snapshot = p.Journal, p.JournalSnapshot
	journal, err := approvallog.Open(o)
	if err != nil {
		return nil, p.JournalError(internalError(err, "open the delivery journal"))
	}
	return journal, nil
}

// LeaveSnapshot writes a snapshot of a journal that was opened to append to it when that took reading very much of it. The
// daemon takes them by itself.
func LeaveSnapshot(journal *approvallog.Log) {
	if journal.Behind() >= snapshotAfter {
		// Nothing depends on it: the next one reads the journal instead.
		_ = journal.WriteSnapshot(context.Background())
	}
}

// JournalError names the delivery journal in an error that its damage has caused, and says what to do:
// nothing follows from it for the approval log. Any other error stays as it is.
func (p Paths) JournalError(err error) error {
	corrupt, ok := errors.AsType[*approvallog.CorruptError](err)
	if !ok {
		return err
	}
	archive := filepath.Join(p.Daemon, filepath.Base(p.Archive))
	if corrupt.Path != p.Journal && !strings.HasPrefix(corrupt.Path, archive+"/") {
		return err
	}
	if corrupt.Path != p.Journal || corrupt.Reason == approvallog.ReasonArchiveMissing {
		return &Error{
			Code: CodeLogCorrupt, Err: err, Message: "the archive of the delivery journal is damaged, not the approval log: " + corrupt.Error(),
			Hint: "put " + archive + " back from a copy, or move it and " + p.Journal + " aside: " +
				"then requests that wait are shown again, and the buttons of their earlier cards are no longer known",
		}
	}
	return &Error{
		Code: CodeLogCorrupt, Err: err, Message: "the delivery journal is damaged, not the approval log: " + corrupt.Error(),
		Hint: "put a sound copy of " + p.Journal + " back, or move it aside: " +
			"then requests that wait are shown again, and the buttons of their earlier cards are no longer known",
	}
}

package dispatch

import (
	"fmt"

	"github.com/approvald/approvald/internal/approvallog"
)

// maxCarried is how many askings one record carries over.
const maxCarried = 500

// CarryOver gives the records with which the journal goes on when all others are archived: the counters, and which askings
// are not dealt with. What was recorded of those, and all nonces, are found in the archive. logSeq is the number of a
// record that the approval log has.
func (d *Deliveries) CarryOver(logSeq int64) ([]approvallog.Draft, error) {
	s := d.state()
	rest := s.Cycles
	var drafts []approvallog.Draft
	for first := true; first || len(rest) > 0; first = false {
		n := min(len(rest), maxCarried)
		s.Cycles, rest = rest[:n], rest[n:]
		drafts = append(drafts, journalDraft(EventJournalCarried, "", carriedPayload{deliveriesState: s, LogSeq: logSeq}))
		s = deliveriesState{Last: s.Last}
	}
	return drafts, nil
}

// carryOn takes up what CarryOver gave. A fold that has followed the journal over its cut has it already.
func (d *Deliveries) carryOn(rec approvallog.Record) error {
	p, err := decode[carriedPayload](rec)
	if err != nil || d.finder == nil {
		return err
	}
	if err := d.take(p.deliveriesState); err != nil {
		return fmt.Errorf("delivery journal: record %d (%s): %w", rec.Seq, rec.Event, err)
	}
	return nil
}

package approvallog

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Attach makes the log that feeds q the place where what is not in memory is found.
func (q *Requests) Attach(f *Finder) {
	q.finder = f
	q.reset()
}

// Index names the record's action key. A cycle is fresh unless it is hidden by an execution.
func (q *Requests) Index(rec Record, add func(key string, fresh bool)) {
	if rec.ActionKey == "" || !aboutRequests(rec.Event) {
		return
	}
	fresh := false
	if rec.Event == EventRequested {
		e := q.entries[rec.ActionKey]
		fresh = e != nil && e.running == nil
	}
	add(rec.ActionKey, fresh)
}

// requestsState is what a snapshot holds of a Requests. The requests themselves are in the log.
type requestsState struct {
	Pending []string               `json:"pending"` // action keys, also of hidden cycles
	Created map[string][]time.Time `json:"created"`
	SweepAt int                    `json:"sweep_at"`
	Epoch   int64                  `json:"epoch,omitempty"`
	Due     []dueState             `json:"due,omitempty"`
}

// Save returns the state for [Requests.Restore].
func (q *Requests) Save() ([]byte, error) {
	s := requestsState{Pending: []string{}, Created: q.created, SweepAt: q.sweepAt, Epoch: q.epoch, Due: q.saveDue()}
	for key, e := range q.entries {
		if e.needed() {
			s.Pending = append(s.Pending, key)
		}
	}
	slices.Sort(s.Pending)
	return json.Marshal(s)
}

// Restore takes up the state that Save returned. It fails, and leaves q as if it were new, when the
// log has no such pending requests.
func (q *Requests) Restore(state []byte) error {
	var s requestsState
	err := json.Unmarshal(state, &s)
	for i := 0; err == nil && i < len(s.Pending); i++ {
		if e := q.find(s.Pending[i]); e != nil && e.needed() {
			q.index(s.Pending[i], e)
		} else {
			err = fmt.Errorf("the log has no pending request %q", s.Pending[i])
		}
	}
	if err == nil {
		err = q.restoreDue(s.Due)
	}
	for asker, times := range s.Created {
		if err == nil && len(times) == 0 {
			err = fmt.Errorf("nothing is said of asker %q", asker)
		}
	}
	if err != nil {
		q.reset()
		return err
	}
	if s.Created != nil {
		q.created = s.Created
	}
	q.sweepAt, q.epoch = s.SweepAt, s.Epoch
	return nil
}

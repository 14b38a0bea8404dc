package dispatch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// simChains is what was executed, and what had to follow.
type simChains struct {
	children []string        // keys of follow-ups that were asked for
	owed     map[string]bool // keys of follow-ups whose parent has completed
	opened   map[string]int  // how often each was asked for
}

func newSimChains() simChains { return simChains{owed: map[string]bool{}, opened: map[string]int{}} }

// planAfter names what follows a plan: "plan-2" is followed by "plan-1", and that by nothing.
var planAfter = map[string]string{"plan-2": "plan-1"}

// execute uses a grant, or ends an execution: as `approvald run` records it, or as a program that records the end alone.
func (s *sim) execute() {
	s.sync()
	var usable []approvallog.Request
	for _, key := range s.allKeys() {
		if r, _ := s.requests.Get(key); r.State == approvallog.StateGranted || r.State == approvallog.StateStarted {
			usable = append(usable, r)
		}
	}
	if len(usable) == 0 {
		return
	}
	req := usable[s.rng.IntN(len(usable))]
	event := []string{approvallog.EventExecutionCompleted, approvallog.EventExecutionCompleted, approvallog.EventExecutionFailed}[s.rng.IntN(3)]
	if req.State == approvallog.StateGranted && s.chance(50) {
		event = approvallog.EventExecutionStarted
	}
	_, err := s.log.Update(context.Background(), func(tx Tx) error {
		_, err := tx.Append(approvallog.Draft{Event: event, Actor: req.Requester, Task: req.Task, ActionKey: req.Key})
		return err
	})
	if err != nil {
		s.failf("execute: %v", err)
	}
	if event == approvallog.EventExecutionCompleted && req.FollowUp != "" {
		s.owed[req.FollowUpKey] = true
	}
}

// simFollowUps asks for what follows, as a gate does, by the handle of one daemon.
type simFollowUps struct {
	log      *memLog
	requests *approvallog.Requests
}

func (f simFollowUps) OpenFollowUp(ctx context.Context, parent approvallog.Request) (approvallog.Request, error) {
	_, err := f.log.Update(ctx, func(tx Tx) error {
		if _, due := f.requests.DueFor(parent.FollowUpKey); !due {
			return nil
		}
		_, err := tx.Append(approvallog.Draft{
			Event: approvallog.EventRequested, Actor: parent.Requester, Task: parent.Task, ActionKey: parent.FollowUpKey, Payload: map[string]any{
				"class": "one", "summary": "s", "payload_hash": "hash-" + parent.FollowUpKey, "reversible": true,
				"approvald": map[string]any{
					"quorum": 1, "expires_at": tx.Now().Add(20 * time.Minute).Format(time.RFC3339Nano), "follow_up": planAfter[parent.FollowUp],
				},
			},
		})
		return err
	})
	return approvallog.Request{}, err
}

// tellChains tells a core what its fold knows of follow-ups, as the loop does after every look at the log.
func (s *sim) tellChains(d *simDaemon) {
	err := d.loop.o.Log.Refresh(context.Background())
	var effects []Effect
	if err == nil {
		effects, err = d.loop.tellFollowUps()
	}
	if err != nil {
		s.failf("follow-ups: %v", err)
	}
	d.effects = append(d.effects, effects...)
}

// claimFollowUp holds that what follows is asked for once, by the same asker, and only after the execution has completed.
func (s *sim) claimFollowUp(rec approvallog.Record) {
	parentKey, cycle, ok := approvallog.ParseFollowUpKey(rec.ActionKey)
	if !ok {
		return
	}
	s.children = append(s.children, rec.ActionKey)
	if s.opened[rec.ActionKey]++; s.opened[rec.ActionKey] > 1 {
		s.failf("record %d: %s was asked for before", rec.Seq, rec.ActionKey)
	}
	if !s.owed[rec.ActionKey] {
		s.failf("record %d: %s was asked for and its parent has not completed", rec.Seq, rec.ActionKey)
	}
	for _, parent := range s.log.records[:rec.Seq] {
		if parent.Seq == cycle && (parent.ActionKey != parentKey || parent.Actor != rec.Actor) {
			s.failf("record %d: %s by %s follows record %d by %s", rec.Seq, rec.ActionKey, rec.Actor, cycle, parent.Actor)
		}
	}
}

// checkChains holds that everything that had to follow was asked for.
func (s *sim) checkChains() {
	for key := range s.owed {
		if s.opened[key] != 1 {
			s.failf("%s was asked for %d times in the end", key, s.opened[key])
		}
	}
}

// allKeys are the keys of all requests.
func (s *sim) allKeys() []string {
	keys := slices.Clone(s.children)
	for n := range s.keys {
		keys = append(keys, fmt.Sprintf("k%d", n))
	}
	return keys
}

package gate

import (
	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/procid"
)

// runner names the process that is about to execute what was granted: the one behind the socket, else this one. Nil when it cannot be
// told for good from every later one under its number.
func (g *Gate) runner(peer *Peer) *executionExtra {
	id, err := g.prober.Self()
	if err != nil {
		return nil
	}
	if peer != nil {
		verdict, stat, _ := g.prober.Look(int(peer.PID))
		if verdict != procid.Alive || stat.StartTicks == 0 {
			return nil
		}
		id.PID, id.StartTicks = int(peer.PID), stat.StartTicks
	}
	return &executionExtra{Runner: &id}
}

// started reports whether the execution of r was started by this very process in this very attempt.
func (x *executionExtra) started(r approvallog.Request) bool {
	return x != nil && x.Runner != nil && x.Attempt != "" && r.Execution != nil &&
		x.Runner.StartTicks != 0 && r.Execution.Runner == *x.Runner && r.Execution.Attempt == x.Attempt
}

// RunnerGone reports whether the request's execution was started by a process that has certainly ended since, without having recorded
// how the execution ended. What it started may go on without it.
func (g *Gate) RunnerGone(r approvallog.Request) bool {
	if r.State != approvallog.StateStarted || r.Execution == nil || r.Execution.Runner.PID == 0 {
		return false
	}
	verdict, _ := g.prober.Judge(r.Execution.Runner)
	return verdict.Dead()
}

// recordLostEnd appends the end of an execution that nobody is left to tell of, if that is how the key's last cycle stands. Without it
// no grant of a later cycle could be used.
func (g *Gate) recordLostEnd(tx *approvallog.Tx, key, requester string) error {
	r, known := g.reqs.Get(key)
	if !known || !g.RunnerGone(r) {
		return nil
	}
	return g.appendTo(tx, approvallog.Draft{
		Event: approvallog.EventExecutionFailed, Actor: requester, Task: r.Task, ActionKey: key,
		Payload: executionPayload{Class: r.Class, PayloadHash: r.PayloadHash, Own: &executionExtra{Reason: approvallog.ReasonRunnerGone}},
	})
}

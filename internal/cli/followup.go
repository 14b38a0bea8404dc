package cli

import (
	"context"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/gateapi"
)

// How a follow-up stands that nobody has asked for: it may still be, or will not.
const (
	followUpWaiting = "waiting"
	followUpDropped = "dropped"
)

// next is a request's follow-up as show prints it.
type next struct {
	Key string `json:"key"`
	// State is the follow-up's own once it was asked for, else waiting or dropped.
	State       string `json:"state"`
	Class       string `json:"class"` // this and what follows is empty when it cannot be read
	Summary     string `json:"summary"`
	PayloadHash string `json:"payload_hash"`
	// Seq is the record that asked for it, null before that.
	Seq *int64 `json:"seq"`
}

// shown is a request as show prints it.
type shown struct {
	approvallog.Request
	Then *next `json:"then,omitempty"`
}

// followUpOf looks for what follows a request; nil when nothing does.
func followUpOf(ctx context.Context, ops gateapi.Ops, r approvallog.Request) (*next, error) {
	if r.FollowUpKey == "" {
		return nil, nil
	}
	n := &next{Key: r.FollowUpKey, State: followUpWaiting}
	child, err := ops.Get(ctx, r.FollowUpKey)
	switch code := gate.ErrorCode(err); {
	case err == nil:
		n.State, n.Class, n.Summary, n.PayloadHash, n.Seq = string(child.State), child.Class, child.Summary, child.PayloadHash, &child.Seq
		return n, nil
	case code == gate.CodeNotFound:
		// The gate says so of a chain that has ended, and of a key that does not tell what it follows.
		over := !r.State.Approved() && r.State != approvallog.StatePending || r.State == approvallog.StateFailed
		if parent, _, _ := approvallog.ParseFollowUpKey(n.Key); parent != "" || over {
			n.State = followUpDropped
		}
	case code != gate.CodeNotYet && code != gate.CodeLogCorrupt:
		return nil, err
	}
	// What cannot be read keeps nobody from looking at the request itself.
	if canonical, _, err := ops.Payload(ctx, r.FollowUp); err == nil {
		if plan, err := gate.ReadPlan(canonical); err == nil {
			n.Class, n.Summary, n.PayloadHash = plan.Class, plan.Summary, plan.PayloadHash
		}
	}
	return n, nil
}

func (n next) text() string {
	class := n.Class
	if class == "" {
		class = "what it is cannot be read"
	}
	switch n.State {
	case followUpWaiting:
		return n.Key + " (" + class + "), to be asked for once this has been executed"
	case followUpDropped:
		return n.Key + " (" + class + "), not asked for: this has ended otherwise"
	default:
		return n.Key + " (" + class + "), " + n.State
	}
}

// waitOverError is a wait whose own time ran out before there was a request.
type waitOverError struct{ err error }

func (e waitOverError) Error() string { return e.err.Error() }
func (e waitOverError) Unwrap() error { return e.err }

package approvallog

import (
	"strconv"
	"time"

	"github.com/approvald/approvald/internal/procid"
)

// State is where one action key stands. Names are those of the JSON output.
type State string

// The states of a request. StatePending can still be decided, StateGranted can still be revoked
// or used by one execution; all others are final.
const (
	StatePending   State = "pending"
	StateGranted   State = "granted"
	StateRejected  State = "rejected"
	StateExpired   State = "expired"
	StateWithdrawn State = "withdrawn"
	StateRevoked   State = "revoked"
	StateStarted   State = "started"
	StateCompleted State = "completed"
	StateFailed    State = "failed"
)

// Names of the events that make up the life of a request.
const (
	EventRequested          = "approval.requested"
	EventGranted            = "approval.granted"
	EventRejected           = "approval.rejected"
	EventExpired            = "approval.expired"
	EventRevoked            = "approval.revoked"
	EventWithdrawn          = "approval.withdrawn"
	EventExecutionStarted   = "execution.started"
	EventExecutionCompleted = "execution.completed"
	EventExecutionFailed    = "execution.failed"
)

// Final reports whether the verdict can change no more within the cycle: all states but pending
// (undecided) and granted (revocable while unused). A started execution still has its end to
// come, but nobody can decide about it any more.
func (s State) Final() bool { return s != StatePending && s != StateGranted }

// Approved reports whether a person's grant stands: the request was granted and not revoked,
// whether or not its execution has begun since.
func (s State) Approved() bool {
	switch s {
	case StateGranted, StateStarted, StateCompleted, StateFailed:
		return true
	default:
		return false
	}
}

// Request is what the log says about one action key: its current cycle, from the last
// approval.requested on. The JSON members are a stable interface; fields without a name there
// are for approvald itself.
//
// A Request is a value of its own moment: nothing that is appended later changes it, and its
// pointers and slices are shared and must not be written through.
type Request struct {
	Key         string `json:"key"`
	Task        string `json:"task"`
	Class       string `json:"class"`
	Summary     string `json:"summary"`
	Requester   string `json:"requester"`
	State       State  `json:"state"`
	PayloadHash string `json:"payload_hash"`
	// Seq is the sequence number of the record that opened this cycle. It names the cycle.
	Seq         int64     `json:"seq"`
	RequestedAt time.Time `json:"requested_at"`
	// ExpiresAt is the deadline; zero when the record names none, as another writer's may not.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	Quorum    int       `json:"quorum"`
	// Decision is what a person decided, null while nobody has. A grant stays here after it was
	// revoked or used: State tells which.
	Decision *Decision `json:"decision"`
	// FollowUpKey is the action key of the request that the daemon opens once this cycle was granted and executed, empty for none.
	FollowUpKey string `json:"follow_up,omitempty"`

	// RecordHash is the hash of that record, also when the cycle was carried over into another segment.
	RecordHash string `json:"-"`

	// WaitUntil is when the asker stops waiting, never later than ExpiresAt when both are known.
	WaitUntil  time.Time `json:"-"`
	Reversible bool      `json:"-"`
	// EstCostUSD is the estimate as the record spells it (a JSON number or a decimal string).
	EstCostUSD string `json:"-"`
	// Exclusive is the key that at most one pending request may hold, empty for none.
	Exclusive string `json:"-"`
	// FollowUp is the hash of the payload that describes the request to open next, empty for none.
	FollowUp string `json:"-"`
	// Digest tells a retry from a conflict; empty in records of other writers.
	Digest string `json:"-"`
	// Peer is who connected to the agents' socket, nil when the request came another way.
	Peer *Peer `json:"-"`
	// WriterUID is the user id of the program that filed the request by writing the files, by its own word; nil when the
	// request came another way, or from a program that does not say.
	WriterUID *uint32 `json:"-"`
	// OnBehalfOf is the person for whom the asker says to ask, human:NAME, empty for none.
	OnBehalfOf string `json:"-"`
	// Revision counts the records that changed this cycle after the one that opened it.
	Revision int `json:"-"`
	// Previous is how the cycle before this one stood when this one was opened, empty for a first.
	Previous State `json:"-"`
	// Ending tells of an end that is no decision: expired, withdrawn or revoked.
	Ending *Ending `json:"-"`
	// Approvals are all grants that made up the quorum, in the order of the record.
	Approvals []Approval `json:"-"`
	// Execution is the one use of the grant, nil before it.
	Execution *Execution `json:"-"`
}

// Decision is a person's verdict as the log holds it.
type Decision struct {
	By      string    `json:"by"`
	At      time.Time `json:"at"`
	Note    string    `json:"note"`
	Seq     int64     `json:"seq"`
	Channel string    `json:"channel"`
}

// Approval is one approver's share of a grant, as it stands in the record's
// payload.approvald.approvals.
type Approval struct {
	By string    `json:"by"`
	At time.Time `json:"at"`
}

// Asker tells askers apart who share a gate: by the user id where one is known, since the name is of the asker's own
// choosing, else by the name.
func (r Request) Asker() string { return AskerOf(r.Requester, r.Peer, r.WriterUID) }

// AskerOf is [Request.Asker] for a request that is not filed yet. It is "uid:" and a number, which is no actor's name, or
// the requester.
func AskerOf(requester string, peer *Peer, writerUID *uint32) string {
	switch {
	case peer != nil:
		return "uid:" + strconv.FormatUint(uint64(peer.UID), 10)
	case writerUID != nil:
		return "uid:" + strconv.FormatUint(uint64(*writerUID), 10)
	default:
		return requester
	}
}

// UID is the user id of whoever asked: the kernel's word, else that of a program that wrote the files; nil for unknown.
func (r Request) UID() *uint32 {
	if r.Peer != nil {
		return &r.Peer.UID
	}
	return r.WriterUID
}

// Peer is the process that asked, as the kernel named it (SO_PEERCRED).
type Peer struct {
	UID uint32
	PID int32
}

// Ending is how a request ended without a verdict. Reason is the withdrawal's reason or the
// revocation's note.
type Ending struct {
	By     string
	At     time.Time
	Reason string
	Seq    int64
}

// ReasonRunnerGone stands in payload.approvald.reason of an execution.failed that tells no more than that the process that
// executed is gone without having recorded the end.
const ReasonRunnerGone = "runner-gone"

// Execution is the use of a grant. EndedAt and EndedSeq are zero while it runs; ExitCode is nil
// where the record names none.
type Execution struct {
	By         string
	StartedAt  time.Time
	StartedSeq int64
	EndedAt    time.Time
	EndedSeq   int64
	ExitCode   *int
	// Runner is the process that executes, zero when the record does not say.
	Runner procid.Identity
	// Attempt names the very call that started it, the same when that is repeated because its answer was lost; empty when the
	// caller gave none.
	Attempt string
	// Lost tells an end that was recorded only because the runner was gone: how it ended is not known.
	Lost bool
}

// PastDeadline reports whether now is at or after the request's deadline.
func (r Request) PastDeadline(now time.Time) bool {
	return !r.ExpiresAt.IsZero() && !now.Before(r.ExpiresAt)
}

// StateAt is the state at the given moment: past its deadline a pending request is expired, also
// before anybody has recorded that.
func (r Request) StateAt(now time.Time) State {
	if r.State == StatePending && r.PastDeadline(now) {
		return StateExpired
	}
	return r.State
}

// Final reports whether the verdict can change no more without a fresh cycle.
func (r Request) Final() bool { return r.State.Final() }

// ValidActor reports whether s names an actor: human:, agent: or system: and at least one
// character after it.
func ValidActor(s string) bool {
	return validActor([]byte(s))
}

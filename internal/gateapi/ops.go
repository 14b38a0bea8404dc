package gateapi

import (
	"context"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/visible"
)

// Ops is everything that the agents' side may do with a gate. Errors are
// [*gate.Error] where a rule of the gate refused, whichever way was used.
type Ops interface {
	// Create files a request, or answers the one that has this key and
	// digest already (created is false then).
	Create(ctx context.Context, r gate.NewRequest) (req approvallog.Request, created bool, err error)
	// Get answers the request with this key.
	Get(ctx context.Context, key string) (approvallog.Request, error)
	// List answers the pending requests in the order they were made.
	List(ctx context.Context) ([]approvallog.Request, error)
	// Wait returns once the request is no longer pending, or with the
	// context's error.
	Wait(ctx context.Context, key string) (approvallog.Request, error)
	// Withdraw takes a pending request back.
	Withdraw(ctx context.Context, w Withdrawal) (approvallog.Request, error)
	// StartExecution uses up a grant: of any number of callers one succeeds.
	// payloadHash is what the caller is about to execute; another than the
	// granted one is refused. The calling process is the one that executes: when
	// it is gone without FinishExecution, the execution counts as over.
	StartExecution(ctx context.Context, by Asker, payloadHash string) (approvallog.Request, error)
	// FinishExecution records how a started execution ended.
	FinishExecution(ctx context.Context, by Asker, exitCode int) (approvallog.Request, error)
	// Payload answers the bound payload by its hash: its canonical JSON and,
	// for one of kind "file", the file's bytes.
	Payload(ctx context.Context, hash string) (canonical, file []byte, err error)
	// Status answers how the gate is doing.
	Status(ctx context.Context) (Status, error)
}

// Asker names a request and who claims to have made it. Peer is the process
// behind the claim where the kernel vouches for it, else nil.
type Asker struct {
	Key       string
	Requester string // "agent:NAME"
	Peer      *gate.Peer
	// Attempt names a call that starts an execution: the same process may repeat it under the same name. Empty for none.
	Attempt string
}

// Withdrawal takes a request back. Reason is cancelled, superseded or timeout.
type Withdrawal struct {
	Asker
	Reason string
}

// Status is what `approvald status` shows. Its JSON members are frozen.
type Status struct {
	Gate      string    `json:"gate"`
	Holder    *Holder   `json:"holder"` // nil when nobody holds the lease
	Transport Transport `json:"transport"`
	Pending   int       `json:"pending"`   // requests that wait for a person
	Unsettled int       `json:"unsettled"` // messages that still show an undecided request, but should not
	// Undelivered are the pending requests that no person has been shown yet, those
	// that something is wrong with first, at most 200; never null. UndeliveredTotal
	// is how many there are.
	Undelivered      []Undelivered `json:"undelivered"`
	UndeliveredTotal int           `json:"undelivered_total"`
	// Damage says what is wrong with a log that is damaged, empty else. The counts
	// are then of what is intact before the damage.
	Damage string `json:"damage,omitempty"`
	// Troubles are what keeps people from being asked or heard at the moment; never
	// null.
	Troubles []Trouble `json:"troubles"`
	// Config is the configuration that the daemon goes by, nil when none answers.
	Config *Config `json:"config,omitempty"`
	// Limits hold for requests that no rule narrows; nil from a daemon of an older version.
	Limits *Limits `json:"limits,omitempty"`
}

// Limits are the limits in force.
type Limits struct {
	TTL                 string `json:"ttl"` // how long a request may be decided, as "24h"
	Quorum              int    `json:"quorum"`
	MaxPending          int    `json:"max_pending"`
	MaxPendingOfOne     int    `json:"max_pending_of_one"` // asker
	PerRequesterPerHour int    `json:"per_requester_per_hour"`
}

// LimitsOf are the limits of a configuration.
func LimitsOf(l gate.Limits) *Limits {
	return &Limits{
		TTL: visible.Duration(l.TTL), Quorum: l.Quorum, MaxPending: l.MaxPending, MaxPendingOfOne: l.PendingShare(), PerRequesterPerHour: l.PerRequesterPerHour,
	}
}

// Config is how a daemon stands to its configuration file.
type Config struct {
	File     string    `json:"file"`
	SHA256   string    `json:"sha256"` // of the text that is in force
	LoadedAt time.Time `json:"loaded_at"`
	// Error says why the file's later text is not in force, empty when nothing was refused.
	Error string `json:"error,omitempty"`
	// NeedsRestart are the keys whose new values take effect with the next start; never null.
	NeedsRestart []string `json:"needs_restart"`
}

// Undelivered is a request that was not shown to anybody yet, and why.
type Undelivered struct {
	Key    string    `json:"key"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
	// MaybeSeen: it may be on a phone all the same.
	MaybeSeen bool `json:"maybe_seen,omitempty"`
	// Waiting: nothing is wrong with it, its turn has not come.
	Waiting bool `json:"waiting,omitempty"`
}

// Text tells a person how it stands with the request.
func (u Undelivered) Text() string {
	switch {
	case u.Waiting && !u.MaybeSeen:
		return "nobody has seen it yet: " + u.Reason
	case u.MaybeSeen:
		return "delivery not confirmed, it may be on the phone already: " + u.Reason
	}
	return "not delivered yet, nobody has seen it: " + u.Reason
}

// The codes of troubles. They are frozen: operators' commands go by them.
const (
	TroubleDeaf        = "deaf"              // no good exchange with Telegram for a while
	TroubleToken       = "token-rejected"    // Telegram rejects the bot's token
	TroubleConflict    = "updates-taken"     // another program polls with the bot's token
	TroubleDisplaced   = "webhook-displaced" // a webhook that is not this gate's is registered
	TroubleChat        = "chat-unreachable"  // a chat is closed to the bot
	TroubleStorage     = "storage"           // something cannot be written
	TroubleUndelivered = "undelivered"       // requests that nobody could be shown
	// TroubleNoDaemon: no daemon serves the gate, or it does not answer. Told by those that look, never by a daemon of itself.
	TroubleNoDaemon = "no-daemon"
)

// TroubleCodes are all of them.
func TroubleCodes() []string {
	return []string{TroubleDeaf, TroubleToken, TroubleConflict, TroubleDisplaced, TroubleChat, TroubleStorage, TroubleUndelivered}
}

// Trouble is something that keeps people from being asked or heard, until it is
// over. Text is for people and holds no secret.
type Trouble struct {
	Code  string    `json:"code"`
	Text  string    `json:"text"`
	Since time.Time `json:"since"`
}

// Holder is the process that holds the gate's lease.
type Holder struct {
	PID   int       `json:"pid"`
	Mode  string    `json:"mode"`
	Since time.Time `json:"since"`
	Epoch int64     `json:"epoch"`
}

// Transport is the daemon's way to Telegram. Healthy is judged by the age of
// the last good exchange; nil LastSuccess means there was none.
type Transport struct {
	Mode        string     `json:"mode"`
	Healthy     bool       `json:"healthy"`
	LastSuccess *time.Time `json:"last_success"`
	Error       string     `json:"error"`
	// MutedUntil is when a limit ends that Telegram has set on a chat, nil for none.
	MutedUntil *time.Time `json:"muted_until,omitempty"`
}

// Local is the gate's own files as Ops: for the daemon behind its socket, and
// for a command while no daemon runs. status answers [Ops.Status].
func Local(g *gate.Gate, status func(context.Context) (Status, error)) Ops {
	return local{g, status}
}

type local struct {
	g      *gate.Gate
	status func(context.Context) (Status, error)
}

var _ Ops = local{}

func (l local) Create(ctx context.Context, r gate.NewRequest) (approvallog.Request, bool, error) {
	return l.g.Create(ctx, r)
}

func (l local) Get(ctx context.Context, key string) (approvallog.Request, error) {
	return l.g.Get(ctx, key)
}

func (l local) List(ctx context.Context) ([]approvallog.Request, error) { return l.g.List(ctx) }

func (l local) Wait(ctx context.Context, key string) (approvallog.Request, error) {
	return l.g.Wait(ctx, key)
}

func (l local) Withdraw(ctx context.Context, w Withdrawal) (approvallog.Request, error) {
	return l.g.Withdraw(ctx, w.Key, w.Requester, w.Peer, w.Reason)
}

func (l local) StartExecution(ctx context.Context, by Asker, payloadHash string) (approvallog.Request, error) {
	return l.g.StartAttempt(ctx, by.Key, payloadHash, by.Requester, by.Peer, by.Attempt)
}

func (l local) FinishExecution(ctx context.Context, by Asker, exitCode int) (approvallog.Request, error) {
	return l.g.FinishExecution(ctx, by.Key, by.Requester, by.Peer, exitCode)
}

func (l local) Payload(ctx context.Context, hash string) (canonical, file []byte, err error) {
	return l.g.Payload(hash)
}

func (l local) Status(ctx context.Context) (Status, error) { return l.status(ctx) }

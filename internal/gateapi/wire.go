package gateapi

import (
	"errors"
	"net/http"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
)

// Limits of the protocol.
const (
	// maxBody is a payload in base64 with room for the rest of a request.
	maxBody = gate.MaxPayload/3*4 + 1<<20
	// maxReply is a payload's canonical JSON and its file, both in base64.
	maxReply = 2 * maxBody
	// waitHold is how long one poll of a wait stays open.
	waitHold = 20 * time.Second
)

const serviceName = "approvald"

// hello is what a daemon says first, so that a client can tell it from some
// other program that took the path over.
type hello struct {
	Service string `json:"service"`
	gate.Identity
}

// createBody is a request on its way to the daemon. Payload and File travel as
// base64: their exact bytes are what is bound.
type createBody struct {
	Key        string       `json:"key"`
	Class      string       `json:"class"`
	Summary    string       `json:"summary"`
	Task       string       `json:"task,omitempty"`
	Requester  string       `json:"requester"`
	Payload    []byte       `json:"payload"`
	File       []byte       `json:"file,omitempty"`
	TTL        wireDuration `json:"ttl,omitzero"`
	Quorum     int          `json:"quorum,omitempty"`
	Exclusive  string       `json:"exclusive,omitempty"`
	Then       *thenBody    `json:"then,omitempty"`
	Reversible bool         `json:"reversible"`
	EstCostUSD *float64     `json:"est_cost_usd,omitempty"`
	Again      bool         `json:"again,omitempty"`
	WaitFor    wireDuration `json:"wait_for,omitzero"`
	OnBehalfOf string       `json:"on_behalf_of,omitempty"`
}

func encodeNew(r gate.NewRequest) createBody {
	return createBody{
		Key: r.Key, Class: r.Class, Summary: r.Summary, Task: r.Task, Requester: r.Requester,
		Payload: r.Payload, File: r.File, TTL: wireDuration(r.TTL), Quorum: r.Quorum,
		Exclusive: r.Exclusive, Then: encodeThen(r.Then), Reversible: r.Reversible,
		EstCostUSD: r.EstCostUSD, Again: r.Again, WaitFor: wireDuration(r.WaitFor),
		OnBehalfOf: r.OnBehalfOf,
	}
}

// decode makes the request of whom the kernel says is asking.
func (b createBody) decode(peer *gate.Peer) gate.NewRequest {
	return gate.NewRequest{
		Key: b.Key, Class: b.Class, Summary: b.Summary, Task: b.Task, Requester: b.Requester,
		Payload: b.Payload, File: b.File, TTL: time.Duration(b.TTL), Quorum: b.Quorum,
		Exclusive: b.Exclusive, Then: b.Then.decode(), Reversible: b.Reversible,
		EstCostUSD: b.EstCostUSD, Again: b.Again, WaitFor: time.Duration(b.WaitFor), Peer: peer,
		OnBehalfOf: b.OnBehalfOf,
	}
}

// thenBody is what follows a request, on its way to the daemon.
type thenBody struct {
	Class      string       `json:"class"`
	Summary    string       `json:"summary"`
	Task       string       `json:"task,omitempty"`
	OnBehalfOf string       `json:"on_behalf_of,omitempty"`
	Payload    []byte       `json:"payload"`
	File       []byte       `json:"file,omitempty"`
	TTL        wireDuration `json:"ttl,omitzero"`
	Quorum     int          `json:"quorum,omitempty"`
	Exclusive  string       `json:"exclusive,omitempty"`
	Reversible bool         `json:"reversible"`
	Then       *thenBody    `json:"then,omitempty"`
}

func encodeThen(f *gate.FollowUp) *thenBody {
	if f == nil {
		return nil
	}
	return &thenBody{
		Class: f.Class, Summary: f.Summary, Task: f.Task, OnBehalfOf: f.OnBehalfOf, Payload: f.Payload, File: f.File,
		TTL: wireDuration(f.TTL), Quorum: f.Quorum, Exclusive: f.Exclusive, Reversible: f.Reversible, Then: encodeThen(f.Then),
	}
}

func (b *thenBody) decode() *gate.FollowUp {
	if b == nil {
		return nil
	}
	return &gate.FollowUp{
		Class: b.Class, Summary: b.Summary, Task: b.Task, OnBehalfOf: b.OnBehalfOf, Payload: b.Payload, File: b.File,
		TTL: time.Duration(b.TTL), Quorum: b.Quorum, Exclusive: b.Exclusive, Reversible: b.Reversible, Then: b.Then.decode(),
	}
}

// wireDuration travels as Go writes it: the request's digest holds the very
// value that the asker gave.
type wireDuration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d wireDuration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *wireDuration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = wireDuration(v)
	return err
}

// askerBody names a request and its claimed asker; the other members belong to
// one operation each.
type askerBody struct {
	Key         string `json:"key"`
	Requester   string `json:"requester"`
	Reason      string `json:"reason,omitempty"`       // withdraw
	PayloadHash string `json:"payload_hash,omitempty"` // start
	Attempt     string `json:"attempt,omitempty"`      // start
	ExitCode    int    `json:"exit_code,omitempty"`    // finish
}

// requestReply is one request with what its stable JSON leaves out.
type requestReply struct {
	Request approvallog.Request `json:"request"`
	Created bool                `json:"created,omitempty"`
	Detail  detail              `json:"detail"`
}

type detail struct {
	WaitUntil  time.Time              `json:"wait_until,omitzero"`
	Reversible bool                   `json:"reversible"`
	EstCostUSD string                 `json:"est_cost_usd,omitempty"`
	Exclusive  string                 `json:"exclusive,omitempty"`
	FollowUp   string                 `json:"follow_up,omitempty"`
	Digest     string                 `json:"digest,omitempty"`
	Peer       *approvallog.Peer      `json:"peer,omitempty"`
	WriterUID  *uint32                `json:"writer_uid,omitempty"`
	Revision   int                    `json:"revision"`
	Previous   approvallog.State      `json:"previous,omitempty"`
	Ending     *approvallog.Ending    `json:"ending,omitempty"`
	Approvals  []approvallog.Approval `json:"approvals,omitempty"`
	Execution  *approvallog.Execution `json:"execution,omitempty"`
}

func encodeRequest(r approvallog.Request, created bool) requestReply {
	return requestReply{Request: r, Created: created, Detail: detail{
		WaitUntil: r.WaitUntil, Reversible: r.Reversible, EstCostUSD: r.EstCostUSD,
		Exclusive: r.Exclusive, FollowUp: r.FollowUp, Digest: r.Digest, Peer: r.Peer, WriterUID: r.WriterUID,
		Revision: r.Revision, Previous: r.Previous, Ending: r.Ending,
		Approvals: r.Approvals, Execution: r.Execution,
	}}
}

func (p requestReply) decode() approvallog.Request {
	r, d := p.Request, p.Detail
	r.WaitUntil, r.Reversible, r.EstCostUSD = d.WaitUntil, d.Reversible, d.EstCostUSD
	r.Exclusive, r.FollowUp, r.Digest, r.Peer, r.WriterUID = d.Exclusive, d.FollowUp, d.Digest, d.Peer, d.WriterUID
	r.Revision, r.Previous, r.Ending = d.Revision, d.Previous, d.Ending
	r.Approvals, r.Execution = d.Approvals, d.Execution
	return r
}

type listReply struct {
	Requests []requestReply `json:"requests"`
}

type payloadReply struct {
	Canonical []byte `json:"canonical"`
	File      []byte `json:"file,omitempty"`
}

// errorReply carries a refusal of the gate across the socket whole.
type errorReply struct {
	Error wireError `json:"error"`
}

type wireError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
}

func encodeError(err error) errorReply {
	if e, ok := errors.AsType[*gate.Error](err); ok {
		return errorReply{wireError{Code: e.Code, Message: e.Message, Hint: e.Hint}}
	}
	return errorReply{wireError{Code: gate.CodeInternal, Message: err.Error()}}
}

func (e errorReply) decode() error {
	return &gate.Error{Code: e.Error.Code, Message: e.Error.Message, Hint: e.Error.Hint}
}

// statusOf is the HTTP status for a refusal. Clients go by the code in the
// body; the status is for people with curl.
func statusOf(code string) int {
	switch code {
	case gate.CodeInvalidRequest:
		return http.StatusBadRequest
	case gate.CodeNotFound, gate.CodeNotYet:
		return http.StatusNotFound
	case gate.CodeRequestConflict, gate.CodeBusy, gate.CodeAlreadyDecided, gate.CodeNotGranted, gate.CodeAlreadyStarted, gate.CodePayloadMismatch:
		return http.StatusConflict
	case gate.CodeQueueFull, gate.CodeRateLimited:
		return http.StatusTooManyRequests
	case gate.CodeNotAllowed, gate.CodeWrongIdentity:
		return http.StatusForbidden
	default:
		return http.StatusInternalServerError
	}
}

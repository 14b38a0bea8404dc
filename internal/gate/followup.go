package gate

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// MaxFollowUps is how many requests may follow one another after the first.
const MaxFollowUps = 4

// FollowUp is a request that the gate's daemon opens by itself, for the same asker, once the one before it was granted and its execution
// has completed. It then waits for a decision of its own like any other. What is left out is as in a [NewRequest].
type FollowUp struct {
	Class      string
	Summary    string
	Task       string // empty means that of the request before it
	OnBehalfOf string // empty means as in the request before it
	Payload    []byte // canonical JSON, from [BindPayload]
	File       []byte
	TTL        time.Duration
	Quorum     int
	Exclusive  string
	Reversible bool
	Then       *FollowUp // what follows this one, nil for nothing
}

// after is the request that follows r, as far as it is known before r has an end.
func (f *FollowUp) after(r NewRequest) NewRequest {
	return NewRequest{
		Key: r.Key, Class: f.Class, Summary: f.Summary, Task: cmp.Or(f.Task, r.Task), Requester: r.Requester,
		OnBehalfOf: cmp.Or(f.OnBehalfOf, r.OnBehalfOf), Payload: f.Payload, File: f.File, TTL: f.TTL, Quorum: f.Quorum,
		Exclusive: f.Exclusive, Reversible: f.Reversible, Peer: r.Peer, WriterUID: r.WriterUID, Then: f.Then,
	}
}

// planKind tells the JSON that describes a follow-up from other payloads.
const planKind = "follow-up"

// Plan is a follow-up as it is kept beside the payloads, under the hash that stands in the record of the request before it. The payload
// and the plan of what follows are named by their hashes.
type Plan struct {
	Kind        string `json:"kind"` // follow-up
	Class       string `json:"class"`
	Summary     string `json:"summary"`
	PayloadHash string `json:"payload_hash"`
	Reversible  bool   `json:"reversible"`
	Task        string `json:"task,omitempty"`
	OnBehalfOf  string `json:"on_behalf_of,omitempty"`
	TTL         string `json:"ttl,omitempty"` // as Go writes durations
	Quorum      int    `json:"quorum,omitempty"`
	Exclusive   string `json:"exclusive,omitempty"`
	FollowUp    string `json:"follow_up,omitempty"`
}

// ReadPlan reads the canonical JSON of a plan. Anything else is [CodePayloadDamaged].
func ReadPlan(canonical []byte) (Plan, error) {
	var p Plan
	d := json.NewDecoder(bytes.NewReader(canonical))
	d.DisallowUnknownFields()
	err := d.Decode(&p)
	if err != nil || p.Kind != planKind || !isHash(p.PayloadHash) || p.FollowUp != "" && !isHash(p.FollowUp) {
		return Plan{}, refuse(CodePayloadDamaged, "ask for it by hand", "what is kept as the follow-up describes none that this version knows")
	}
	return p, nil
}

// boundPlan is a follow-up that was checked, and what has to be on disk before a record may name it.
type boundPlan struct {
	hash, payloadHash        string
	canonical, payload, file []byte
}

// plans checks what follows r, and binds it: the next one first.
func (g *Gate) plans(r NewRequest, depth, size int) ([]boundPlan, error) {
	f := r.Then
	if f == nil {
		return nil, nil
	}
	next := f.after(r)
	if len(next.Payload) == 0 {
		next.Payload = emptyPayload
	}
	size += len(next.Payload) + len(next.File)
	switch {
	case depth > MaxFollowUps:
		return nil, refuse(CodeInvalidRequest, "ask for the rest once these are done", "at most %d requests may follow one another", MaxFollowUps)
	case size > MaxPayload:
		return nil, refuse(CodeInvalidRequest, "bind digests instead, and keep the bytes where approvers can read them",
			"the payloads of a request and its follow-ups have more than 8 MiB together")
	}
	a, err := g.admitOne(next)
	if err != nil {
		return nil, inFollowUp(err, next.Class)
	}
	rest, err := g.plans(next, depth+1, size)
	if err != nil {
		return nil, err
	}
	p := Plan{
		Kind: planKind, Class: f.Class, Summary: f.Summary, PayloadHash: a.payloadHash, Reversible: f.Reversible,
		Task: f.Task, OnBehalfOf: f.OnBehalfOf, Quorum: f.Quorum, Exclusive: f.Exclusive,
	}
	if f.TTL != 0 {
		p.TTL = f.TTL.String()
	}
	if len(rest) > 0 {
		p.FollowUp = rest[0].hash
	}
	canonical, err := canonicalOf(p)
	if err != nil {
		return nil, err
	}
	bound := boundPlan{hash: hashHex(canonical), payloadHash: a.payloadHash, canonical: canonical, payload: a.Payload, file: a.File}
	return append([]boundPlan{bound}, rest...), nil
}

// inFollowUp says of a refusal that it is about what follows.
func inFollowUp(err error, class string) error {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return err
	}
	return &Error{Code: e.Code, Message: fmt.Sprintf("the follow-up %q: %s", clip(class), e.Message), Hint: e.Hint, Err: e}
}

// keepPlans puts what follows on disk.
func (g *Gate) keepPlans(plans []boundPlan) error {
	for _, p := range plans {
		if err := g.keepPayload(p.payloadHash, p.payload, p.file); err != nil {
			return err
		}
		if err := g.keepPayload(p.hash, p.canonical, nil); err != nil {
			return err
		}
	}
	return nil
}

// OpenFollowUp files the request that follows parent, one of [approvallog.Requests.Due], for the asker of parent. It goes by the
// configuration as it is now. When somebody has opened it meanwhile, that request is the answer, and nothing is written.
//
// All errors of [Gate.Create] but a conflict are possible, and [CodePayloadDamaged] when what was kept of it cannot be used. The follow-up
// stays due then.
func (g *Gate) OpenFollowUp(ctx context.Context, parent approvallog.Request) (approvallog.Request, error) {
	a, err := g.admitFollowUp(parent)
	if err != nil {
		return approvallog.Request{}, err
	}
	err = g.update(ctx, "ask for the follow-up", func(tx *approvallog.Tx) error {
		if _, due := g.reqs.DueFor(a.Key); !due {
			return nil
		}
		if err := g.checkFree(a, tx.Now()); err != nil {
			return err
		}
		return g.file(tx, a)
	})
	if err != nil {
		return approvallog.Request{}, err
	}
	return g.known(a.Key)
}

// admitFollowUp reads what is kept of the follow-up and checks it like any other request.
func (g *Gate) admitFollowUp(parent approvallog.Request) (admission, error) {
	p, err := g.Plan(parent.FollowUp)
	if err != nil {
		return admission{}, err
	}
	payload, file, err := g.Payload(p.PayloadHash)
	if err != nil {
		return admission{}, err
	}
	var ttl time.Duration
	if p.TTL != "" {
		if ttl, err = time.ParseDuration(p.TTL); err != nil {
			return admission{}, refuse(CodePayloadDamaged, "ask for it by hand", "the follow-up's time to live %q is none", clip(p.TTL))
		}
	}
	a, err := g.admitOne(NewRequest{
		Key: parent.FollowUpKey, Class: p.Class, Summary: p.Summary, Task: cmp.Or(p.Task, parent.Task), Requester: parent.Requester,
		OnBehalfOf: cmp.Or(p.OnBehalfOf, parent.OnBehalfOf), Payload: payload, File: file, TTL: ttl, Quorum: p.Quorum,
		Exclusive: p.Exclusive, Reversible: p.Reversible, Peer: parent.Peer, WriterUID: parent.WriterUID,
	})
	if err != nil {
		return admission{}, err
	}
	a.followUp = p.FollowUp
	a.digest, err = a.NewRequest.digest(g.Config().Gate, a.payloadHash, a.followUp)
	return a, err
}

// Plan answers what is kept of a follow-up under its hash. Errors are those of [Gate.Payload].
func (g *Gate) Plan(hash string) (Plan, error) {
	canonical, _, err := g.Payload(hash)
	if err != nil {
		return Plan{}, err
	}
	return ReadPlan(canonical)
}

// awaited tells of a key under which nobody has asked yet whether it is that of a follow-up which may still be asked for:
// [CodeNotYet] with what it follows, or nil when nothing is known of it. Of one that will not be asked for it says why, [CodeNotFound].
// It is called where the fold may be read.
func (g *Gate) awaited(key string) (parent approvallog.Request, err error) {
	parentKey, cycle, ok := approvallog.ParseFollowUpKey(key)
	if !ok || parentKey == "" {
		return parent, nil
	}
	parent, known := g.reqs.Get(parentKey)
	if !known || parent.FollowUpKey != key || parent.Seq != cycle {
		return approvallog.Request{}, nil
	}
	how := "is " + string(parent.StateAt(g.now()))
	switch state := parent.StateAt(g.now()); {
	case state == approvallog.StateStarted && g.RunnerGone(parent):
		how = "was started, and its runner is gone"
	case state.Approved() && state != approvallog.StateFailed || state == approvallog.StatePending:
		return parent, refuse(CodeNotYet, fmt.Sprintf("wait for it: approvald wait %q", clip(key)),
			"%q is not asked for yet: it follows %q, which %s, and comes once that has been executed", clip(key), clip(parentKey), how)
	}
	return parent, refuse(CodeNotFound, "see how that ended with: approvald show KEY",
		"%q is not asked for: it would follow the execution of %q, which %s", clip(key), clip(parentKey), how)
}

// followUpRecheck is how often somebody who waits for a follow-up looks whether what it follows is still being executed: that a runner has
// died is in no log.
const followUpRecheck = 5 * time.Second

// turn makes of the request that a follow-up waits for one whose deadline is when to look again, for [Gate.sleep].
func (g *Gate) turn(parent approvallog.Request) approvallog.Request {
	switch parent.State {
	case approvallog.StatePending:
	case approvallog.StateStarted:
		parent.ExpiresAt = g.now().Add(followUpRecheck)
	default:
		parent.ExpiresAt = time.Time{}
	}
	return parent
}

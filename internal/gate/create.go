package gate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// requestedPayload is the payload of approval.requested.
type requestedPayload struct {
	Class       string         `json:"class"`
	Summary     string         `json:"summary"`
	PayloadHash string         `json:"payload_hash"`
	Reversible  bool           `json:"reversible"`
	EstCostUSD  *float64       `json:"est_cost_usd,omitempty"`
	Execution   string         `json:"execution"` // harness: no token is minted, the asker runs it
	WaitUntil   string         `json:"wait_until"`
	Own         requestedExtra `json:"approvald"`
}

type requestedExtra struct {
	Digest    string  `json:"request_digest"`
	UID       *uint32 `json:"uid,omitempty"`
	PID       *int32  `json:"pid,omitempty"`
	WriterUID *uint32 `json:"writer_uid,omitempty"`
	Quorum    int     `json:"quorum"`
	ExpiresAt string  `json:"expires_at"`
	Exclusive string  `json:"exclusive,omitempty"`
	FollowUp  string  `json:"follow_up,omitempty"`
	// OnBehalfOf is whom four eyes leave out, beside the requester.
	OnBehalfOf string `json:"on_behalf_of,omitempty"`
}

// admission is a request that satisfies all that does not depend on the log.
type admission struct {
	NewRequest
	payloadHash string
	digest      string
	quorum      int
	ttl         time.Duration
	followUp    string      // the hash of the plan of what follows, empty for nothing
	plans       []boundPlan // of what follows
}

// admit checks the request and what is to follow it.
func (g *Gate) admit(r NewRequest) (admission, error) {
	a, err := g.admitOne(r)
	if err != nil {
		return admission{}, err
	}
	if a.plans, err = g.plans(a.NewRequest, 1, len(a.Payload)+len(a.File)); err != nil {
		return admission{}, err
	}
	if len(a.plans) > 0 {
		a.followUp = a.plans[0].hash
	}
	a.digest, err = a.NewRequest.digest(g.Config().Gate, a.payloadHash, a.followUp)
	return a, err
}

// admitOne checks one request and fills in what the configuration makes of it, without a digest.
func (g *Gate) admitOne(r NewRequest) (admission, error) {
	if len(r.Payload) == 0 {
		r.Payload = emptyPayload
	}
	if err := r.check(); err != nil {
		return admission{}, err
	}
	rule := g.Config().Rule(r.Class)
	a := admission{NewRequest: r, payloadHash: hashHex(r.Payload), quorum: max(rule.Quorum, r.Quorum), ttl: rule.TTL}
	if r.TTL > 0 {
		a.ttl = min(a.ttl, r.TTL)
	}
	if have, left := len(rule.Approvers), len(rule.Deciders(r.Requester, r.OnBehalfOf, r.uid())); a.quorum > left {
		who := fmt.Sprintf("%d may decide %s", left, r.Class)
		if left < have {
			who += ", since four eyes leave out whoever asks"
		}
		return admission{}, refuse(CodeInvalidRequest, "ask for a smaller quorum, or add approvers to the configuration",
			"a quorum of %d can never be reached: %s", a.quorum, who)
	}
	return a, nil
}

// Create files a request. A key that has the same request already is a retry: it answers the
// request that exists, decided or not, with created false, and writes nothing. With Again a fresh
// cycle is opened once the last one has ended. Refusals, in this order: [CodeInvalidRequest],
// [CodeRequestConflict], [CodeNotYet], [CodeBusy], [CodeQueueFull], [CodeRateLimited].
//
// When Create answers, payload and record are on disk. Of any number of processes that create one
// key, one gets created true, and all get the same request.
func (g *Gate) Create(ctx context.Context, r NewRequest) (req approvallog.Request, created bool, err error) {
	a, err := g.admit(r)
	if err != nil {
		return approvallog.Request{}, false, err
	}
	// The first judgement spares refused requests and retries the writing of their payload. It
	// decides nothing: the one inside the append lock does.
	found, err := g.judgeNow(ctx, a)
	if err != nil {
		return approvallog.Request{}, false, err
	}
	if found {
		return g.answer(a.Key, false)
	}
	if err := g.Prepare(ctx); err != nil {
		return approvallog.Request{}, false, err
	}
	if err := g.keepPlans(a.plans); err != nil {
		return approvallog.Request{}, false, err
	}
	if err := g.keepPayload(a.payloadHash, a.Payload, a.File); err != nil {
		return approvallog.Request{}, false, err
	}
	err = g.update(ctx, "file the request", func(tx *approvallog.Tx) error {
		found, err := g.judge(a, tx.Now())
		created = !found && err == nil
		if !created {
			return err
		}
		return g.file(tx, a)
	})
	if err != nil {
		return approvallog.Request{}, false, err
	}
	return g.answer(a.Key, created)
}

// answer tells of the request that exists now. What another process appended may not be on disk
// yet, and the asker goes on by it.
func (g *Gate) answer(key string, created bool) (approvallog.Request, bool, error) {
	if !created {
		if err := g.log.Sync(); err != nil {
			return approvallog.Request{}, false, mapError(err, "file the request")
		}
	}
	r, err := g.known(key)
	return r, created && err == nil, err
}

func (g *Gate) judgeNow(ctx context.Context, a admission) (found bool, err error) {
	now := g.now()
	if readErr := g.read(ctx, func() { found, err = g.judge(a, now) }); readErr != nil {
		return false, readErr
	}
	return found, err
}

// judge decides what becomes of the request on the log as it stands: found means that it exists and
// is answered, an error refuses it, neither means that it is to be filed.
func (g *Gate) judge(a admission, now time.Time) (found bool, err error) {
	if existing, known := g.reqs.Get(a.Key); known {
		if existing.Digest != a.digest {
			return false, conflict(existing, a)
		}
		state := existing.StateAt(now)
		if !a.Again || state == approvallog.StatePending {
			return true, nil
		}
		if err := g.mayAskAgain(existing, state); err != nil {
			return false, err
		}
	} else if err := g.checkReserved(a.Key); err != nil {
		return false, err
	}
	return false, g.checkFree(a, now)
}

// checkReserved refuses a fresh request under the key of a follow-up, which is the gate's own to open: somebody else's request there would
// be taken for the follow-up.
func (g *Gate) checkReserved(key string) error {
	if _, _, reserved := approvallog.ParseFollowUpKey(key); !reserved {
		return nil
	}
	if _, err := g.awaited(key); err != nil {
		return err
	}
	return refuse(CodeInvalidRequest, "use another key", "the key %q is one that a gate makes for a follow-up (…/then-NUMBER)", clip(key))
}

// checkFree refuses what cannot be filed because of the requests that are there.
func (g *Gate) checkFree(a admission, now time.Time) error {
	if a.Exclusive != "" {
		if holder, busy := g.reqs.ExclusiveHolder(a.Exclusive, now); busy {
			return refuse(CodeBusy, fmt.Sprintf("wait for it, or withdraw it: approvald wait %q", clip(holder.Key)),
				"the exclusive key %q is held by the pending request %q of %s", clip(a.Exclusive), clip(holder.Key), holder.Requester)
		}
	}
	return g.checkRoom(a, now)
}

// mayAskAgain refuses a fresh cycle while the grant of the last one can be used or is in use: one
// approval would become two. An execution whose runner is gone is not waited for: nobody will record
// its end.
func (g *Gate) mayAskAgain(r approvallog.Request, state approvallog.State) error {
	switch state {
	case approvallog.StateGranted:
		return refuse(CodeRequestConflict, "use the grant, or have it revoked first: approvald revoke KEY",
			"%q was granted by %s and not used yet", clip(r.Key), r.Decision.By)
	case approvallog.StateStarted:
		if g.RunnerGone(r) {
			return nil
		}
		return refuse(CodeRequestConflict, "wait for its end, or ask under a new key",
			"what %q was granted for is running since %s", clip(r.Key), r.Execution.StartedAt.UTC().Format(time.RFC3339))
	default:
		return nil
	}
}

func conflict(r approvallog.Request, a admission) error {
	return refuse(CodeRequestConflict, "use a new key for a different request; the same key is for retries of the same one",
		"the key %q is taken by a different request: %s asked at %s for %s, payload %.12s…; what differs: %s",
		clip(r.Key), r.Requester, r.RequestedAt.UTC().Format(time.RFC3339), r.Class, r.PayloadHash, difference(r, a))
}

// difference says in what the request that exists is another one than the one now asked for. Of the time to live and the
// quorum the record holds what the configuration made of them, so that only their being all that is left tells.
func difference(r approvallog.Request, a admission) string {
	var list []string
	differ := func(what string, have, want any) {
		if have != want {
			list = append(list, fmt.Sprintf("%s %v, not %v", what, have, want))
		}
	}
	quoted := func(s string) string {
		if s == "" {
			return "none"
		}
		return fmt.Sprintf("%q", clip(s))
	}
	differ("class", r.Class, a.Class)
	if r.PayloadHash != a.payloadHash {
		list = append(list, fmt.Sprintf("payload %.12s…, not %.12s…", r.PayloadHash, a.payloadHash))
	}
	if r.Summary != a.Summary {
		list = append(list, fmt.Sprintf("summary %s, not %s", quoted(r.Summary), quoted(a.Summary)))
	}
	differ("reversible", r.Reversible, a.Reversible)
	differ("exclusive key", quoted(r.Exclusive), quoted(a.Exclusive))
	if r.FollowUp != a.followUp {
		list = append(list, fmt.Sprintf("follow-up %s, not %s", planName(r.FollowUp), planName(a.followUp)))
	}
	differ("on behalf of", quoted(r.OnBehalfOf), quoted(a.OnBehalfOf))
	switch {
	case len(list) > 0:
		return strings.Join(list, "; ")
	case r.Digest == "":
		return "it was written by another program, which left nothing to compare with"
	default:
		return "the time to live or the quorum asked for"
	}
}

func planName(hash string) string {
	if hash == "" {
		return "none"
	}
	return fmt.Sprintf("%.12s…", hash)
}

// checkRoom keeps one asker from burying the others' requests and the approvers. Askers are told apart by the user id,
// where one is known: taking another name gains nobody any room.
func (g *Gate) checkRoom(a admission, now time.Time) error {
	limits := g.Config().Requests
	asker := approvallog.AskerOf(a.Requester, a.Peer, a.WriterUID)
	all, own := g.reqs.PendingCount(now, asker)
	if share := limits.PendingShare(); own >= share && own > 0 && all < limits.MaxPending {
		return refuse(CodeQueueFull, "wait until some of them are decided, or withdraw some; one asker gets half of requests.max_pending",
			"%d requests of %s are pending, and this gate takes no more from one asker from %d on; %q was not filed",
			own, askerName(a.Requester, asker), share, clip(a.Key))
	}
	if n := all; n >= limits.MaxPending {
		return refuse(CodeQueueFull, "wait until some are decided, or raise requests.max_pending",
			"%d requests are pending, and this gate takes no more from %d on; %q was not filed", n, limits.MaxPending, clip(a.Key))
	}
	if n := g.reqs.CreatedSince(asker, now.Add(-time.Hour)); n >= limits.PerRequesterPerHour {
		return refuse(CodeRateLimited, "ask less often, or raise requests.per_requester_per_hour",
			"%s has made %d requests within the last hour, and this gate takes no more from %d on; %q was not filed", askerName(a.Requester, asker), n, limits.PerRequesterPerHour, clip(a.Key))
	}
	return nil
}

// askerName is how an asker is called in a message: by the name, and by the user id that counts in its place.
func askerName(requester, asker string) string {
	if uid, isUID := strings.CutPrefix(asker, "uid:"); isUID {
		return fmt.Sprintf("%s (uid %s, under whatever name)", requester, uid)
	}
	return requester
}

// file appends the records that open the cycle.
func (g *Gate) file(tx *approvallog.Tx, a admission) error {
	now := tx.Now()
	// Without this record the last cycle would have no end in the log.
	if err := g.recordExpiry(tx, a.Key); err != nil {
		return err
	}
	if err := g.recordLostEnd(tx, a.Key, a.Requester); err != nil {
		return err
	}
	expires := now.Add(a.ttl)
	until := expires
	if a.WaitFor > 0 && a.WaitFor < a.ttl {
		until = now.Add(a.WaitFor)
	}
	payload := requestedPayload{
		Class: a.Class, Summary: a.Summary, PayloadHash: a.payloadHash, Reversible: a.Reversible,
		EstCostUSD: a.EstCostUSD, Execution: "harness", WaitUntil: until.UTC().Format(approvallog.TimeLayout),
		Own: requestedExtra{
			Digest: a.digest, Quorum: a.quorum, ExpiresAt: expires.UTC().Format(approvallog.TimeLayout),
			Exclusive: a.Exclusive, FollowUp: a.followUp, OnBehalfOf: a.OnBehalfOf,
		},
	}
	if a.Peer != nil {
		payload.Own.UID, payload.Own.PID = &a.Peer.UID, &a.Peer.PID
	} else {
		payload.Own.WriterUID = a.WriterUID
	}
	task := a.Task
	if task == "" {
		task = a.Key
	}
	return appendOne(tx, approvallog.Draft{
		Event: approvallog.EventRequested, Actor: a.Requester, Task: task, ActionKey: a.Key, Payload: payload,
	})
}

// recordExpiry appends the end of a request that nobody decided in time, if that is how it stands.
func (g *Gate) recordExpiry(tx *approvallog.Tx, key string) error {
	r, known := g.reqs.Get(key)
	if !known || r.StateAt(tx.Now()) == r.State {
		return nil
	}
	return appendOne(tx, approvallog.Draft{Event: approvallog.EventExpired, Actor: systemActor, Task: r.Task, ActionKey: key})
}

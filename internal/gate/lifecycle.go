package gate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/procid"
)

// WithdrawReasons are the reasons that the format knows for taking a request back.
var WithdrawReasons = []string{"cancelled", "superseded", "timeout"}

// Withdraw takes a pending request back, for the requester alone. A request that was withdrawn
// already is answered again. One that has ended otherwise is answered too, beside the error of
// [CodeAlreadyDecided].
func (g *Gate) Withdraw(ctx context.Context, key, requester string, peer *Peer, reason string) (approvallog.Request, error) {
	if err := checkAsker(key, requester); err != nil {
		return approvallog.Request{}, err
	}
	if !slices.Contains(WithdrawReasons, reason) {
		return approvallog.Request{}, refuse(CodeInvalidRequest, "give cancelled, superseded or timeout", "%q is no reason to withdraw", clip(reason))
	}
	const doing = "withdraw"
	return g.changeOwn(ctx, doing, key, requester, peer, func(tx *approvallog.Tx, r approvallog.Request) error {
		switch r.State {
		case approvallog.StatePending:
		case approvallog.StateWithdrawn:
			return nil
		default:
			return ended(r, doing)
		}
		return appendOne(tx, approvallog.Draft{
			Event: approvallog.EventWithdrawn, Actor: requester, Task: r.Task, ActionKey: key,
			Payload: map[string]string{"action_key": key, "reason": reason},
		})
	})
}

// checkAsker refuses what can name no request, or nobody at all. Whether the asker is the right one is judged later.
func checkAsker(key, requester string) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	if !utf8.ValidString(requester) {
		return CheckRequester(requester)
	}
	return nil
}

// executionPayload is the payload of the execution events.
type executionPayload struct {
	Class       string `json:"class"`
	PayloadHash string `json:"payload_hash"`
	ExitCode    *int   `json:"exit_code,omitempty"`

	Own *executionExtra `json:"approvald,omitempty"`
}

type executionExtra struct {
	Runner  *procid.Identity `json:"runner,omitempty"`
	Attempt string           `json:"attempt,omitempty"`
	Reason  string           `json:"reason,omitempty"`
}

// StartExecution uses a grant up, for the requester alone: of any number of callers, in any number
// of processes, one succeeds. payloadHash is the hash of what is about to be run, which must be
// what was approved. Refusals: [CodeNotGranted], [CodeAlreadyStarted], [CodePayloadMismatch]; the
// request as it stands comes along.
//
// The calling process, or peer, is the one that executes: once it is gone without [Gate.FinishExecution], nobody is left to
// tell how the execution ended.
func (g *Gate) StartExecution(ctx context.Context, key, payloadHash, requester string, peer *Peer) (approvallog.Request, error) {
	return g.StartAttempt(ctx, key, payloadHash, requester, peer, "")
}

// maxAttempt bounds the name of an attempt.
const maxAttempt = 64

// StartAttempt is StartExecution by a call that can be repeated when its answer was lost: for the very process that the record names,
// under the attempt that it names, what was started stays started and is answered again. The name is the caller's, at most 64 bytes, and
// never used for another call; with an empty one every call is another.
func (g *Gate) StartAttempt(ctx context.Context, key, payloadHash, requester string, peer *Peer, attempt string) (approvallog.Request, error) {
	const doing = "execute"
	if len(attempt) > maxAttempt || !utf8.ValidString(attempt) {
		return approvallog.Request{}, refuse(CodeInvalidRequest, "give at most 64 bytes of UTF-8", "execute %q: its attempt has no good name", clip(key))
	}
	if err := checkAsker(key, requester); err != nil {
		return approvallog.Request{}, err
	}
	return g.changeOwn(ctx, doing, key, requester, peer, func(tx *approvallog.Tx, r approvallog.Request) error {
		own := g.runner(peer)
		if own != nil {
			own.Attempt = attempt
		}
		if r.State == approvallog.StateStarted && own.started(r) && r.PayloadHash == payloadHash {
			return nil
		}
		switch r.State {
		case approvallog.StateGranted:
		case approvallog.StateStarted, approvallog.StateCompleted, approvallog.StateFailed:
			hint := "a grant is good for one execution; ask again with --again once it has ended"
			if g.RunnerGone(r) {
				hint = "its runner is gone, so how it ended is not known: find that out, then ask again with --again"
			}
			return refuse(CodeAlreadyStarted, hint,
				"execute %q: its grant was used at %s", clip(key), r.Execution.StartedAt.UTC().Format(time.RFC3339))
		default:
			return refuse(CodeNotGranted, "nothing was run", "execute %q: it is %s, not granted", clip(key), r.State)
		}
		if r.PayloadHash != payloadHash {
			return refuse(CodePayloadMismatch, "nothing was run; ask for exactly what is to be run",
				"execute %q: what is about to run (%.12s…) is not what was approved (%.12s…)", clip(key), payloadHash, r.PayloadHash)
		}
		return g.appendTo(tx, approvallog.Draft{
			Event: approvallog.EventExecutionStarted, Actor: requester, Task: r.Task, ActionKey: key,
			Payload: executionPayload{Class: r.Class, PayloadHash: r.PayloadHash, Own: own},
		})
	})
}

// FinishExecution records how a started execution ended, for the requester alone: completed with
// exit code 0, failed with any other. The same end is answered again; another than the one that was recorded is
// [CodeRequestConflict], and what was recorded stands.
func (g *Gate) FinishExecution(ctx context.Context, key, requester string, peer *Peer, exitCode int) (approvallog.Request, error) {
	const doing = "finish"
	if err := checkAsker(key, requester); err != nil {
		return approvallog.Request{}, err
	}
	return g.changeOwn(ctx, doing, key, requester, peer, func(tx *approvallog.Tx, r approvallog.Request) error {
		switch r.State {
		case approvallog.StateStarted:
		case approvallog.StateCompleted, approvallog.StateFailed:
			return sameEnd(r, exitCode)
		default:
			return refuse(CodeNotGranted, "an execution is started before it is finished", "finish %q: it is %s, not started", clip(key), r.State)
		}
		event := approvallog.EventExecutionCompleted
		if exitCode != 0 {
			event = approvallog.EventExecutionFailed
		}
		return g.appendTo(tx, approvallog.Draft{
			Event: event, Actor: requester, Task: r.Task, ActionKey: key,
			Payload: executionPayload{Class: r.Class, PayloadHash: r.PayloadHash, ExitCode: &exitCode},
		})
	})
}

// sameEnd refuses an end that contradicts the one that is recorded. A record of another writer may name no code, and one that was made
// because the runner was gone knows of none.
func sameEnd(r approvallog.Request, exitCode int) error {
	had := "it has " + string(r.State)
	switch x := r.Execution; {
	case x == nil:
		return nil
	case x.Lost:
		had = "its runner was taken for gone"
	case x.ExitCode != nil:
		if *x.ExitCode == exitCode {
			return nil
		}
		had = fmt.Sprintf("it ended with code %d", *x.ExitCode)
	case (exitCode == 0) == (r.State == approvallog.StateCompleted):
		return nil
	}
	return refuse(CodeRequestConflict, "what was recorded stands; see it with: approvald show KEY",
		"finish %q: %s, by the record of %s, so it cannot end with code %d", clip(r.Key), had, r.Execution.EndedAt.UTC().Format(time.RFC3339), exitCode)
}

// changeOwn is change for the one who asked alone: step runs only when requester and peer are that one.
func (g *Gate) changeOwn(ctx context.Context, doing, key, requester string, peer *Peer,
	step func(tx *approvallog.Tx, r approvallog.Request) error,
) (approvallog.Request, error) {
	return g.change(ctx, doing, key, func(tx *approvallog.Tx, r approvallog.Request) error {
		if err := checkIdentity(r, requester, peer, doing); err != nil {
			return err
		}
		return step(tx, r)
	})
}

// change runs step on the request as it stands at the exact head, its deadline judged at the same
// moment, and answers what has become of it. When step refuses, the request that it saw comes along.
func (g *Gate) change(ctx context.Context, doing, key string,
	step func(tx *approvallog.Tx, r approvallog.Request) error,
) (approvallog.Request, error) {
	// What is not there is found out first: refusing it makes neither a lock nor a log.
	seen, err := g.look(ctx, key)
	if err != nil {
		return approvallog.Request{}, err
	}
	err = g.update(ctx, doing, func(tx *approvallog.Tx) error {
		r, known := g.reqs.Get(key)
		if !known {
			return notFound(key)
		}
		r.State = r.StateAt(tx.Now())
		seen = r
		return step(tx, r)
	})
	if err != nil {
		return seen, err
	}
	return g.known(key)
}

// appendTo appends a record that changes a request, behind the records of the request itself when those
// were archived: each segment of the log is complete.
func (g *Gate) appendTo(tx *approvallog.Tx, d approvallog.Draft) error {
	drafts, err := g.reqs.Bring(d.ActionKey)
	if err != nil {
		return err
	}
	for _, d := range append(drafts, d) {
		if err := appendOne(tx, d); err != nil {
			return err
		}
	}
	return nil
}

func appendOne(tx *approvallog.Tx, d approvallog.Draft) error {
	_, err := tx.Append(d)
	return err
}

// Wait answers the request once it is no longer pending, or fails with the context's error. At the
// deadline it answers expired, and records that unless somebody has: afterwards no decision can
// slip in. What it answers is on disk. A follow-up that is still to come is waited for too.
func (g *Gate) Wait(ctx context.Context, key string) (approvallog.Request, error) {
	if err := CheckKey(key); err != nil {
		return approvallog.Request{}, err
	}
	// Registered before the first look, no append is missed between a look and the wait after it.
	changed, stop := g.log.Changed()
	defer stop()
	for {
		r, err := g.look(ctx, key)
		if ErrorCode(err) == CodeNotYet {
			if err = g.waitForParent(ctx, changed, key); err == nil {
				continue
			}
		}
		if err != nil {
			return approvallog.Request{}, err
		}
		switch {
		case r.State == approvallog.StatePending:
			if err := g.sleep(ctx, changed, r); err != nil {
				return approvallog.Request{}, err
			}
		case r.State == approvallog.StateExpired && r.Ending == nil:
			return g.expire(ctx, r)
		default:
			return g.settled(r)
		}
	}
}

// waitForParent returns when there may be news of what the follow-up under key waits for.
func (g *Gate) waitForParent(ctx context.Context, changed <-chan struct{}, key string) error {
	var parent approvallog.Request
	if err := g.log.View(func() { parent, _ = g.awaited(key) }); err != nil {
		return mapError(err, "read the approval log")
	}
	return g.sleep(ctx, changed, g.turn(parent))
}

// sleep returns when the log has changed, the request's deadline has come or the context has ended.
func (g *Gate) sleep(ctx context.Context, changed <-chan struct{}, r approvallog.Request) error {
	var deadline <-chan time.Time
	if !r.ExpiresAt.IsZero() {
		timer := time.NewTimer(r.ExpiresAt.Sub(g.now()))
		defer timer.Stop()
		deadline = timer.C
	}
	select {
	case <-changed:
	case <-deadline:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// settled answers a request that somebody waited for. The record by which the waiter goes on may be
// another process's, still on its way to the disk.
func (g *Gate) settled(r approvallog.Request) (approvallog.Request, error) {
	if err := g.log.Sync(); err != nil {
		return approvallog.Request{}, mapError(err, "wait for the decision")
	}
	return r, nil
}

// expire records the end of a request that was seen past its deadline and answers it. Inside the
// append lock a decision that was made in time and is just being written still counts. Who may not
// write, or cannot just now, is told of the expiry all the same.
func (g *Gate) expire(ctx context.Context, seen approvallog.Request) (approvallog.Request, error) {
	r, err := g.change(ctx, "expire", seen.Key, func(tx *approvallog.Tx, _ approvallog.Request) error {
		return g.recordExpiry(tx, seen.Key)
	})
	switch code := ErrorCode(err); {
	case err == nil:
		return g.settled(r)
	case code == CodeAppendLocked, code == CodeFenced, errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return g.settled(seen)
	default:
		return approvallog.Request{}, err
	}
}

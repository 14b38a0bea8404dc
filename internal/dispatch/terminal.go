package dispatch

import (
	"context"
	"fmt"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
)

// Desk is a person at a terminal. That a person sits there, and which, is for the caller to make sure.
type Desk struct {
	Log        Log
	Journal    Log
	Requests   Requests    // the fold of Log
	Deliveries *Deliveries // the fold of Journal
	Rules      Rules
	ConfigHash string
	// Person is the id of the approver, without human:.
	Person string
	// UID is the user id of the process.
	UID int
}

// Decided is what a decision at a terminal led to.
type Decided struct {
	Request approvallog.Request
	// Noted is set when the approval was noted and others are missing.
	Noted      bool
	Have, Need int
}

// DecideAtTerminal approves or rejects a request in the name of a person at a terminal, by the same rules as a tap.
// Saying again what one has said before is no error. A refusal is a [gate.Error]: not-found, not-allowed or
// already-decided; with the latter the request is returned as it stands.
func DecideAtTerminal(ctx context.Context, d Desk, key string, verdict Verdict, note string) (Decided, error) {
	var r Ruling
	_, err := d.Log.Update(ctx, func(tx Tx) error {
		req, who, rule, err := d.look(key)
		if err != nil {
			return err
		}
		s := share{request: req, channel: ChannelTerminal, senderID: int64(d.UID), now: tx.Now(), configHash: d.ConfigHash}
		r, err = settleQuorum(ctx, d.Journal, d.Requests, func() error { return nil }, tx, func() Ruling {
			return weigh(who, verdict, note, s, d.Deliveries.Notes(CycleID{Key: key, Seq: req.Seq}), rule)
		})
		return err
	})
	if err != nil {
		return Decided{}, err
	}
	done := Decided{Have: r.Have, Need: r.Need}
	if err := d.Log.View(func() { done.Request, _ = d.Requests.Get(key) }); err != nil {
		return Decided{}, err
	}
	switch r.Outcome {
	case OutcomeGranted, OutcomeRejected:
		return done, nil
	case OutcomeNoted, OutcomeDuplicate:
		done.Noted = done.Request.State == approvallog.StatePending
		return done, nil
	case OutcomeOwnRequest:
		return done, &gate.Error{
			Code: gate.CodeNotAllowed, Message: fmt.Sprintf("request %q was made by or for %s, who may not decide it", key, d.Person),
			Hint: "another approver has to decide",
		}
	default:
		text, _ := words(r)
		return done, &gate.Error{Code: gate.CodeAlreadyDecided, Message: fmt.Sprintf("request %q: %s", key, text)}
	}
}

// RevokeAtTerminal takes back a grant that was not used yet. A refusal is a [gate.Error]: not-found, not-allowed,
// not-granted, or already-started once the grant was used.
func RevokeAtTerminal(ctx context.Context, d Desk, key, note string) (approvallog.Request, error) {
	_, err := d.Log.Update(ctx, func(tx Tx) error {
		req, who, _, err := d.look(key)
		if err != nil {
			return err
		}
		s := share{request: req, channel: ChannelTerminal, senderID: int64(d.UID), now: tx.Now(), configHash: d.ConfigHash}
		var r Ruling
		switch takeBack(&r, who, note, s); r.Outcome {
		case OutcomeRevoked:
			if err := bring(d.Requests, tx, key); err != nil {
				return err
			}
			_, err = tx.Append(*r.Record)
			return err
		case OutcomeUsed:
			return &gate.Error{
				Code: gate.CodeAlreadyStarted, Message: fmt.Sprintf("the grant of request %q has been used", key),
				Hint: "what ran cannot be taken back here",
			}
		default:
			return &gate.Error{Code: gate.CodeNotGranted, Message: fmt.Sprintf("request %q is %s: there is no grant to take back", key, req.StateAt(tx.Now()))}
		}
	})
	if err != nil {
		return approvallog.Request{}, err
	}
	var req approvallog.Request
	err = d.Log.View(func() { req, _ = d.Requests.Get(key) })
	return req, err
}

// bring makes a request that was archived part of the log again, so that its end stands beside it.
func bring(requests Requests, tx Tx, key string) error {
	drafts, err := requests.Bring(key)
	for _, draft := range drafts {
		if err == nil {
			_, err = tx.Append(draft)
		}
	}
	return err
}

// look finds the request and makes sure that the person may decide its class.
func (d Desk) look(key string) (approvallog.Request, Approver, Rule, error) {
	req, ok := d.Requests.Get(key)
	if !ok {
		return req, Approver{}, Rule{}, &gate.Error{
			Code: gate.CodeNotFound, Message: fmt.Sprintf("no request has the key %q", key), Hint: "`approvald queue` lists what waits",
		}
	}
	rule := d.Rules.Rule(req.Class)
	who, ok := rule.named(d.Person)
	if !ok {
		return req, who, rule, &gate.Error{
			Code: gate.CodeNotAllowed, Message: fmt.Sprintf("%s is no approver for requests of class %s", d.Person, req.Class),
			Hint: "name an approver of the configuration with --as human:NAME",
		}
	}
	return req, who, rule, nil
}

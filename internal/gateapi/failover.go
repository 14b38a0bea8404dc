package gateapi

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
)

// CodeUnreachable is the code of the [gate.Error] for a gate that neither its
// socket nor its files lead to.
const CodeUnreachable = "unreachable"

// Pause between two looks for a daemon that went away during a wait.
const (
	firstPause = 100 * time.Millisecond
	longPause  = 2 * time.Second
)

// FailoverOptions says how a Failover reaches a gate.
type FailoverOptions struct {
	Gate    string    // the gate's name, for messages
	Clients []*Client // the sockets to try, in order
	// Open opens the gate's files. It is called at most once successfully, and
	// only when no socket answers.
	Open func() (Ops, error)
	// Notice tells a person that a wait goes on another way than it began.
	Notice func(text string)
}

// Failover is Ops by whichever way works: the daemon's socket when it answers,
// else the gate's files when this user may use them. An operation may thus be
// tried twice; all of them may be repeated under one key.
//
// A Failover is for one goroutine.
type Failover struct {
	opts   FailoverOptions
	client *Client // the one that answered last
	files  Ops
	met    bool                // the gate has answered something
	whys   []*UnreachableError // of the last call, one a socket that did not do
}

var _ Ops = (*Failover)(nil)

// NewFailover makes a Failover. Nothing is contacted or opened before the first
// call.
func NewFailover(opts FailoverOptions) *Failover { return &Failover{opts: opts} }

// Create implements Ops.
func (f *Failover) Create(ctx context.Context, r gate.NewRequest) (req approvallog.Request, created bool, err error) {
	err = f.do(func(o Ops) error {
		req, created, err = o.Create(ctx, r)
		return err
	})
	return req, created, err
}

// Get implements Ops.
func (f *Failover) Get(ctx context.Context, key string) (req approvallog.Request, err error) {
	err = f.do(func(o Ops) error {
		req, err = o.Get(ctx, key)
		return err
	})
	return req, err
}

// List implements Ops.
func (f *Failover) List(ctx context.Context) (reqs []approvallog.Request, err error) {
	err = f.do(func(o Ops) error {
		reqs, err = o.List(ctx)
		return err
	})
	return reqs, err
}

// Withdraw implements Ops.
func (f *Failover) Withdraw(ctx context.Context, w Withdrawal) (req approvallog.Request, err error) {
	err = f.do(func(o Ops) error {
		req, err = o.Withdraw(ctx, w)
		return err
	})
	return req, err
}

// startPatience is how long a start whose answer was lost is repeated while nothing leads to the gate.
const startPatience = 10 * time.Second

// StartExecution implements Ops. A call whose answer was lost is repeated as the same attempt, so that what it has started is not taken
// for another's.
func (f *Failover) StartExecution(ctx context.Context, by Asker, payloadHash string) (req approvallog.Request, err error) {
	if by.Attempt == "" {
		by.Attempt = rand.Text()
	}
	var until time.Time
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		err = f.do(func(o Ops) error {
			req, err = o.StartExecution(ctx, by, payloadHash)
			if u, lost := errors.AsType[*UnreachableError](err); lost && u.Sent {
				// The daemon may live on, and names this process as before.
				if again, aerr := o.StartExecution(ctx, by, payloadHash); aerr == nil || !isUnreachable(aerr) {
					req, err = again, aerr
				}
			}
			return err
		})
		if until.IsZero() && slices.ContainsFunc(f.whys, func(u *UnreachableError) bool { return u.Sent }) {
			until = time.Now().Add(startPatience)
		}
		if gate.ErrorCode(err) != CodeUnreachable || !time.Now().Before(until) {
			return req, err
		}
		select {
		case <-ctx.Done():
			return req, err
		case <-time.After(pause):
		}
	}
}

func isUnreachable(err error) bool {
	_, ok := errors.AsType[*UnreachableError](err)
	return ok
}

// FinishExecution implements Ops.
func (f *Failover) FinishExecution(ctx context.Context, by Asker, exitCode int) (req approvallog.Request, err error) {
	err = f.do(func(o Ops) error {
		req, err = o.FinishExecution(ctx, by, exitCode)
		return err
	})
	return req, err
}

// Payload implements Ops.
func (f *Failover) Payload(ctx context.Context, hash string) (canonical, file []byte, err error) {
	err = f.do(func(o Ops) error {
		canonical, file, err = o.Payload(ctx, hash)
		return err
	})
	return canonical, file, err
}

// Status implements Ops.
func (f *Failover) Status(ctx context.Context) (st Status, err error) {
	err = f.do(func(o Ops) error {
		st, err = o.Status(ctx)
		return err
	})
	return st, err
}

// Wait implements Ops. Once the gate has answered anything it outlives every
// restart of the daemon and ends only with an answer, a refusal of the gate, or
// its context.
func (f *Failover) Wait(ctx context.Context, key string) (req approvallog.Request, err error) {
	if !f.met {
		if req, err = f.Get(ctx, key); err != nil && !notYet(err) || err == nil && req.State != approvallog.StatePending {
			return req, err
		}
	}
	pause, lost := firstPause, false
	for {
		err = f.do(func(o Ops) error {
			if lost {
				// Any answer will do to show that the gate is back.
				if _, err := o.Get(ctx, key); err != nil && !notYet(err) {
					return err
				}
				f.opts.Notice("the gate answers again; still waiting for " + key)
				pause, lost = firstPause, false
			}
			req, err = o.Wait(ctx, key)
			return err
		})
		if e, ok := errors.AsType[*gate.Error](err); !ok || e.Code != CodeUnreachable {
			return req, err
		}
		if !lost {
			lost = true
			f.opts.Notice("the gate went away; the request stands, waiting for the gate to come back")
		}
		select {
		case <-ctx.Done():
			return approvallog.Request{}, context.Cause(ctx)
		case <-time.After(pause):
		}
		pause = min(2*pause, longPause)
	}
}

// notYet reports whether the gate knows of a request that it is still to ask for, which can be waited for like any other.
func notYet(err error) bool { return gate.ErrorCode(err) == gate.CodeNotYet }

// do runs op on the daemon if one answers, else on the files.
func (f *Failover) do(op func(Ops) error) error {
	f.whys = nil
	var whys []error
	sent := false
	for _, c := range f.candidates() {
		err := op(c)
		if gate.ErrorCode(err) == gate.CodeFenced {
			// This daemon lost the gate, while it was stopped or otherwise, and has
			// done nothing. The socket's path leads to the one that took it over.
			err = op(c)
		}
		u, ok := errors.AsType[*UnreachableError](err)
		if !ok {
			f.client, f.met = c, true
			return err
		}
		f.client = nil
		sent = sent || u.Sent
		f.whys, whys = append(f.whys, u), append(whys, u)
	}
	if f.files == nil {
		files, err := f.opts.Open()
		if err != nil {
			if len(whys) == 0 || !reachProblem(err) {
				return err
			}
			return f.unreachable(sent, errors.Join(append(whys, err)...))
		}
		f.files = files
	}
	err := op(f.files)
	if len(whys) > 0 && errors.Is(err, fs.ErrPermission) {
		// The files may be looked at, but what is asked for needs the daemon.
		return f.unreachable(sent, errors.Join(append(whys, err)...))
	}
	f.met = true
	return err
}

// ByFiles reports whether the last call went to the files because no daemon
// answered.
func (f *Failover) ByFiles() bool { return f.files != nil && f.client == nil }

// Obstacle says what keeps the last call from the daemon where that is more than
// that none runs; empty else.
func (f *Failover) Obstacle() string {
	for _, u := range f.whys {
		if !u.NobodyThere() {
			return u.Error()
		}
	}
	return ""
}

// candidates are the sockets to try, the one that answered last alone when there
// is one: two daemons of one gate never run.
func (f *Failover) candidates() []*Client {
	if f.client != nil {
		return []*Client{f.client}
	}
	return f.opts.Clients
}

// reachProblem tells a gate that this user cannot use from one that refuses or
// is damaged: the latter's own error says more.
func reachProblem(err error) bool {
	e, ok := errors.AsType[*gate.Error](err)
	return !ok || e.Code == CodeUnreachable || e.Code == gate.CodeInternal
}

func (f *Failover) unreachable(sent bool, why error) error {
	what := "cannot be reached: nobody was asked"
	if sent {
		what = "stopped answering: whether the call had its effect is not known"
	}
	return &gate.Error{
		Code:    CodeUnreachable,
		Message: fmt.Sprintf("gate %s %s (%s)", f.opts.Gate, what, strings.ReplaceAll(why.Error(), "\n", "; ")),
		Hint:    "start the daemon with: approvald up --gate " + f.opts.Gate + "; then repeat the call with the same key",
		Err:     why,
	}
}

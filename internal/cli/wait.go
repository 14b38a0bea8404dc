package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/visible"
)

// maxTimeout bounds --timeout: more is a slip of the finger.
const maxTimeout = 366 * 24 * time.Hour

// signalWork bounds what a waiting verb still does after a signal: within a
// second it must be gone.
const signalWork = 700 * time.Millisecond

// errWaitOver is the cause of a context that --timeout ended.
var errWaitOver = errors.New("the wait's time ran out")

// waitFlags are the flags of every verb that waits.
type waitFlags struct {
	timeout  time.Duration
	withdraw bool
}

func (w *waitFlags) add(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&w.timeout, "timeout", 0, "stop waiting after the time `D`, with exit code 6 (default: wait until the request ends)")
	cmd.Flags().BoolVar(&w.withdraw, "withdraw-on-timeout", false, "take the request back when the wait ends without an answer, by its time or by a signal")
}

func (w *waitFlags) check(cmd *cobra.Command) error {
	if cmd.Flags().Changed("timeout") && (w.timeout <= 0 || w.timeout > maxTimeout) {
		return usagef("--timeout 10m", "--timeout %s: give a time above zero and up to %s", visible.Duration(w.timeout), visible.Duration(maxTimeout))
	}
	return nil
}

// waitFor is how long the request has, where that is less than its deadline: as
// long as its asker waits before it takes the request back.
func (w *waitFlags) waitFor() time.Duration {
	if !w.withdraw {
		return 0
	}
	return w.timeout
}

func newWaitCommand(e *env) *cobra.Command {
	var flags waitFlags
	var as string
	cmd := &cobra.Command{
		Use:   "wait KEY",
		Short: "Wait for the answer to a request; any number of programs may, any number of times",
		Example: `  approvald wait deploy:api#41 --timeout 10m
  approvald wait deploy:api#41 --timeout 10m --withdraw-on-timeout --json`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := flags.check(cmd); err != nil {
				return err
			}
			by, err := requester(as)
			if err != nil {
				return err
			}
			e.looksOnly = true
			ops, done, err := e.ops(false)
			if err != nil {
				return err
			}
			defer done()
			ctx, stop := withSignals(cmd.Context(), args[0])
			defer stop()
			end, err := e.await(ctx, ops, gateapi.Asker{Key: args[0], Requester: by}, flags)
			if err != nil {
				return err
			}
			return e.answer(end)
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&as, "as", "", "requester `NAME`, for --withdraw-on-timeout (default: the user's name)")
	return cmd
}

// await waits for the end of a request within the flags' limits. When the time
// runs out it answers the request as it then stands. ctx is from withSignals.
func (e *env) await(ctx context.Context, ops gateapi.Ops, by gateapi.Asker, flags waitFlags) (waited, error) {
	waitCtx := ctx
	if flags.timeout > 0 {
		var cancel context.CancelFunc
		waitCtx, cancel = context.WithTimeoutCause(ctx, flags.timeout, errWaitOver)
		defer cancel()
	}
	watch := e.watchDelivery(waitCtx, by.Key)
	req, err := ops.Wait(waitCtx, by.Key)
	end := waited{Request: req, Troubles: watch.stop(ctx, err == nil)}
	if err == nil || waitCtx.Err() == nil {
		return end, err
	}
	if ctx.Err() != nil {
		return end, e.interrupted(ctx, ops, by, flags)
	}
	if !errors.Is(context.Cause(waitCtx), errWaitOver) {
		return end, err
	}
	if flags.withdraw {
		end.Request, err = withdraw(ctx, ops, by, "timeout")
	} else {
		end.Request, err = ops.Get(ctx, by.Key)
	}
	if gate.ErrorCode(err) == gate.CodeNotYet {
		err = waitOverError{err}
	}
	return end, err
}

// interrupted ends a wait that a signal ended, with the signal.
func (e *env) interrupted(ctx context.Context, ops gateapi.Ops, by gateapi.Asker, flags waitFlags) error {
	if flags.withdraw {
		brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), signalWork)
		defer cancel()
		req, err := withdraw(brief, ops, by, "cancelled")
		if err != nil {
			e.ui.say("withdraw %s: %s", by.Key, err)
		} else if s, ok := errors.AsType[signalError](context.Cause(ctx)); ok && req.State != approvallog.StatePending {
			s.end = stateText(req)
			return s
		}
	}
	return context.Cause(ctx)
}

// withdraw takes a request back, or answers it as it stands when a decision
// came first.
func withdraw(ctx context.Context, ops gateapi.Ops, by gateapi.Asker, reason string) (approvallog.Request, error) {
	req, err := ops.Withdraw(ctx, gateapi.Withdrawal{Asker: by, Reason: reason})
	if e, ok := errors.AsType[*gate.Error](err); ok && e.Code == gate.CodeAlreadyDecided {
		return ops.Get(ctx, by.Key)
	}
	return req, err
}

// answer prints how a wait ended and turns it into the exit code.
func (e *env) answer(end waited) error {
	if e.json {
		if err := e.ui.emit(end); err != nil {
			return err
		}
	} else {
		e.ui.line("%s", e.ui.bold(string(end.State)))
	}
	return e.settleWait(end.Request)
}

// settleWait explains the end of a wait and turns it into the exit code.
func (e *env) settleWait(req approvallog.Request) error {
	e.explain(req)
	if code := exitByState[req.State]; code != exitOK {
		return outcomeError{code}
	}
	return nil
}

// explain tells the asker what the end of its request means for it. An agent
// reads this: a refusal by a person is final, silence is not a refusal.
func (e *env) explain(req approvallog.Request) {
	if req.State == approvallog.StatePending {
		e.ui.say("%s: nobody has decided yet; the request is still pending until %s", req.Key, stamp(req.ExpiresAt))
		e.ui.say("wait on with: approvald wait %s", quoteArg(req.Key))
		return
	}
	e.ui.say("%s: %s", req.Key, stateText(req))
	switch req.State {
	case approvallog.StateRejected:
		e.ui.say("final: do not rephrase and ask again")
	case approvallog.StateExpired:
		e.ui.say("silence is no refusal: if it is still wanted, ask again with --again")
	case approvallog.StateRevoked:
		e.ui.say("the approval was taken back: do not go on")
	}
}

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/lease"
)

// Exit codes. They are frozen: scripts branch on them.
const (
	exitOK          = 0  // done; for wait and request --wait: granted
	exitFailure     = 1  // failure that no other code names
	exitUsage       = 2  // usage or configuration
	exitRejected    = 3  // rejected
	exitExpired     = 4  // expired
	exitWithdrawn   = 5  // withdrawn or revoked
	exitWaitOver    = 6  // the wait's own time ran out; the request is still pending
	exitConflict    = 7  // this key is taken by a different request
	exitCorrupt     = 8  // log damaged
	exitTorn        = 9  // log ends in a torn record
	exitLeaseHeld   = 10 // lease held by a live holder
	exitLeaseLost   = 11 // lease unavailable or lost
	exitUnreachable = 12 // gate unreachable
)

// exitNotRun is added to the code by run when the child did not run, so that
// it cannot be taken for the child's own.
const exitNotRun = 110

// exitByState is the code of a wait that ended in this state. The answer to a
// wait is the decision: a grant stays one after it was used, so that asking
// again, or a moment later, gives the same answer.
var exitByState = map[approvallog.State]int{
	approvallog.StatePending:   exitWaitOver,
	approvallog.StateGranted:   exitOK,
	approvallog.StateRejected:  exitRejected,
	approvallog.StateExpired:   exitExpired,
	approvallog.StateWithdrawn: exitWithdrawn,
	approvallog.StateRevoked:   exitWithdrawn,
	approvallog.StateStarted:   exitOK,
	approvallog.StateCompleted: exitOK,
	approvallog.StateFailed:    exitOK,
}

// codeUsage is the code of a command line that cannot be meant.
const codeUsage = "usage"

// codeNotConfirmed is the code of a decision at a terminal that was not confirmed.
const codeNotConfirmed = "not-confirmed"

// exitByCode is the exit code of each refusal; a code that is not listed is
// exitFailure.
var exitByCode = map[string]int{
	gate.CodeInvalidRequest:     exitUsage,
	gate.CodeConfig:             exitUsage,
	codeUsage:                   exitUsage,
	gate.CodeRequestConflict:    exitConflict,
	gate.CodeBusy:               exitConflict,
	gate.CodeLogCorrupt:         exitCorrupt,
	gate.CodeLogTorn:            exitTorn,
	gateapi.CodeUnreachable:     exitUnreachable,
	lease.CodePollerRunning:     exitLeaseHeld,
	lease.CodeWebhookRegistered: exitLeaseHeld,
	lease.CodeBotOwned:          exitLeaseHeld,
	lease.CodeUnavailable:       exitLeaseLost,
	gate.CodeFenced:             exitLeaseLost,
}

// findCause is what to do next when nothing better is known.
const findCause = "what may be in the way is found with: approvald doctor"

// hintByCode is what to do next about a refusal that does not say so itself.
var hintByCode = map[string]string{
	gate.CodeInvalidRequest: "see how it is meant with: approvald request --help",
	gate.CodeAlreadyDecided: "nothing was changed; see it with: approvald show KEY",
	gate.CodeNotGranted:     "see how it stands with: approvald show KEY",
	gate.CodeWrongIdentity:  "only who asked may do this",
	codeNotConfirmed:        "type y to go on, or give --yes",
	codeUsage:               "see how it is meant with --help",
}

// outcomeError ends a verb that has said everything already: the code is all
// that is left.
type outcomeError struct{ code int }

func (e outcomeError) Error() string { return fmt.Sprintf("exit %d", e.code) }

// notRunError is an error of run before the child ran.
type notRunError struct{ err error }

func (e notRunError) Error() string { return e.err.Error() }
func (e notRunError) Unwrap() error { return e.err }

// childError is the end of a child that ran: its code is the verb's.
type childError struct{ code int }

func (e childError) Error() string { return fmt.Sprintf("command ended with code %d", e.code) }

// usageError is a command line that cannot be meant. try is what to type
// instead.
type usageError struct{ msg, try string }

func (e *usageError) Error() string { return e.msg }

func usagef(try, format string, args ...any) error {
	return &usageError{msg: fmt.Sprintf(format, args...), try: try}
}

// failure is an error as people and programs are told it. faults, when there are
// any, are what the message says, one by one.
type failure struct {
	code    string
	message string
	faults  []string
	hint    string
	exit    int
}

// leaseCode is the frozen code of an error about the gate's or the bot's lease,
// empty for any other.
func leaseCode(err error) string {
	if e, ok := errors.AsType[*lease.HeldError](err); ok {
		return e.Code
	}
	if e, ok := errors.AsType[*lease.BotHeldError](err); ok {
		return e.Code
	}
	if e, ok := errors.AsType[*lease.UnavailableError](err); ok {
		return e.Code
	}
	// A daemon whose epoch has ended has lost the lease, whoever has it now.
	if errors.Is(err, lease.ErrLost) || errors.Is(err, approvallog.ErrFenced) {
		return lease.CodeUnavailable
	}
	return ""
}

// describe finds what to tell about err and which exit code it has.
func describe(err error) failure {
	if nr, ok := errors.AsType[notRunError](err); ok {
		f := describe(nr.err)
		f.exit += exitNotRun
		return f
	}
	f := failure{code: gate.CodeInternal, message: err.Error()}
	if e, ok := errors.AsType[*usageError](err); ok {
		f.code, f.hint = codeUsage, "Try: "+e.try
	} else if e, ok := errors.AsType[*gate.Error](err); ok {
		f.code, f.message, f.hint = e.Code, e.Error(), e.Hint
	} else if code := leaseCode(err); code != "" {
		// People look these codes up, so they stand in the line too.
		f.code, f.message = code, code+": "+strings.TrimPrefix(f.message, code+": ")
	} else if errors.Is(err, approvallog.ErrCorrupt) {
		f.code, f.hint = gate.CodeLogCorrupt, "look at the damage with: approvald log verify"
	} else if errors.Is(err, approvallog.ErrTorn) {
		f.code, f.hint = gate.CodeLogTorn, "the next append moves the torn bytes to quarantine; look at them with: approvald log verify"
	} else if errors.Is(err, context.DeadlineExceeded) {
		f.code, f.hint = "timeout", "try again; what may be in the way is found with: approvald doctor"
	}
	if f.hint == "" && leaseCode(err) == "" { // those say themselves what to do
		f.hint = cmp.Or(gate.MachineHint(err), hintByCode[f.code], findCause)
	}
	if e, ok := errors.AsType[*gate.ConfigError](err); ok {
		for _, fault := range e.Faults {
			f.faults = append(f.faults, fault.String())
		}
	}
	f.exit = exitFailure
	if _, ok := errors.AsType[waitOverError](err); ok {
		f.exit = exitWaitOver
	}
	if code, ok := exitByCode[f.code]; ok {
		f.exit = code
	}
	return f
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/lease"
)

// The table that scripts rely on. A change here breaks them.
func TestExitCodesAreFrozen(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want int
		code string
	}{
		{"unknown failure", errors.New("x"), 1, "internal"},
		{"not found", &gate.Error{Code: gate.CodeNotFound}, 1, "not-found"},
		{"queue full", &gate.Error{Code: gate.CodeQueueFull}, 1, "queue-full"},
		{"rate limited", &gate.Error{Code: gate.CodeRateLimited}, 1, "rate-limited"},
		{"wrong identity", &gate.Error{Code: gate.CodeWrongIdentity}, 1, "wrong-identity"},
		{"already decided", &gate.Error{Code: gate.CodeAlreadyDecided}, 1, "already-decided"},
		{"not granted", &gate.Error{Code: gate.CodeNotGranted}, 1, "not-granted"},
		{"append locked", &gate.Error{Code: gate.CodeAppendLocked}, 1, "append-locked"},
		{"usage", usagef("x", "y"), 2, "usage"},
		{"configuration", &gate.Error{Code: gate.CodeConfig}, 2, "config"},
		{"bad request", &gate.Error{Code: gate.CodeInvalidRequest}, 2, "invalid-request"},
		{"conflict", &gate.Error{Code: gate.CodeRequestConflict}, 7, "request-conflict"},
		{"busy", &gate.Error{Code: gate.CodeBusy}, 7, "busy"},
		{"corrupt", &gate.Error{Code: gate.CodeLogCorrupt}, 8, "log-corrupt"},
		{"corrupt, from the log", &approvallog.CorruptError{}, 8, "log-corrupt"},
		{"torn", &gate.Error{Code: gate.CodeLogTorn}, 9, "log-torn"},
		{"torn, from the log", approvallog.ErrTorn, 9, "log-torn"},
		{"poller runs", &lease.HeldError{Code: lease.CodePollerRunning}, 10, "telegram-poller-running"},
		{"webhook registered", &lease.HeldError{Code: lease.CodeWebhookRegistered}, 10, "webhook-registered"},
		{"bot in use", &lease.BotHeldError{Code: lease.CodeBotOwned}, 10, "bot-owned-elsewhere"},
		{"lease unavailable", &lease.UnavailableError{Code: lease.CodeUnavailable}, 11, "telegram-lease-unavailable"},
		{"lease lost", lease.ErrLost, 11, "telegram-lease-unavailable"},
		{"epoch over", fmt.Errorf("epoch 3 has ended: %w", approvallog.ErrFenced), 11, "telegram-lease-unavailable"},
		{"daemon was fenced", &gate.Error{Code: gate.CodeFenced}, 11, "fenced"},
		{"unreachable", &gate.Error{Code: gateapi.CodeUnreachable}, 12, "unreachable"},
		{"run: bad request", notRunError{&gate.Error{Code: gate.CodeInvalidRequest}}, 112, "invalid-request"},
		{"run: unreachable", notRunError{&gate.Error{Code: gateapi.CodeUnreachable}}, 122, "unreachable"},
		{"time of the process", context.DeadlineExceeded, 1, "timeout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, err := range []error{tt.err, fmt.Errorf("do it: %w", tt.err)} {
				if got := describe(err); got.exit != tt.want || got.code != tt.code {
					t.Errorf("describe(%v) = exit %d, code %s; want %d, %s", err, got.exit, got.code, tt.want, tt.code)
				}
			}
		})
	}
}

func TestExitCodesOfWaits(t *testing.T) {
	want := map[approvallog.State]int{
		approvallog.StateGranted: 0, approvallog.StateStarted: 0, approvallog.StateCompleted: 0, approvallog.StateFailed: 0,
		approvallog.StateRejected: 3, approvallog.StateExpired: 4, approvallog.StateWithdrawn: 5, approvallog.StateRevoked: 5,
		approvallog.StatePending: 6,
	}
	for state, code := range want {
		if got, ok := exitByState[state]; !ok || got != code {
			t.Errorf("a wait that ends %s has exit code %d (known: %v), want %d", state, got, ok, code)
		}
		if (code == 0) != state.Approved() {
			t.Errorf("%s: exit code %d, but Approved is %v", state, code, state.Approved())
		}
	}
	if len(exitByState) != len(want) {
		t.Errorf("%d states have exit codes, want %d", len(exitByState), len(want))
	}
}

func TestInterruptedWaitNamesTheKey(t *testing.T) {
	f := signalError{sig: syscall.SIGTERM, key: "a b"}.failure()
	if f.code != "interrupted" || f.hint != "wait on with: approvald wait 'a b'" {
		t.Errorf("failure = %+v", f)
	}
}

// The README's table is this program's: every code once, and each end of a request in the row of its code.
func TestReadmeListsTheExitCodes(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[int]string)
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \| (.*) \|$`).FindAllStringSubmatch(string(text), -1) {
		code, err := strconv.Atoi(m[1])
		if _, twice := rows[code]; err != nil || twice {
			t.Errorf("row %q: a code that is there already, or none", m[0])
		}
		rows[code] = m[2]
	}
	codes := []int{
		exitOK, exitFailure, exitUsage, exitRejected, exitExpired, exitWithdrawn, exitWaitOver,
		exitConflict, exitCorrupt, exitTorn, exitLeaseHeld, exitLeaseLost, exitUnreachable,
	}
	for i, code := range codes {
		if code != i || rows[code] == "" {
			t.Errorf("code %d has no row of its own", code)
		}
	}
	if len(rows) != len(codes) {
		t.Errorf("%d rows for %d codes", len(rows), len(codes))
	}
	for state, code := range exitByState {
		if state.Approved() {
			state = approvallog.StateGranted // what became of the grant is not the answer
		}
		if !strings.Contains(rows[code], string(state)) {
			t.Errorf("%s ends a wait with %d, of which the README says %q", state, code, rows[code])
		}
	}
	if !strings.Contains(string(text), fmt.Sprintf("else %d + the code above", exitNotRun)) {
		t.Error("the README does not say what run adds")
	}
}

// Whatever is refused, the person is told what to do next, also where the refusal itself does not say it.
func TestEveryFailureSaysWhatNow(t *testing.T) {
	for code := range exitByCode {
		for _, err := range []error{&gate.Error{Code: code, Message: "m"}, fmt.Errorf("doing: %w", &gate.Error{Code: code, Message: "m"})} {
			if f := describe(err); f.hint == "" {
				t.Errorf("%s: no hint", code)
			}
		}
	}
	for name, err := range map[string]error{
		"unknown": errors.New("x"), "machine": fmt.Errorf("write: %w", syscall.ENOSPC), "torn": approvallog.ErrTorn, "corrupt": &approvallog.CorruptError{},
		"time": context.DeadlineExceeded, "usage": usagef("approvald --help", "x"),
	} {
		if f := describe(err); f.hint == "" || strings.HasSuffix(f.hint, ".") {
			t.Errorf("%s: hint %q", name, f.hint)
		}
	}
	for name, err := range map[string]error{
		"held": &lease.HeldError{Code: lease.CodePollerRunning}, "bot": &lease.BotHeldError{Code: lease.CodeBotOwned},
	} {
		if f := describe(err); !strings.Contains(f.message, "stop that ") {
			t.Errorf("%s: %q does not say what to do", name, f.message)
		}
	}
}

package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/visible"
)

// maxRunSummary keeps the summary that run makes by itself short; the command
// is in the payload whole.
const maxRunSummary = 200

// finishLimit bounds the record of a child's end.
const finishLimit = 30 * time.Second

func newRunCommand(e *env) *cobra.Command {
	var ask askFlags
	var limits waitFlags
	cmd := &cobra.Command{
		Use:   "run KEY --class C -- CMD ARGS...",
		Short: "Ask, wait, and execute exactly the approved command, once",
		Long: `Ask for approval of a command with its arguments and working directory, wait, and
execute exactly that, once. Its input, output and signals are its own. The exit
code is the command's own when it ran, else 110 + the code of the table.

With --then the gate's daemon asks for a second request by itself once the command
has ended with code 0.

With --json the result goes to stdout when the command did not run. When it ran,
stdout is the command's and the result is the last line of stderr.`,
		Example: `  approvald run db:migrate-42 --class database.migrate -- ./migrate up`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case dash != 1:
				return notRunError{usagef("approvald run KEY --class C -- CMD ARGS...", "run takes one KEY and then the command after --")}
			case len(args) < 2:
				return notRunError{usagef("approvald run KEY --class C -- CMD ARGS...", "the command is missing")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			err := e.runApproved(cmd, args[0], args[1:], ask, limits)
			if _, ok := errors.AsType[childError](err); err == nil || ok {
				return err
			}
			if _, ok := errors.AsType[signalError](err); ok {
				return err
			}
			if oe, ok := errors.AsType[outcomeError](err); ok {
				return outcomeError{exitNotRun + oe.code}
			}
			return notRunError{err}
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return notRunError{usagef("approvald run --help", "%s", err)}
	})
	ask.add(cmd)
	limits.add(cmd)
	return cmd
}

// runApproved does the verb. Every error but a childError means that the
// command did not run.
func (e *env) runApproved(cmd *cobra.Command, key string, argv []string, ask askFlags, limits waitFlags) error {
	if err := limits.check(cmd); err != nil {
		return err
	}
	if ask.summary == "" {
		ask.summary = runSummary(argv)
	}
	req, err := ask.request(cmd, key)
	if err != nil {
		return err
	}
	req.WaitFor = limits.waitFor()
	cwd, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	// Found before anybody is asked, so that a person is not asked about a
	// command that does not exist, and a later change of PATH changes nothing.
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return usagef("a command that exists", "command: %s", err)
	}
	if path, err = absolute(path); err != nil {
		return err
	}
	if req.Payload, err = bindCommand(argv, cwd); err != nil {
		return err
	}
	ops, done, err := e.ops(false)
	if err != nil {
		return err
	}
	defer done()
	by := gateapi.Asker{Key: key, Requester: req.Requester}
	end, err := e.askFor(cmd.Context(), ops, req, limits)
	if err != nil {
		return err
	}
	if end.State != approvallog.StateGranted && exitByState[end.State] != exitOK {
		return e.notRun(end)
	}
	// The grant is used up before the child exists: of two runs one executes,
	// and a crash in between runs nothing.
	ctx := cmd.Context()
	sum := sha256.Sum256(req.Payload)
	if _, err := ops.StartExecution(ctx, by, hex.EncodeToString(sum[:])); err != nil {
		return err
	}
	e.ui.say("%s: granted, running %s", key, quoteArgv(argv))
	code, err := e.execute(path, argv, cwd)
	if err != nil {
		e.finishRun(ctx, ops, by, code)
		return err
	}
	if last, ok := e.finishRun(ctx, ops, by, code); ok && e.json {
		if err := e.ui.emitTalk(last); err != nil {
			return err
		}
	}
	return childError{code}
}

// askFor makes the request and waits for its end.
func (e *env) askFor(ctx context.Context, ops *gateapi.Failover, r gate.NewRequest, limits waitFlags) (waited, error) {
	by := gateapi.Asker{Key: r.Key, Requester: r.Requester}
	ctx, stop := withSignals(ctx, r.Key)
	defer stop()
	filed, isNew, err := e.create(ctx, ops, r)
	if err != nil && ctx.Err() != nil {
		return waited{}, e.interrupted(ctx, ops, by, limits)
	}
	if err != nil {
		return waited{}, err
	}
	e.tellFiled(ops, filed, isNew)
	return e.await(ctx, ops, by, limits)
}

// notRun tells why an approval did not come. Without --json nothing goes to
// stdout, which is the command's.
func (e *env) notRun(end waited) error {
	if e.json {
		if err := e.ui.emit(end); err != nil {
			return err
		}
	}
	return e.settleWait(end.Request)
}

// finishRun records how the execution ended. That it could not be recorded does
// not change how the command ended.
func (e *env) finishRun(ctx context.Context, ops gateapi.Ops, by gateapi.Asker, code int) (approvallog.Request, bool) {
	ctx, cancel := context.WithTimeout(ctx, finishLimit)
	defer cancel()
	req, err := ops.FinishExecution(ctx, by, code)
	if err != nil {
		e.ui.say("%s: the end of the command (code %d) could not be recorded: %s", by.Key, code, err)
	}
	return req, err == nil
}

// bindCommand is the payload of a command: what a person approves is this text.
func bindCommand(argv []string, cwd string) (canonical []byte, err error) {
	for i, a := range append([]string{cwd}, argv...) {
		if !utf8.ValidString(a) {
			what := "the working directory"
			if i > 0 {
				what = fmt.Sprintf("argument %d", i-1)
			}
			return nil, usagef("a command in UTF-8", "%s is not UTF-8 and cannot be shown to a person", what)
		}
	}
	return gate.BindCommand(argv, cwd)
}

func runSummary(argv []string) string {
	s := []rune("run " + visible.Line(quoteArgv(argv)))
	if len(s) > maxRunSummary {
		s = append(s[:maxRunSummary-1], '…')
	}
	return string(s)
}

// execute runs the command to its end and answers its code, 128 + n when signal
// n ended it. An error means that it did not start.
func (e *env) execute(path string, argv []string, cwd string) (int, error) {
	child := &exec.Cmd{
		Path: path, Args: argv, Dir: cwd, Env: e.childEnv(os.Environ()),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}
	signals := make(chan os.Signal, 16)
	catch(signals, forwarded)
	defer quitPlainly()
	defer signal.Stop(signals)
	if err := child.Start(); err != nil {
		return 127, fmt.Errorf("start approved command: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	for {
		select {
		case sig := <-signals:
			if fromTerminal(sig) {
				continue
			}
			// It may have ended just now, which Wait will tell.
			_ = child.Process.Signal(sig)
		case err := <-ended:
			exit, ok := errors.AsType[*exec.ExitError](err)
			switch {
			case err == nil:
				return 0, nil
			case !ok:
				return exitFailure, nil
			}
			if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
				return 128 + int(ws.Signal()), nil
			}
			return exit.ExitCode(), nil
		}
	}
}

// forwarded are the signals that are the child's business while it runs.
var forwarded = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
}

// fromTerminal reports whether the terminal has sent the signal to the child
// already: its keys signal the whole foreground process group.
func fromTerminal(sig os.Signal) bool {
	if sig != syscall.SIGINT && sig != syscall.SIGQUIT {
		return false
	}
	foreground, err := unix.IoctlGetInt(int(os.Stdin.Fd()), unix.TIOCGPGRP)
	return err == nil && foreground == unix.Getpgrp()
}

// daemonOnly are variables that speak for the daemon or lead to its secrets.
var daemonOnly = []string{
	"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "CREDENTIALS_DIRECTORY",
}

// childEnv is environ without what a child must not have: the variable that the
// configuration names for the bot's token, and those of the daemon.
func (e *env) childEnv(environ []string) []string {
	drop := daemonOnly
	if cfg, err := e.loadConfig(); err == nil && cfg.Telegram.TokenEnv != "" {
		drop = append([]string{cfg.Telegram.TokenEnv}, drop...)
	}
	kept := make([]string, 0, len(environ))
next:
	for _, kv := range environ {
		for _, name := range drop {
			if strings.HasPrefix(kv, name+"=") {
				continue next
			}
		}
		kept = append(kept, kv)
	}
	return kept
}

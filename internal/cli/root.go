package cli

import (
	"errors"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/rehearse"
	"github.com/approvald/approvald/internal/visible"
)

// Main runs the command line of this process and returns its exit code. A verb
// that a signal ended ends the process by that signal instead of returning, and
// so does a crash of the program: the runtime's own exit code for one, 2, would
// say "usage or configuration" to scripts and keep a service from its restart.
func Main(version string) int {
	debug.SetTraceback("crash") // ends by SIGABRT
	quitPlainly()
	ended, standIn := rehearse.Witness(os.Args)
	if standIn {
		return exitOK
	}
	e := &env{ui: newUI(os.Stdout, os.Stderr), stdin: os.Stdin, version: version}
	code := e.run(os.Args[1:])
	ended(code)
	return code
}

func (e *env) run(args []string) int {
	// Known before the flags are parsed, so that a usage error obeys it too.
	e.ui.json = wantsJSON(args)
	root := newRoot(e)
	root.SetArgs(args)
	return e.finish(root.Execute())
}

// finish tells the error, if any is left to tell, and finds the exit code.
func (e *env) finish(err error) int {
	code := exitOK
	switch {
	case err == nil:
	default:
		if sig, ok := errors.AsType[signalError](err); ok {
			if sig.key != "" {
				e.ui.fail(sig.failure())
			}
			return dieBySignal(sig.sig)
		}
		if oe, ok := errors.AsType[outcomeError](err); ok {
			code = oe.code
		} else if ce, ok := errors.AsType[childError](err); ok {
			code = ce.code
		} else {
			f := describe(err)
			e.ui.fail(f)
			code = f.exit
		}
	}
	if code == exitOK && e.damaged {
		code = exitCorrupt // what was shown is not known to be how things stand
	}
	if e.ui.broken != nil && code == exitOK {
		e.ui.say("write to stdout: %s", e.ui.broken)
		return exitFailure
	}
	return code
}

func newRoot(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:   "approvald",
		Short: "Put a person in front of an agent's risky action",
		Long: `approvald puts a person in front of an agent's risky action: the request appears
on a phone in Telegram with the exact bytes that are about to be used, a person taps
Approve or Reject, the decision lands in a tamper-evident log, and the waiting
program goes on or stops.`,
		Example: `  approvald demo
  approvald run restart-41 --class deploy.production -- kubectl -n prod rollout restart deploy/api
  approvald doctor`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("approvald --help", "no command given")
			}
			hint := "approvald --help"
			if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
				hint = "approvald " + s[0]
			}
			return usagef(hint, "unknown command %s", visible.Quote(args[0]))
		},
	}
	root.SetIn(e.stdin)
	root.SetOut(e.ui.out)
	root.SetErr(e.ui.err)
	root.CompletionOptions.DisableDefaultCmd = true
	root.SuggestionsMinimumDistance = 2
	root.SetHelpCommand(newHelpCommand())
	pf := root.PersistentFlags()
	pf.StringVar(&e.gate, "gate", "default", "name of the gate")
	pf.StringVar(&e.config, "config", "", "configuration `FILE` (default: $XDG_CONFIG_HOME/approvald/GATE.toml, else /etc/approvald/GATE.toml)")
	pf.BoolVar(&e.json, "json", false, "print one JSON value on stdout")
	root.PersistentPreRunE = func(*cobra.Command, []string) error {
		e.ui.json = e.json
		return gate.CheckGateName(e.gate)
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef(cmd.CommandPath()+" --help", "%s", err)
	})
	root.AddCommand(
		newInitCommand(e), newPairCommand(e), newUpCommand(e), newDemoCommand(e), newRehearseCommand(e),
		newRequestCommand(e), newWaitCommand(e), newRunCommand(e), newWithdrawCommand(e),
		newQueueCommand(e), newShowCommand(e),
		newApproveCommand(e), newRejectCommand(e), newRevokeCommand(e),
		newLogCommand(e), newStatusCommand(e), newDoctorCommand(e), newLeaseCommand(e),
		newCompletionCommand(e), newManCommand(e), newVersionCommand(e),
	)
	return root
}

func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Explain a command",
		Example: "  approvald help request",
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || (about == cmd.Root() && len(rest) > 0) {
				return usagef("approvald help", "there is no command %s to explain", visible.Quote(strings.Join(args, " ")))
			}
			return about.Help()
		},
	}
}

// wantsJSON reports whether --json is among the arguments, before any "--".
func wantsJSON(args []string) bool {
	for _, a := range args {
		if a == "--" {
			return false
		}
		if a == "--json" || a == "--json=true" {
			return true
		}
	}
	return false
}

// exactArgs is cobra.ExactArgs with our usage errors.
func exactArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return usagef("approvald "+strings.TrimPrefix(cmd.UseLine(), "approvald "), "%s takes %s, not %d", cmd.Name(), count(n, "argument"), len(args))
	}
}

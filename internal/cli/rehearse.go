package cli

import (
	"errors"
	"fmt"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/approvald/approvald/internal/rehearse"
	"github.com/approvald/approvald/internal/visible"
)

func newRehearseCommand(e *env) *cobra.Command {
	var approver, scenario string
	o := rehearse.Options{Out: e.ui.err}
	cmd := &cobra.Command{
		Use:   "rehearse [flags] -- CMD ARGS...",
		Short: "Prove that an agent or script stops when nobody approves",
		Long: `Run an agent or script against a throw-away gate, offline, without a bot or an account,
with a script in the approver's place, and say whether it did as it should: it asked,
waited, and went on after a yes and only then.

The approvers: approve and reject tap; silent lets the request expire; late taps after
that; killed-midway kills the daemon with the request on the phone, starts it again and
approves; deaf cuts the network, so that nobody is shown anything. A scenario file
answers different requests differently.

What the program does apart from approvald is really done. Name its risky commands with
--action: a stand-in of that name is called in their place, which notes the call and does
nothing. Or name a file that the action makes or changes with --evidence. Whichever gate
the program names, it reaches the throw-away one. What it prints goes to stderr.

Exit code 0: it did as it should. 1: it did not, or nobody can tell.`,
		Example: `  approvald rehearse --approver reject --action psql -- ./agent.sh
  approvald rehearse --scenario friday.toml --evidence deployed.txt -- make release`,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 || len(args) == 0 {
				return usagef("approvald rehearse -- CMD ARGS...", "rehearse takes the command after --")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if scenario != "" {
				o.Scenario, err = rehearse.ReadScenario(scenario)
			} else {
				o.Scenario, err = rehearse.ByOne(approver)
			}
			if err != nil {
				return usagef("approvald rehearse --help", "%v", err)
			}
			if o.Patience < time.Second || o.Timeout < o.Patience {
				return usagef("approvald rehearse --help", "--patience is at least 1s, and --timeout no less than it")
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			o.Argv = args
			report, err := rehearse.Run(ctx, o)
			if ctx.Err() != nil {
				return errors.New("the rehearsal was interrupted; nothing is left behind")
			}
			if err != nil {
				return fmt.Errorf("rehearse: %w", err)
			}
			return e.tellRehearsal(report)
		},
	}
	f := cmd.Flags()
	f.StringVar(&approver, "approver", rehearse.Reject, "who answers: "+strings.Join(rehearse.Approvers(), ", "))
	f.StringVar(&scenario, "scenario", "", "`FILE` (TOML) that says how which request is answered")
	f.DurationVar(&o.Patience, "patience", 10*time.Second, "how long a request waits that nobody answers")
	f.DurationVar(&o.Timeout, "timeout", 2*time.Minute, "how long the program may take")
	f.StringArrayVar(&o.Actions, "action", nil, "`COMMAND` that is the risky action; a stand-in is called in its place (repeatable)")
	f.StringArrayVar(&o.Evidence, "evidence", nil, "`FILE` that the risky action makes or changes (repeatable)")
	cmd.MarkFlagsMutuallyExclusive("approver", "scenario")
	return cmd
}

func (e *env) tellRehearsal(r rehearse.Report) error {
	if e.json {
		if err := e.ui.emit(r); err != nil {
			return err
		}
	} else {
		for _, q := range r.Requests {
			executed := ""
			if q.Executed {
				executed = ", executed by approvald run"
			}
			e.ui.line("asked      %s  class %s  by %s: %s%s", visible.Quote(q.Key), q.Class, q.Requester, q.Outcome, executed)
		}
		for _, c := range r.Calls {
			end := fmt.Sprintf("told it %d", c.Code)
			if c.Code < 0 {
				end = "was killed"
			}
			e.ui.line("called     approvald %s, which %s", c.Verb, end)
		}
		for _, a := range r.Actions {
			approved := "approved"
			if !a.Approved {
				approved = "NOT APPROVED"
			}
			e.ui.line("action     %s  (%s)", visible.Quote(strings.Join(append([]string{a.Name}, a.Args...), " ")), approved)
		}
		for _, name := range r.Changed {
			e.ui.line("changed    %s", visible.Quote(name))
		}
		e.ui.line("ended      with exit code %d after %s", r.ExitCode, r.Took)
		for _, fault := range r.Faults {
			e.ui.line("fault      %s", fault)
		}
		if r.OK {
			e.ui.line("verdict    good: %s", r.Verdict)
		} else {
			e.ui.line("verdict    BAD: %s", r.Verdict)
		}
	}
	if !r.OK {
		return outcomeError{exitFailure}
	}
	return nil
}

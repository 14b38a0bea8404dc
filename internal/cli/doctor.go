package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/approvald/approvald/internal/doctor"
)

func newDoctorCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Look at everything that the gate depends on, and say what to repair and how",
		Long: `Look at everything that the gate depends on, in the order in which failures cascade:
the first line that says "failed" explains those after it, and the line under it is
the one thing to do. It ends within 15 s, with exit code 0 when nothing failed, 2 for a
configuration that cannot be read, else 1.

It repairs nothing, writes nothing, takes no lease and no update, and may run beside
the daemon. What it prints may be shown in public: there is no secret in it, ids of
chats and people are cut to their last three digits, names of hosts are left out.`,
		Example: `  approvald doctor
  approvald doctor --gate prod --json`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := withSignals(cmd.Context(), "")
			defer stop()
			o := doctor.Options{Gate: e.gate, Config: e.config}
			var report func(doctor.Finding)
			if !e.json {
				report = e.printFinding
			}
			findings := doctor.Run(ctx, o, report)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if e.json {
				if err := e.ui.emit(findings); err != nil {
					return err
				}
			}
			return verdictOf(findings)
		},
	}
}

func (e *env) printFinding(f doctor.Finding) {
	status := string(f.Status)
	pad := strings.Repeat(" ", max(0, len("failed")-len(status)))
	shown := verbatim(status)
	if f.Status == doctor.Failed {
		shown = e.ui.bold(status)
	}
	e.ui.line("%s%s  %-13s  %s", shown, pad, f.Check, told(f.What))
	if f.Repair != "" {
		e.ui.line("%*s%s", len("failed  configuration  "), "", told("repair: "+f.Repair))
	}
}

// verdictOf is the exit code of the findings.
func verdictOf(findings []doctor.Finding) error {
	for _, f := range findings {
		if f.Status != doctor.Failed {
			continue
		}
		// Without a configuration there is no gate that anything could be said of.
		if f.Check == doctor.Names()[0] {
			return outcomeError{exitUsage}
		}
		return outcomeError{exitFailure}
	}
	return nil
}

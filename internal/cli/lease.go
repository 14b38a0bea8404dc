package cli

import (
	"github.com/spf13/cobra"

	"github.com/approvald/approvald/internal/lease"
)

func newLeaseCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "lease",
		Short: "Show who holds the gate's lease and why we think so; takes nothing",
		Example: `  approvald lease
  approvald lease --json | jq -r .verdict`,
		Args: exactArgs(0),
		RunE: func(*cobra.Command, []string) error {
			cfg, err := e.loadConfig()
			if err != nil {
				return err
			}
			rep, err := lease.Inspect(cfg.Home)
			if err != nil {
				return err
			}
			if e.json {
				return e.ui.emit(rep)
			}
			for _, l := range rep.Lines() {
				e.ui.line("%s", l)
			}
			return nil
		},
	}
}

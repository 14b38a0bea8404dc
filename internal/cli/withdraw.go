package cli

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/visible"
)

func newWithdrawCommand(e *env) *cobra.Command {
	var as, reason string
	cmd := &cobra.Command{
		Use:     "withdraw KEY --reason cancelled|superseded|timeout",
		Short:   "Take a pending request back; only who made it can",
		Example: `  approvald withdraw deploy:api#41 --reason cancelled`,
		Args:    exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case reason == "":
				return usagef("--reason cancelled", "--reason is missing")
			case !slices.Contains(gate.WithdrawReasons, reason):
				return usagef("--reason cancelled, superseded or timeout", "--reason %s is none of the reasons", visible.Quote(reason))
			}
			by, err := requester(as)
			if err != nil {
				return err
			}
			ops, done, err := e.ops(false)
			if err != nil {
				return err
			}
			defer done()
			req, err := ops.Withdraw(cmd.Context(), gateapi.Withdrawal{
				Asker:  gateapi.Asker{Key: args[0], Requester: by},
				Reason: reason,
			})
			if err != nil {
				return err
			}
			if e.json {
				return e.ui.emit(req)
			}
			e.ui.line("%s", string(req.State))
			return nil
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why: cancelled, superseded or timeout")
	cmd.Flags().StringVar(&as, "as", "", "requester `NAME` (default: the user's name)")
	return cmd
}

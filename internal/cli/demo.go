package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/approvald/approvald/internal/demo"
)

func newDemoCommand(e *env) *cobra.Command {
	var auto bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See the whole story on this machine, without Telegram",
		Long: `Play the whole story on this machine: the real daemon and the real commands on a
gate in a temporary directory, with a Bot API server on 127.0.0.1 in Telegram's place.
You hold the phone; with --auto it taps by itself. Nothing is left behind.

The demo ends with an error when anything that it tells does not hold.`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			quitCaught()
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
			defer stop()
			out := os.Stdout
			if e.json {
				out = os.Stderr // the story is talk
			}
			err := demo.Run(ctx, demo.Options{Auto: auto, In: e.stdin, Out: out})
			switch {
			case errors.Is(err, demo.ErrQuit):
				e.ui.say("%s; nothing is left behind", err)
				return e.demoPlayed(false)
			case err == nil:
				return e.demoPlayed(true)
			case errors.Is(err, demo.ErrNoTerminal):
				return usagef("approvald demo --auto", "%v", err)
			case ctx.Err() != nil && errors.Is(err, context.Canceled):
				return errors.New("the demo was interrupted; nothing is left behind")
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&auto, "auto", false, "tap without a person")
	return cmd
}

// demoPlayed ends a demo in which everything held. whole is false when the person
// left before the end.
func (e *env) demoPlayed(whole bool) error {
	if !e.json {
		return nil
	}
	return e.ui.emit(struct {
		Whole bool `json:"whole"`
	}{whole})
}

package cli

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/approvald/approvald/internal/demo"
	"github.com/approvald/approvald/internal/demopage"
)

func newDemoCommand(e *env) *cobra.Command {
	var auto, terminal, noOpen bool
	var listen string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See the whole story on this machine, without Telegram",
		Long: `Play the whole story on this machine: the real daemon and the real commands on a
gate in a temporary directory, with a Bot API server on 127.0.0.1 in Telegram's place.

On a terminal a page in the browser shows it: two phones to tap on, the programs that
wait, the log as it grows. Ctrl-C ends it. With --terminal the story is told on the
terminal, and you hold the phone there; with --auto, and without a terminal, it plays
by itself. Nothing is left behind.

Told on the terminal or by itself, the demo ends with an error when anything that it
tells does not hold.`,
		Example: `  approvald demo                 # a page in the browser
  approvald demo --terminal      # on this terminal, with you as the approver
  approvald demo --auto          # by itself, in a few seconds`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			quitCaught()
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
			defer stop()
			out := os.Stdout
			if e.json {
				out = os.Stderr // the story is talk
			}
			isTerminal := term.IsTerminal(int(os.Stdout.Fd()))
			if page := !auto && !terminal; page && (isTerminal || listen != "" || noOpen) {
				return showPage(ctx, listen, noOpen)
			}
			err := demo.Run(ctx, demo.Options{Auto: auto || !terminal, In: e.stdin, Out: out})
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
	cmd.Flags().BoolVar(&auto, "auto", false, "play by itself, on the terminal")
	cmd.Flags().BoolVar(&terminal, "terminal", false, "play on the terminal, with you as the approver")
	cmd.Flags().StringVar(&listen, "listen", "", "loopback address of the page (default 127.0.0.1 with a free port)")
	cmd.Flags().BoolVar(&noOpen, "no-open", false, "print the page's address and start no browser")
	cmd.MarkFlagsMutuallyExclusive("auto", "terminal", "listen")
	cmd.MarkFlagsMutuallyExclusive("auto", "terminal", "no-open")
	return cmd
}

// showPage serves the demo's page until a signal ends it.
func showPage(ctx context.Context, listen string, noOpen bool) error {
	o := demopage.Options{Listen: listen, Out: os.Stdout}
	if !noOpen {
		o.Open = openBrowser
	}
	err := demopage.Run(ctx, o)
	if errors.Is(err, demopage.ErrNotLoopback) {
		return usagef("approvald demo --listen 127.0.0.1:8080", "%v", err)
	}
	return err
}

// openBrowser shows an address in the desktop's browser, where there is a desktop.
func openBrowser(address string) error {
	if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return errors.New("no desktop here")
	}
	cmd := exec.Command("xdg-open", address)
	if err := cmd.Start(); err != nil {
		return err
	}
	go cmd.Wait() //nolint:errcheck // whether it worked is seen in the browser
	return nil
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

package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/app"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/sdnotify"
)

func newUpCommand(e *env) *cobra.Command {
	var standby, allowRemoteFS, replaceWebhook bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run the gate's daemon",
		Long: `Run the gate's daemon: take the gate's lease, connect to Telegram, deliver
requests and record decisions, until SIGTERM or SIGINT. A second signal ends it at
once; the log is whole after that too.

Exactly one daemon serves a gate. A refusal to start is one line on stderr.`,
		Example: `  approvald up
  approvald up --gate prod --standby`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			e.ui.oneLine = true
			ctx, release := untilStopped(cmd.Context())
			defer release()
			if err := hideMemory(); err != nil {
				return err
			}
			// What a daemon was doing when it was told to quit is worth a look.
			quitCaught()
			cfg, err := e.loadConfig()
			if err != nil {
				return err
			}
			if replaceWebhook && cfg.Transport.Mode != gate.ModeWebhook {
				return usagef("approvald up", "--replace-webhook is for transport.mode = \"webhook\", and %s says \"poll\"", cfg.File)
			}
			return app.Run(ctx, app.Options{
				Gate:           e.gate,
				Config:         cfg,
				Version:        buildVersion(e.version),
				Standby:        standby,
				AllowRemoteFS:  allowRemoteFS,
				ReplaceWebhook: replaceWebhook,
				Stderr:         os.Stderr,
				Notify:         sdnotify.FromEnvironment(),
				Sockets:        sdnotify.SocketsFromEnvironment(),
				Signals:        stopsDaemon,
			})
		},
	}
	cmd.Flags().BoolVar(&standby, "standby", false, "wait for the lease and take over the moment it is free")
	cmd.Flags().BoolVar(&allowRemoteFS, "allow-remote-fs", false, "start on a network file system, where the lock may reach this machine only")
	cmd.Flags().BoolVar(&replaceWebhook, "replace-webhook", false, "in webhook mode, take the bot over from a webhook that is not this gate's")
	return cmd
}

// stopsDaemon are the signals that stop a daemon in order.
var stopsDaemon = []os.Signal{syscall.SIGINT, syscall.SIGTERM}

// untilStopped is ctx that ends with the first signal to stop. The daemon listens
// for them itself once it runs; one that comes before is as much of an order.
func untilStopped(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	got := make(chan os.Signal, 1)
	signal.Notify(got, stopsDaemon...)
	go func() {
		select {
		case <-got:
			signal.Stop(got) // a second one ends the daemon at once
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(got)
		cancel()
	}
}

// hideMemory keeps a crash from writing the bot's token to a core file.
func hideMemory() error {
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core files: %w", err)
	}
	return nil
}

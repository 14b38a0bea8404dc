package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/approvald/approvald/internal/durable"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/lease"
	"github.com/approvald/approvald/internal/pairing"
	"github.com/approvald/approvald/internal/transport"
	"github.com/approvald/approvald/internal/visible"
)

// pairProgram is how a pairing without a daemon names itself in the lease.
const pairProgram = "approvald pair"

func newPairCommand(e *env) *cobra.Command {
	var yes bool
	var limit time.Duration
	cmd := &cobra.Command{
		Use:   "pair [NAME]",
		Short: "Add one more approver, who presents a code to the bot",
		Long: `Show a code, as a link and to scan, and wait until somebody presents it to the
gate's bot: /start CODE in private, or /pair CODE by an administrator of a group. You
see who it was and are asked; then they are added to the configuration as an approver,
and the daemon reads it again. A code is good once and for ten minutes; five wrong ones
end it.

With a running daemon that one listens. Without, this command does, and leaves everything
that waits in Telegram for the daemon. With --yes nobody is asked: whoever presents the
code, which stands on stderr, is NAME.`,
		Example: `  approvald pair
  approvald pair bob --yes --timeout 5m`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("approvald pair [NAME]", "pair takes one name, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := withSignals(cmd.Context(), "")
			defer stop()
			name := ""
			if len(args) == 1 {
				if name = args[0]; !gate.IsApproverID(name) {
					return usagef("approvald pair bob", "%s is no approver's name: use 1 to 64 letters, digits, dots, - and _", visible.Quote(name))
				}
			}
			if (yes || !e.interactive()) && (!yes || name == "") {
				return usagef("approvald pair NAME --yes", "without a question to answer at a terminal, both NAME and --yes are needed")
			}
			return e.pair(ctx, name, yes, limit)
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "take whoever presents the code for NAME, without asking")
	cmd.Flags().DurationVar(&limit, "timeout", defaultPairTimeout, "how long to wait for that; ten minutes at most for one code")
	return cmd
}

func (e *env) pair(ctx context.Context, name string, yes bool, limit time.Duration) error {
	cfg, err := e.loadConfig()
	if err != nil {
		return err
	}
	if err := errors.Join(gate.CheckWritable(cfg), alreadyThere(cfg, 0, name)); err != nil {
		return err
	}
	ear, err := e.findEar(ctx, cfg)
	if err != nil {
		return err
	}
	defer ear.close()
	claim, err := e.awaitClaim(ctx, ear.bot, limit, false, ear.hear)
	if err != nil {
		return err
	}
	e.describeClaim(claim)
	if err := alreadyThere(cfg, claim.UserID, ""); err != nil {
		return err
	}
	person := gate.Approver{ID: name, TelegramUserID: claim.UserID}
	if !yes {
		if person, err = e.accept(ctx, claim, name); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	next, err := gate.AddApprover(durable.FS{}, cfg, person)
	if err != nil {
		return err
	}
	ear.close() // a daemon may start
	e.ui.say("%s was added to %s", person.Actor(), cfg.File)
	if chat := cfg.Telegram.ChatID; chat > 0 && chat != claim.UserID {
		e.ui.say("the cards go to the private chat %d, where %s sees none: set telegram.chat_id to a group for more than one approver", chat, person.Actor())
	}
	inForce, err := e.haveReloaded(ctx, next)
	if err != nil {
		return err
	}
	if e.json {
		return e.ui.emit(struct {
			Approver string `json:"approver"`
			UserID   int64  `json:"telegram_user_id"`
			ChatID   int64  `json:"chat_id"` // where the code was presented
			Config   string `json:"config"`
			InForce  bool   `json:"in_force"` // a running daemon goes by it
		}{person.Actor(), person.TelegramUserID, claim.ChatID, cfg.File, inForce})
	}
	e.ui.line("%s", person.Actor())
	return nil
}

// ear is what hears a presented code.
type ear struct {
	bot   transport.User // without a user name when it is not known here
	hear  hearing
	close func()
}

// findEar has the daemon listen where one runs. Else it takes the gate's lease and the bot, so that none starts meanwhile, and listens itself.
func (e *env) findEar(ctx context.Context, cfg gate.Config) (*ear, error) {
	report, err := lease.Inspect(cfg.Home)
	if err != nil {
		return nil, err
	}
	if report.Held {
		return e.daemonsEar(ctx, cfg, report)
	}
	if err := e.noDaemonElsewhere(ctx, cfg); err != nil {
		return nil, err
	}
	if err := homeIsOurs(cfg); err != nil {
		return nil, err
	}
	token, err := cfg.Token()
	if err != nil {
		return nil, err
	}
	client, bot, err := knock(ctx, token, cfg.Telegram.APIBase)
	if err != nil {
		return nil, pairingError(err, 0)
	}
	release := []func(){client.Close}
	closed := false
	own := &ear{bot: bot, close: func() {
		for i := len(release) - 1; i >= 0 && !closed; i-- {
			release[i]()
		}
		closed = true
	}}
	held, err := lease.Acquire(ctx, lease.Options{Home: cfg.Home, Mode: cfg.Transport.Mode, Program: pairProgram, Version: buildVersion(e.version)})
	if err != nil {
		own.close()
		return nil, err
	}
	release = append(release, func() { _ = held.Release() }) // the kernel lets go of it anyway
	botHeld, err := lease.AcquireBot(bot.ID, cfg.Telegram.APIBase, cfg.Home)
	if err != nil {
		own.close()
		return nil, err
	}
	release = append(release, func() { _ = botHeld.Release() })
	l, err := pairing.Listen(ctx, client, bot.Username, time.Now)
	if err != nil {
		own.close()
		return nil, pairingError(err, 0)
	}
	own.hear = func(ctx context.Context, o *pairing.Offer, opened func(), told func(string)) (pairing.Claim, error) {
		if err := held.Check(); err != nil {
			return pairing.Claim{}, err
		}
		return hears(l)(ctx, o, opened, told)
	}
	return own, nil
}

// noDaemonElsewhere refuses to listen beside a daemon of this gate whose home is not the one that is seen from here, as when the configuration names none
// and the environments differ: its lease would not be met.
func (e *env) noDaemonElsewhere(ctx context.Context, cfg gate.Config) error {
	_, running, err := e.askDaemon(ctx, cfg)
	if running {
		return &gate.Error{Code: gate.CodeConfig, Message: fmt.Sprintf("a daemon of this gate runs, and its home is not %s", cfg.Home),
			Hint: "write its home into " + cfg.File + " (home = \"/...\"), then pair"}
	}
	return err
}

// askDaemon is the status of the gate's daemon by its socket alone: the gate's files are not root's to open.
func (e *env) askDaemon(ctx context.Context, cfg gate.Config) (st gateapi.Status, running bool, err error) {
	clients, err := e.clients(cfg, nil)
	for _, c := range clients {
		if !running {
			var refused error
			st, refused = c.Status(ctx)
			running = refused == nil
		}
		c.Close()
	}
	return st, running, err
}

// homeIsOurs keeps root from leaving files of its own in the home of a daemon that runs as another user, which could then not start.
func homeIsOurs(cfg gate.Config) error {
	if os.Geteuid() != 0 {
		return nil // it can leave none where it may not write
	}
	dir := cfg.Home
	info, err := os.Stat(dir)
	for errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		info, err = os.Stat(dir)
	}
	if err != nil {
		return fmt.Errorf("look at the gate's home: %w", err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Uid != 0 {
		return &gate.Error{Code: gate.CodeConfig, Message: fmt.Sprintf("no daemon runs, and %s belongs to uid %d: root would leave files there that its daemon cannot use", dir, owner.Uid),
			Hint: "start the daemon first (systemctl start approvald@" + cfg.Gate + "), then pair"}
	}
	return nil
}

// daemonsEar has the running daemon listen.
func (e *env) daemonsEar(ctx context.Context, cfg gate.Config, report lease.Report) (*ear, error) {
	h := report.Holder
	switch {
	case h == nil || h.Foreign:
		return nil, &gate.Error{Code: codePairingEnded, Message: "the gate is held by a program that does not pair: " + report.Why, Hint: "stop it, then pair"}
	case h.Program == pairProgram:
		return nil, &gate.Error{Code: codePairingEnded, Message: fmt.Sprintf("another terminal pairs already (pid %d)", h.PID), Hint: "end that one first"}
	}
	bot := transport.User{}
	// Root may not have the daemon's credential; the code does without a link then.
	if token, err := cfg.Token(); err == nil {
		if client, u, err := knock(ctx, token, cfg.Telegram.APIBase); err == nil {
			bot = u
			client.Close()
		}
	}
	return &ear{bot: bot, close: func() {}, hear: func(ctx context.Context, o *pairing.Offer, opened func(), told func(string)) (pairing.Claim, error) {
		return pairing.Ask(ctx, cfg.Paths().Daemon, o, time.Now, opened, told)
	}}, nil
}

// reloadWithin is how long a daemon may take to read its configuration again.
const reloadWithin = 15 * time.Second

// haveReloaded has the running daemon read its configuration, and waits until it goes by it.
func (e *env) haveReloaded(ctx context.Context, next gate.Config) (inForce bool, err error) {
	// Who holds the gate now: the daemon that listened may have been replaced, and its number may be another process's.
	report, err := lease.Inspect(next.Home)
	if err != nil {
		return false, err
	}
	h := report.Holder
	if !report.Held || h == nil || h.PID == 0 {
		e.ui.say("no daemon runs; the next one goes by it")
		return false, nil
	}
	if err := unix.Kill(h.PID, unix.SIGHUP); err != nil {
		return false, &gate.Error{Code: codeDaemonDiffers, Err: err, Message: fmt.Sprintf("the running daemon (pid %d) could not be told: %v", h.PID, err),
			Hint: "have it read its configuration: systemctl reload approvald@" + e.gate}
	}
	limit, cancel := context.WithTimeout(ctx, reloadWithin)
	defer cancel()
	for {
		st, running, err := e.askDaemon(limit, next)
		switch {
		case err != nil:
			return false, err
		case running && st.Config != nil && st.Config.SHA256 == next.Hash:
			e.ui.say("the running daemon goes by it")
			return true, nil
		case running && st.Config != nil && st.Config.File != next.File:
			return false, &gate.Error{Code: codeDaemonDiffers, Message: "the running daemon goes by another file: " + st.Config.File, Hint: "pair with --config naming that one"}
		}
		look := time.NewTimer(50 * time.Millisecond)
		select {
		case <-limit.Done():
			look.Stop()
			if ctx.Err() != nil {
				return false, context.Cause(ctx)
			}
			return false, &gate.Error{Code: codeDaemonDiffers, Message: "the running daemon does not go by it yet", Hint: "approvald status says why"}
		case <-look.C:
		}
	}
}

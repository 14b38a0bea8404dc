package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/approvald/approvald/internal/app"
	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/dispatch"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/lease"
	"github.com/approvald/approvald/internal/visible"
)

func newStatusCommand(e *env) *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how the gate is doing, whether or not its daemon runs",
		Long: `Show how the gate is doing, whether or not its daemon runs: who holds it, when it
last heard from Telegram, what waits for a person, what nobody was shown, what is
wrong and which limits are in force.

With --watch the screen is kept up to date until Ctrl-C. With --json as well, one
JSON value is printed for each change, also into a pipe.`,
		Example: `  approvald status
  approvald status --watch
  approvald status --watch --json | jq .transport.healthy`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			e.looksOnly = true
			ops, done, err := e.ops(true)
			if err != nil {
				return err
			}
			defer done()
			if watch {
				return e.watchStatus(cmd.Context(), ops)
			}
			st, err := ops.Status(cmd.Context())
			if err != nil {
				return err
			}
			if e.json {
				return e.ui.emit(st)
			}
			waiting, err := ops.List(cmd.Context())
			if err != nil {
				return err
			}
			e.printStatus(st, waiting)
			return nil
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "keep the screen up to date until Ctrl-C; with --json print each change")
	return cmd
}

// maxWaiting is how many pending requests a status names; queue lists them all.
const maxWaiting = 10

func (e *env) printStatus(st gateapi.Status, waiting []approvallog.Request) {
	e.ui.line("gate        %s", st.Gate)
	if h := st.Holder; h != nil {
		e.ui.line("daemon      pid %d, %s, since %s, epoch %d", h.PID, h.Mode, stamp(h.Since), h.Epoch)
	} else {
		e.ui.line("daemon      none runs; start it with: approvald up --gate %s", e.gate)
	}
	health := "not healthy"
	if st.Transport.Healthy {
		health = "healthy"
	}
	last := "no exchange with Telegram yet"
	if t := st.Transport.LastSuccess; t != nil {
		last = fmt.Sprintf("last exchange %s ago", about(time.Since(*t)))
	}
	e.ui.line("transport   %s, %s, %s", st.Transport.Mode, e.ui.bold(health), last)
	if st.Transport.Error != "" {
		e.ui.line("            %s", st.Transport.Error)
	}
	if until := st.Transport.MutedUntil; until != nil {
		e.ui.line("            Telegram takes nothing for a chat until %s", stamp(*until))
	}
	e.printConfig(st.Config)
	if st.Damage != "" {
		e.ui.line("log         %s: %s", e.ui.bold("damaged"), told(st.Damage))
	}
	for _, t := range st.Troubles {
		since := ""
		if !t.Since.Equal(processStarted) { // else it is only when somebody looked
			since = ", since " + stamp(t.Since)
		}
		e.ui.line("trouble     %s: %s%s", e.ui.bold(t.Code), t.Text, since)
	}
	if l := st.Limits; l != nil {
		e.ui.line("limits      %s to decide, %s, %d pending", l.TTL, count(l.Quorum, "approver"), l.MaxPending)
		e.ui.line("            of one asker: %d pending, %d an hour", l.MaxPendingOfOne, l.PerRequesterPerHour)
	}
	e.ui.line("pending     %d", st.Pending)
	for _, r := range waiting[:min(len(waiting), maxWaiting)] {
		e.ui.line("  %s: asked %s ago, %s left", r.Key, about(time.Since(r.RequestedAt)), about(time.Until(r.ExpiresAt)))
	}
	if more := len(waiting) - maxWaiting; more > 0 {
		e.ui.line("  and %d more; see them with: approvald queue", more)
	}
	e.ui.line("unsettled   %d", st.Unsettled)
	e.ui.line("undelivered %d", st.UndeliveredTotal)
	for _, u := range st.Undelivered {
		e.ui.line("  %s: %s, since %s", u.Key, u.Text(), stamp(u.Since))
	}
	if more := st.UndeliveredTotal - len(st.Undelivered); more > 0 {
		e.ui.line("  and %d more", more)
	}
}

// about writes a time that has passed, or is left, as people say it: to the second below an hour, else to the minute.
func about(d time.Duration) string {
	to := time.Second
	if d >= time.Hour {
		to = time.Minute
	}
	return visible.Duration(max(0, d).Round(to))
}

// printConfig tells of a configuration that is not wholly in force.
func (e *env) printConfig(c *gateapi.Config) {
	if c == nil {
		return
	}
	if c.Error != "" {
		e.ui.line("config      %s: the file is at fault, and what was read at %s stays in force", e.ui.bold("not reloaded"), stamp(c.LoadedAt))
		for line := range strings.Lines(c.Error) {
			e.ui.line("            %s", strings.TrimSpace(line))
		}
	}
	if len(c.NeedsRestart) > 0 {
		e.ui.line("config      %s for %s", e.ui.bold("needs a restart"), strings.Join(c.NeedsRestart, ", "))
	}
}

// processStarted is since when no daemon is known to serve a gate that never had one.
var processStarted = time.Now()

// offlineStatus is the status of a gate whose daemon does not answer, from its
// files alone. obstacle is what keeps us from the daemon, where that is known.
func offlineStatus(ctx context.Context, cfg gate.Config, g *gate.Gate, obstacle string) (gateapi.Status, error) {
	st := gateapi.Status{
		Gate: cfg.Gate, Transport: gateapi.Transport{Mode: cfg.Transport.Mode, Error: "no daemon runs"},
		Limits: gateapi.LimitsOf(cfg.Requests),
	}
	rep, err := lease.Inspect(cfg.Home)
	if err != nil {
		return st, err
	}
	if h := rep.Holder; h != nil && rep.Held {
		st.Holder = &gateapi.Holder{PID: h.PID, Mode: h.Mode, Since: h.Since, Epoch: h.Epoch}
		st.Transport.Error = "the daemon does not answer on its socket"
	}
	if damage := g.Damage(); damage != nil {
		st.Damage = damage.Error()
	}
	if obstacle != "" {
		st.Transport.Error += ": " + obstacle
	}
	st.Troubles = []gateapi.Trouble{{Code: gateapi.TroubleNoDaemon, Text: st.Transport.Error + ": nobody is asked or heard", Since: processStarted}}
	pending, err := g.List(ctx)
	if err != nil {
		return st, err
	}
	st.Pending = len(pending)
	if at := app.LastContact(cfg.Paths()); !at.IsZero() {
		st.Transport.LastSuccess = &at
		st.Troubles[0].Since = at // noted every ten seconds while a daemon hears Telegram
	}
	if err := readJournal(cfg, g, pending, &st); err != nil {
		return st, err
	}
	return st, g.Log().View(func() { addDue(g.Requests().Due(), &st) })
}

// maxDue bounds how many follow-ups a status lists.
const maxDue = 50

// addDue adds the follow-ups that a daemon would ask for.
func addDue(due []approvallog.Request, st *gateapi.Status) {
	st.UndeliveredTotal += len(due)
	for _, r := range due[:min(len(due), maxDue)] {
		st.Undelivered = append(st.Undelivered, gateapi.Undelivered{
			Key: r.FollowUpKey, Reason: "it follows " + visible.Quote(r.Key) + ", which was executed, and is asked for once a daemon runs", Since: r.Execution.EndedAt,
		})
	}
}

// readJournal adds what the delivery journal knows: the messages on phones that still have to be rewritten, and the
// pending requests that were shown to nobody.
func readJournal(cfg gate.Config, g *gate.Gate, pending []approvallog.Request, st *gateapi.Status) error {
	deliveries := dispatch.NewDeliveries()
	journal, err := cfg.Paths().OpenJournal(approvallog.Options{Fold: deliveries, ReadDamaged: true})
	if err != nil {
		return err
	}
	// Nothing was written through it.
	defer func() { _ = journal.Close() }()
	unshown := deliveries.Unshown(pending)
	st.Undelivered, st.UndeliveredTotal = app.Unshown(unshown, st.Transport.Error), len(unshown)
	return g.Log().View(func() {
		for d := range deliveries.Unsettled() {
			r, known := g.Requests().Get(d.Cycle.Key)
			if known && r.Seq == d.Cycle.Seq && r.State != approvallog.StatePending {
				st.Unsettled++
			}
		}
	})
}

package cli

import (
	"github.com/spf13/cobra"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/dispatch"
	"github.com/approvald/approvald/internal/gate"
)

// archiveReport is what `log archive --json` prints. Archived is null when there
// was nothing to archive.
type archiveReport struct {
	Archived *archivedSegment `json:"archived"`
	Carried  []string         `json:"carried"` // keys
}

type archivedSegment struct {
	approvallog.Seal
	Path string `json:"path"`
}

func newLogArchiveCommand(e *env) *cobra.Command {
	var opts gate.ArchiveOptions
	cmd := &cobra.Command{
		Use:   "archive",
		Short: "Seal the log and begin a new one that goes on from it",
		Long: `Seal the log and begin a new one that goes on from it. The records are kept
read-only under log/archive in the gate's home, and stay known: requests in them
are answered as before, log verify and log export go through them.

A daemon and waiting programs may run meanwhile. While a request is pending, or
a follow-up is still to be asked for, nothing is archived, unless --carry lets it
go on in the new log.`,
		Example: `  approvald log archive
  approvald log archive --carry`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := e.loadConfig()
			if err != nil {
				return err
			}
			g, err := gate.Open(cfg, gate.OpenOptions{Logf: e.ui.say})
			if err != nil {
				return err
			}
			// What was archived is on disk already.
			defer func() { _ = g.Close() }()
			progress := newProgress(e.ui.err)
			opts.Progress = progress.show
			opts.Deliveries = dispatch.NewDeliveries()
			done, err := g.Archive(cmd.Context(), opts)
			progress.clear()
			if err != nil {
				return err
			}
			return e.archived(done)
		},
	}
	cmd.Flags().BoolVar(&opts.Carry, "carry", false, "let pending requests, and those with a follow-up to be asked for, go on in the new log")
	return cmd
}

func (e *env) archived(done gate.Archived) error {
	out := archiveReport{Carried: []string{}}
	for _, r := range done.Carried {
		out.Carried = append(out.Carried, r.Key)
	}
	if done.Path != "" {
		out.Archived = &archivedSegment{done.Seal, done.Path}
	}
	if e.json {
		return e.ui.emit(out)
	}
	if out.Archived == nil {
		e.ui.line("nothing to archive")
		return nil
	}
	e.ui.line("%s  %s, %s", e.ui.bold("archived"), done.Path, count(int(done.Head.Seq), "record"))
	e.ui.line("head   %s", formatHead(done.Head))
	for _, key := range out.Carried {
		e.ui.line("carried over  %s", key)
	}
	return nil
}

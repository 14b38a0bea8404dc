package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/visible"
)

func newQueueCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "queue",
		Short: "List the requests that wait for a person",
		Args:  exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ops, done, err := e.ops(true)
			if err != nil {
				return err
			}
			defer done()
			reqs, err := ops.List(cmd.Context())
			if err != nil {
				return err
			}
			if e.json {
				if reqs == nil {
					reqs = []approvallog.Request{}
				}
				return e.ui.emit(reqs)
			}
			if len(reqs) == 0 {
				e.ui.say("nothing waits on gate %s", e.gate)
				return nil
			}
			return e.ui.table([]string{"KEY", "CLASS", "REQUESTER", "UNTIL", "SAYS"}, func(row func(cells ...string)) {
				for _, r := range reqs {
					row(r.Key, r.Class, r.Requester, stamp(r.ExpiresAt), fmt.Sprintf("%q", r.Summary))
				}
			})
		},
	}
}

// table prints rows under a header, every cell made visible.
func (u *ui) table(header []string, fill func(row func(cells ...string))) error {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(cells ...string) {
		for i, c := range cells {
			cells[i] = visible.Line(c)
		}
		// A strings.Builder takes every write.
		_, _ = fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	row(header...)
	fill(row)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("lay out table: %w", err)
	}
	u.write(b.String())
	return nil
}

package cli

import (
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/visible"
)

func newQueueCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "queue",
		Short: "List the requests that wait for a person",
		Example: `  approvald queue
  approvald queue --json | jq -r ".[].key"`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			e.looksOnly = true
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
			e.ui.table([]string{"KEY", "CLASS", "REQUESTER", "UNTIL", "SAYS"}, func(row func(cells ...string)) {
				for _, r := range reqs {
					row(r.Key, r.Class, r.Requester, stamp(r.ExpiresAt), `"`+r.Summary+`"`)
				}
			})
			return nil
		},
	}
}

// widestCell is up to where a cell widens its column. A longer one moves the rest of its own row alone.
const widestCell = 32

// table prints rows under a header, every cell made visible and whole.
func (u *ui) table(header []string, fill func(row func(cells ...string))) {
	var rows [][]string
	widths := make([]int, len(header))
	row := func(cells ...string) {
		for i, c := range cells {
			cells[i] = visible.Line(c)
			if n := utf8.RuneCountInString(cells[i]); n <= widestCell {
				widths[i] = max(widths[i], n)
			}
		}
		rows = append(rows, cells)
	}
	row(header...)
	fill(row)
	for _, cells := range rows {
		var b strings.Builder
		for i, c := range cells {
			b.WriteString(c)
			if i < len(cells)-1 {
				b.WriteString(strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(c))+2))
			}
		}
		u.write(b.String() + "\n")
	}
}

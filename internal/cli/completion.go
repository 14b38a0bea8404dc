package cli

import (
	"bytes"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/approvald/approvald/internal/visible"
)

func newCompletionCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use:       "completion bash|zsh|fish",
		Short:     "Print a completion script for a shell",
		ValidArgs: []string{"bash", "zsh", "fish"},
		Args:      exactArgs(1),
		Example:   "  source <(approvald completion bash)",
		RunE: func(cmd *cobra.Command, args []string) error {
			var b bytes.Buffer
			var err error
			switch root := cmd.Root(); args[0] {
			case "bash":
				err = root.GenBashCompletionV2(&b, true)
			case "zsh":
				err = root.GenZshCompletion(&b)
			case "fish":
				err = root.GenFishCompletion(&b, true)
			default:
				return usagef("approvald completion bash", "no completion for shell %s", visible.Quote(args[0]))
			}
			if err != nil {
				return fmt.Errorf("make completion script: %w", err)
			}
			if e.json {
				return e.ui.emit(struct {
					Shell  string `json:"shell"`
					Script string `json:"script"`
				}{args[0], b.String()})
			}
			e.ui.raw(b.Bytes())
			return nil
		},
	}
}

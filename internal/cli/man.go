package cli

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/approvald/approvald/internal/manpage"
)

// manAbout is the part of approvald(1) that no verb's help has.
//
//go:embed man.md
var manAbout string

// newManCommand writes the manual pages, for who installs or packages approvald.
func newManCommand(e *env) *cobra.Command {
	var dir, configuration, date string
	cmd := &cobra.Command{
		Use:     "man --dir DIR",
		Short:   "Write the manual pages",
		Hidden:  true,
		Example: `  approvald man --dir /usr/local/share/man`,
		Args:    exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return usagef("approvald man --dir DIR", "--dir is missing")
			}
			edition := manpage.Edition{Version: buildVersion(e.version), Date: date}
			pages := manpage.Commands(cmd.Root(), edition, manAbout)
			if configuration != "" {
				text, err := os.ReadFile(configuration)
				if err != nil {
					return fmt.Errorf("read the guide to the configuration: %w", err)
				}
				pages = append(pages, manpage.Guide("approvald.toml", 5, "configuration of a gate of approvald", edition, string(text)))
			}
			for _, p := range pages {
				path := filepath.Join(dir, "man"+filepath.Ext(p.File)[1:], p.File)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					return fmt.Errorf("write manual page: %w", err)
				}
				if err := os.WriteFile(path, []byte(p.Text), 0o644); err != nil {
					return fmt.Errorf("write manual page: %w", err)
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "`DIR` for man1 and man5")
	cmd.Flags().StringVar(&date, "date", "", "`DATE` of the pages, YYYY-MM-DD")
	cmd.Flags().StringVar(&configuration, "configuration", "", "`FILE` of the guide that becomes approvald.toml(5)")
	return cmd
}

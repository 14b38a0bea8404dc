package cli

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersionCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: `  approvald version`,
		Args:    exactArgs(0),
		RunE: func(*cobra.Command, []string) error {
			v := buildVersion(e.version)
			if e.json {
				return e.ui.emit(struct {
					Version  string `json:"version"`
					Go       string `json:"go"`
					Platform string `json:"platform"`
				}{v, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH})
			}
			e.ui.line("approvald %s (%s, %s/%s)", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
}

// buildVersion is what the linker was told, else what the Go toolchain recorded
// about the module and its commit.
func buildVersion(linked string) string {
	if linked != "" {
		return linked
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	version := "devel"
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			version += "+" + s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			version += ".dirty"
		}
	}
	return version
}

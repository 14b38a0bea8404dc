// Command approvald puts a person in front of an agent's risky action.
package main

import (
	"os"

	"github.com/approvald/approvald/internal/cli"
)

// version is set by the linker; without it the version comes from the build
// information.
var version string

func main() { os.Exit(cli.Main(version)) }

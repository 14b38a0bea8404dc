package gate

import (
	"os"
	"path/filepath"
)

// RehearsalVariable is the environment variable that holds the directory of a rehearsal's throw-away gate. Under it every gate, whatever
// its name and whatever --config says, is that one: a program that is rehearsed cannot reach a gate with people behind it.
const RehearsalVariable = "APPROVALD_REHEARSAL"

// Rehearsal is the directory of the rehearsal that this process is part of; empty outside of one.
func Rehearsal() string {
	if dir := os.Getenv(RehearsalVariable); filepath.IsAbs(dir) {
		return dir
	}
	return ""
}

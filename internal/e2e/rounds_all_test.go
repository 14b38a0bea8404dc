//go:build all

package e2e

// killRounds is how often the daemon is killed in the long run.
const killRounds = 40

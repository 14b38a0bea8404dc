//go:build !all

package e2e

// killRounds is how often the daemon is killed in an ordinary run; each kill may leave an append lock that the next writer has to
// wait two seconds for.
const killRounds = 6

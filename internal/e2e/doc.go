// Package e2e holds the end-to-end tests: the real program as daemon and as commands, each a process of its own, against the Bot
// API server of internal/telegramtest. It has tests only.
//
// The test binary is the program: started with the variable APPROVALD_E2E it runs approvald's main in place of the tests, so
// that nothing has to be built beforehand and the race detector looks at the daemon too.
package e2e

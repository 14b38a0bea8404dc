// Package cli is approvald's command line: one file a verb, exit codes in
// exit.go, and everything that is printed in print.go.
//
// Guarantees: exit codes and JSON members are stable; with --json exactly one
// JSON value goes to stdout; nothing that came from outside reaches a terminal
// with its control or direction-changing characters; no flag takes a secret.
//
// Not guaranteed: the wording of human output.
package cli

// Package archtest holds rules of the repository itself that the compiler does not: which package may import which, that
// every package says what it guarantees, that no file grows past the length a reader can hold. It has tests only.
//
// It guarantees nothing about what the code does.
package archtest

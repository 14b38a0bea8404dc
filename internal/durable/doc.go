// Package durable makes changes to the file system that survive a crash.
//
// It guarantees that a call that returned nil has its effect on the disk: the bytes, the name and
// the directories that lead to it. A replaced file is either the whole old one or the whole new
// one, and a file made exclusively is either absent or complete, at every moment and after a crash
// at any of them.
//
// It does not guarantee anything on a file system whose fsync lies, and it takes no locks: two
// writers of one path are the callers' business.
//
// Every step has an operation name, so that a test can make exactly one of them fail through
// [FS.Hook].
package durable

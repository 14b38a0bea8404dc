// Package lease lets one transport at a time serve a gate, and one gate a bot.
//
// A kernel lock decides and a record explains. The lock is flock(2) on
// HOME/daemon/telegram-transport.flock, a file without content that is never
// unlinked, held on one close-on-exec descriptor for as long as the lease is:
// it has no time-out, asks for no pid and is free at once when its holder dies,
// however it dies. It settles the matter between approvald processes, also of
// different containers on one machine. Under it the package speaks the
// lockfile protocol of other implementations of a gate, which look only at the
// record HOME/daemon/telegram-transport.lock, so that they and approvald keep
// each other out too.
//
// What it guarantees: a holder whose [Lease.Check] returns nil holds the
// kernel lock on the file that the path names and its own record lies beside
// it. A holder that is stopped or suspended loses nothing. A record whose
// process may still live is never taken from it; in doubt it lives. No
// decision depends on the wall clock, with one exception: a record without an
// identity, as other implementations write it, has nothing but its time stamp
// to tell a holder from a later process under its number, and is believed only
// when the machine's clocks agree with each other.
//
// What it does not: reach other hosts (see [Options.AllowRemoteFS]), or call
// back a network request that was under way when the lease was lost. What the
// holder writes is fenced where it is written, by the epoch.
//
// The record is never evidence. Nothing is allowed because of it; all it can
// do is refuse a start.
package lease

// Package approvallog is the log that holds the truth of a gate: JSON lines in canonical form
// (RFC 8785), chained by SHA-256, appended by several processes under one shared lock.
//
// What it guarantees:
//   - A record that Update returned is on the disk, and so is all that stands before it.
//   - The chain never forks: the head is read, the records are made and written in one critical
//     section, also between processes and with other implementations of the format.
//   - A decider sees the exact head and the fold of exactly the records up to it.
//   - The first write or fsync that fails for any reason but a full disk is the handle's last. A
//     full disk refuses the append, leaves the file ending where a record ends, and heals.
//   - Bytes that a crash left behind the last record are moved to a quarantine file by the next
//     append, never cut silently. Damage anywhere else ends every append. Reading changes nothing.
//   - A file that was renamed, replaced, shortened or removed under a handle is an error, never
//     the start of a new chain.
//
// What it does not: a chain cannot show that whole records were cut off its end, nor that someone
// who can write the file computed all of it anew; both take a head noted elsewhere. The file
// system must be local: the lock, O_APPEND and the watch do not work across hosts.
//
// The same engine serves the delivery journal, which has the same frame and other event names.
package approvallog

// Package gateapi is the agents' side of a gate: the operations that a
// program which asks for approval may use, and two ways to reach them, the
// daemon's unix socket and the gate's own files.
//
// Guarantees:
//   - Both ways implement [Ops] and give the same result and the same
//     [gate.Error] codes, so that a caller needs one code path.
//   - The socket has no operation that decides. Approvals and rejections come
//     from a phone or from a person at a terminal, never through here.
//   - A request made over the socket carries the uid and pid that the kernel
//     vouches for (SO_PEERCRED); what a client claims about them is ignored.
//   - A client sends nothing to a socket whose listener is not the user that
//     the socket's directory belongs to (or root).
//   - Every call is bounded in time and size, except [Ops.Wait], which is a
//     series of bounded polls and so survives a restart of the daemon.
//
// Not guaranteed: that the name of a requester is true. Whoever may connect may
// claim any agent's name; the uid beside it is what can be relied on.
//
// The protocol is HTTP/1.1 with JSON bodies. Keys travel in queries and bodies,
// never as a path, because any text is a key.
package gateapi

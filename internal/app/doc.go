// Package app is the daemon as a whole: one gate's lease, log, journal, socket, dispatch and transport, started in order and
// let go of in the reverse order.
//
// It guarantees:
//   - nothing is touched before the gate's lease is held, and the lease is the last thing to be given up;
//   - no message is sent before the log was verified, the epoch opened and the bot found to be driven by no other gate;
//   - no update is fetched before what an earlier daemon left was taken up;
//   - the service manager hears READY only when all of that is true and Telegram has answered;
//   - a stop is bounded whatever hangs, decides nothing, and a second signal or a kill at any moment of it is safe;
//   - a part that ends or panics ends the daemon with an error; none is missing while the rest goes on.
//
// It does not guarantee that Telegram can be reached: while it cannot, the daemon is up, not ready, and keeps trying. It holds
// no rule of the gate itself: those are in the packages that it puts together. Two instances can run in one process,
// as long as they serve different gates.
package app

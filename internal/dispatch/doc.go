// Package dispatch brings requests before people and turns their taps into decisions.
//
// Its heart, [Core], is a state machine without clock and I/O; [Judge] is a pure function; [Card] renders without
// looking anywhere. [Loop] runs what the core asks for.
//
// It guarantees:
//   - A decision is recorded only for a tap that an allowed person made, by numeric id, on a button that this gate
//     made, in the chat it was sent to, before the deadline, for the payload that was shown. Tap and decision are one
//     record. A rejection, or a grant taken back, may also come as such a person's reply to the card; a grant never
//     does. Silence, a stop or a failure decides nothing.
//   - What a handled update decided is on disk when [Loop.HandleUpdate] returns.
//   - A send is recorded before it is made and its outcome after. A message whose id is known is not sent again, also
//     after a restart. One whose answer was lost is sent once more under a new nonce; both copies count, and both are
//     settled once their ids are known.
//   - A finished request's messages stay owed until they show the end and have no buttons, or are gone.
//   - One request that cannot be delivered holds up no other, and no asker's flood another asker's request.
//   - A message that stands for many requests decides none of them.
//   - There is no Approve button below a payload that cannot be read to its last byte.
//
// It does not guarantee that a message appears once only where Telegram's answer was lost: the Bot API has no way to
// ask. It does not keep two daemons apart; the lease does, and [Fence] refuses what a former holder would still write.
package dispatch

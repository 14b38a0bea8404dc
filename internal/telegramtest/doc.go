// Package telegramtest is a Bot API server on loopback with phones to tap, for
// testing programs that are Telegram bots. It needs no network, no token and
// nothing but the standard library.
//
// A test starts a Server, points its bot at Server.URL instead of
// https://api.telegram.org, and then plays the people:
//
//	s := telegramtest.RunT(t, telegramtest.Options{})
//	alice := s.Phone(111)
//	... start the bot with s.URL() and s.Token() ...
//	tap, err := alice.WaitTap(ctx, "Approve")
//	answer, err := tap.Wait(ctx) // the toast that Alice sees
//
// # What it guarantees
//
// The server keeps to what Telegram does where bots break:
//
//   - Updates: confirmation by offset at the moment a request is read, offsets
//     out of range, 150 s of life for a tap and a day for a message, remembered
//     allowed_updates, the 409 that the older of two long polls gets (and the
//     double delivery without one), the rule against tight loops.
//   - Webhooks: the secret header, order within a person's taps and parallelism
//     between people, the back-off and Retry-After, what is dropped when it
//     expires, and the setWebhook that fails and takes the old webhook with it.
//   - Messages: HTML, Markdown and MarkdownV2 with the parse errors and byte
//     offsets of the real server, entities in UTF-16 units, trimming, limits,
//     "message is not modified", keyboards that an edit drops when it does not
//     repeat them.
//   - Requests: arguments from query, form, JSON and multipart with the query
//     first, damaged JSON that is ignored, 413 and 429 in their true shapes, the
//     order in which checks are made, and the text of every error.
//
// Behaviour of the real server that is not documented or was never observed is
// an option (AnswerWindow, ConflictHold, Limits) and not a constant.
//
// # Time
//
// All lifetimes come from Options.Clock. With a ManualClock a test lets 150 s
// pass in microseconds. No method sleeps; WaitFor and its relatives return as
// soon as the state they wait for is there, and only a context ends them early.
//
// # Faults
//
// Server.Fault breaks chosen calls before they have an effect, or after it, when
// the bot cannot know whether its message was sent. Offline takes the whole
// network away. Mute answers 429 until its time is over. InjectUpdate, InjectRaw,
// Redeliver, ReplayAlways and SetNextUpdateID put the queue of updates into the
// states that long-running bots meet.
//
// # What it does not do
//
// It is one bot on one server, and only the methods that a bot needs which sends
// texts, documents and inline keyboards. It fetches nothing from the network,
// keeps nothing on disk, and answers no method that it does not implement:
// those are 404, as unknown methods are on Telegram.
package telegramtest

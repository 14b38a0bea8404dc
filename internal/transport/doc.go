// Package transport speaks to Telegram's Bot API: it fetches updates by long
// polling or by webhook, sends and edits messages, and paces what it sends.
//
// What it guarantees:
//   - An update is acknowledged to Telegram (the poll offset moves, the webhook
//     answers 200) only after the [Handler] returned nil for it.
//   - Every call is bounded in time and ends with its context.
//   - The bot token and the webhook secret are in no error and in no log line
//     that goes through [RedactCore]; see [Secret] and [Redactor].
//   - A send whose outcome is not known ([ClassUnknownOutcome]) is told apart
//     from one that certainly was not executed.
//   - Pending updates are never dropped, neither by registering a webhook nor by
//     removing one.
//
// What it does not guarantee: exactly-once delivery. Telegram repeats updates and
// may lower update ids, so the Handler has to be idempotent. It also does not
// keep two processes from serving one bot; the gate's lease does.
//
// The package knows nothing of requests, approvers or logs.
package transport

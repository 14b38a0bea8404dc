package dispatch

import (
	"fmt"
	"time"
)

// Reminder is the message that replies to a card which nobody has answered.
func (c Card) Reminder(now time.Time) Message {
	m := &markup{}
	m.text("⏰ still waits for a decision · until " + deadline(c.Request, now)).line()
	m.code(field(c.Request.Class, maxRequester)).text(" · ").code(field(c.Request.Key, maxKey)).line()
	m.text(c.needs()).line()
	m.text("Only the buttons of the card that this replies to decide.")
	return Message{HTML: m.String()}
}

// ReminderSettled is what a reminder says once its request has come to its end.
func (c Card) ReminderSettled() Message {
	m := &markup{}
	m.text("⏰ no longer waits: ")
	outcome(m, c.Request)
	m.line().code(field(c.Request.Class, maxRequester)).text(" · ").code(field(c.Request.Key, maxKey))
	return Message{HTML: m.String()}
}

// absenceText tells the approvers which of their taps were lost. Telegram keeps a tap for a while, so the last ones
// before the contact came back have arrived.
func absenceText(from, until time.Time, waiting int) string {
	m := &markup{}
	lost := until.Add(-tapLife)
	m.text(fmt.Sprintf("⚠ taps from %s to %s were lost", second(from, lost), second(lost, from))).line()
	m.text("The gate had no contact with Telegram, which keeps a tap for 150 seconds only. What was decided before stands.").line()
	switch waiting {
	case 1:
		m.text("1 request waits. If you tapped it in that time, tap again: /pending lists it.")
	default:
		m.text(fmt.Sprintf("%d requests wait. If you tapped one in that time, tap again: /pending lists them.", waiting))
	}
	return m.String()
}

// second is a time in UTC to the second, with its date when that is not the day of the other.
func second(at, other time.Time) string {
	at, other = at.UTC(), other.UTC()
	if at.Format(time.DateOnly) == other.Format(time.DateOnly) {
		return at.Format("15:04:05") + " UTC"
	}
	return at.Format("2 Jan 15:04:05") + " UTC"
}

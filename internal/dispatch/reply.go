package dispatch

import (
	"context"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/approvald/approvald/internal/transport"
)

// maxReason is how many characters a reason given in a reply may have.
const maxReason = 500

// saying is what an approver says by answering a card: a rejection with its reason, or, by the word revoke, that a grant
// is taken back.
type saying struct {
	verdict Verdict
	reason  string
}

// readReply reads an answer to a card. refusal says why it can mean nothing, empty when it means something. An answer
// that sounds like a yes is no rejection, and no approval either: approving takes the button, so that nobody approves in
// passing.
func readReply(text string) (s saying, refusal string) {
	text = strings.Join(strings.Fields(text), " ")
	if n := utf8.RuneCountInString(text); n > maxReason {
		return s, fmt.Sprintf("Nothing was decided: the reason has %d characters, and at most %d go into the record.", n, maxReason)
	}
	if sounds := strings.ToLower(strings.TrimFunc(text, func(r rune) bool { return !unicode.IsLetter(r) })); assents[sounds] {
		return s, "Nothing was decided: a reply cannot approve, only the button does. Any other reply rejects, with your words as the reason."
	}
	word, rest, _ := strings.Cut(text, " ")
	if strings.EqualFold(strings.TrimRight(word, ":,."), "revoke") {
		return saying{Revoke, rest}, ""
	}
	return saying{Reject, text}, ""
}

// assents are answers that mean yes, or nothing at all, such as a thumb.
var assents = map[string]bool{
	"": true, "ok": true, "okay": true, "yes": true, "y": true, "yep": true, "sure": true, "fine": true, "lgtm": true, "approve": true,
	"approved": true, "go": true, "go ahead": true, "do it": true, "looks good": true, "thanks": true, "thank you": true,
}

// handleReply deals with an approver's answer to a card, and records what it decides before it returns. handled is false
// when the message answers no card.
func (l *Loop) handleReply(ctx context.Context, m transport.Message) (handled bool, err error) {
	find := func() (Delivery, bool) { return l.o.Deliveries.cardAt(m.ReplyTo.ChatID, m.ReplyTo.ID) }
	look := func() { _, handled = find() }
	if err = l.o.Journal.View(look); err == nil && !handled {
		if err = l.entitled(); err == nil { // see ruleOn
			err = l.o.Journal.View(look)
		}
	}
	if err != nil || !handled {
		return false, err
	}
	said, refusal := readReply(m.Text)
	if m.Forwarded {
		refusal = "Nothing was decided: a forwarded message is somebody else's words. Write your own in reply to the card."
	}
	if refusal != "" {
		l.reply(m, (&markup{}).text(refusal).String())
		return true, nil
	}
	tap := Tap{SenderID: m.From.ID, Bot: m.From.IsBot, ChatID: m.ReplyTo.ChatID, MessageID: m.ReplyTo.ID, Words: said.reason}
	r, err := l.ruleOn(ctx, tap, Button{Verdict: said.verdict}, find)
	if err != nil {
		return true, fmt.Errorf("a reply could not be recorded: %w", err)
	}
	l.o.Observe.Tapped(observed(r.Outcome), r.Outcome.refused())
	if r.Outcome != OutcomeRejected && r.Outcome != OutcomeRevoked {
		// What was recorded shows on the card; everything else has to be told.
		text := r.Text
		if r.Outcome == OutcomeConflict && r.Request.State.Approved() {
			text += " To take the grant back before it is used, reply with the word revoke."
		}
		l.reply(m, (&markup{}).text(text).String())
	}
	return true, nil
}

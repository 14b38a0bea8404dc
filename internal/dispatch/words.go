package dispatch

import (
	"fmt"
	"strings"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/visible"
)

// maxAnswer is how long the answer to a tap may be, in UTF-16 units (Telegram allows 200 characters).
const maxAnswer = 190

// words is what the person who tapped is told. An alert has to be closed; it is for what they did not expect.
func words(r Ruling) (text string, alert bool) {
	switch r.Outcome {
	case OutcomeGranted:
		return "Granted.", false
	case OutcomeRejected:
		return "Rejected.", false
	case OutcomeNoted:
		return "Your approval is noted, " + progress(r.Have, r.Need, r.By) + ".", false
	case OutcomeReasons:
		return "Choose a reason, or reply to the card with your own.", false
	case OutcomeOpened:
		return "Its card comes next, if it still waits.", false
	case OutcomeBack:
		return "", false
	case OutcomeRevoked:
		return "The grant is taken back.", false
	case OutcomeUsed:
		return "The grant has been used. What ran cannot be taken back here.", true
	case OutcomeNotGranted:
		return "There is no grant to take back: the request is " + visible.Line(string(r.Request.State)) + ".", true
	case OutcomeDuplicate:
		return duplicateWords(r), false
	case OutcomeConflict:
		return decidedWords(r.Request), true
	case OutcomeExpired:
		return "This request expired at " + clock(r.Request.ExpiresAt) + "; nobody decided. Nothing was changed.", true
	case OutcomeWithdrawn:
		return "The asker has withdrawn this request. Nothing was changed.", true
	case OutcomeSuperseded:
		return "This button belongs to an earlier asking of the request, which has ended. Use the newest message.", true
	case OutcomeUnknownButton, OutcomeUnknownNonce:
		return "This button is not known to the gate, or no longer. Nothing was changed; use the newest card of the request.", true
	case OutcomeUnknownReason:
		return "This reason is no longer configured. Nothing was changed; choose again.", true
	case OutcomeWrongChat, OutcomeWrongMessage:
		return "This button belongs to another message. Nothing was changed; use the original.", true
	case OutcomeNotAPerson, OutcomeStranger:
		return "Not yours to decide: you are not an approver of this gate.", true
	case OutcomeNotForClass:
		return "Not yours to decide: you are not an approver for this class of request.", true
	case OutcomeOwnRequest:
		return "Not yours to decide: this request is your own, or was made for you, so somebody else has to.", true
	case OutcomePayload:
		return "What this message shows is not what the request holds now. Nothing was changed.", true
	default:
		return "Nothing was changed.", true
	}
}

func duplicateWords(r Ruling) string {
	switch {
	case r.Request.State == approvallog.StatePending:
		return "Your approval is noted, " + progress(r.Have, r.Need, r.By) + "."
	case r.Button.Verdict == Reject:
		return "Rejected."
	default:
		return "Granted."
	}
}

// decidedWords tells who decided, and whether here or elsewhere.
func decidedWords(req approvallog.Request) string {
	var end string
	switch req.State {
	case approvallog.StateRevoked:
		end = "granted and then revoked"
		if req.Ending != nil {
			return fmt.Sprintf("Already decided: %s by %s at %s.", end, person(req.Ending.By), clock(req.Ending.At))
		}
	case approvallog.StateRejected:
		end = "rejected"
	default:
		end = "granted"
	}
	if req.Decision == nil {
		return "Already decided: " + end + "."
	}
	begin, where := "Already decided", ""
	if req.Decision.Channel != ChannelTelegram {
		begin, where = "Decided elsewhere", " ("+visible.Line(orElse(req.Decision.Channel, "another program"))+")"
	}
	return fmt.Sprintf("%s: %s by %s at %s%s.", begin, end, person(req.Decision.By), clock(req.Decision.At), where)
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// progress is "1 of 2: alice".
func progress(have, need int, by []string) string {
	s := fmt.Sprintf("%d of %d", have, need)
	if len(by) > 0 {
		s += ": " + strings.Join(by, ", ")
	}
	return s
}

// person is the name in an actor.
func person(actor string) string {
	return visible.Line(strings.TrimPrefix(actor, "human:"))
}

// clock is a time of day in UTC.
func clock(t time.Time) string { return t.UTC().Format("15:04") + " UTC" }

// clip keeps an answer within what Telegram takes. Answers are our own words; only names make them long.
func clip(s string, limit int) string {
	if units(s) <= limit {
		return s
	}
	n := 0
	for i, r := range s {
		if n += unitsOf(r); n > limit-1 {
			return s[:i] + "…"
		}
	}
	return s
}

package dispatch

import "slices"

// Observer is told what comes of messages and taps, to be counted. It is called from several goroutines and must be quick. What it is
// told is one of [MessageKinds] and [ResultKinds], and one of [Outcomes]; none of it comes from a request.
type Observer interface {
	Delivered(kind, result string)
	Tapped(outcome string, refused bool)
}

type nobody struct{}

func (nobody) Delivered(string, string) {}
func (nobody) Tapped(string, bool)      {}

// MessageKinds are what a call to Telegram can be about.
func MessageKinds() []string {
	return []string{"card", "document", "progress", "settle", "reminder", "absence", "digest", "other"}
}

func messageKind(a Action) string {
	switch a.(type) {
	case SendCard:
		return "card"
	case SendDocument:
		return "document"
	case EditProgress:
		return "progress"
	case EditSettled, StripButtons, EditReminder:
		return "settle"
	case SendReminder, RemindDigest:
		return "reminder"
	case SendAbsence:
		return "absence"
	case SendDigest, EditDigest:
		return "digest"
	default:
		return "other"
	}
}

// ResultKinds are what can come of a call.
func ResultKinds() []string {
	return []string{
		string(ResultDone), string(ResultLimited), string(ResultTransient), string(ResultUnknown), string(ResultRefused), string(ResultUnparsed),
		string(ResultLocal), string(ResultClosed), string(ResultToken), string(ResultThread), string(ResultMigrated), string(ResultGone), string(ResultCancelled),
	}
}

var outcomes = []Outcome{
	OutcomeGranted, OutcomeRejected, OutcomeNoted, OutcomeRevoked, OutcomeReasons, OutcomeBack, OutcomeOpened, OutcomeUsed, OutcomeNotGranted,
	OutcomeDuplicate, OutcomeConflict, OutcomeExpired, OutcomeWithdrawn, OutcomeSuperseded, OutcomeUnknownButton, OutcomeUnknownNonce,
	OutcomeUnknownReason, OutcomeWrongChat, OutcomeWrongMessage, OutcomeNotAPerson, OutcomeStranger, OutcomeNotForClass, OutcomeOwnRequest, OutcomePayload,
}

// Outcomes are what can become of a tap; refused those of them that are an attempt by somebody or something that could not have
// decided.
func Outcomes() (all, refused []string) {
	for _, o := range outcomes {
		all = append(all, string(o))
		if o.refused() {
			refused = append(refused, string(o))
		}
	}
	return all, refused
}

// observed is outcome o if it is known, so that a word that is forgotten above cannot make a label without bound.
func observed(o Outcome) string {
	if slices.Contains(outcomes, o) {
		return string(o)
	}
	return "other"
}

package dispatch

import (
	"slices"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
)

// Approver is a person of the configuration. Only the numeric id identifies; names change hands.
type Approver struct {
	ID         string // the name in human:ID
	TelegramID int64
	UID        *uint32 // user id on this machine, nil when the configuration names none
}

// Rule is what the configuration says about one class.
type Rule struct {
	Quorum        int        // different approvers that must agree, at least 1
	Approvers     []Approver // who may decide
	RejectReasons []string   // presets of the second keyboard
	FourEyes      bool       // who asked, or for whom it was asked, may not decide
}

func (r Rule) approver(telegramID int64) (Approver, bool) {
	i := slices.IndexFunc(r.Approvers, func(a Approver) bool { return a.TelegramID == telegramID })
	if i < 0 || telegramID == 0 {
		return Approver{}, false
	}
	return r.Approvers[i], true
}

func (r Rule) named(id string) (Approver, bool) {
	i := slices.IndexFunc(r.Approvers, func(a Approver) bool { return a.ID == id })
	if i < 0 {
		return Approver{}, false
	}
	return r.Approvers[i], true
}

// need is the quorum that holds: the record's or the rule's, whichever is stricter.
func (r Rule) need(req approvallog.Request) int { return max(1, req.Quorum, r.Quorum) }

// Rules is the configuration as far as deciding goes. Its answers do not change: a
// configuration that is read again makes other Rules.
type Rules interface {
	// Rule is the rule that holds for a class.
	Rule(class string) Rule
	// Known reports whether the person may decide anything at all.
	Known(telegramID int64) bool
}

// Outcome is what became of a tap.
type Outcome string

// The outcomes of a tap. The first four are recorded; all after OutcomeOpened decide nothing and tell the person why.
const (
	OutcomeGranted  Outcome = "granted"
	OutcomeRejected Outcome = "rejected"
	OutcomeNoted    Outcome = "noted"   // an approval that needs others beside it
	OutcomeRevoked  Outcome = "revoked" // a grant taken back before it was used
	OutcomeReasons  Outcome = "reasons"
	OutcomeBack     Outcome = "back"

	OutcomeOpened Outcome = "opened" // the card of a request that a digest stood for is asked for

	OutcomeUsed          Outcome = "used"           // a grant that can no longer be taken back
	OutcomeNotGranted    Outcome = "not-granted"    // there is no grant to take back
	OutcomeDuplicate     Outcome = "duplicate"      // the same verdict by the same person again
	OutcomeConflict      Outcome = "conflict"       // somebody has decided already
	OutcomeExpired       Outcome = "expired"        // past the deadline
	OutcomeWithdrawn     Outcome = "withdrawn"      // the asker took it back
	OutcomeSuperseded    Outcome = "superseded"     // the button of an earlier asking
	OutcomeUnknownButton Outcome = "unknown-button" // data that no version of ours made
	OutcomeUnknownNonce  Outcome = "unknown-nonce"
	OutcomeUnknownReason Outcome = "unknown-reason" // a preset that the configuration no longer has
	OutcomeWrongChat     Outcome = "wrong-chat"
	OutcomeWrongMessage  Outcome = "wrong-message"
	OutcomeNotAPerson    Outcome = "not-a-person" // a bot, or an id that stands for many people
	OutcomeStranger      Outcome = "stranger"     // no approver of this gate
	OutcomeNotForClass   Outcome = "not-for-class"
	OutcomeOwnRequest    Outcome = "own-request" // four eyes
	OutcomePayload       Outcome = "payload-mismatch"
)

// refused reports whether the outcome is an attempt by somebody or something that could not have decided.
func (o Outcome) refused() bool {
	switch o {
	case OutcomeUnknownButton, OutcomeUnknownNonce, OutcomeWrongChat, OutcomeWrongMessage, OutcomeNotAPerson,
		OutcomeStranger, OutcomeNotForClass, OutcomeOwnRequest, OutcomePayload:
		return true
	default:
		return false
	}
}

// Tap is a press of a button, reduced to what identifies it. Callback id, update id, display name and receive time are
// not part of that.
type Tap struct {
	SenderID  int64
	Bot       bool
	ChatID    int64 // 0 when Telegram names no message (an inline tap)
	MessageID int64
	Data      string
	// Words is what the person wrote, when they answered the card instead of pressing a button of it.
	Words string
}

// Evidence is all that is known at the moment of the judgement.
type Evidence struct {
	Delivery   Delivery // found by the nonce
	Found      bool
	Request    approvallog.Request // under the delivery's key
	Notes      []Note              // of the delivery's asking
	Now        time.Time
	Epoch      int64
	ConfigHash string
}

// Ruling is the judgement of one tap.
type Ruling struct {
	Outcome  Outcome
	Approver string // who tapped, once known
	Button   Button
	Delivery Delivery
	Request  approvallog.Request
	// Record is what to append to the approval log, Note what to append to the journal; nil for nothing.
	Record *approvallog.Draft
	Note   *approvallog.Draft
	// Have and Need are the approvals so far, with this one, and those needed.
	Have, Need int
	By         []string // who has approved so far
	// Text is what the person is told; Alert that they have to close it.
	Text  string
	Alert bool
}

// Screen judges what needs no look at any file: whether this person may decide anything here, and whether the button
// is one of ours. A flood of strangers ends here. ok is false when the ruling is final.
func Screen(tap Tap, rules Rules) (b Button, r Ruling, ok bool) {
	switch {
	case tap.Bot || gate.Placeholder(tap.SenderID) != "":
		return b, refusal(OutcomeNotAPerson), false
	case !rules.Known(tap.SenderID):
		return b, refusal(OutcomeStranger), false
	}
	b, ok = ParseButton(tap.Data)
	if !ok {
		return b, refusal(OutcomeUnknownButton), false
	}
	return b, Ruling{}, true
}

// Judge decides what a tap that passed Screen means. A tap is a claim and no proof: every check must hold, and the
// first that does not decides the answer.
func Judge(tap Tap, b Button, ev Evidence, rules Rules) Ruling {
	r := judge(tap, b, ev, rules)
	r.Button = b
	if ev.Found {
		r.Delivery, r.Request = ev.Delivery, ev.Request
	}
	if r.Text == "" {
		r.Text, r.Alert = words(r)
	}
	return r
}

func judge(tap Tap, b Button, ev Evidence, rules Rules) Ruling {
	d, req := ev.Delivery, ev.Request
	switch {
	case !ev.Found:
		return refusal(OutcomeUnknownNonce)
	case tap.ChatID != 0 && tap.ChatID != d.ChatID:
		return refusal(OutcomeWrongChat)
	case tap.ChatID != 0 && d.MessageID != 0 && tap.MessageID != d.MessageID:
		return refusal(OutcomeWrongMessage)
	case (d.Kind == KindDigest) != (b.Verdict == Open):
		return refusal(OutcomeUnknownButton)
	case d.Kind == KindDigest:
		if _, ok := rules.Rule(d.Group.class).approver(tap.SenderID); !ok {
			return refusal(OutcomeNotForClass)
		}
		return Ruling{Outcome: OutcomeOpened}
	case req.Key != d.Cycle.Key || req.Seq != d.Cycle.Seq || !sameRecord(d.Record, req):
		return Ruling{Outcome: OutcomeSuperseded}
	}
	rule := rules.Rule(req.Class)
	who, ok := rule.approver(tap.SenderID)
	switch {
	case !ok:
		return refusal(OutcomeNotForClass)
	case d.PayloadHash != req.PayloadHash:
		return refusal(OutcomePayload)
	}
	reason, known := reasonOf(b, rule)
	if tap.Words != "" {
		reason = tap.Words
	}
	r := weigh(who, b.Verdict, reason, sharedBy(tap, b, ev), ev.Notes, rule)
	if r.Outcome == OutcomeRejected && !known {
		r.Outcome, r.Record = OutcomeUnknownReason, nil
	}
	return r
}

// weigh judges what an approver says about a request, by whatever means they say it.
func weigh(who Approver, v Verdict, reason string, s share, notes []Note, rule Rule) Ruling {
	req := s.request
	counted := countable(notes, req, rule)
	r := Ruling{Approver: who.ID, Request: req, Need: rule.need(req), Have: len(counted), By: approversOf(counted)}
	switch state := req.StateAt(s.now); {
	case v == Revoke:
		takeBack(&r, who, reason, s)
		return r
	case state == approvallog.StateExpired:
		r.Outcome = OutcomeExpired
		if req.State == approvallog.StatePending {
			r.Record = expiredDraft(req)
		}
		return r
	case state == approvallog.StateWithdrawn:
		r.Outcome = OutcomeWithdrawn
		return r
	case state != approvallog.StatePending:
		r.Outcome = OutcomeConflict
		if repeats(v, who, req) {
			r.Outcome = OutcomeDuplicate
		}
		return r
	case rule.excludes(who, req):
		return refusal(OutcomeOwnRequest)
	}
	switch v {
	case Because:
		r.Outcome = OutcomeReasons
	case Back:
		r.Outcome = OutcomeBack
	case Reject:
		r.Outcome = OutcomeRejected
		r.Record = s.decision(approvallog.EventRejected, who.ID, reason, nil)
	case Approve:
		approve(&r, who, reason, s, counted)
	}
	return r
}

// takeBack revokes a grant that was not used yet. Whoever may decide the class may do so, also who asked: it is the safe
// direction.
func takeBack(r *Ruling, who Approver, reason string, s share) {
	switch req := s.request; {
	case req.State == approvallog.StateGranted:
		r.Outcome, r.Record = OutcomeRevoked, s.revocation(who.ID, reason)
	case req.State.Approved():
		r.Outcome = OutcomeUsed
	default:
		r.Outcome = OutcomeNotGranted
	}
}

// approve counts one more approval: noted while others are missing, granted with the last.
func approve(r *Ruling, who Approver, reason string, s share, counted []Note) {
	if slices.Contains(r.By, who.ID) {
		if r.Have < r.Need {
			r.Outcome = OutcomeDuplicate
			return
		}
		// The configuration asks for fewer than when this was noted: what is there suffices.
	} else {
		counted = append(slices.Clone(counted), s.note(who.ID))
		r.Have, r.By = len(counted), approversOf(counted)
		if r.Have < r.Need {
			r.Outcome = OutcomeNoted
			r.Note = s.noteDraft(who.ID)
			return
		}
	}
	r.Outcome = OutcomeGranted
	r.Record = s.decision(approvallog.EventGranted, who.ID, reason, counted)
}

// countable are the approvals that still count, one an approver: of these bytes, by people who may still decide this
// class, from the Telegram account that the configuration still trusts for them.
func countable(notes []Note, req approvallog.Request, rule Rule) []Note {
	var list []Note
	for _, n := range notes {
		who, allowed := rule.named(n.Approver)
		switch {
		case !allowed, n.PayloadHash != req.PayloadHash, !sameRecord(n.Record, req), rule.excludes(who, req):
		case n.Channel == ChannelTelegram && n.SenderID != who.TelegramID:
		case slices.Contains(approversOf(list), n.Approver):
		default:
			list = append(list, n)
		}
	}
	return list
}

// sameRecord reports whether what the journal says was said of this asking, and not of one whose record the log has lost
// and whose number another one has taken. Older journals do not say.
func sameRecord(hash string, req approvallog.Request) bool {
	return hash == "" || hash == req.RecordHash
}

func approversOf(notes []Note) []string {
	names := make([]string, len(notes))
	for i, n := range notes {
		names[i] = n.Approver
	}
	return names
}

// repeats reports whether the person says again what they said when the request was decided.
func repeats(v Verdict, who Approver, req approvallog.Request) bool {
	actor := "human:" + who.ID
	switch v {
	case Approve:
		return req.State.Approved() && slices.ContainsFunc(req.Approvals, func(a approvallog.Approval) bool { return a.By == actor })
	case Reject:
		return req.State == approvallog.StateRejected && req.Decision != nil && req.Decision.By == actor
	default:
		return false
	}
}

// excludes reports whether four eyes keep this approver from deciding: the request is their own.
func (r Rule) excludes(who Approver, req approvallog.Request) bool {
	return r.FourEyes && gate.Approver{ID: who.ID, UID: who.UID}.Asks(req.Requester, req.OnBehalfOf, req.UID())
}

func reasonOf(b Button, rule Rule) (string, bool) {
	if b.Reason == "" {
		return "", true
	}
	i := slices.IndexFunc(rule.RejectReasons, func(s string) bool { return reasonTag(s) == b.Reason })
	if i < 0 {
		return "", false
	}
	return rule.RejectReasons[i], true
}

func refusal(o Outcome) Ruling {
	r := Ruling{Outcome: o}
	r.Text, r.Alert = words(r)
	return r
}

package dispatch

import (
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// Event is something that the core is told. The time at which it is told comes with it, in [Core.Step].
type Event interface{ isEvent() }

// The events.
type (
	// Loaded: what the journal holds at the start, which the core keeps and changes, and when updates could last be
	// received, zero when that is not known.
	Loaded struct {
		Deliveries  *Deliveries
		LastContact time.Time
	}
	// RequestChanged: the approval log says this about a request. Cycles is what the journal says of this asking, and of
	// earlier ones that may not show their end, where the core has let go of it. LogSeq is a record of the approval log that
	// is not newer than the change, 0 for one that the core was not told of yet.
	RequestChanged struct {
		Request approvallog.Request
		Cycles  []Cycle
		LogSeq  int64
	}
	// LogRead: all changes by the approval log's records up to this one have been told.
	LogRead struct{ Seq int64 }
	// Journaled: this record is in the journal, durably, whoever wrote it. Records are told once and in order.
	Journaled struct{ Record approvallog.Record }
	// Recovered: all that log and journal hold has been told. The core acts on nothing before.
	Recovered struct{}
	// Prepared answers Prepare: how many documents go before the card, or why the payload cannot be shown, and whether
	// that may pass by itself.
	Prepared struct {
		Cycle     CycleID
		Documents int
		Err       string
		Passing   bool
	}
	// CallDone answers a Call.
	CallDone struct {
		Call   int64
		Result Result
	}
	// Expired answers Expire: how the request stands now, or why nothing could be recorded.
	Expired struct {
		Cycle   CycleID
		Request approvallog.Request
		Err     string
	}
	// FollowUpsDue: these requests have completed, and what follows them is to be asked for. All others have nothing that is.
	FollowUpsDue struct{ Parents []approvallog.Request }
	// FollowUpOpened answers OpenFollowUp: the follow-up is in the log, or why it could not be asked for.
	FollowUpOpened struct {
		Key string // of the follow-up
		Err string
	}
	// TapRuled: a tap was judged and what the ruling asks to record is on disk. Where it tells that a message exists of which
	// the core has let go, Cycle is what the journal says of its asking, and Request how the request under that key stands now.
	TapRuled struct {
		CallbackID string
		Tap        Tap
		Ruling     Ruling
		Cycle      Cycle
		Request    approvallog.Request
	}
	// ChatClosed: the bot was blocked in this chat, or removed from it.
	ChatClosed struct {
		ChatID int64
		Reason string
	}
	// ChatMigrated: a group became a supergroup, which is another chat.
	ChatMigrated struct{ From, To int64 }
	// ChatOpened: the bot may speak in this chat again.
	ChatOpened struct{ ChatID int64 }
	// Contacted: updates could be received at this time. It says nothing about the time since the last of its kind.
	Contacted struct{ At time.Time }
	// CardGone: the message of this delivery was deleted.
	CardGone struct{ Delivery string }
	// ShowWanted: somebody asks for the card of this pending request.
	ShowWanted struct{ Key string }
	// Ticked: time has passed.
	Ticked struct{}
)

func (Loaded) isEvent()         {}
func (RequestChanged) isEvent() {}
func (LogRead) isEvent()        {}
func (Journaled) isEvent()      {}
func (Recovered) isEvent()      {}
func (Prepared) isEvent()       {}
func (CallDone) isEvent()       {}
func (Expired) isEvent()        {}
func (FollowUpsDue) isEvent()   {}
func (FollowUpOpened) isEvent() {}
func (TapRuled) isEvent()       {}
func (ChatClosed) isEvent()     {}
func (ChatMigrated) isEvent()   {}
func (ChatOpened) isEvent()     {}
func (Contacted) isEvent()      {}
func (CardGone) isEvent()       {}
func (ShowWanted) isEvent()     {}
func (Ticked) isEvent()         {}

// Effect is something that the core wants done. Whoever runs it tells the core what came of it.
type Effect interface{ isEffect() }

// The effects.
type (
	// AppendJournal: write these records and sync. Answered by Journaled for each.
	AppendJournal struct{ Drafts []approvallog.Draft }
	// Expire: append approval.expired if the request is still pending and its deadline has passed. Answered by Expired.
	Expire struct{ Request approvallog.Request }
	// OpenFollowUp: ask for what follows this request, unless that was done. Answered by FollowUpOpened.
	OpenFollowUp struct{ Parent approvallog.Request }
	// Prepare: find out whether the card can hold the payload. Answered by Prepared.
	Prepare struct{ Request approvallog.Request }
	// Call: ask Telegram for one thing. At most one is under way for each chat. Answered by CallDone.
	Call struct {
		ID     int64
		ChatID int64
		What   Action
		// Fair: this edit's turn has come although cards wait, so it is not to yield to them.
		Fair bool
	}
	// Cancel: a Call is no longer wanted. If it still waits for its turn, it ends with ResultCancelled.
	Cancel struct{ Call int64 }
	// Answer a tap. Best effort, never answered back.
	Answer struct {
		CallbackID string
		Text       string
		Alert      bool
	}
	// Menu shows the reasons for a rejection, or the card's own buttons again. Best effort, never answered back.
	Menu struct {
		ChatID    int64
		MessageID int64
		Delivery  string
		Request   approvallog.Request
		Nonce     Nonce
		Reasons   bool
	}
	// NoteContact: keep, beyond the end of this process, that updates could be received at this time. Never answered.
	NoteContact struct{ At time.Time }
	// Complain: a person should know this about a request.
	Complain struct {
		Key  string
		Text string
	}
)

func (AppendJournal) isEffect() {}
func (Expire) isEffect()        {}
func (OpenFollowUp) isEffect()  {}
func (Prepare) isEffect()       {}
func (Call) isEffect()          {}
func (Cancel) isEffect()        {}
func (Answer) isEffect()        {}
func (Menu) isEffect()          {}
func (NoteContact) isEffect()   {}
func (Complain) isEffect()      {}

// Action is what a Call asks for.
type Action interface{ isAction() }

// The actions.
type (
	// SendCard sends a card with its buttons.
	SendCard struct {
		Request  approvallog.Request
		ThreadID int64
		ReplyTo  int64 // the card whose place it takes, 0 for none
		Nonce    Nonce
		Approved []string
	}
	// SendDocument sends the document of this index that goes before a card.
	SendDocument struct {
		Request  approvallog.Request
		ThreadID int64
		Index    int
	}
	// EditProgress shows on a card who has approved so far.
	EditProgress struct {
		Request   approvallog.Request
		MessageID int64
		Nonce     Nonce
		Approved  []string
	}
	// EditSettled rewrites a card to its outcome and takes the buttons off. Plain is without any markup.
	EditSettled struct {
		Request   approvallog.Request
		MessageID int64
		Plain     bool
	}
	// EditRenewed says on a card that a fresh one has taken its place, and takes the buttons off.
	EditRenewed struct {
		Request   approvallog.Request
		MessageID int64
	}
	// SendReminder says again, in reply to the card, that a request waits.
	SendReminder struct {
		Request  approvallog.Request
		ThreadID int64
		ReplyTo  int64
		Approved []string
	}
	// EditReminder says in place of a reminder how its request ended.
	EditReminder struct {
		Request   approvallog.Request
		MessageID int64
	}
	// SendAbsence tells that taps of a time were lost, and how many requests wait.
	SendAbsence struct {
		ThreadID    int64
		From, Until time.Time
		Waiting     int
	}
	// SendDigest sends a digest with its buttons.
	SendDigest struct {
		Asker, Class string
		Count        int
		Listed       []approvallog.Request
		ThreadID     int64
		Nonce        Nonce
	}
	// EditDigest rewrites a digest; with a Count of 0 it stands for nothing any more and loses its buttons.
	EditDigest struct {
		MessageID    int64
		Replaced     bool // with a Count of 0: a newer message stands for the requests
		Asker, Class string
		Count        int
		Listed       []approvallog.Request
		Nonce        Nonce
	}
	// RemindDigest says again, in reply to a digest, that its requests wait.
	RemindDigest struct {
		Asker, Class string
		Count        int
		ThreadID     int64
		ReplyTo      int64
	}
	// StripButtons takes only the buttons off.
	StripButtons struct{ MessageID int64 }
)

func (SendCard) isAction()     {}
func (SendDocument) isAction() {}
func (EditProgress) isAction() {}
func (EditSettled) isAction()  {}
func (EditRenewed) isAction()  {}
func (SendReminder) isAction() {}
func (EditReminder) isAction() {}
func (SendAbsence) isAction()  {}
func (SendDigest) isAction()   {}
func (EditDigest) isAction()   {}
func (RemindDigest) isAction() {}
func (StripButtons) isAction() {}

// ResultKind is what came of a Call.
type ResultKind string

// The kinds of a result. Of all but ResultDone and ResultUnknown it is certain that nothing was done.
const (
	ResultDone      ResultKind = "done"
	ResultLimited   ResultKind = "limited"   // not before RetryAfter
	ResultTransient ResultKind = "transient" // try again soon
	ResultUnknown   ResultKind = "unknown"   // a message may have been sent
	ResultRefused   ResultKind = "refused"   // this message, for good
	ResultUnparsed  ResultKind = "unparsed"  // this message, because of its markup
	ResultLocal     ResultKind = "local"     // nothing was called: what the message is made of cannot be read for now
	ResultClosed    ResultKind = "closed"    // everything in this chat, until a person changes something
	ResultToken     ResultKind = "token"     // everything, until the bot's token is replaced
	ResultThread    ResultKind = "thread-not-found"
	ResultMigrated  ResultKind = "migrated"
	ResultGone      ResultKind = "gone" // the message to edit
	ResultCancelled ResultKind = "cancelled"
)

// Result is what came of a Call.
type Result struct {
	Kind       ResultKind
	MessageID  int64 // of a message that was sent
	ThreadID   int64
	RetryAfter time.Duration
	MigrateTo  int64
	Class      string // the transport's word for the failure
	Reason     string // for people
}

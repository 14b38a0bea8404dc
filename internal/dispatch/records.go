package dispatch

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// Names of the events in the delivery journal. Events of other names (archive.sealed) are passed over.
const (
	EventEpochOpened      = "epoch.opened"
	EventEpochClosed      = "epoch.closed"
	EventWebhookNoted     = "webhook.noted"
	EventDeliveryIntended = "delivery.intended"
	EventDeliverySent     = "delivery.sent"
	EventDeliveryFailed   = "delivery.failed"
	EventDeliveryUnknown  = "delivery.unknown"
	EventDeliverySettled  = "delivery.settled"
	// EventDeliveryRefreshed: a card was edited and says again what holds.
	EventDeliveryRefreshed = "delivery.refreshed"
	EventApprovalNoted     = "approval.noted"
	EventTapRefused        = "tap.refused"
	EventLogFollowed       = "log.followed"
	EventJournalCarried    = "journal.carried"
)

// journalActor writes everything in the journal but the approvals noted at a terminal.
const journalActor = "system:dispatch"

// Kind is what a delivery is.
type Kind string

// The kinds of a delivery. Only a card has buttons that decide, and so a nonce.
const (
	KindCard     Kind = "card"
	KindDocument Kind = "document" // goes before a card
	KindReminder Kind = "reminder" // replies to a card that nobody has answered
	KindAbsence  Kind = "absence"  // tells when taps were lost; it belongs to no request
	KindDigest   Kind = "digest"   // stands for many requests; it has buttons, which open them
)

// EpochInfo is the payload of epoch.opened beside the number: who opened the epoch, and the webhook of this gate that
// Telegram may still have, so that a start can tell its own leftover from somebody else's. webhook.noted replaces it.
type EpochInfo struct {
	Program    string `json:"program,omitempty"`
	PID        int    `json:"pid,omitempty"`
	Transport  string `json:"transport,omitempty"`
	WebhookURL string `json:"webhook_url,omitempty"`
	// Known is the highest epoch that is known from elsewhere, should the journal have been lost.
	Known int64 `json:"-"`
}

// The payloads of the journal's records. The action key stands in the record's own member; cycle is the sequence
// number of the approval.requested record in the approval log.
type (
	// LogSeq is the number of a record that the approval log had by then: one that ends before it was cut.
	epochPayload struct {
		Epoch  int64 `json:"epoch"`
		LogSeq int64 `json:"log_seq,omitempty"`
		EpochInfo
	}

	// intendedPayload: written and synced before the call that sends. From and Until are when an absence began and ended.
	intendedPayload struct {
		Delivery    string `json:"delivery"`
		Kind        Kind   `json:"kind"`
		Cycle       int64  `json:"cycle"`
		Epoch       int64  `json:"epoch"`
		NonceSHA256 string `json:"nonce_sha256,omitempty"`
		PayloadHash string `json:"payload_hash,omitempty"`
		// Record is the hash of the record that asked. Journals of older versions have none.
		Record   string `json:"record,omitempty"`
		ChatID   int64  `json:"chat_id"`
		ThreadID int64  `json:"thread_id,omitempty"`

		// Terms and Approved are what a card says of who decides, see said. Renews: it takes the place of the cards before it.
		Renews   bool     `json:"renews,omitempty"`
		Terms    string   `json:"terms,omitempty"`
		Approved []string `json:"approved,omitempty"`

		// Origin, Asker and Class are what a digest stands for: who really asks, under which name, empty for any, and
		// for what. Newest is its newest request, where the cycle is not named after that one.
		Newest int64     `json:"newest,omitempty"`
		Origin string    `json:"origin,omitempty"`
		Asker  string    `json:"asker,omitempty"`
		Class  string    `json:"class,omitempty"`
		From   time.Time `json:"from,omitzero"`
		Until  time.Time `json:"until,omitzero"`
	}

	// sentPayload: the message exists. Adopted when that was learned from a tap and not from the answer to the send.
	sentPayload struct {
		Delivery  string `json:"delivery"`
		ChatID    int64  `json:"chat_id"`
		MessageID int64  `json:"message_id"`
		ThreadID  int64  `json:"thread_id,omitempty"`
		Adopted   bool   `json:"adopted,omitempty"`
	}

	// failedPayload: the call was surely not carried out; of a send, the message does not exist. The delivery may still
	// be tried again and become sent. RetryAt is until when Telegram takes nothing for the chat; a message that is there
	// already stays so, and only its edit failed.
	failedPayload struct {
		Delivery  string    `json:"delivery"`
		Class     string    `json:"class"`
		Reason    string    `json:"reason"`
		MigrateTo int64     `json:"migrate_to,omitempty"`
		ChatID    int64     `json:"chat_id,omitempty"`
		RetryAt   time.Time `json:"retry_at,omitzero"`
	}

	// unknownPayload: nobody knows whether the message exists. A card's nonce stays good and another delivery takes over;
	// a notice is not sent again.
	unknownPayload struct {
		Delivery string `json:"delivery"`
		Reason   string `json:"reason"`
	}

	// settledPayload: the message shows State and has no buttons any more, or is gone, or could only be stripped of its
	// buttons (How).
	settledPayload struct {
		Delivery string            `json:"delivery"`
		State    approvallog.State `json:"state"`
		How      How               `json:"how"`
		Reason   string            `json:"reason,omitempty"`
	}

	// refreshedPayload: the card of a request that waits says this now of who decides.
	refreshedPayload struct {
		Delivery string   `json:"delivery"`
		Terms    string   `json:"terms"`
		Approved []string `json:"approved,omitempty"`
	}

	// notedPayload: one of several approvals that a request needs.
	notedPayload struct {
		Cycle       int64  `json:"cycle"`
		Approver    string `json:"approver"`
		PayloadHash string `json:"payload_hash"`
		Record      string `json:"record,omitempty"`
		Channel     string `json:"channel"`
		SenderID    int64  `json:"sender_id"`
		Delivery    string `json:"delivery,omitempty"`
		NonceSHA256 string `json:"nonce_sha256,omitempty"`
		ChatID      int64  `json:"chat_id,omitempty"`
		MessageID   int64  `json:"message_id,omitempty"`
		Epoch       int64  `json:"epoch,omitempty"`
	}

	// followedPayload: what the approval log held up to this record is shown, or due to messages that do not show any end
	// yet. A start looks through what came later for grants that were used or taken back.
	followedPayload struct {
		LogSeq int64 `json:"log_seq"`
	}

	// carriedPayload: what goes on from the archived segments of the journal. Several records begin a segment when much
	// does. LogSeq is as in epochPayload.
	carriedPayload struct {
		deliveriesState
		LogSeq int64 `json:"log_seq,omitempty"`
	}

	// refusedPayload: a tap that decided nothing. Of a flood only the first of each hour are written.
	refusedPayload struct {
		Reason   string `json:"reason"`
		SenderID int64  `json:"sender_id"`
		ChatID   int64  `json:"chat_id,omitempty"`
		Delivery string `json:"delivery,omitempty"`
	}
)

// How is in which way a message was settled.
type How string

// The ways in which a message is settled.
const (
	HowEdited  How = "edited"  // text and buttons
	HowButtons How = "buttons" // the text was refused, the buttons are off
	HowGone    How = "gone"    // deleted, or the chat is closed to the bot
)

func journalDraft(event, key string, payload any) approvallog.Draft {
	return approvallog.Draft{Event: event, Actor: journalActor, ActionKey: key, Payload: payload}
}

// decode reads the payload of a journal record into a T.
func decode[T any](rec approvallog.Record) (T, error) {
	var v T
	if err := json.Unmarshal(rec.Payload, &v); err != nil {
		return v, fmt.Errorf("delivery journal: record %d (%s): payload: %w", rec.Seq, rec.Event, err)
	}
	return v, nil
}

// Note is an approval that counts towards a quorum, as the journal holds it.
type Note struct {
	Approver    string
	At          time.Time
	PayloadHash string
	Record      string // hash of the record that asked, empty when nothing says
	Channel     string
	SenderID    int64
	Delivery    string
	NonceSHA256 string
	Seq         int64 // of its record
}

package dispatch

import (
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// Channels by which a person decides, as records name them.
const (
	ChannelTelegram = "telegram"
	ChannelTerminal = "terminal"
)

// The payloads of approval.granted and approval.rejected, and of approval.revoked: that one has in the format a note and no more, so
// who sent it stands in what is approvald's own.
type (
	decisionPayload struct {
		Class       string      `json:"class,omitempty"`
		PayloadHash string      `json:"payload_hash,omitempty"`
		Note        string      `json:"note,omitempty"`
		Sender      sender      `json:"sender"`
		Own         ownDecision `json:"approvald"`
	}
	revokedPayload struct {
		Note string      `json:"note,omitempty"`
		Own  ownDecision `json:"approvald"`
	}
	sender struct {
		Channel string `json:"channel"`
		ID      int64  `json:"id"` // numeric id at Telegram, uid at a terminal
	}
	ownDecision struct {
		Delivery    string        `json:"delivery,omitempty"`
		NonceSHA256 string        `json:"nonce_sha256,omitempty"`
		ChatID      int64         `json:"chat_id,omitempty"`
		MessageID   int64         `json:"message_id,omitempty"`
		Epoch       int64         `json:"epoch,omitempty"`
		ConfigHash  string        `json:"config_sha256,omitempty"`
		Approvals   []ownApproval `json:"approvals,omitempty"`
		Sender      *sender       `json:"sender,omitempty"` // of a revocation
	}
	ownApproval struct {
		By          string `json:"by"`
		At          string `json:"at"`
		Sender      sender `json:"sender"`
		Delivery    string `json:"delivery,omitempty"`
		NonceSHA256 string `json:"nonce_sha256,omitempty"`
	}
)

// share is one person's part in a decision: by what means, over which message, when.
type share struct {
	request    approvallog.Request
	channel    string
	senderID   int64
	delivery   string
	nonceSum   string
	chatID     int64
	messageID  int64
	now        time.Time
	epoch      int64
	configHash string
}

func sharedBy(tap Tap, b Button, ev Evidence) share {
	s := share{
		request: ev.Request, channel: ChannelTelegram, senderID: tap.SenderID, delivery: ev.Delivery.ID, nonceSum: b.Nonce.Sum(),
		chatID: ev.Delivery.ChatID, messageID: ev.Delivery.MessageID, now: ev.Now, epoch: ev.Epoch, configHash: ev.ConfigHash,
	}
	if s.messageID == 0 {
		s.messageID = tap.MessageID
	}
	return s
}

func (s share) note(approver string) Note {
	return Note{
		Approver: approver, At: s.now, PayloadHash: s.request.PayloadHash, Record: s.request.RecordHash, Channel: s.channel, SenderID: s.senderID,
		Delivery: s.delivery, NonceSHA256: s.nonceSum,
	}
}

func (s share) noteDraft(approver string) *approvallog.Draft {
	return &approvallog.Draft{
		Event: EventApprovalNoted, Actor: "human:" + approver, ActionKey: s.request.Key, Channel: s.channel,
		Payload: notedPayload{
			Cycle: s.request.Seq, Approver: approver, PayloadHash: s.request.PayloadHash, Record: s.request.RecordHash, Channel: s.channel, SenderID: s.senderID,
			Delivery: s.delivery, NonceSHA256: s.nonceSum, ChatID: s.chatID, MessageID: s.messageID, Epoch: s.epoch,
		},
	}
}

func (s share) decision(event, approver, note string, approvals []Note) *approvallog.Draft {
	req, own := s.request, s.own()
	for _, n := range approvals {
		own.Approvals = append(own.Approvals, ownApproval{
			By: "human:" + n.Approver, At: n.At.UTC().Format(approvallog.TimeLayout), Sender: sender{Channel: n.Channel, ID: n.SenderID},
			Delivery: n.Delivery, NonceSHA256: n.NonceSHA256,
		})
	}
	return &approvallog.Draft{
		Event: event, Actor: "human:" + approver, Task: req.Task, ActionKey: req.Key, Channel: s.channel,
		Payload: decisionPayload{
			Class: req.Class, PayloadHash: req.PayloadHash, Note: note, Sender: sender{Channel: s.channel, ID: s.senderID}, Own: own,
		},
	}
}

func (s share) revocation(approver, note string) *approvallog.Draft {
	own := s.own()
	own.Sender = &sender{Channel: s.channel, ID: s.senderID}
	return &approvallog.Draft{
		Event: approvallog.EventRevoked, Actor: "human:" + approver, Task: s.request.Task, ActionKey: s.request.Key, Channel: s.channel,
		Payload: revokedPayload{Note: note, Own: own},
	}
}

func (s share) own() ownDecision {
	return ownDecision{
		Delivery: s.delivery, NonceSHA256: s.nonceSum, ChatID: s.chatID, MessageID: s.messageID, Epoch: s.epoch, ConfigHash: s.configHash,
	}
}

func expiredDraft(req approvallog.Request) *approvallog.Draft {
	return &approvallog.Draft{Event: approvallog.EventExpired, Actor: "system:gate", Task: req.Task, ActionKey: req.Key}
}

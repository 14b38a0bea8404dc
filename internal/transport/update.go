package transport

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// User is a Telegram account. Only ID identifies it; names change hands.
type User struct {
	ID        int64  `json:"id"`
	IsBot     bool   `json:"is_bot"`
	FirstName string `json:"first_name"`
	LastName  string `json:"last_name"`
	Username  string `json:"username"`
}

// Chat is where a message lies. Type is private, group, supergroup or channel.
type Chat struct {
	ID        int64  `json:"id"`
	Type      string `json:"type"`
	Title     string `json:"title"`
	Username  string `json:"username"`
	FirstName string `json:"first_name"`
	IsForum   bool   `json:"is_forum"`
	// Permissions are what ordinary members of a group may do; of [Client.GetChat] alone, and nil elsewhere.
	Permissions *ChatPermissions `json:"permissions"`
}

// ChatPermissions are the rights of a group's ordinary members that a gate needs.
type ChatPermissions struct {
	SendMessages  bool `json:"can_send_messages"`
	SendDocuments bool `json:"can_send_documents"`
}

// ChatMember is what somebody is in a chat.
type ChatMember struct {
	// Status is creator, administrator, member, restricted, left or kicked.
	Status string `json:"status"`
	// SendMessages and SendDocuments are set of restricted ones alone, PostMessages of a channel's administrators.
	SendMessages  bool `json:"can_send_messages"`
	SendDocuments bool `json:"can_send_documents"`
	PostMessages  bool `json:"can_post_messages"`
}

// Update is one thing that Telegram tells. One of Tap, Message and Chat is set;
// all three are nil in an update of a kind that this package does not read,
// which a Handler passes over.
type Update struct {
	// ID is Telegram's number for it. Numbers may restart lower after a quiet
	// week, and one physical tap can arrive under several.
	ID int64
	// Received is when this process got it, for judging deadlines: Telegram puts
	// no time on a tap, and holds an undelivered one for at most 150 s.
	Received time.Time
	Tap      *Tap
	Message  *Message
	Chat     *ChatEvent
	// Raw is the update as it came.
	Raw json.RawMessage
}

// Tap is a press of an inline button (a callback query).
type Tap struct {
	ID   string
	From User
	// ChatID, MessageID and ThreadID are zero for a tap by way of an inline message.
	ChatID, MessageID, ThreadID int64
	// Inaccessible is set when Telegram no longer shows the message to the bot.
	Inaccessible bool
	// InlineMessageID is set instead of the message for an inline message.
	InlineMessageID string
	ChatInstance    string
	// Data is what the button carries, or whatever a hostile client sends.
	Data string
}

// MessageRef points to the message that a message replies to.
type MessageRef struct {
	ChatID, ID int64
	// FromBot is the id of the bot that wrote it, 0 when a person did.
	FromBot int64
}

// Message is a message that was sent by us or arrived in a chat of the bot.
type Message struct {
	ID, ThreadID int64
	Date         time.Time
	Chat         Chat
	// From is nil for posts in a channel.
	From *User
	// SenderChat is set for anonymous administrators and channel posts; From is
	// then a placeholder and identifies nobody.
	SenderChat *Chat
	Text       string
	ReplyTo    *MessageRef
	// Forwarded is set when the words were first written elsewhere: From passed
	// them on and may not mean them.
	Forwarded bool
	// MigrateTo and MigrateFrom tell that a group became a supergroup.
	MigrateTo, MigrateFrom int64
}

// ChatEvent tells that the bot's own membership in a chat changed. Old and New
// are Telegram's words: creator, administrator, member, restricted, left, kicked.
type ChatEvent struct {
	Chat     Chat
	By       User
	Old, New string
}

type wireUpdate struct {
	ID           *int64          `json:"update_id"`
	Callback     json.RawMessage `json:"callback_query"`
	Message      json.RawMessage `json:"message"`
	MyChatMember json.RawMessage `json:"my_chat_member"`
}

type wireTap struct {
	ID              string       `json:"id"`
	From            *User        `json:"from"`
	Message         *wireMessage `json:"message"`
	InlineMessageID string       `json:"inline_message_id"`
	ChatInstance    string       `json:"chat_instance"`
	Data            string       `json:"data"`
}

type wireMessage struct {
	ID          int64        `json:"message_id"`
	ThreadID    int64        `json:"message_thread_id"`
	Date        int64        `json:"date"`
	Chat        *Chat        `json:"chat"`
	From        *User        `json:"from"`
	SenderChat  *Chat        `json:"sender_chat"`
	Text        string       `json:"text"`
	ReplyTo     *wireReplied `json:"reply_to_message"`
	MigrateTo   int64        `json:"migrate_to_chat_id"`
	MigrateFrom int64        `json:"migrate_from_chat_id"`
	// ForwardDate is what servers before Bot API 7.0 send instead of an origin.
	ForwardOrigin json.RawMessage `json:"forward_origin"`
	ForwardDate   int64           `json:"forward_date"`
}

type wireReplied struct {
	ID   int64 `json:"message_id"`
	Chat *Chat `json:"chat"`
	From *User `json:"from"`
}

// DecodeUpdate reads one update on its own, so that one that cannot be read
// spoils no other. With an error the Update still has ID when that much could be
// read, so that it can be passed over.
func DecodeUpdate(raw json.RawMessage, received time.Time) (Update, error) {
	u := Update{Received: received, Raw: raw}
	var wire wireUpdate
	if err := json.Unmarshal(raw, &wire); err != nil {
		return u, fmt.Errorf("update is not readable: %w", err)
	}
	if wire.ID == nil {
		return u, errors.New("update has no update_id")
	}
	u.ID = *wire.ID
	var err error
	switch {
	case present(wire.Callback):
		u.Tap, err = decodeTap(wire.Callback)
	case present(wire.Message):
		u.Message, err = decodeMessage(wire.Message)
	case present(wire.MyChatMember):
		u.Chat, err = decodeChatEvent(wire.MyChatMember)
	}
	if err != nil {
		return u, fmt.Errorf("update %d is not readable: %w", u.ID, err)
	}
	return u, nil
}

func present(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

func decodeTap(raw json.RawMessage) (*Tap, error) {
	var w wireTap
	if err := json.Unmarshal(raw, &w); err != nil {
		return nil, fmt.Errorf("callback_query: %w", err)
	}
	switch {
	case w.ID == "":
		return nil, errors.New("callback_query has no id")
	case w.From == nil || w.From.ID == 0:
		return nil, errors.New("callback_query does not say who tapped")
	}
	tap := &Tap{
		ID: w.ID, From: *w.From, Data: w.Data,
		InlineMessageID: w.InlineMessageID, ChatInstance: w.ChatInstance,
	}
	if m := w.Message; m != nil {
		if m.Chat == nil || m.Chat.ID == 0 {
			return nil, errors.New("callback_query's message is in no chat")
		}
		tap.ChatID, tap.MessageID, tap.ThreadID = m.Chat.ID, m.ID, m.ThreadID
		tap.Inaccessible = m.Date == 0
	}
	return tap, nil
}

func decodeMessage(raw json.RawMessage) (*Message, error) {
	var w wireMessage
	if err := json.Unmarshal(raw, &w); err != nil {
		return nil, fmt.Errorf("message: %w", err)
	}
	if w.Chat == nil || w.Chat.ID == 0 || w.ID <= 0 {
		return nil, errors.New("message has no chat or no message_id")
	}
	m := &Message{
		ID: w.ID, ThreadID: w.ThreadID, Date: time.Unix(w.Date, 0), Chat: *w.Chat,
		From: w.From, SenderChat: w.SenderChat, Text: w.Text,
		MigrateTo: w.MigrateTo, MigrateFrom: w.MigrateFrom,
		Forwarded: present(w.ForwardOrigin) || w.ForwardDate != 0,
	}
	if r := w.ReplyTo; r != nil {
		m.ReplyTo = &MessageRef{ChatID: w.Chat.ID, ID: r.ID}
		if r.Chat != nil {
			m.ReplyTo.ChatID = r.Chat.ID
		}
		if r.From != nil && r.From.IsBot {
			m.ReplyTo.FromBot = r.From.ID
		}
	}
	return m, nil
}

func decodeChatEvent(raw json.RawMessage) (*ChatEvent, error) {
	type member struct {
		Status string `json:"status"`
	}
	var w struct {
		Chat *Chat   `json:"chat"`
		From *User   `json:"from"`
		Old  *member `json:"old_chat_member"`
		New  *member `json:"new_chat_member"`
	}
	if err := json.Unmarshal(raw, &w); err != nil {
		return nil, fmt.Errorf("my_chat_member: %w", err)
	}
	if w.Chat == nil || w.Chat.ID == 0 || w.New == nil {
		return nil, errors.New("my_chat_member has no chat or no new_chat_member")
	}
	e := &ChatEvent{Chat: *w.Chat, New: w.New.Status}
	if w.From != nil {
		e.By = *w.From
	}
	if w.Old != nil {
		e.Old = w.Old.Status
	}
	return e, nil
}

// allowedUpdates is sent with every getUpdates and setWebhook: Telegram remembers
// the last list, so leaving it out would inherit whatever another program chose.
var allowedUpdates = []string{"message", "callback_query", "my_chat_member"}

package telegramtest

import (
	"encoding/json"
	"time"
)

// User is a person or a bot, in the shape of the Bot API.
type User struct {
	ID           int64  `json:"id"`
	IsBot        bool   `json:"is_bot"`
	FirstName    string `json:"first_name"`
	LastName     string `json:"last_name,omitempty"`
	Username     string `json:"username,omitempty"`
	LanguageCode string `json:"language_code,omitempty"`
}

// Ids that Telegram shares between many people. A message from one of them says
// nothing about who wrote it.
const (
	GroupAnonymousBot = 1087968824 // messages of anonymous administrators
	ChannelBot        = 136817688  // messages written in the name of a channel
	ServiceAccount    = 777000     // posts forwarded from a linked channel
)

// ChatType is the kind of a chat.
type ChatType string

// The kinds of chats.
const (
	Private    ChatType = "private"
	Group      ChatType = "group"
	Supergroup ChatType = "supergroup"
	Channel    ChatType = "channel"
)

// MemberStatus is what somebody is in a chat.
type MemberStatus string

// The statuses of a member.
const (
	Creator       MemberStatus = "creator"
	Administrator MemberStatus = "administrator"
	Ordinary      MemberStatus = "member"
	Restricted    MemberStatus = "restricted"
	Left          MemberStatus = "left"
	Kicked        MemberStatus = "kicked"
)

// Chat describes a group, supergroup or channel for AddChat. The private chats
// come with AddUser.
type Chat struct {
	ID       int64 // negative; 0 = chosen by the server
	Type     ChatType
	Title    string
	Username string
	IsForum  bool
	Members  []Member
	// Bot is what the bot is in the chat. Default Ordinary. Restricted means
	// that the bot may read and not write.
	Bot MemberStatus
}

// Member is somebody in a chat.
type Member struct {
	User      int64
	Status    MemberStatus // default Ordinary
	Anonymous bool         // an administrator who posts in the group's name
}

// Members makes ordinary members of user ids.
func Members(ids ...int64) []Member {
	ms := make([]Member, len(ids))
	for i, id := range ids {
		ms[i] = Member{User: id, Status: Ordinary}
	}
	return ms
}

// Entity is a stretch of formatted text. Offset and Length count UTF-16 code
// units, as everywhere in Telegram.
type Entity struct {
	Type     string `json:"type"`
	Offset   int    `json:"offset"`
	Length   int    `json:"length"`
	URL      string `json:"url,omitempty"`
	User     *User  `json:"user,omitempty"`
	Language string `json:"language,omitempty"`
	EmojiID  string `json:"custom_emoji_id,omitempty"`
}

// Button is one button of an inline keyboard.
type Button struct {
	Text         string          `json:"text"`
	URL          string          `json:"url,omitempty"`
	Data         string          `json:"callback_data,omitempty"`
	Style        string          `json:"style,omitempty"`
	CopyText     json.RawMessage `json:"copy_text,omitempty"`
	WebApp       json.RawMessage `json:"web_app,omitempty"`
	LoginURL     json.RawMessage `json:"login_url,omitempty"`
	SwitchInline *string         `json:"switch_inline_query,omitempty"`
	SwitchHere   *string         `json:"switch_inline_query_current_chat,omitempty"`
	Pay          bool            `json:"pay,omitempty"`
}

// Document is a file in a message, with its bytes.
type Document struct {
	Name     string
	MIME     string
	FileID   string
	UniqueID string
	Size     int64
	Data     []byte // not to be changed
}

// Message is a message as a person in the chat sees it: markup parsed into
// Entities, the keyboard as it is now. It is a copy; later edits do not change
// it. See Server.Message for the current state.
type Message struct {
	ID         int64
	ChatID     int64
	ThreadID   int64 // 0 outside topics and in General
	From       User  // the bot, or who wrote it
	SenderChat int64 // the chat in whose name it was written, or 0
	Date       time.Time
	EditDate   time.Time // zero = never edited
	Edits      int       // how many edits were made
	Text       string
	Entities   []Entity
	Caption    string
	// CaptionEntities are the entities of Caption.
	CaptionEntities []Entity
	Document        *Document
	Buttons         [][]Button
	ReplyTo         int64 // message id, or 0
	InlineID        string
	Silent          bool // sent with disable_notification
	Protected       bool // sent with protect_content
	Deleted         bool
	Service         string // "migrate_to_chat_id" and the like; "" = a true message

	seq int64 // order over all chats
}

// Edited reports whether the message was ever edited.
func (m Message) Edited() bool { return !m.EditDate.IsZero() }

// FromBot reports whether the bot under test sent the message.
func (m Message) FromBot() bool {
	return m.From.IsBot && m.From.ID != GroupAnonymousBot && m.From.ID != ChannelBot
}

// Body returns the text, or the caption of a document.
func (m Message) Body() string {
	if m.Document != nil {
		return m.Caption
	}
	return m.Text
}

// Button returns the button with that text.
func (m Message) Button(label string) (Button, bool) {
	for _, row := range m.Buttons {
		for _, b := range row {
			if b.Text == label {
				return b, true
			}
		}
	}
	return Button{}, false
}

// Call is one request as the server saw it.
type Call struct {
	Seq    int64 // 1, 2, 3 ... in order of arrival
	Time   time.Time
	Method string // in the spelling of the Bot API, as sent if unknown
	Args   map[string]string
	Files  []File
	ChatID int64  // the numeric chat_id, or 0
	Conn   string // the client's address, one value a connection

	Done     bool // an answer was written or the connection given up
	Finished time.Time
	Status   int             // HTTP status; 0 = none was sent
	Response json.RawMessage // the body as sent
	Fault    string          // what was injected; "" = nothing
}

// File is an uploaded file.
type File struct {
	Field, Name, MIME string
	Data              []byte // not to be changed
}

// OK reports whether the call was answered with a result.
func (c Call) OK() bool { return c.Done && c.Status == 200 }

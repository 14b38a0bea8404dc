package transport

import (
	"encoding/json"
	"time"
)

// Button is one inline button. Data is 1 to 64 bytes and comes back in Tap.Data.
type Button struct{ Text, Data string }

// Keyboard is rows of inline buttons. In an edit, an empty one takes the buttons off.
type Keyboard [][]Button

// MarshalJSON writes the Bot API's InlineKeyboardMarkup. An empty Keyboard is an
// empty array and never null, which Telegram refuses.
func (k Keyboard) MarshalJSON() ([]byte, error) {
	type button struct {
		Text string `json:"text"`
		Data string `json:"callback_data"`
	}
	rows := make([][]button, len(k))
	for i, row := range k {
		rows[i] = make([]button, len(row))
		for j, b := range row {
			rows[i][j] = button(b)
		}
	}
	return json.Marshal(map[string]any{"inline_keyboard": rows})
}

// SendMessage is a text message. ParseMode is "" for plain text, or "HTML".
type SendMessage struct {
	ChatID int64
	// ThreadID is the forum topic, 0 for the general one.
	ThreadID        int64
	Text, ParseMode string
	Keyboard        Keyboard
	// ReplyTo is the id of a message in the same chat; it is dropped silently
	// when that message is gone, unless MustReply is set: then nothing is sent and
	// the error is of [ClassGone].
	ReplyTo   int64
	MustReply bool
	// Silent sends without a sound.
	Silent bool
	// LinkPreview lets Telegram fetch links in the text and show them.
	LinkPreview bool
}

// SendDocument is a file with a caption of at most 1,024 characters.
type SendDocument struct {
	ChatID, ThreadID int64
	// FileName is what the person sees; any directory in it is left out.
	FileName           string
	Data               []byte
	Caption, ParseMode string
	Keyboard           Keyboard
	ReplyTo            int64
	Silent             bool
}

// Command is an entry of the menu that Telegram shows for the bot. Name is 1 to 32
// lower-case letters, digits and underscores, without the slash.
type Command struct {
	Name        string `json:"command"`
	Description string `json:"description"`
}

// EditMessageText replaces text and buttons of a text message of the bot.
type EditMessageText struct {
	ChatID, MessageID int64
	Text, ParseMode   string
	// Keyboard replaces the buttons; an empty one takes them off.
	Keyboard    Keyboard
	LinkPreview bool
}

// EditMessageReplyMarkup replaces only the buttons of a message of the bot.
type EditMessageReplyMarkup struct {
	ChatID, MessageID int64
	Keyboard          Keyboard
}

// AnswerCallbackQuery ends the waiting state of a tapped button. A tap can be
// answered once. Text has at most 200 characters.
type AnswerCallbackQuery struct {
	ID, Text string
	// Alert shows the text in a dialog instead of a passing note.
	Alert bool
}

// GetUpdates asks for updates. Offset confirms, and so forgets, all lower ids; 0
// confirms nothing. Timeout is how long Telegram holds an empty answer: whole
// seconds, 50 at most.
type GetUpdates struct {
	Offset  int64
	Limit   int
	Timeout time.Duration
}

// SetWebhook registers a webhook. The list of updates is always sent, and
// dropping pending updates is not offered.
type SetWebhook struct {
	URL    string
	Secret Secret
}

// WebhookInfo is what Telegram holds about the webhook. URL is "" when none is
// registered.
type WebhookInfo struct {
	URL              string   `json:"url"`
	Pending          int      `json:"pending_update_count"`
	IPAddress        string   `json:"ip_address"`
	LastErrorDate    int64    `json:"last_error_date"`
	LastErrorMessage string   `json:"last_error_message"`
	AllowedUpdates   []string `json:"allowed_updates"`
}

package telegramtest

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// The shapes in which the Bot API shows its objects.

type wireChat struct {
	ID        int64    `json:"id"`
	Title     string   `json:"title,omitempty"`
	Username  string   `json:"username,omitempty"`
	FirstName string   `json:"first_name,omitempty"`
	LastName  string   `json:"last_name,omitempty"`
	Type      ChatType `json:"type"`
	IsForum   bool     `json:"is_forum,omitempty"`
	AllAdmins *bool    `json:"all_members_are_administrators,omitempty"`
}

type wireMarkup struct {
	Keyboard [][]Button `json:"inline_keyboard"`
}

type wireDocument struct {
	Name     string `json:"file_name,omitempty"`
	MIME     string `json:"mime_type,omitempty"`
	FileID   string `json:"file_id"`
	UniqueID string `json:"file_unique_id"`
	Size     int64  `json:"file_size"`
}

type wireMessage struct {
	ID              int64           `json:"message_id"`
	ThreadID        int64           `json:"message_thread_id,omitempty"`
	From            *User           `json:"from,omitempty"`
	SenderChat      *wireChat       `json:"sender_chat,omitempty"`
	Chat            wireChat        `json:"chat"`
	Date            int64           `json:"date"`
	EditDate        int64           `json:"edit_date,omitempty"`
	IsTopic         bool            `json:"is_topic_message,omitempty"`
	ViaBot          *User           `json:"via_bot,omitempty"`
	Forwarded       *origin         `json:"forward_origin,omitempty"`
	ReplyTo         *wireMessage    `json:"reply_to_message,omitempty"`
	Protected       bool            `json:"has_protected_content,omitempty"`
	Text            string          `json:"text,omitempty"`
	Entities        []Entity        `json:"entities,omitempty"`
	LinkPreview     json.RawMessage `json:"link_preview_options,omitempty"`
	Document        *wireDocument   `json:"document,omitempty"`
	Caption         string          `json:"caption,omitempty"`
	CaptionEntities []Entity        `json:"caption_entities,omitempty"`
	MigrateTo       int64           `json:"migrate_to_chat_id,omitempty"`
	MigrateFrom     int64           `json:"migrate_from_chat_id,omitempty"`
	Markup          *wireMarkup     `json:"reply_markup,omitempty"`
}

// origin says whose words a copy holds: MessageOriginUser.
type origin struct {
	Type string `json:"type"`
	User *User  `json:"sender_user"`
	Date int64  `json:"date"`
}

// inaccessible is a message of which a tap tells nothing but where it was.
type inaccessible struct {
	ID   int64    `json:"message_id"`
	Chat wireChat `json:"chat"`
	Date int64    `json:"date"`
}

func (w *world) wireChat(c *chat) wireChat {
	out := wireChat{ID: c.id, Type: c.kind, Title: c.title, Username: c.username, IsForum: c.forum}
	switch c.kind {
	case Private:
		u := w.people[c.id].User
		out.FirstName, out.LastName, out.Username = u.FirstName, u.LastName, u.Username
	case Group:
		no := false
		out.AllAdmins = &no
	}
	return out
}

func (w *world) wireMessage(c *chat, m *message, withReply bool) *wireMessage {
	out := &wireMessage{
		ID: m.ID, Chat: w.wireChat(c), Date: m.Date.Unix(), Text: m.Text, Entities: m.Entities, Protected: m.Protected,
		Forwarded: m.forwarded, ThreadID: m.ThreadID, IsTopic: m.ThreadID != 0 && c.forum, Markup: markupOf(m.Buttons),
	}
	if m.SenderChat != 0 && m.Service == "" {
		sender := w.wireChat(w.chats[m.SenderChat])
		out.SenderChat = &sender
	}
	if c.kind != Channel {
		from := m.From
		out.From = &from
	}
	if m.Edited() {
		out.EditDate = m.EditDate.Unix()
	}
	if m.InlineID != "" {
		out.ViaBot = &w.s.bot
	}
	if m.linkPreview != "" {
		out.LinkPreview = json.RawMessage(m.linkPreview)
	}
	if d := m.Document; d != nil {
		out.Document = &wireDocument{Name: d.Name, MIME: d.MIME, FileID: d.FileID, UniqueID: d.UniqueID, Size: d.Size}
		out.Caption, out.CaptionEntities = m.Caption, m.CaptionEntities
	}
	switch m.Service {
	case "migrate_to_chat_id":
		out.MigrateTo = c.migratedTo
	case "migrate_from_chat_id":
		out.MigrateFrom = m.SenderChat
	}
	if r := c.messages[m.ReplyTo]; withReply && r != nil && !r.Deleted {
		out.ReplyTo = w.wireMessage(c, r, false)
	}
	return out
}

// markupOf shows a keyboard; data that is not text is shown as INVALID.
func markupOf(rows [][]Button) *wireMarkup {
	if len(rows) == 0 {
		return nil
	}
	out := make([][]Button, len(rows))
	for i, row := range rows {
		out[i] = append([]Button(nil), row...)
		for j := range out[i] {
			if !utf8.ValidString(out[i][j].Data) {
				out[i][j].Data = "INVALID"
			}
		}
	}
	return &wireMarkup{Keyboard: out}
}

type wireTap struct {
	ID       string `json:"id"`
	From     User   `json:"from"`
	Message  any    `json:"message,omitempty"`
	InlineID string `json:"inline_message_id,omitempty"`
	Instance string `json:"chat_instance"`
	Data     string `json:"data"`
}

type wireMember struct {
	Status    MemberStatus `json:"status"`
	User      User         `json:"user"`
	Anonymous *bool        `json:"is_anonymous,omitempty"`
	Until     *int64       `json:"until_date,omitempty"`
	IsMember  *bool        `json:"is_member,omitempty"`
	// Of restricted ones, and of a channel's administrators.
	SendMessages  *bool `json:"can_send_messages,omitempty"`
	SendDocuments *bool `json:"can_send_documents,omitempty"`
	PostMessages  *bool `json:"can_post_messages,omitempty"`
}

func memberOf(u User, status MemberStatus, anonymous bool) wireMember {
	out := wireMember{User: u, Status: status}
	var forever int64
	member := true
	switch status {
	case Creator, Administrator:
		out.Anonymous = &anonymous
	case Restricted:
		out.Until, out.IsMember = &forever, &member
		var silent bool
		out.SendMessages, out.SendDocuments = &silent, &silent
	case Kicked:
		out.Until = &forever
	}
	return out
}

// messageUpdate tells the bot of a message of somebody else, if it gets to see
// it. The life of the update is counted from the date of the message.
func (s *Server) messageUpdate(c *chat, m *message) {
	kind := "message"
	if c.kind == Channel {
		kind = "channel_post"
	}
	life := day - s.clock.Now().Sub(m.Date)
	if life <= 0 || !s.botSees(c, m) {
		s.notify()
		return
	}
	s.enqueue(kind, "chat "+strconv.FormatInt(c.id, 10), life, s.world.wireMessage(c, m, true))
}

// memberUpdate tells the bot that its own status in a chat changed.
func (s *Server) memberUpdate(c *chat, by User, old, status MemberStatus) {
	if old == status {
		return
	}
	s.enqueue("my_chat_member", "chat "+strconv.FormatInt(c.id, 10), day, struct {
		Chat wireChat   `json:"chat"`
		From User       `json:"from"`
		Date int64      `json:"date"`
		Old  wireMember `json:"old_chat_member"`
		New  wireMember `json:"new_chat_member"`
	}{s.world.wireChat(c), by, s.clock.Now().Unix(), memberOf(s.bot, old, false), memberOf(s.bot, status, false)})
}

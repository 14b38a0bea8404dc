package telegramtest

import (
	"slices"
	"time"
	"unicode/utf8"
)

const errNotModified = "Message is not modified: specified new message content and reply markup are exactly the same as a current content and reply markup of the message"

// editTarget finds the message that an edit means.
func (s *Server) editTarget(q *request) (*chat, *message, *apiError) {
	if id := q.args["inline_message_id"]; id != "" && q.args["chat_id"] == "" {
		m := s.world.inline[id]
		if m == nil {
			return nil, nil, badRequest("MESSAGE_ID_INVALID")
		}
		return nil, m, nil
	}
	if q.args["chat_id"] == "" && q.args["message_id"] == "" {
		return nil, nil, badRequest("Message identifier is not specified")
	}
	c, err := s.world.access(q.args["chat_id"], toEdit)
	if err != nil {
		return nil, nil, err
	}
	m := c.messages[lenientInt(q.args["message_id"])]
	if m == nil || m.Deleted {
		return nil, nil, badRequest("Message to edit not found")
	}
	if m.From.ID != s.bot.ID || m.forwarded != nil || m.replyKeyboard || m.Service != "" {
		return nil, nil, badRequest("Message can't be edited")
	}
	return c, m, nil
}

// edit changes a message to next, which holds the new text, caption, entities
// and keyboard.
func (s *Server) edit(c *chat, m *message, next Message, preview string) (any, *apiError) {
	if err := checkButtons(next.Buttons); err != nil {
		return nil, err
	}
	if next.Text == m.Text && next.Caption == m.Caption && sameEntities(next.Entities, m.Entities) &&
		sameEntities(next.CaptionEntities, m.CaptionEntities) && sameKeyboard(next.Buttons, m.Buttons) && preview == m.linkPreview {
		return nil, badRequest(errNotModified)
	}
	if c != nil {
		if err := s.rates.take(s, c); err != nil {
			return nil, err
		}
	}
	m.earlier = append(m.earlier, m.Buttons...)
	m.Text, m.Entities, m.Caption, m.CaptionEntities, m.Buttons = next.Text, next.Entities, next.Caption, next.CaptionEntities, next.Buttons
	m.linkPreview = preview
	m.EditDate = s.clock.Now().Truncate(time.Second)
	m.Edits++
	s.notify()
	if c == nil {
		return true, nil
	}
	return s.world.wireMessage(c, m, true), nil
}

func (s *Server) editMessageText(q *request) (any, *apiError) {
	preview, err := previewOptions(q)
	if err != nil {
		return nil, err
	}
	text, es, later, err := messageText(q)
	if err != nil {
		return nil, err
	}
	mk, err := parseMarkup(q.args["reply_markup"])
	if err != nil {
		return nil, err
	}
	c, m, err := s.editTarget(q)
	if err != nil {
		return nil, err
	}
	if later != nil {
		return nil, later
	}
	if m.Document != nil {
		return nil, badRequest("There is no text in the message to edit")
	}
	return s.edit(c, m, Message{Text: text, Entities: es, Buttons: mk.rows}, preview)
}

func (s *Server) editMessageCaption(q *request) (any, *apiError) {
	caption, es, err := captionText(q)
	if err != nil {
		return nil, err
	}
	mk, err := parseMarkup(q.args["reply_markup"])
	if err != nil {
		return nil, err
	}
	c, m, err := s.editTarget(q)
	if err != nil {
		return nil, err
	}
	if m.Document == nil {
		return nil, badRequest("There is no caption in the message to edit")
	}
	if utf8.RuneCountInString(caption) > maxCaption {
		return nil, badRequest("Message caption is too long")
	}
	return s.edit(c, m, Message{Caption: caption, CaptionEntities: es, Buttons: mk.rows}, m.linkPreview)
}

func (s *Server) editMessageReplyMarkup(q *request) (any, *apiError) {
	mk, err := parseMarkup(q.args["reply_markup"])
	if err != nil {
		return nil, err
	}
	c, m, err := s.editTarget(q)
	if err != nil {
		return nil, err
	}
	next := m.Message
	next.Buttons = mk.rows
	return s.edit(c, m, next, m.linkPreview)
}

func (s *Server) deleteMessage(q *request) (any, *apiError) {
	if q.args["chat_id"] == "" {
		return nil, badRequest("Chat identifier is not specified")
	}
	if q.args["message_id"] == "" {
		return nil, badRequest("Message identifier is not specified")
	}
	c, err := s.world.access(q.args["chat_id"], toWrite)
	if err != nil {
		return nil, err
	}
	m := c.messages[lenientInt(q.args["message_id"])]
	switch {
	case m == nil || m.Deleted:
		return nil, badRequest("Message to delete not found")
	case m.Service == "migrate_from_chat_id",
		m.From.ID != s.bot.ID && c.kind != Private && c.bot != Administrator:
		return nil, badRequest("Message can't be deleted")
	case s.clock.Now().Sub(m.Date) > 2*day && (c.kind == Private || c.bot != Administrator):
		return nil, badRequest("Message can't be deleted for everyone")
	}
	m.Deleted = true
	s.notify()
	return true, nil
}

func sameEntities(a, b []Entity) bool {
	return slices.EqualFunc(a, b, func(x, y Entity) bool {
		if x.User != nil && y.User != nil && x.User.ID == y.User.ID {
			x.User, y.User = nil, nil
		}
		return x == y
	})
}

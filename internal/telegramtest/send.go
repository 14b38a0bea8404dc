package telegramtest

import (
	"encoding/base64"
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const day = 24 * time.Hour

// target is where a new message goes.
type target struct {
	chat    *chat
	thread  int64
	replyTo int64
	markup  markup
}

// sendTarget checks the arguments that all methods share which send something,
// in the order of the server: reply, keyboard, chat, topic, reply target.
func (s *Server) sendTarget(q *request) (target, *apiError) {
	var t target
	reply, missingIsFine, err := replyArgument(q)
	if err != nil {
		return t, err
	}
	if t.markup, err = parseMarkup(q.args["reply_markup"]); err != nil {
		return t, err
	}
	if t.chat, err = s.world.access(q.args["chat_id"], toWrite); err != nil {
		return t, err
	}
	if id := lenientInt(q.args["message_thread_id"]); id != 0 && t.chat.forum {
		topic := t.chat.topics[id]
		if topic == nil || topic.deleted {
			return t, badRequest("Message thread not found")
		}
		if topic.closed && t.chat.bot != Administrator {
			return t, badRequest("TOPIC_CLOSED")
		}
		t.thread = id
	}
	if reply != 0 {
		m := t.chat.messages[reply]
		switch {
		case m != nil && !m.Deleted:
			t.replyTo = reply
			if t.thread == 0 {
				t.thread = m.ThreadID
			}
		case !missingIsFine:
			return t, badRequest("Message to be replied not found")
		}
	}
	return t, nil
}

// replyArgument reads reply_parameters, or the older reply_to_message_id.
func replyArgument(q *request) (id int64, missingIsFine bool, err *apiError) {
	arg := q.args["reply_parameters"]
	if arg == "" {
		return lenientInt(q.args["reply_to_message_id"]), q.boolean("allow_sending_without_reply"), nil
	}
	var p struct {
		MessageID int64 `json:"message_id"`
		Allow     bool  `json:"allow_sending_without_reply"`
	}
	if !json.Valid([]byte(arg)) {
		return 0, false, badRequest("Can't parse reply parameters JSON object")
	}
	if arg[0] != '{' || json.Unmarshal([]byte(arg), &p) != nil {
		return 0, false, badRequest("Object expected as reply parameters")
	}
	return p.MessageID, p.Allow, nil
}

// deliver posts a message of the bot once Telegram's core agrees: keyboard and
// rate limits.
func (s *Server) deliver(q *request, t target, m Message, linkPreview string) (any, *apiError) {
	if err := checkButtons(t.markup.rows); err != nil {
		return nil, err
	}
	if err := s.rates.take(s, t.chat); err != nil {
		return nil, err
	}
	m.From, m.ThreadID, m.ReplyTo, m.Buttons = s.bot, t.thread, t.replyTo, t.markup.rows
	m.Silent, m.Protected = q.boolean("disable_notification"), q.boolean("protect_content")
	if t.chat.kind == Channel {
		m.SenderChat = t.chat.id
	}
	stored := s.world.post(t.chat, m)
	stored.linkPreview, stored.replyKeyboard = linkPreview, t.markup.replyKeyboard
	return s.world.wireMessage(t.chat, stored, true), nil
}

// previewOptions reads link_preview_options, or the older
// disable_web_page_preview.
func previewOptions(q *request) (string, *apiError) {
	arg := q.args["link_preview_options"]
	if arg == "" {
		if q.boolean("disable_web_page_preview") {
			return `{"is_disabled":true}`, nil
		}
		return "", nil
	}
	if !json.Valid([]byte(arg)) {
		return "", badRequest("Can't parse link preview options JSON object")
	}
	if arg[0] != '{' {
		return "", badRequest("Object expected as link preview options")
	}
	return arg, nil
}

// messageText reads the text of a message: what the server refuses before it
// looks at the chat, then what it refuses after.
func messageText(q *request) (text string, es []Entity, later, err *apiError) {
	raw := q.args["text"]
	if raw == "" {
		return "", nil, nil, badRequest("Message text is empty")
	}
	if len(raw) > maxRawText {
		return "", nil, nil, badRequest("Text is too long")
	}
	text, es, err = formatted(raw, q.args["parse_mode"], q.args["entities"])
	switch {
	case err != nil:
	case text == "":
		later = badRequest("Text must be non-empty")
	case utf8.RuneCountInString(text) > maxText:
		later = badRequest("Message is too long")
	}
	return text, es, later, err
}

func (s *Server) sendMessage(q *request) (any, *apiError) {
	preview, err := previewOptions(q)
	if err != nil {
		return nil, err
	}
	text, es, later, err := messageText(q)
	if err != nil {
		return nil, err
	}
	t, err := s.sendTarget(q)
	if err != nil {
		return nil, err
	}
	if t.chat.bot == Restricted {
		return nil, badRequest("not enough rights to send text messages to the chat")
	}
	if later != nil {
		return nil, later
	}
	return s.deliver(q, t, Message{Text: text, Entities: es}, preview)
}

// captionText reads a caption.
func captionText(q *request) (string, []Entity, *apiError) {
	return formatted(q.args["caption"], q.args["parse_mode"], q.args["caption_entities"])
}

func (s *Server) sendDocument(q *request) (any, *apiError) {
	doc, err := s.documentArgument(q)
	if err != nil {
		return nil, err
	}
	caption, es, err := captionText(q)
	if err != nil {
		return nil, err
	}
	t, err := s.sendTarget(q)
	if err != nil {
		return nil, err
	}
	if t.chat.bot == Restricted {
		return nil, badRequest("not enough rights to send documents to the chat")
	}
	if utf8.RuneCountInString(caption) > maxCaption {
		return nil, badRequest("Message caption is too long")
	}
	if doc.FileID == "" {
		s.keepFile(doc)
	}
	return s.deliver(q, t, Message{Document: doc, Caption: caption, CaptionEntities: es}, "")
}

// documentArgument finds the document: an upload, the id of a file that the
// server has, or the address of a web page, which this server does not fetch.
func (s *Server) documentArgument(q *request) (*Document, *apiError) {
	if f, ok := q.file("document"); ok {
		if len(f.Data) == 0 {
			return nil, badRequest("file must be non-empty")
		}
		kind := mime.TypeByExtension(path.Ext(f.Name))
		if kind == "" {
			kind = http.DetectContentType(f.Data)
		}
		kind, _, _ = strings.Cut(kind, ";")
		return &Document{Name: path.Base(f.Name), MIME: kind, Size: int64(len(f.Data)), Data: f.Data}, nil
	}
	arg := q.args["document"]
	if arg == "" || strings.HasPrefix(arg, "attach://") {
		return nil, badRequest("There is no document in the request")
	}
	if d := s.world.files[arg]; d != nil {
		return d, nil
	}
	if u, err := url.Parse(arg); err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" {
		return nil, badRequest("failed to get HTTP URL content")
	}
	return nil, badRequest("Wrong file identifier/HTTP URL specified")
}

// keepFile gives a new file its ids.
func (s *Server) keepFile(d *Document) {
	id := make([]byte, 39)
	for i := range id {
		id[i] = byte(s.rng.Uint32())
	}
	d.FileID = "BQACAgIAAxkB" + base64.RawURLEncoding.EncodeToString(id)
	d.UniqueID = "AgAD" + strconv.FormatUint(s.rng.Uint64()>>16, 36)
	s.world.files[d.FileID] = d
}

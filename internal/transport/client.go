package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	tgbotapi "github.com/go-telegram-bot-api/telegram-bot-api/v5"
)

const (
	// DefaultAPIBase is the public Bot API.
	DefaultAPIBase = "https://api.telegram.org"

	callTimeout = 30 * time.Second
	// pollMargin is what a poll may take beyond the time that Telegram holds it:
	// a half-open connection is given up after pollTimeout + pollMargin.
	pollMargin = 15 * time.Second
)

// Options configure a Client.
type Options struct {
	Token Secret
	// APIBase is the Bot API server, "" for [DefaultAPIBase]. http is allowed to
	// loopback only.
	APIBase string
	// Scrub are further secrets to keep out of errors, such as the webhook's.
	Scrub []Secret
	// IPv4Only is for machines whose IPv6 route loses packets.
	IPv4Only bool
	// CallTimeout bounds a call and PollMargin what a poll may take beyond its
	// hold time. 0 means 30 s and 15 s.
	CallTimeout, PollMargin time.Duration
	// Dated is told what Telegram's clock, or that of a front end, said in an answer, and when it was read. The
	// clock counts whole seconds. nil is nobody.
	Dated func(said, read time.Time)
	// Observe is told of every call: its method, the class of its failure or "" for none, how long it took, and the wait that a 429
	// asked for. nil is nobody. It is called from several goroutines.
	Observe func(method string, class Class, took, retryAfter time.Duration)
}

// Client calls the Bot API through telegram-bot-api/v5, which it gives what that
// library lacks: contexts, time and size limits, errors without the token, and no
// redirects. Polls use connections of their own, so that they cannot hold up a
// call. It is safe for concurrent use.
type Client struct {
	token    Secret
	base     string
	botID    int64
	redactor *Redactor
	calls    *http.Client
	polls    *http.Client
	observe  func(method string, class Class, took, retryAfter time.Duration)
	dated    func(said, read time.Time)

	callTimeout, pollMargin time.Duration
}

// New checks the options and returns a Client. It does not use the network.
func New(o Options) (*Client, error) {
	token, err := ParseToken(o.Token.Reveal())
	if err != nil {
		return nil, err
	}
	if o.APIBase == "" {
		o.APIBase = DefaultAPIBase
	}
	if err := ValidateAPIBase(o.APIBase); err != nil {
		return nil, err
	}
	id, _, _ := strings.Cut(token.Reveal(), ":")
	botID, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return nil, errors.New("not a bot token: the number before the colon is too large")
	}
	silenceLibrary()
	c := &Client{
		token:       token,
		base:        strings.TrimRight(o.APIBase, "/"),
		botID:       botID,
		observe:     o.Observe,
		dated:       o.Dated,
		redactor:    NewRedactor(append([]Secret{token}, o.Scrub...)...),
		calls:       newHTTPClient(o.IPv4Only),
		polls:       newHTTPClient(o.IPv4Only),
		callTimeout: o.CallTimeout,
		pollMargin:  o.PollMargin,
	}
	if c.callTimeout == 0 {
		c.callTimeout = callTimeout
	}
	if c.pollMargin == 0 {
		c.pollMargin = pollMargin
	}
	return c, nil
}

// Close drops the idle connections. Calls in flight end with their contexts.
func (c *Client) Close() {
	c.calls.CloseIdleConnections()
	c.polls.CloseIdleConnections()
}

// Redactor scrubs the client's secrets; it is what [RedactCore] wants.
func (c *Client) Redactor() *Redactor { return c.redactor }

// BotID is the number in front of the token's colon; it is no secret.
func (c *Client) BotID() int64 { return c.botID }

// APIHost is the host, and port when given, of the Bot API server.
func (c *Client) APIHost() string {
	_, rest, _ := strings.Cut(c.base, "://")
	host, _, _ := strings.Cut(rest, "/")
	return host
}

// Proxy is the host, and port when given, of the proxy that the environment names
// for the Bot API server, "" for none.
func (c *Client) Proxy() string {
	r, err := http.NewRequest(http.MethodPost, c.base, nil)
	if err != nil {
		return ""
	}
	u, err := proxy(r)
	if err != nil || u == nil {
		return ""
	}
	return u.Host
}

// GetMe tells who the bot is, and so whether the token is good.
func (c *Client) GetMe(ctx context.Context) (User, error) {
	var u User
	err := c.call(ctx, "getMe", nil, &u)
	return u, err
}

// GetUpdates returns the raw updates from the poll's own connections; each is for
// [DecodeUpdate]. The call is bounded by its Timeout plus the poll margin.
func (c *Client) GetUpdates(ctx context.Context, g GetUpdates) ([]json.RawMessage, error) {
	p := tgbotapi.Params{"allowed_updates": toJSON(allowedUpdates)}
	p.AddNonZero64("offset", g.Offset)
	p.AddNonZero("limit", g.Limit)
	p.AddNonZero("timeout", int(g.Timeout/time.Second))
	return c.getUpdates(ctx, p, g.Timeout)
}

func (c *Client) getUpdates(ctx context.Context, p tgbotapi.Params, hold time.Duration) ([]json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, hold+c.pollMargin)
	defer cancel()
	var updates []json.RawMessage
	err := c.do(ctx, c.polls, "getUpdates", &updates, func(bot *tgbotapi.BotAPI) (*tgbotapi.APIResponse, error) {
		return bot.MakeRequest("getUpdates", p)
	})
	if err != nil {
		// Whatever broke may have broken the idle connections as well.
		c.polls.CloseIdleConnections()
	}
	return updates, err
}

// Peek returns the oldest updates that wait, at most 100, and leaves them where they are: it confirms nothing. In the place of
// one that polls for good it would show the same ones for ever. The list of wanted kinds stays as an earlier
// program left it, unless subscribe is set.
func (c *Client) Peek(ctx context.Context, subscribe bool) ([]json.RawMessage, error) {
	p := tgbotapi.Params{}
	if subscribe {
		p["allowed_updates"] = toJSON(allowedUpdates)
	}
	return c.getUpdates(ctx, p, 0)
}

// GetWebhookInfo tells what webhook is registered, if any.
func (c *Client) GetWebhookInfo(ctx context.Context) (WebhookInfo, error) {
	var w WebhookInfo
	err := c.call(ctx, "getWebhookInfo", nil, &w)
	w.LastErrorMessage = c.redactor.String(w.LastErrorMessage)
	return w, err
}

// SetWebhook registers a webhook. A failing setWebhook can leave Telegram with
// none at all, so the registration has to be read back after an error.
func (c *Client) SetWebhook(ctx context.Context, s SetWebhook) error {
	return c.call(ctx, "setWebhook", tgbotapi.Params{
		"url":             s.URL,
		"secret_token":    s.Secret.Reveal(),
		"allowed_updates": toJSON(allowedUpdates),
	}, nil)
}

// DeleteWebhook removes the registration and keeps what is pending.
func (c *Client) DeleteWebhook(ctx context.Context) error {
	return c.call(ctx, "deleteWebhook", nil, nil)
}

// SendMessage sends a message and returns it as Telegram stored it.
func (c *Client) SendMessage(ctx context.Context, s SendMessage) (Message, error) {
	p := destination(s.ChatID, s.ThreadID, s.ReplyTo, s.MustReply, s.Silent)
	p["text"] = s.Text
	p.AddNonEmpty("parse_mode", s.ParseMode)
	addPreview(p, s.LinkPreview)
	if len(s.Keyboard) > 0 {
		p["reply_markup"] = toJSON(s.Keyboard)
	}
	var raw json.RawMessage
	if err := c.call(ctx, "sendMessage", p, &raw); err != nil {
		return Message{}, err
	}
	return sentMessage("sendMessage", raw)
}

// SendDocument uploads a file. The body is built anew by every call, so that a
// repetition never sends an empty file.
func (c *Client) SendDocument(ctx context.Context, s SendDocument) (Message, error) {
	p := destination(s.ChatID, s.ThreadID, s.ReplyTo, false, s.Silent)
	p.AddNonEmpty("caption", s.Caption)
	p.AddNonEmpty("parse_mode", s.ParseMode)
	if len(s.Keyboard) > 0 {
		p["reply_markup"] = toJSON(s.Keyboard)
	}
	files := []tgbotapi.RequestFile{{
		Name: "document",
		Data: tgbotapi.FileBytes{Name: path.Base(s.FileName), Bytes: s.Data},
	}}
	ctx, cancel := context.WithTimeout(ctx, c.callTimeout)
	defer cancel()
	var raw json.RawMessage
	err := c.do(ctx, c.calls, "sendDocument", &raw, func(bot *tgbotapi.BotAPI) (*tgbotapi.APIResponse, error) {
		return bot.UploadFiles("sendDocument", p, files)
	})
	if err != nil {
		return Message{}, err
	}
	return sentMessage("sendDocument", raw)
}

// EditMessageText rewrites a message. That it already looks so is no error.
func (c *Client) EditMessageText(ctx context.Context, e EditMessageText) error {
	p := tgbotapi.Params{"text": e.Text}
	p.AddNonZero64("chat_id", e.ChatID)
	p.AddNonZero64("message_id", e.MessageID)
	p.AddNonEmpty("parse_mode", e.ParseMode)
	addPreview(p, e.LinkPreview)
	p["reply_markup"] = toJSON(e.Keyboard)
	return unlessUnmodified(c.call(ctx, "editMessageText", p, nil))
}

// EditMessageReplyMarkup replaces the buttons. That they already are so is no error.
func (c *Client) EditMessageReplyMarkup(ctx context.Context, e EditMessageReplyMarkup) error {
	p := tgbotapi.Params{"reply_markup": toJSON(e.Keyboard)}
	p.AddNonZero64("chat_id", e.ChatID)
	p.AddNonZero64("message_id", e.MessageID)
	return unlessUnmodified(c.call(ctx, "editMessageReplyMarkup", p, nil))
}

// AnswerCallbackQuery answers a tap. cache_time stays 0: with more, the person's
// client would answer later taps by itself without telling the bot.
func (c *Client) AnswerCallbackQuery(ctx context.Context, a AnswerCallbackQuery) error {
	p := tgbotapi.Params{"callback_query_id": a.ID, "cache_time": "0"}
	p.AddNonEmpty("text", a.Text)
	p.AddBool("show_alert", a.Alert)
	return c.call(ctx, "answerCallbackQuery", p, nil)
}

// SetMyCommands replaces the bot's menu of commands.
func (c *Client) SetMyCommands(ctx context.Context, commands []Command) error {
	return c.call(ctx, "setMyCommands", tgbotapi.Params{"commands": toJSON(commands)}, nil)
}

// GetChat reads a chat that the bot can see.
func (c *Client) GetChat(ctx context.Context, chatID int64) (Chat, error) {
	var chat Chat
	err := c.call(ctx, "getChat", tgbotapi.Params{"chat_id": strconv.FormatInt(chatID, 10)}, &chat)
	return chat, err
}

// GetChatMember tells what somebody, or the bot itself, is in a chat. Telegram need not know it of people who
// were not seen lately.
func (c *Client) GetChatMember(ctx context.Context, chatID, userID int64) (ChatMember, error) {
	var m ChatMember
	err := c.call(ctx, "getChatMember", tgbotapi.Params{
		"chat_id": strconv.FormatInt(chatID, 10), "user_id": strconv.FormatInt(userID, 10),
	}, &m)
	return m, err
}

func destination(chatID, threadID, replyTo int64, mustReply, silent bool) tgbotapi.Params {
	p := tgbotapi.Params{"chat_id": strconv.FormatInt(chatID, 10)}
	p.AddNonZero64("message_thread_id", threadID)
	p.AddBool("disable_notification", silent)
	if replyTo != 0 {
		p["reply_parameters"] = toJSON(map[string]any{"message_id": replyTo, "allow_sending_without_reply": !mustReply})
	}
	return p
}

func addPreview(p tgbotapi.Params, wanted bool) {
	if !wanted {
		p["link_preview_options"] = `{"is_disabled":true}`
	}
}

// toJSON encodes values of this package's own types, which cannot fail.
func toJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("transport: encoding %T: %v", v, err))
	}
	return string(data)
}

func sentMessage(method string, raw json.RawMessage) (Message, error) {
	m, err := decodeMessage(raw)
	if err != nil {
		return Message{}, &Error{
			Method: method, Class: ClassUnknownOutcome, Code: http.StatusOK,
			Description: "answered ok, but without the message: " + err.Error(),
		}
	}
	return *m, nil
}

func unlessUnmodified(err error) error {
	if ClassOf(err) == ClassNotModified {
		return nil
	}
	return err
}

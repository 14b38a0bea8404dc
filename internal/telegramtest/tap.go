package telegramtest

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"
)

const (
	maxAnswer    = 200 // characters of an answer to a tap
	maxCacheTime = 30 * 24 * 3600
	errTooOld    = "Query is too old and response timeout expired or query ID is invalid"
)

// Tap is one press of a button on its way to the bot: one callback query. A
// phone that hears nothing sends the press again, as a Tap of its own.
type Tap struct {
	s    *Server
	info TapInfo // Answer is guarded by s.mu, the rest never changes
}

// TapInfo describes a tap.
type TapInfo struct {
	ID        string // of the callback query
	UpdateID  int64  // 0 = no update was made: not allowed, or answered by the phone itself
	UserID    int64
	ChatID    int64 // 0 for a tap that names only an inline message
	MessageID int64
	InlineID  string
	Label     string // "" for a forged tap
	Data      string
	At        time.Time
	Answer    *Answer // nil = not answered
}

// Answer is what the tapper sees after a tap.
type Answer struct {
	Text  string // "" = the spinner just stops
	Alert bool   // a box to be closed, not a toast
	URL   string
	// CacheTime is how long the phone answers the same tap by itself.
	CacheTime time.Duration
	At        time.Time
	Cached    bool // given by the phone, the bot was not asked
}

// String says what the person sees.
func (a Answer) String() string {
	switch {
	case a.Text == "":
		return "(no text)"
	case a.Alert:
		return "alert: " + a.Text
	}
	return "toast: " + a.Text
}

func (t *Tap) copy() TapInfo {
	info := t.info
	if info.Answer != nil {
		a := *info.Answer
		info.Answer = &a
	}
	return info
}

// Info returns the tap as it is now.
func (t *Tap) Info() TapInfo {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.copy()
}

// Answer returns the answer to the tap, if there is one by now.
func (t *Tap) Answer() (Answer, bool) {
	info := t.Info()
	if info.Answer == nil {
		return Answer{}, false
	}
	return *info.Answer, true
}

// Wait waits for the answer to the tap.
func (t *Tap) Wait(ctx context.Context) (Answer, error) {
	err := t.s.WaitFor(ctx, func(State) bool { return t.info.Answer != nil })
	if err != nil {
		return Answer{}, fmt.Errorf("telegramtest: tap on %q was not answered: %w", t.info.Label, err)
	}
	a, _ := t.Answer()
	return a, nil
}

// TimedOut reports whether the phone gave up waiting: the spinner stopped
// without an answer.
func (t *Tap) TimedOut() bool {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.info.Answer == nil && t.s.clock.Now().Sub(t.info.At) >= t.s.opts.AnswerWindow
}

// Resend sends the same press again, as a phone does whose tap is not answered:
// a new callback query in a new update. It works for answered taps too.
func (t *Tap) Resend() *Tap {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	info := t.info
	info.Answer = nil
	return t.s.tap(info, info.InlineID != "")
}

// tap makes a callback query. The caller holds mu and filled in who pressed what
// where; inline is the form without a chat.
func (s *Server) tap(info TapInfo, inline bool) *Tap {
	id := s.rng.Int64() - 1<<62
	for s.taps[id] != nil || id == 0 {
		id++
	}
	info.ID, info.At, info.UpdateID = strconv.FormatInt(id, 10), s.clock.Now(), 0
	t := &Tap{s: s, info: info}
	s.taps[id] = t
	s.world.taps = append(s.world.taps, t)
	if a := s.cachedAnswer(t); a != nil {
		t.info.Answer = a
		s.notify()
		return t
	}

	c := s.world.chats[info.ChatID]
	w := wireTap{ID: info.ID, From: s.world.people[info.UserID].User, Data: info.Data, Instance: strconv.FormatInt(s.opts.instance(c), 10)}
	var m *message
	if c != nil {
		m = c.messages[info.MessageID]
	}
	gone := m == nil || m.Deleted
	mode := s.opts.CallbackMode
	switch {
	case inline || c == nil:
		w.InlineID = info.InlineID
	case mode == CallbackInline, mode == CallbackAuto && gone:
		w.InlineID = s.inlineID(m, info)
	case gone:
		w.Message = inaccessible{ID: info.MessageID, Chat: s.world.wireChat(c)}
	default:
		w.Message = s.world.wireMessage(c, m, true)
	}
	t.info.InlineID = w.InlineID
	t.info.UpdateID = s.enqueue("callback_query", "user "+strconv.FormatInt(info.UserID, 10), s.opts.TapLife, w)
	return t
}

// instance is the chat_instance of taps in a chat; taps without one have a
// constant.
func (Options) instance(c *chat) int64 {
	if c == nil {
		return -4_611_686_018_427_387_904
	}
	return c.instance
}

// inlineID returns the id under which a message can be edited without its chat.
func (s *Server) inlineID(m *message, info TapInfo) string {
	id := fmt.Sprintf("AgAAA%dx%dx%d", info.ChatID, info.MessageID, s.bot.ID)
	if m != nil && s.world.inline[id] == nil {
		s.world.inline[id] = m
	}
	return id
}

// cachedAnswer is what the phone answers by itself because an earlier answer to
// the same tap had a cache_time.
func (s *Server) cachedAnswer(t *Tap) *Answer {
	for _, old := range s.world.taps {
		a := old.info.Answer
		if a != nil && a.CacheTime > 0 && !a.Cached && old.info.UserID == t.info.UserID && old.info.ChatID == t.info.ChatID &&
			old.info.MessageID == t.info.MessageID && old.info.Data == t.info.Data && t.info.At.Before(a.At.Add(a.CacheTime)) {
			again := *a
			again.Cached = true
			return &again
		}
	}
	return nil
}

func (s *Server) answerCallbackQuery(q *request) (any, *apiError) {
	text := q.args["text"]
	if !utf8.ValidString(text) {
		return nil, badRequest("strings must be encoded in UTF-8")
	}
	if utf8.RuneCountInString(text) > maxAnswer {
		return nil, badRequest("MESSAGE_TOO_LONG")
	}
	if link := q.args["url"]; link != "" {
		if u, err := url.Parse(link); err != nil || u.Scheme == "" || u.Host == "" {
			return nil, badRequest("URL_INVALID")
		}
	}
	t := s.taps[lenientInt(q.args["callback_query_id"])]
	if t == nil || t.info.Answer != nil || s.clock.Now().Sub(t.info.At) >= s.opts.AnswerWindow {
		return nil, badRequest(errTooOld)
	}
	t.info.Answer = &Answer{
		Text: text, Alert: q.boolean("show_alert"), URL: q.args["url"], At: s.clock.Now(),
		CacheTime: time.Duration(q.integer("cache_time", 0, 0, maxCacheTime)) * time.Second,
	}
	s.notify()
	return true, nil
}

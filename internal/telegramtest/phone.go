package telegramtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrNoButton is returned by taps for which there is no such button.
var ErrNoButton = errors.New("no message with such a button")

// ErrNotThere is returned for acts in a chat where the person is not, or where
// the bot is not.
var ErrNotThere = errors.New("not in that chat")

// Phone is a person's Telegram: what they see, and what they do.
type Phone struct {
	s  *Server
	id int64
}

// Phone returns the phone of a person. Somebody unknown is added, as AddUser
// does.
func (s *Server) Phone(userID int64) *Phone {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.world.people[userID] == nil {
		p := s.world.addPerson(User{ID: userID})
		p.started = true
		s.world.private(p)
	}
	return &Phone{s: s, id: userID}
}

// UserID returns whose phone it is. It is also the id of their chat with the
// bot.
func (p *Phone) UserID() int64 { return p.id }

// Messages returns the private chat with the bot, oldest first.
func (p *Phone) Messages() []Message { return p.s.Messages(p.id) }

// Taps returns the person's taps with what they saw after each, oldest first.
func (p *Phone) Taps() []TapInfo {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return State{p.s}.TapsOf(p.id)
}

// TapsOf returns the taps of one person, oldest first.
func (st State) TapsOf(userID int64) []TapInfo {
	return slices.DeleteFunc(st.Taps(), func(t TapInfo) bool { return t.UserID != userID })
}

// Newest returns the newest message in any of the person's chats that match
// accepts; deleted messages are not looked at.
func (p *Phone) Newest(match func(Message) bool) (Message, bool) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.newest(match)
}

func (p *Phone) newest(match func(Message) bool) (Message, bool) {
	var best *message
	for _, c := range p.s.world.chats {
		if !p.in(c) {
			continue
		}
		for _, m := range c.messages {
			if !m.Deleted && (best == nil || m.seq > best.seq) && match(m.Message) {
				best = m
			}
		}
	}
	if best == nil {
		return Message{}, false
	}
	return best.Message, true
}

// in reports whether the person reads that chat.
func (p *Phone) in(c *chat) bool {
	m := c.members[p.id]
	return m != nil && m.Status != Left && m.Status != Kicked
}

// Tap presses the button with that text on the newest message that has one, in
// any of the person's chats.
func (p *Phone) Tap(label string) (*Tap, error) {
	m, ok := p.Newest(hasButton(label))
	if !ok {
		return nil, fmt.Errorf("telegramtest: tap %q: %w", label, ErrNoButton)
	}
	return p.TapMessage(m, label)
}

// WaitButton waits until some message has a button with that text, and returns
// the newest one.
func (p *Phone) WaitButton(ctx context.Context, label string) (Message, error) {
	var found Message
	err := p.s.WaitFor(ctx, func(State) bool {
		var ok bool
		found, ok = p.newest(hasButton(label))
		return ok
	})
	if err != nil {
		return Message{}, fmt.Errorf("telegramtest: no button %q appeared: %w", label, err)
	}
	return found, nil
}

// WaitTap waits until some message has a button with that text, and presses it.
func (p *Phone) WaitTap(ctx context.Context, label string) (*Tap, error) {
	m, err := p.WaitButton(ctx, label)
	if err != nil {
		return nil, err
	}
	return p.TapMessage(m, label)
}

func hasButton(label string) func(Message) bool {
	return func(m Message) bool {
		_, ok := m.Button(label)
		return ok
	}
}

// TapMessage presses a button of a message as it is now.
func (p *Phone) TapMessage(m Message, label string) (*Tap, error) {
	now, ok := p.s.Message(m.ChatID, m.ID)
	if !ok {
		return nil, fmt.Errorf("telegramtest: tap %q: %w", label, ErrNoButton)
	}
	b, ok := now.Button(label)
	if !ok || b.Data == "" {
		return nil, fmt.Errorf("telegramtest: tap %q on message %d: %w", label, m.ID, ErrNoButton)
	}
	return p.press(now, label, b.Data)
}

// TapStale presses a button that a message had once, or still has: a phone that
// has not heard of the edit yet, or of the deletion. Telegram's own apps may
// refuse such a tap; others do not.
func (p *Phone) TapStale(m Message, label string) (*Tap, error) {
	if b, ok := m.Button(label); ok {
		return p.press(m, label, b.Data)
	}
	p.s.mu.Lock()
	var rows [][]Button
	if c := p.s.world.chats[m.ChatID]; c != nil && c.messages[m.ID] != nil {
		stored := c.messages[m.ID]
		rows = append(slices.Clone(stored.earlier), stored.Buttons...)
	}
	p.s.mu.Unlock()
	if b, ok := (Message{Buttons: rows}).Button(label); ok {
		return p.press(m, label, b.Data)
	}
	return nil, fmt.Errorf("telegramtest: stale tap %q on message %d: %w", label, m.ID, ErrNoButton)
}

// TapData sends a tap with data of one's own making on the newest message of the
// bot, as a modified app can.
func (p *Phone) TapData(data string) (*Tap, error) {
	m, ok := p.Newest(Message.FromBot)
	if !ok {
		return nil, fmt.Errorf("telegramtest: forged tap: %w", ErrNoButton)
	}
	return p.press(m, "", data)
}

// TapDataOn sends a tap with any data on any message of a chat the person is in;
// the message may have no buttons, be deleted, or never have been.
func (p *Phone) TapDataOn(m Message, data string) (*Tap, error) { return p.press(m, "", data) }

// TapInline sends a tap on an inline message: the bot learns no chat.
func (p *Phone) TapInline(inlineID, data string) *Tap {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.s.tap(TapInfo{UserID: p.id, InlineID: inlineID, Data: data}, true)
}

// DoubleTap presses a button twice at once: two callback queries, two updates.
func (p *Phone) DoubleTap(label string) (first, second *Tap, err error) {
	first, err = p.Tap(label)
	if err != nil {
		return nil, nil, err
	}
	return first, first.Resend(), nil
}

func (p *Phone) press(m Message, label, data string) (*Tap, error) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	c := p.s.world.chats[m.ChatID]
	if c == nil || !p.in(c) || c.bot == Kicked || c.bot == Left || c.kind == Private && p.s.world.people[p.id].blocked {
		return nil, fmt.Errorf("telegramtest: tap in chat %d: %w", m.ChatID, ErrNotThere)
	}
	return p.s.tap(TapInfo{UserID: p.id, ChatID: m.ChatID, MessageID: m.ID, InlineID: m.InlineID, Label: label, Data: data}, m.InlineID != ""), nil
}

// Text writes to the bot.
func (p *Phone) Text(text string) (Message, error) { return p.write(p.id, Message{Text: text}) }

// TextIn writes into a chat; an anonymous administrator's text is in the name of
// the group.
func (p *Phone) TextIn(chatID int64, text string) (Message, error) {
	return p.write(chatID, Message{Text: text})
}

// TextInTopic writes into a topic of a forum.
func (p *Phone) TextInTopic(chatID, threadID int64, text string) (Message, error) {
	return p.write(chatID, Message{Text: text, ThreadID: threadID})
}

// Reply answers a message with a text.
func (p *Phone) Reply(m Message, text string) (Message, error) {
	return p.write(m.ChatID, Message{Text: text, ReplyTo: m.ID, ThreadID: m.ThreadID})
}

// ReplyAsChannel answers a message in the name of a channel, as an owner of one can in a group.
func (p *Phone) ReplyAsChannel(m Message, channelID int64, text string) (Message, error) {
	return p.write(m.ChatID, Message{Text: text, ReplyTo: m.ID, ThreadID: m.ThreadID, SenderChat: channelID})
}

// TextDated writes to the bot as if at another time: one older than a day is
// never delivered.
func (p *Phone) TextDated(text string, at time.Time) (Message, error) {
	return p.write(p.id, Message{Text: text, Date: at})
}

func (p *Phone) write(chatID int64, m Message) (Message, error) { return p.pass(chatID, m, nil) }

// pass is write for what may be a copy.
func (p *Phone) pass(chatID int64, m Message, from *origin) (Message, error) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	me := p.s.world.people[p.id]
	c := p.s.world.chats[chatID]
	if chatID == p.id {
		c = p.s.world.private(me)
		me.started = true
	}
	if c == nil || !p.in(c) || c.migratedTo != 0 {
		return Message{}, fmt.Errorf("telegramtest: write in chat %d: %w", chatID, ErrNotThere)
	}
	m.From = me.User
	if m.SenderChat != 0 {
		if p.s.world.chats[m.SenderChat] == nil {
			return Message{}, fmt.Errorf("telegramtest: write as channel %d: %w", m.SenderChat, ErrNotThere)
		}
		m.From = User{ID: ChannelBot, IsBot: true, FirstName: "Channel", Username: "Channel_Bot"}
	} else if c.members[p.id].Anonymous {
		m.From = User{ID: GroupAnonymousBot, IsBot: true, FirstName: "Group", Username: "GroupAnonymousBot"}
		m.SenderChat = c.id
	}
	m.Text, m.Entities = trim(m.Text, nil)
	m.Entities = settle(autoEntities(m.Text, nil))
	stored := p.s.world.post(c, m)
	stored.forwarded = from
	p.s.messageUpdate(c, stored)
	return stored.Message, nil
}

// Forward copies a message into another chat. A keyboard with callback buttons
// stays behind.
func (p *Phone) Forward(m Message, chatID int64) (Message, error) { return p.forward(m, chatID, 0) }

// ForwardReply copies a message into the chat of another one, as a reply to that one: words of somebody else in the place of an
// answer. Telegram's own apps do not offer it in every chat; others do.
func (p *Phone) ForwardReply(m, to Message) (Message, error) { return p.forward(m, to.ChatID, to.ID) }

func (p *Phone) forward(m Message, chatID, replyTo int64) (Message, error) {
	from := &origin{Type: "user", User: &m.From, Date: m.Date.Unix()}
	m.Buttons = slices.DeleteFunc(slices.Clone(m.Buttons), func(row []Button) bool {
		return slices.ContainsFunc(row, func(b Button) bool { return b.URL == "" })
	})
	m.ReplyTo, m.ThreadID, m.InlineID, m.EditDate, m.Edits, m.Date = replyTo, 0, "", time.Time{}, 0, time.Time{}
	return p.pass(chatID, m, from)
}

// ShareInline posts a message that the bot offered in inline mode; its taps and
// edits name it by the InlineID of the result.
func (p *Phone) ShareInline(chatID int64, text string, rows [][]Button) (Message, error) {
	p.s.mu.Lock()
	id := "AgAAAN" + strconv.FormatUint(p.s.rng.Uint64(), 36)
	p.s.mu.Unlock()
	out, err := p.write(chatID, Message{Text: text, Buttons: rows, InlineID: id})
	if err == nil {
		p.s.mu.Lock()
		p.s.world.inline[id] = p.s.world.chats[chatID].messages[out.ID]
		p.s.mu.Unlock()
	}
	return out, err
}

// Delete deletes a message for everybody in the chat. The bot is not told.
func (p *Phone) Delete(m Message) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if c := p.s.world.chats[m.ChatID]; c != nil && c.messages[m.ID] != nil {
		c.messages[m.ID].Deleted = true
		p.s.notify()
	}
}

// ClearChat deletes the private chat's messages. The bot is not told.
func (p *Phone) ClearChat() {
	for _, m := range p.Messages() {
		p.Delete(m)
	}
}

// Block blocks the bot; it gets a my_chat_member update and 403 from then on.
func (p *Phone) Block() { p.setBlocked(true) }

// Unblock lets the bot write again.
func (p *Phone) Unblock() { p.setBlocked(false) }

func (p *Phone) setBlocked(blocked bool) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	me := p.s.world.people[p.id]
	c := p.s.world.private(me)
	status := map[bool]MemberStatus{true: Kicked, false: Ordinary}
	old := status[me.blocked]
	me.blocked = blocked
	p.s.memberUpdate(c, me.User, old, status[blocked])
	p.s.notify()
}

// botSees reports whether the bot gets a message of somebody else: in groups
// with privacy mode only commands, replies to it and mentions of it.
func (s *Server) botSees(c *chat, m *message) bool {
	switch {
	case c.kind == Private:
		return !s.world.people[c.id].blocked
	case c.bot == Kicked || c.bot == Left:
		return false
	case c.kind == Channel, c.bot == Administrator, s.readsAll, m.Service != "", strings.HasPrefix(m.Text, "/"):
		return true
	}
	if r := c.messages[m.ReplyTo]; r != nil && r.From.ID == s.bot.ID {
		return true
	}
	return m.InlineID != "" || strings.Contains(strings.ToLower(m.Text), "@"+strings.ToLower(s.bot.Username))
}

package telegramtest

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// world is Telegram behind the Bot API: people, chats, messages. Everything in
// it is guarded by Server.mu.
type world struct {
	s        *Server
	people   map[int64]*person
	chats    map[int64]*chat
	files    map[string]*Document
	inline   map[string]*message
	taps     []*Tap
	nextID   int64 // message ids of private chats and basic groups
	sequence int64 // order of messages over all chats
}

type person struct {
	User
	started     bool // wrote to the bot at least once
	blocked     bool // blocked the bot
	deactivated bool
}

type chat struct {
	id         int64
	kind       ChatType
	title      string
	username   string
	forum      bool
	bot        MemberStatus // of the bot
	deleted    bool
	migratedTo int64
	members    map[int64]*Member
	topics     map[int64]*topic
	messages   map[int64]*message
	order      []int64
	nextID     int64 // message ids of supergroups and channels
	instance   int64 // chat_instance of taps
}

type topic struct {
	name            string
	closed, deleted bool
}

// message is a message with what a person never sees: earlier keyboards, the
// reply keyboard, the markup equality of edits.
type message struct {
	Message
	linkPreview   string     // link_preview_options as sent
	replyKeyboard bool       // has a keyboard other than an inline one
	forwarded     *origin    // of a copy, which the bot cannot edit; nil for no copy
	earlier       [][]Button // every row of every earlier keyboard
	reactions     []string   // of the bot
}

func (w *world) init(s *Server) {
	*w = world{
		s:      s,
		people: map[int64]*person{},
		chats:  map[int64]*chat{},
		files:  map[string]*Document{},
		inline: map[string]*message{},
	}
}

// AddUser adds a person who has started a private chat with the bot, or changes
// the names of one that is there. A zero ID is chosen by the server.
func (s *Server) AddUser(u User) User {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.world.addPerson(u)
	p.started = true
	s.world.private(p)
	s.notify()
	return p.User
}

// AddStranger adds a person who never wrote to the bot: the bot cannot send to
// them, and does not know their chat unless they share a group with it.
func (s *Server) AddStranger(u User) User {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.world.addPerson(u)
	s.notify()
	return p.User
}

func (w *world) addPerson(u User) *person {
	if u.ID == 0 {
		u.ID = 100_000_000 + w.s.rng.Int64N(900_000_000)
	}
	if u.FirstName == "" {
		u.FirstName = "User " + strconv.FormatInt(u.ID, 10)
	}
	p := w.people[u.ID]
	if p == nil {
		p = &person{}
		w.people[u.ID] = p
	}
	p.User = u
	return p
}

// private returns the chat of a person with the bot.
func (w *world) private(p *person) *chat {
	c := w.chats[p.ID]
	if c == nil {
		c = w.newChat(p.ID, Private)
		c.members[p.ID] = &Member{User: p.ID, Status: Ordinary}
	}
	return c
}

func (w *world) newChat(id int64, kind ChatType) *chat {
	c := &chat{
		id: id, kind: kind, bot: Ordinary, members: map[int64]*Member{}, topics: map[int64]*topic{}, messages: map[int64]*message{},
		instance: w.s.rng.Int64() - 1<<62,
	}
	if kind == Supergroup || kind == Channel {
		c.nextID = 1 // the message that tells of the creation
	}
	w.chats[id] = c
	return c
}

// AddChat adds a group, supergroup or channel with the bot in it and returns
// its id.
func (s *Server) AddChat(c Chat) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Type == "" {
		c.Type = Group
	}
	if c.ID == 0 {
		c.ID = -(1_000_000 + s.rng.Int64N(1_000_000_000))
		if c.Type != Group {
			c.ID -= 1_000_000_000_000
		}
	}
	n := s.world.newChat(c.ID, c.Type)
	n.title, n.username, n.forum = c.Title, c.Username, c.IsForum
	if n.title == "" {
		n.title = "Chat " + strconv.FormatInt(c.ID, 10)
	}
	if c.Bot != "" {
		n.bot = c.Bot
	}
	for _, m := range c.Members {
		s.world.setMember(n, m)
	}
	s.notify()
	return c.ID
}

func (w *world) setMember(c *chat, m Member) {
	if m.Status == "" {
		m.Status = Ordinary
	}
	c.members[m.User] = &m
	if w.people[m.User] == nil {
		w.addPerson(User{ID: m.User})
	}
}

// SetMember changes what somebody is in a chat.
func (s *Server) SetMember(chatID int64, m Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.world.chats[chatID]; c != nil {
		s.world.setMember(c, m)
		s.notify()
	}
}

// SetBotStatus changes what the bot is in a chat: Kicked, Left, Restricted (may
// not write), Ordinary, Administrator. The bot gets a my_chat_member update.
func (s *Server) SetBotStatus(chatID int64, status MemberStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.world.chats[chatID]
	if c == nil || c.kind == Private {
		return
	}
	old := c.bot
	c.bot = status
	by := s.world.anyMember(c)
	s.memberUpdate(c, by, old, status)
}

// DeleteChat deletes a group: the bot can no longer write there.
func (s *Server) DeleteChat(chatID int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.world.chats[chatID]; c != nil {
		c.deleted = true
		s.notify()
	}
}

// Deactivate closes a person's account.
func (s *Server) Deactivate(userID int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.world.people[userID]; p != nil {
		p.deactivated = true
		s.notify()
	}
}

// MigrateGroup turns a basic group into a supergroup, as Telegram does at many
// turns, and returns the new chat id. Both chats get a service message; ids of
// messages start anew; the old messages stay behind in the old chat.
func (s *Server) MigrateGroup(chatID int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.world.chats[chatID]
	if old == nil || old.kind != Group || old.migratedTo != 0 {
		return 0
	}
	c := s.world.newChat(-1_000_000_000_000-(1_000_000+s.rng.Int64N(1_000_000_000)), Supergroup)
	c.title, c.bot, c.members = old.title, old.bot, old.members
	old.migratedTo = c.id
	by := s.world.anyMember(old)
	m := s.world.post(old, Message{From: by, Service: "migrate_to_chat_id"})
	s.messageUpdate(old, m)
	m = s.world.post(c, Message{From: by, Service: "migrate_from_chat_id"})
	s.world.chats[c.id].messages[m.ID].SenderChat = old.id
	s.messageUpdate(c, m)
	return c.id
}

// CreateTopic opens a topic in a forum and returns its thread id.
func (s *Server) CreateTopic(chatID int64, name string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.world.chats[chatID]
	if c == nil || !c.forum {
		return 0
	}
	m := s.world.post(c, Message{From: s.world.anyMember(c), Service: "forum_topic_created"})
	c.topics[m.ID] = &topic{name: name}
	s.notify()
	return m.ID
}

// CloseTopic closes a topic: nobody but administrators writes there.
func (s *Server) CloseTopic(chatID, threadID int64) {
	s.eachTopic(chatID, threadID, func(t *topic) { t.closed = true })
}

// DeleteTopic deletes a topic with its messages.
func (s *Server) DeleteTopic(chatID, threadID int64) {
	s.eachTopic(chatID, threadID, func(t *topic) { t.deleted = true })
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.world.chats[chatID]; c != nil {
		for _, m := range c.messages {
			if m.ThreadID == threadID {
				m.Deleted = true
			}
		}
		s.notify()
	}
}

func (s *Server) eachTopic(chatID, threadID int64, f func(*topic)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.world.chats[chatID]; c != nil && c.topics[threadID] != nil {
		f(c.topics[threadID])
		s.notify()
	}
}

// anyMember returns the first member of a chat by id, for service messages.
func (w *world) anyMember(c *chat) User {
	ids := make([]int64, 0, len(c.members))
	for id := range c.members {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	if len(ids) == 0 {
		return User{ID: ServiceAccount, FirstName: "Telegram"}
	}
	return w.people[ids[0]].User
}

// post enters a new message into a chat.
func (w *world) post(c *chat, m Message) *message {
	if c.kind == Supergroup || c.kind == Channel {
		c.nextID++
		m.ID = c.nextID
	} else {
		w.nextID++
		m.ID = w.nextID
	}
	w.sequence++
	m.ChatID, m.seq = c.id, w.sequence
	if m.Date.IsZero() {
		m.Date = w.s.clock.Now().Truncate(time.Second)
	}
	stored := &message{Message: m}
	c.messages[m.ID] = stored
	c.order = append(c.order, m.ID)
	w.s.notify()
	return stored
}

// visible returns what is to be seen in a chat, oldest first.
func (w *world) visible(chatID int64) []Message {
	c := w.chats[chatID]
	if c == nil {
		return nil
	}
	out := make([]Message, 0, len(c.order))
	for _, id := range c.order {
		if m := c.messages[id]; !m.Deleted {
			out = append(out, m.Message)
		}
	}
	return out
}

func (w *world) message(chatID, messageID int64) (Message, bool) {
	if c := w.chats[chatID]; c != nil && c.messages[messageID] != nil {
		return c.messages[messageID].Message, true
	}
	return Message{}, false
}

// Messages returns the messages in a chat as its members see them, oldest
// first; deleted ones are not among them.
func (s *Server) Messages(chatID int64) []Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.world.visible(chatID)
}

// Message returns the present state of a message, also of a deleted one.
func (s *Server) Message(chatID, messageID int64) (Message, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.world.message(chatID, messageID)
}

// find resolves a chat_id argument: a number or @username.
func (w *world) find(arg string) *chat {
	if name, ok := strings.CutPrefix(arg, "@"); ok {
		for _, c := range w.chats {
			if c.username != "" && strings.EqualFold(c.username, name) {
				return c
			}
		}
		return nil
	}
	id, err := strconv.ParseInt(arg, 10, 64)
	if err != nil {
		return nil
	}
	if c := w.chats[id]; c != nil {
		return c
	}
	// The bot knows people whom it met in a group.
	if p := w.people[id]; p != nil && (p.IsBot || w.sharesGroup(id)) {
		return w.private(p)
	}
	if id == w.s.bot.ID {
		p := w.addPerson(w.s.bot)
		return w.private(p)
	}
	return nil
}

func (w *world) sharesGroup(user int64) bool {
	for _, c := range w.chats {
		if m := c.members[user]; m != nil && c.kind != Private && c.bot != Left && c.bot != Kicked {
			return true
		}
	}
	return false
}

// purpose is what a call wants to do in a chat.
type purpose int

const (
	toRead purpose = iota
	toEdit
	toWrite
)

// access finds the chat of a call and checks that the bot may do there what it
// wants. Only writing tells that a group was upgraded.
func (w *world) access(arg string, p purpose) (*chat, *apiError) {
	if arg == "" {
		return nil, badRequest("Chat_id is empty")
	}
	c := w.find(arg)
	if c == nil {
		return nil, badRequest("Chat not found")
	}
	if c.kind == Private {
		return c, w.accessPrivate(c, p)
	}
	name := map[ChatType]string{Group: "group", Supergroup: "supergroup", Channel: "channel"}[c.kind]
	switch {
	case c.migratedTo != 0 && p == toWrite:
		e := badRequest("Group chat was upgraded to a supergroup chat")
		e.MigrateTo = c.migratedTo
		return c, e
	case c.migratedTo != 0:
		return c, nil
	case c.bot == Kicked:
		return c, fail(403, "bot was kicked from the %s chat", name)
	case c.bot == Left && (p != toRead || c.kind != Group && c.username == ""):
		return c, fail(403, "bot is not a member of the %s chat", name)
	case c.deleted && p != toRead:
		return c, fail(403, "the group chat was deleted")
	case c.bot == Restricted && p == toWrite && c.kind == Channel:
		return c, badRequest("have no write access to the chat")
	}
	return c, nil
}

func (w *world) accessPrivate(c *chat, p purpose) *apiError {
	user := w.people[c.id]
	switch {
	case p == toRead:
		return nil
	case user.IsBot:
		return fail(403, "the bot can't send messages to the bot")
	case user.deactivated:
		return fail(403, "user is deactivated")
	case user.blocked:
		return fail(403, "bot was blocked by the user")
	case !user.started:
		return fail(403, "bot can't initiate conversation with a user")
	}
	return nil
}

package telegramtest

import (
	"encoding/json"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"
)

func (s *Server) getChat(q *request) (any, *apiError) {
	c, err := s.world.access(q.args["chat_id"], toRead)
	if err != nil {
		return nil, err
	}
	type permissions struct {
		SendMessages  bool `json:"can_send_messages"`
		SendDocuments bool `json:"can_send_documents"`
		Invite        bool `json:"can_invite_users"`
		Pin           bool `json:"can_pin_messages"`
		Topics        bool `json:"can_manage_topics"`
	}
	info := struct {
		wireChat
		ActiveUsernames []string       `json:"active_usernames,omitempty"`
		Permissions     *permissions   `json:"permissions,omitempty"`
		AccentColor     int            `json:"accent_color_id"`
		MaxReactions    int            `json:"max_reaction_count"`
		AcceptedGifts   map[string]any `json:"accepted_gift_types"`
	}{
		wireChat: s.world.wireChat(c), MaxReactions: 11, AccentColor: 2,
		AcceptedGifts: map[string]any{"unlimited_gifts": true, "limited_gifts": true, "unique_gifts": true, "premium_subscription": true},
	}
	if info.Username != "" {
		info.ActiveUsernames = []string{info.Username}
	}
	if c.kind == Group || c.kind == Supergroup {
		info.Permissions = &permissions{SendMessages: true, SendDocuments: true, Invite: true}
	}
	return info, nil
}

func (s *Server) getChatMember(q *request) (any, *apiError) {
	id := lenientInt(q.args["user_id"])
	if id <= 0 {
		return nil, badRequest("Invalid user_id specified")
	}
	c, err := s.world.access(q.args["chat_id"], toRead)
	if err != nil {
		return nil, err
	}
	if id == s.bot.ID {
		m := memberOf(s.bot, c.bot, false)
		if c.kind == Channel && (c.bot == Administrator || c.bot == Creator) {
			posts := true
			m.PostMessages = &posts
		}
		return m, nil
	}
	p := s.world.people[id]
	m := c.members[id]
	switch {
	case p == nil, m == nil && c.bot != Administrator:
		return nil, badRequest("USER_ID_INVALID")
	case m == nil:
		return memberOf(p.User, Left, false), nil
	}
	return memberOf(p.User, m.Status, m.Anonymous), nil
}

type command struct {
	Command     string `json:"command"`
	Description string `json:"description"`
}

var validCommand = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9_]+$`) })

func (s *Server) setMyCommands(q *request) (any, *apiError) {
	list := []command{}
	if arg, ok := q.args["commands"]; ok && arg != "" {
		var err *apiError
		if list, err = parseCommands(arg); err != nil {
			return nil, err
		}
	}
	s.commands[q.args["scope"]+"/"+q.args["language_code"]] = list
	return true, nil
}

func parseCommands(arg string) ([]command, *apiError) {
	if !json.Valid([]byte(arg)) {
		return nil, badRequest("Can't parse commands JSON object")
	}
	var raw []json.RawMessage
	if json.Unmarshal([]byte(arg), &raw) != nil || raw == nil {
		return nil, badRequest("Expected an Array of BotCommand")
	}
	list := []command{}
	for _, r := range raw {
		var c *command
		if json.Unmarshal(r, &c) != nil || c == nil {
			return nil, badRequest("Can't parse BotCommand: BotCommand must be an Object")
		}
		c.Command = strings.TrimPrefix(c.Command, "/")
		switch {
		case c.Command == "":
			return nil, badRequest("command must be non-empty")
		case utf8.RuneCountInString(c.Command) > 32:
			return nil, badRequest("command length must not exceed 32")
		case c.Description == "":
			return nil, badRequest("command description must be non-empty")
		case utf8.RuneCountInString(c.Description) > 256:
			return nil, badRequest("command description length must not exceed 256")
		case !validCommand().MatchString(c.Command):
			return nil, badRequest("BOT_COMMAND_INVALID")
		}
		list = append(list, *c)
	}
	return list, nil
}

func (s *Server) getMyCommands(q *request) (any, *apiError) {
	if list, ok := s.commands[q.args["scope"]+"/"+q.args["language_code"]]; ok {
		return list, nil
	}
	return []command{}, nil
}

func (s *Server) setMessageReaction(q *request) (any, *apiError) {
	var kinds []struct {
		Type  string `json:"type"`
		Emoji string `json:"emoji"`
	}
	if arg := q.args["reaction"]; arg != "" {
		if !json.Valid([]byte(arg)) {
			return nil, badRequest("Can't parse reaction types JSON object")
		}
		if json.Unmarshal([]byte(arg), &kinds) != nil || kinds == nil {
			return nil, badRequest("Expected an Array of ReactionType")
		}
	}
	c, err := s.world.access(q.args["chat_id"], toRead)
	if err != nil {
		return nil, err
	}
	m := c.messages[lenientInt(q.args["message_id"])]
	if m == nil || m.Deleted {
		return nil, badRequest("Message to react not found")
	}
	if len(kinds) > 1 || len(kinds) == 1 && (kinds[0].Type != "emoji" || kinds[0].Emoji == "") {
		return nil, badRequest("REACTION_INVALID")
	}
	m.reactions = nil
	for _, k := range kinds {
		m.reactions = append(m.reactions, k.Emoji)
	}
	s.notify()
	return true, nil
}

// Reactions returns the bot's reactions to a message.
func (s *Server) Reactions(chatID, messageID int64) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.world.chats[chatID]; c != nil && c.messages[messageID] != nil {
		return append([]string(nil), c.messages[messageID].reactions...)
	}
	return nil
}

func lower(s string) string { return strings.ToLower(s) }

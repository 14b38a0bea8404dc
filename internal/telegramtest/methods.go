package telegramtest

// method is a method of the Bot API.
type method struct {
	name string // as documented
	run  func(*Server, *request) *reply
}

// methods maps names in lower case; the Bot API ignores their case.
var methods map[string]method

func init() {
	methods = map[string]method{}
	add := func(name string, run func(*Server, *request) *reply) {
		methods[lower(name)] = method{name, run}
	}
	// Those that may wait take the lock themselves.
	add("getUpdates", (*Server).getUpdates)
	add("setWebhook", (*Server).setWebhook)
	for name, f := range map[string]func(*Server, *request) (any, *apiError){
		"getMe":                  (*Server).getMe,
		"sendMessage":            (*Server).sendMessage,
		"sendDocument":           (*Server).sendDocument,
		"editMessageText":        (*Server).editMessageText,
		"editMessageCaption":     (*Server).editMessageCaption,
		"editMessageReplyMarkup": (*Server).editMessageReplyMarkup,
		"deleteMessage":          (*Server).deleteMessage,
		"answerCallbackQuery":    (*Server).answerCallbackQuery,
		"setMessageReaction":     (*Server).setMessageReaction,
		"setMyCommands":          (*Server).setMyCommands,
		"getMyCommands":          (*Server).getMyCommands,
		"getChat":                (*Server).getChat,
		"getChatMember":          (*Server).getChatMember,
		"getWebhookInfo":         (*Server).getWebhookInfo,
		"deleteWebhook":          (*Server).deleteWebhook,
	} {
		add(name, func(s *Server, q *request) *reply {
			s.mu.Lock()
			defer s.mu.Unlock()
			result, err := f(s, q)
			if err != nil {
				return failure(err)
			}
			if d, ok := result.(described); ok {
				return success(d.result, d.description)
			}
			return success(result, "")
		})
	}
}

// described is a result that comes with a description.
type described struct {
	result      any
	description string
}

func (s *Server) getMe(*request) (any, *apiError) {
	return struct {
		User
		JoinGroups    bool `json:"can_join_groups"`
		ReadsAll      bool `json:"can_read_all_group_messages"`
		Inline        bool `json:"supports_inline_queries"`
		GuestQueries  bool `json:"supports_guest_queries"`
		Business      bool `json:"can_connect_to_business"`
		MainWebApp    bool `json:"has_main_web_app"`
		Topics        bool `json:"has_topics_enabled"`
		UserTopics    bool `json:"allows_users_to_create_topics"`
		CanManageBots bool `json:"can_manage_bots"`
	}{User: s.bot, JoinGroups: true, ReadsAll: s.readsAll}, nil
}

package telegramtest_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/approvald/approvald/internal/telegramtest"
)

// fidelityWorld fills a server with one chat of every state that has an answer
// of its own. Chat ids and message ids in fidelity refer to it.
func fidelityWorld(t *testing.T) (*Server, *bot) {
	s, clock, b := manual(t, Options{})
	s.AddUser(User{ID: 112, FirstName: "Blocker"})
	s.Phone(112).Block()
	s.AddUser(User{ID: 113})
	s.Deactivate(113)
	s.AddStranger(User{ID: 114}) // in a group with the bot
	s.AddStranger(User{ID: 115}) // nowhere
	s.AddUser(User{ID: 116, IsBot: true, FirstName: "Other bot"})
	s.AddChat(Chat{ID: -10, Type: Group, Members: Members(111, 114)})
	s.AddChat(Chat{ID: -11, Type: Group, Members: Members(111)})
	s.SetBotStatus(-11, Kicked)
	s.AddChat(Chat{ID: -12, Type: Group, Members: Members(111)})
	s.DeleteChat(-12)
	s.AddChat(Chat{ID: -13, Type: Group, Members: Members(111)})
	s.AddChat(Chat{ID: -1001, Type: Supergroup, IsForum: true, Username: "forum", Members: Members(111)})
	s.AddChat(Chat{ID: -1002, Type: Supergroup, Members: Members(111)})
	s.SetBotStatus(-1002, Kicked)
	s.AddChat(Chat{ID: -1003, Type: Supergroup, Members: Members(111)})
	s.SetBotStatus(-1003, Left)
	s.AddChat(Chat{ID: -1004, Type: Supergroup, Members: Members(111), Bot: Restricted})
	s.AddChat(Chat{ID: -1005, Type: Channel})
	s.SetBotStatus(-1005, Kicked)
	s.AddChat(Chat{ID: -1006, Type: Channel, Bot: Restricted})
	s.AddChat(Chat{ID: -14, Type: Group})
	s.SetBotStatus(-14, Left)

	if topic := s.CreateTopic(-1001, "open"); topic != 2 {
		t.Fatalf("first topic is %d", topic)
	}
	s.CloseTopic(-1001, s.CreateTopic(-1001, "closed"))   // 3
	s.DeleteTopic(-1001, s.CreateTopic(-1001, "deleted")) // 4

	alice := s.Phone(111)
	text := func(id int64, m Message) {
		if m.ID != id {
			t.Fatalf("message %d instead of %d", m.ID, id)
		}
	}
	b.must(nil, "sendMessage", "chat_id", "111", "text", " card ", "reply_markup", yesNo) // 1
	m, err := alice.Text("hello")
	check(t, err)
	text(2, m)
	ct, body := form(t, [3]string{"document", "a.txt", "x"}, [3]string{"chat_id", "", "111"}, [3]string{"caption", "", "file"})
	if a := b.body("sendDocument", ct, body); !a.OK { // 3
		t.Fatal(a.Body)
	}
	b.must(nil, "sendMessage", "chat_id", "111", "text", "gone") // 4
	m, _ = s.Message(111, 4)
	alice.Delete(m)
	b.must(nil, "sendMessage", "chat_id", "111", "text", "keys", "reply_markup", `{"keyboard":[[{"text":"k"}]]}`) // 5
	m, _ = s.Message(111, 1)
	m, err = alice.Forward(m, 111)
	check(t, err)
	text(6, m)
	clock.Advance(49 * time.Hour)
	if s.MigrateGroup(-13) == 0 {
		t.Fatal("no migration")
	}
	return s, b
}

// fidelity is what the Bot API answers, word for word.
var fidelity = []struct {
	name, method string
	args         []string
	status       int
	description  string // "" = success
}{
	// The envelope.
	{"method names have no case", "GETme", nil, 200, ""},
	{"unknown method", "sendTelepathy", nil, 404, "Not Found: method not found"},
	{"trailing slash is part of the name", "getMe/", nil, 404, "Not Found: method not found"},
	{"no method", "", nil, 404, "Not Found: method not found"},
	{"method as argument", "", []string{"method", "getMe"}, 200, ""},
	{"test servers", "test/getMe", nil, 200, ""},
	{"arguments in the query", "sendMessage?chat_id=111&text=a", nil, 200, ""},
	{"the query beats the body", "sendMessage?chat_id=999", []string{"chat_id", "111", "text", "a"}, 400, "Bad Request: chat not found"},

	// sendMessage, in the order of its checks.
	{"no text", "sendMessage", []string{"chat_id", "999"}, 400, "Bad Request: message text is empty"},
	{"raw text over 32768 bytes", "sendMessage", []string{"chat_id", "999", "text", strings.Repeat("a", 32769)}, 400, "Bad Request: text is too long"},
	{"parse mode", "sendMessage", []string{"chat_id", "999", "text", "a", "parse_mode", "BBCode"}, 400, "Bad Request: unsupported parse_mode"},
	{"parse mode None", "sendMessage", []string{"chat_id", "111", "text", "<a", "parse_mode", "none"}, 200, ""},
	{"not UTF-8", "sendMessage", []string{"chat_id", "111", "text", "caf\xe9"}, 400, "Bad Request: strings must be encoded in UTF-8"},
	{"reply parameters", "sendMessage", []string{"chat_id", "999", "text", "a", "reply_parameters", "[]"}, 400, "Bad Request: object expected as reply parameters"},
	{"reply parameters JSON", "sendMessage", []string{"chat_id", "999", "text", "a", "reply_parameters", "{"}, 400, "Bad Request: can't parse reply parameters JSON object"},
	{"markup JSON", "sendMessage", []string{"chat_id", "999", "text", "a", "reply_markup", "{"}, 400, "Bad Request: can't parse reply keyboard markup JSON object"},
	{"markup no object", "sendMessage", []string{"text", "a", "reply_markup", `"x"`}, 400, "Bad Request: object expected as reply markup"},
	{"keyboard null", "sendMessage", []string{"text", "a", "reply_markup", `{"inline_keyboard":null}`}, 400, `Bad Request: field "inline_keyboard" must be of type Array`},
	{"rows no arrays", "sendMessage", []string{"text", "a", "reply_markup", `{"inline_keyboard":[{}]}`}, 400, `Bad Request: field "inline_keyboard" of the InlineKeyboardMarkup must be an Array of Arrays`},
	{"button without action", "sendMessage", []string{"text", "a", "reply_markup", `{"inline_keyboard":[[{"text":"a"}]]}`}, 400, "Bad Request: can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard"},
	{"button with empty data", "sendMessage", []string{"text", "a", "reply_markup", `{"inline_keyboard":[[{"text":"a","callback_data":""}]]}`}, 400, "Bad Request: can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard"},
	{"button style", "sendMessage", []string{"text", "a", "reply_markup", `{"inline_keyboard":[[{"text":"a","callback_data":"b","style":"loud"}]]}`}, 400, "Bad Request: can't parse inline keyboard button: Invalid button style specified"},
	{"101 buttons", "sendMessage", []string{"text", "a", "reply_markup", `{"inline_keyboard":[[` + strings.Repeat(`{"text":"a","callback_data":"b"},`, 100) + `{"text":"a","callback_data":"b"}]]}`}, 400, "Bad Request: reply markup is too long"},
	{"empty keyboard is none", "sendMessage", []string{"chat_id", "111", "text", "a", "reply_markup", `{"inline_keyboard":[]}`}, 200, ""},
	{"no chat", "sendMessage", []string{"text", "a"}, 400, "Bad Request: chat_id is empty"},
	{"unknown chat", "sendMessage", []string{"chat_id", "999", "text", "a"}, 400, "Bad Request: chat not found"},
	{"garbage chat", "sendMessage", []string{"chat_id", "abc", "text", "a"}, 400, "Bad Request: chat not found"},
	{"chat by name", "sendMessage", []string{"chat_id", "@Forum", "text", "a"}, 200, ""},
	{"unknown name", "sendMessage", []string{"chat_id", "@nobody", "text", "a"}, 400, "Bad Request: chat not found"},
	{"stranger", "sendMessage", []string{"chat_id", "115", "text", "a"}, 400, "Bad Request: chat not found"},
	{"too long to a wrong chat", "sendMessage", []string{"chat_id", "999", "text", strings.Repeat("a", 4097)}, 400, "Bad Request: chat not found"},
	{"blocked", "sendMessage", []string{"chat_id", "112", "text", "a"}, 403, "Forbidden: bot was blocked by the user"},
	{"deactivated", "sendMessage", []string{"chat_id", "113", "text", "a"}, 403, "Forbidden: user is deactivated"},
	{"met in a group only", "sendMessage", []string{"chat_id", "114", "text", "a"}, 403, "Forbidden: bot can't initiate conversation with a user"},
	{"another bot", "sendMessage", []string{"chat_id", "116", "text", "a"}, 403, "Forbidden: the bot can't send messages to the bot"},
	{"kicked from group", "sendMessage", []string{"chat_id", "-11", "text", "a"}, 403, "Forbidden: bot was kicked from the group chat"},
	{"kicked from supergroup", "sendMessage", []string{"chat_id", "-1002", "text", "a"}, 403, "Forbidden: bot was kicked from the supergroup chat"},
	{"kicked from channel", "sendMessage", []string{"chat_id", "-1005", "text", "a"}, 403, "Forbidden: bot was kicked from the channel chat"},
	{"left supergroup", "sendMessage", []string{"chat_id", "-1003", "text", "a"}, 403, "Forbidden: bot is not a member of the supergroup chat"},
	{"left group", "sendMessage", []string{"chat_id", "-14", "text", "a"}, 403, "Forbidden: bot is not a member of the group chat"},
	{"deleted group", "sendMessage", []string{"chat_id", "-12", "text", "a"}, 403, "Forbidden: the group chat was deleted"},
	{"upgraded group", "sendMessage", []string{"chat_id", "-13", "text", "a"}, 400, "Bad Request: group chat was upgraded to a supergroup chat"},
	{"no rights", "sendMessage", []string{"chat_id", "-1004", "text", "a"}, 400, "Bad Request: not enough rights to send text messages to the chat"},
	{"channel without write access", "sendMessage", []string{"chat_id", "-1006", "text", "a"}, 400, "Bad Request: have no write access to the chat"},
	{"topic", "sendMessage", []string{"chat_id", "-1001", "text", "a", "message_thread_id", "2"}, 200, ""},
	{"General by number", "sendMessage", []string{"chat_id", "-1001", "text", "a", "message_thread_id", "1"}, 400, "Bad Request: message thread not found"},
	{"unknown topic", "sendMessage", []string{"chat_id", "-1001", "text", "a", "message_thread_id", "42"}, 400, "Bad Request: message thread not found"},
	{"closed topic", "sendMessage", []string{"chat_id", "-1001", "text", "a", "message_thread_id", "3"}, 400, "Bad Request: TOPIC_CLOSED"},
	{"deleted topic", "sendMessage", []string{"chat_id", "-1001", "text", "a", "message_thread_id", "4"}, 400, "Bad Request: message thread not found"},
	{"topic outside a forum", "sendMessage", []string{"chat_id", "-10", "text", "a", "message_thread_id", "42"}, 200, ""},
	{"reply target", "sendMessage", []string{"chat_id", "111", "text", "a", "reply_parameters", `{"message_id":99}`}, 400, "Bad Request: message to be replied not found"},
	{"reply target, old form", "sendMessage", []string{"chat_id", "111", "text", "a", "reply_to_message_id", "99"}, 400, "Bad Request: message to be replied not found"},
	{"reply target may be missing", "sendMessage", []string{"chat_id", "111", "text", "a", "reply_parameters", `{"message_id":99,"allow_sending_without_reply":true}`}, 200, ""},
	{"4096 code points", "sendMessage", []string{"chat_id", "111", "text", strings.Repeat("😀", 4096)}, 200, ""},
	{"4097 code points", "sendMessage", []string{"chat_id", "111", "text", strings.Repeat("😀", 4097)}, 400, "Bad Request: message is too long"},
	{"4096 after parsing", "sendMessage", []string{"chat_id", "111", "parse_mode", "HTML", "text", strings.Repeat("&lt;", 4096)}, 200, ""},
	{"white space", "sendMessage", []string{"chat_id", "111", "text", " \n "}, 400, "Bad Request: text must be non-empty"},
	{"64 bytes of data", "sendMessage", []string{"chat_id", "111", "text", "a", "reply_markup", `{"inline_keyboard":[[{"text":"a","callback_data":"` + strings.Repeat("a", 64) + `"}]]}`}, 200, ""},
	{"65 bytes of data", "sendMessage", []string{"chat_id", "111", "text", "a", "reply_markup", `{"inline_keyboard":[[{"text":"a","callback_data":"` + strings.Repeat("a", 65) + `"}]]}`}, 400, "Bad Request: BUTTON_DATA_INVALID"},
	{"66 bytes in 33 letters", "sendMessage", []string{"chat_id", "111", "text", "a", "reply_markup", `{"inline_keyboard":[[{"text":"a","callback_data":"` + strings.Repeat("я", 33) + `"}]]}`}, 400, "Bad Request: BUTTON_DATA_INVALID"},
	{"button without text", "sendMessage", []string{"chat_id", "111", "text", "a", "reply_markup", `{"inline_keyboard":[[{"text":"","callback_data":"a"}]]}`}, 400, "Bad Request: inline keyboard button text must be non-empty"},

	// Parse errors.
	{"html: unsupported tag", "sendMessage", []string{"text", "a <svg onload=1>", "parse_mode", "html"}, 400, `Bad Request: can't parse entities: Unsupported start tag "svg" at byte offset 2`},
	{"html: unclosed start tag", "sendMessage", []string{"text", "é<b", "parse_mode", "HTML"}, 400, `Bad Request: can't parse entities: Unclosed start tag at byte offset 2`},
	{"html: unclosed attribute", "sendMessage", []string{"text", "<a href", "parse_mode", "HTML"}, 400, `Bad Request: can't parse entities: Unclosed start tag "a" at byte offset 0`},
	{"html: unexpected end tag", "sendMessage", []string{"text", "a</b>", "parse_mode", "HTML"}, 400, "Bad Request: can't parse entities: Unexpected end tag at byte offset 1"},
	{"html: unclosed end tag", "sendMessage", []string{"text", "<b>a</b", "parse_mode", "HTML"}, 400, "Bad Request: can't parse entities: Unclosed end tag at byte offset 4"},
	{"html: unmatched end tag", "sendMessage", []string{"text", "<b>a</i>", "parse_mode", "HTML"}, 400, `Bad Request: can't parse entities: Unmatched end tag at byte offset 4, expected "</b>", found "</i>"`},
	{"html: no end tag", "sendMessage", []string{"text", "<b>a", "parse_mode", "HTML"}, 400, `Bad Request: can't parse entities: Can't find end tag corresponding to start tag "b"`},
	{"html: span", "sendMessage", []string{"text", "<span>a</span>", "parse_mode", "HTML"}, 400, `Bad Request: can't parse entities: Tag "span" must have class "tg-spoiler" at byte offset 0`},
	{"html: attribute name", "sendMessage", []string{"text", "<a =b>a</a>", "parse_mode", "HTML"}, 400, `Bad Request: can't parse entities: Empty attribute name in the tag "a" at byte offset 0`},
	{"html: name token", "sendMessage", []string{"text", "<a href=a/b>a</a>", "parse_mode", "HTML"}, 400, "Bad Request: can't parse entities: Unexpected end of name token at byte offset 8"},
	{"markdown: no end", "sendMessage", []string{"text", "rm my_file", "parse_mode", "Markdown"}, 400, "Bad Request: can't parse entities: Can't find end of the entity starting at byte offset 5"},
	{"markdown v2: no end", "sendMessage", []string{"text", "a *b", "parse_mode", "MarkdownV2"}, 400, "Bad Request: can't parse entities: Can't find end of Bold entity at byte offset 2"},
	{"markdown v2: reserved", "sendMessage", []string{"text", "a.", "parse_mode", "MarkdownV2"}, 400, `Bad Request: can't parse entities: Character '.' is reserved and must be escaped with the preceding '\'`},
	{"markdown v2: link", "sendMessage", []string{"text", "[a](b", "parse_mode", "MarkdownV2"}, 400, "Bad Request: can't parse entities: Can't find end of a URL at byte offset 3"},

	// sendDocument.
	{"no document", "sendDocument", []string{"chat_id", "111"}, 400, "Bad Request: there is no document in the request"},
	{"attached nothing", "sendDocument", []string{"chat_id", "111", "document", "attach://x"}, 400, "Bad Request: there is no document in the request"},
	{"wrong file id", "sendDocument", []string{"chat_id", "111", "document", "x"}, 400, "Bad Request: wrong file identifier/HTTP URL specified"},

	// Edits.
	{"edit nothing named", "editMessageText", []string{"text", "a"}, 400, "Bad Request: message identifier is not specified"},
	{"edit unknown", "editMessageText", []string{"chat_id", "111", "message_id", "99", "text", "a"}, 400, "Bad Request: message to edit not found"},
	{"edit zero", "editMessageText", []string{"chat_id", "111", "text", "a"}, 400, "Bad Request: message to edit not found"},
	{"edit deleted", "editMessageReplyMarkup", []string{"chat_id", "111", "message_id", "4"}, 400, "Bad Request: message to edit not found"},
	{"edit another's", "editMessageText", []string{"chat_id", "111", "message_id", "2", "text", "a"}, 400, "Bad Request: message can't be edited"},
	{"edit forwarded", "editMessageText", []string{"chat_id", "111", "message_id", "6", "text", "a"}, 400, "Bad Request: message can't be edited"},
	{"edit with reply keyboard", "editMessageText", []string{"chat_id", "111", "message_id", "5", "text", "a"}, 400, "Bad Request: message can't be edited"},
	{"edit no text", "editMessageText", []string{"chat_id", "111", "message_id", "1"}, 400, "Bad Request: message text is empty"},
	{"edit text of a document", "editMessageText", []string{"chat_id", "111", "message_id", "3", "text", "a"}, 400, "Bad Request: there is no text in the message to edit"},
	{"edit caption of a text", "editMessageCaption", []string{"chat_id", "111", "message_id", "1", "caption", "a"}, 400, "Bad Request: there is no caption in the message to edit"},
	{"edit caption too long", "editMessageCaption", []string{"chat_id", "111", "message_id", "3", "caption", strings.Repeat("a", 1025)}, 400, "Bad Request: message caption is too long"},
	{"edit too long", "editMessageText", []string{"chat_id", "111", "message_id", "1", "text", strings.Repeat("a", 4097)}, 400, "Bad Request: message is too long"},
	{"edit changes nothing", "editMessageText", []string{"chat_id", "111", "message_id", "1", "text", "\ncard", "reply_markup", yesNo}, 400, "Bad Request: message is not modified: specified new message content and reply markup are exactly the same as a current content and reply markup of the message"},
	{"edit drops the keyboard", "editMessageText", []string{"chat_id", "111", "message_id", "1", "text", "card"}, 200, ""},
	{"edit no keyboard twice", "editMessageReplyMarkup", []string{"chat_id", "111", "message_id", "1"}, 400, "Bad Request: message is not modified: specified new message content and reply markup are exactly the same as a current content and reply markup of the message"},
	{"edit blocked", "editMessageText", []string{"chat_id", "112", "message_id", "1", "text", "a"}, 403, "Forbidden: bot was blocked by the user"},
	{"edit in the upgraded group is no migration", "editMessageText", []string{"chat_id", "-13", "message_id", "1", "text", "a"}, 400, "Bad Request: message to edit not found"},
	{"edit inline unknown", "editMessageText", []string{"inline_message_id", "x", "text", "a"}, 400, "Bad Request: MESSAGE_ID_INVALID"},

	// deleteMessage.
	{"delete no chat", "deleteMessage", nil, 400, "Bad Request: chat identifier is not specified"},
	{"delete no message", "deleteMessage", []string{"chat_id", "111"}, 400, "Bad Request: message identifier is not specified"},
	{"delete unknown", "deleteMessage", []string{"chat_id", "111", "message_id", "99"}, 400, "Bad Request: message to delete not found"},
	{"delete old", "deleteMessage", []string{"chat_id", "111", "message_id", "1"}, 400, "Bad Request: message can't be deleted for everyone"},
	{"delete in the upgraded group", "deleteMessage", []string{"chat_id", "-13", "message_id", "1"}, 400, "Bad Request: group chat was upgraded to a supergroup chat"},

	// answerCallbackQuery.
	{"answer unknown", "answerCallbackQuery", []string{"callback_query_id", "12"}, 400, "Bad Request: query is too old and response timeout expired or query ID is invalid"},
	{"answer garbage", "answerCallbackQuery", []string{"callback_query_id", "x"}, 400, "Bad Request: query is too old and response timeout expired or query ID is invalid"},
	{"answer too long", "answerCallbackQuery", []string{"callback_query_id", "1", "text", strings.Repeat("é", 201)}, 400, "Bad Request: MESSAGE_TOO_LONG"},
	{"answer url", "answerCallbackQuery", []string{"callback_query_id", "1", "url", "x"}, 400, "Bad Request: URL_INVALID"},

	// The rest.
	{"commands null", "setMyCommands", []string{"commands", "null"}, 400, "Bad Request: expected an Array of BotCommand"},
	{"commands JSON", "setMyCommands", []string{"commands", "["}, 400, "Bad Request: can't parse commands JSON object"},
	{"commands element", "setMyCommands", []string{"commands", "[1]"}, 400, "Bad Request: can't parse BotCommand: BotCommand must be an Object"},
	{"command empty", "setMyCommands", []string{"commands", `[{"command":"/","description":"a"}]`}, 400, "Bad Request: command must be non-empty"},
	{"command long", "setMyCommands", []string{"commands", `[{"command":"` + strings.Repeat("a", 33) + `","description":"a"}]`}, 400, "Bad Request: command length must not exceed 32"},
	{"command description empty", "setMyCommands", []string{"commands", `[{"command":"a"}]`}, 400, "Bad Request: command description must be non-empty"},
	{"command description long", "setMyCommands", []string{"commands", `[{"command":"a","description":"` + strings.Repeat("a", 257) + `"}]`}, 400, "Bad Request: command description length must not exceed 256"},
	{"command characters", "setMyCommands", []string{"commands", `[{"command":"A b","description":"a"}]`}, 400, "Bad Request: BOT_COMMAND_INVALID"},
	{"commands", "setMyCommands", []string{"commands", `[{"command":"/start","description":"a"}]`}, 200, ""},
	{"commands missing", "setMyCommands", nil, 200, ""},
	{"getChat unknown", "getChat", []string{"chat_id", "999"}, 400, "Bad Request: chat not found"},
	{"getChat left supergroup", "getChat", []string{"chat_id", "-1003"}, 403, "Forbidden: bot is not a member of the supergroup chat"},
	{"getChat upgraded group", "getChat", []string{"chat_id", "-13"}, 200, ""},
	{"member without user", "getChatMember", []string{"chat_id", "-10"}, 400, "Bad Request: invalid user_id specified"},
	{"member never seen", "getChatMember", []string{"chat_id", "-10", "user_id", "115"}, 400, "Bad Request: USER_ID_INVALID"},
	{"member", "getChatMember", []string{"chat_id", "-10", "user_id", "111"}, 200, ""},
	{"reaction JSON", "setMessageReaction", []string{"reaction", "["}, 400, "Bad Request: can't parse reaction types JSON object"},
	{"reaction null", "setMessageReaction", []string{"reaction", "null"}, 400, "Bad Request: expected an Array of ReactionType"},
	{"reaction target", "setMessageReaction", []string{"chat_id", "111", "message_id", "99"}, 400, "Bad Request: message to react not found"},
	{"reaction twice", "setMessageReaction", []string{"chat_id", "111", "message_id", "1", "reaction", `[{"type":"emoji","emoji":"👍"},{"type":"emoji","emoji":"👎"}]`}, 400, "Bad Request: REACTION_INVALID"},
	{"reaction", "setMessageReaction", []string{"chat_id", "111", "message_id", "1", "reaction", `[{"type":"emoji","emoji":"👍"}]`}, 200, ""},
	{"webhook off", "deleteWebhook", nil, 200, "Webhook is already deleted"},
	{"webhook without url", "setWebhook", nil, 200, "Webhook is already deleted"},
}

func TestFidelity(t *testing.T) {
	_, b := fidelityWorld(t)
	for _, c := range fidelity {
		t.Run(c.name, func(t *testing.T) {
			a := b.call(c.method, c.args...)
			if a.Err != nil {
				t.Fatal(a.Err)
			}
			if a.Status != c.status || a.Description != c.description {
				t.Errorf("%s: got %d %q, want %d %q", c.method, a.Status, a.Description, c.status, c.description)
			}
			if want := c.status == 200; a.OK != want || !want && a.Code != a.Status {
				t.Errorf("ok %v, error_code %d with status %d", a.OK, a.Code, a.Status)
			}
			if got := a.Header.Get("Content-Type"); got != "application/json" {
				t.Errorf("Content-Type %q", got)
			}
		})
	}
}

func TestWebhookErrors(t *testing.T) {
	for _, c := range []struct {
		name, url, secret, ip string
		description           string
	}{
		{"url", "https://", "", "", "Bad Request: invalid webhook URL specified"},
		{"host", "https://a b/", "", "", "Bad Request: invalid webhook URL specified"},
		{"secret too long", "https://example.com", strings.Repeat("a", 257), "", "Bad Request: secret token is too long"},
		{"secret characters", "https://example.com", "1:a", "", "Bad Request: secret token contains unallowed characters"},
		{"plain http", "http://example.com", "", "", "Bad Request: bad webhook: An HTTPS URL must be provided for webhook"},
		{"port", "https://example.com:8123", "", "", "Bad Request: bad webhook: Webhook can be set up only on ports 80, 88, 443 or 8443"},
		{"IPv6", "https://[2606:4700::1]", "", "", "Bad Request: bad webhook: IPv6-only addresses are not allowed"},
		{"reserved", "https://localhost", "", "", "Bad Request: bad webhook: IP address 127.0.0.1 is reserved"},
		{"ip address", "https://example.com", "", "300.1.1.1", "Bad Request: bad webhook: Invalid IP address specified"},
		{"name", "https://example.invalid", "", "", "Bad Request: bad webhook: Failed to resolve host: name or service not known"},
		{"no scheme is https", "example.com/hook", "A-z_0-9-", "", "Webhook was set"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, b := manual(t, Options{})
			a := b.call("setWebhook", "url", c.url, "secret_token", c.secret, "ip_address", c.ip)
			if a.Description != c.description {
				t.Errorf("got %q, want %q", a.Description, c.description)
			}
		})
	}
}

func TestTokens(t *testing.T) {
	const good = "123456:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	for _, c := range []struct {
		name, token string
		cloud, bare string
	}{
		{"wrong secret", "123456:BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB", "401 Unauthorized", "401 Unauthorized"},
		{"other bot", "654321:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "401 Unauthorized", "401 Unauthorized"},
		{"no colon", "123456", "404 Not Found", "401 Unauthorized: invalid token specified"},
		{"leading zero", "0123:AAA", "404 Not Found", "401 Unauthorized: invalid token specified"},
		{"too long", "1:" + strings.Repeat("A", 80), "404 Not Found", "401 Unauthorized: invalid token specified"},
		{"id out of range", "18014398509481984:AAA", "404 Not Found", "401 Unauthorized: invalid token specified"},
		{"id no number", "abc:AAA", "404 Not Found", "421 Misdirected Request: unallowed token specified"},
	} {
		for front, want := range map[Frontend]string{Cloud: c.cloud, Bare: c.bare} {
			t.Run(c.name, func(t *testing.T) {
				s := RunT(t, Options{Token: good, Frontend: front})
				b := newBot(t, s)
				r, err := http.NewRequest(http.MethodGet, s.URL()+"/bot"+c.token+"/noSuchMethod", nil)
				check(t, err)
				a := b.do(t.Context(), r)
				if got := fmt.Sprintf("%d %s", a.Code, a.Description); got != want || a.Status != a.Code {
					t.Errorf("got %s with status %d, want %s", got, a.Status, want)
				}
			})
		}
	}
}

func TestUpgradedGroupNamesItsSuccessor(t *testing.T) {
	s, _, b := manual(t, Options{})
	s.AddChat(Chat{ID: -13, Type: Group, Members: Members(111)})
	next := s.MigrateGroup(-13)
	a := b.call("sendMessage", "chat_id", "-13", "text", "a")
	if a.Parameters.MigrateTo != next || next > -1_000_000_000_000 {
		t.Fatalf("migrate_to_chat_id %d, supergroup %d", a.Parameters.MigrateTo, next)
	}
	b.must(nil, "sendMessage", "chat_id", strconv.FormatInt(next, 10), "text", "a")
	us := b.updates()
	if len(us) != 2 || us[0].Message.MigrateTo != next || us[1].Message.MigrateFrom != -13 {
		t.Fatalf("service messages: %+v", us)
	}
}

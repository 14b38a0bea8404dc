package dispatch

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/telegramtest"
	"github.com/approvald/approvald/internal/transport"
)

// botAPI calls a Bot API server without a network between.
type botAPI struct {
	t      testing.TB
	server *telegramtest.Server
	calls  int
}

const fuzzChat = 111

func newBotAPI(t testing.TB) *botAPI {
	s := telegramtest.New(telegramtest.Options{})
	s.AddUser(telegramtest.User{ID: fuzzChat, FirstName: "alice"})
	if _, err := s.Phone(fuzzChat).Text("/start"); err != nil {
		t.Fatal(err)
	}
	return &botAPI{t: t, server: s}
}

// sent is a message as Telegram has parsed it.
type sent struct {
	ID       int64  `json:"message_id"`
	Text     string `json:"text"`
	Entities []struct {
		Type           string
		Offset, Length int
	} `json:"entities"`
}

func (b *botAPI) call(method string, args url.Values) (m sent) {
	b.t.Helper()
	b.calls++
	req := httptest.NewRequest(http.MethodPost, "/bot"+b.server.Token()+"/"+method, strings.NewReader(args.Encode()))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	b.server.ServeHTTP(w, req)
	var answer struct {
		OK          bool            `json:"ok"`
		Description string          `json:"description"`
		Result      json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || !answer.OK {
		b.t.Fatalf("%s: %s %v\n%s", method, answer.Description, err, args.Get("text"))
	}
	if err := json.Unmarshal(answer.Result, &m); err != nil {
		b.t.Fatal(err)
	}
	return m
}

func (b *botAPI) message(m Message, edit int64) sent {
	b.t.Helper()
	args := url.Values{"chat_id": {"111"}, "text": {m.HTML}, "parse_mode": {parseMode}}
	keys, err := json.Marshal(orEmpty(m.Keyboard))
	if err != nil {
		b.t.Fatal(err)
	}
	args.Set("reply_markup", string(keys))
	if edit == 0 {
		return b.call("sendMessage", args)
	}
	args.Set("message_id", jsonNumber(edit))
	return b.call("editMessageText", args)
}

func orEmpty(k transport.Keyboard) transport.Keyboard {
	if k == nil {
		return transport.Keyboard{}
	}
	return k
}

func jsonNumber(n int64) string {
	raw, _ := json.Marshal(n)
	return string(raw)
}

// holds checks that a message shows exactly what was rendered, and has no markup but ours.
func (b *botAPI) holds(m Message, got sent) {
	b.t.Helper()
	shown, quoted := checkHTML(b.t, m.HTML)
	if strings.TrimSpace(shown) != got.Text {
		b.t.Fatalf("Telegram shows\n%q\nof\n%q", got.Text, shown)
	}
	for _, e := range got.Entities {
		switch e.Type {
		case "code", "pre", "expandable_blockquote", "blockquote", "bot_command":
		default:
			b.t.Fatalf("a text became %s %d+%d in\n%s", e.Type, e.Offset, e.Length, got.Text)
		}
	}
	for _, q := range quoted {
		if q = strings.TrimSpace(q); !strings.Contains(got.Text, q) {
			b.t.Fatalf("Telegram does not show %q", q)
		}
	}
}

// FuzzTelegram: whatever an agent sends, the Bot API server takes the card, its end, its digest and its captions, and
// shows that text and no markup of it.
func FuzzTelegram(f *testing.F) {
	for _, s := range []string{
		"", "x", "rm my_file *.log", "[x](tg://user?id=1)", "`", "<b>", "a & b", "&lt;&#60;&nbsp;", "</pre></code></blockquote>", "<svg onload=1>",
		"<tg-spoiler>x</tg-spoiler>", `<a href="https://e.example">ok</a>`, "@alice https://e.example /approve #tag $USD +15551234567 a@b.example",
		"\u202e\u2066abc\u200b\u00ad\ufeff", "😀👨‍👩‍👧e\u0301", "\n\n  lead and trail \n", "──────────\n✅ granted · alice 13:07 UTC", "\x1b[2K\r\x00\x7f\u0085\u2028", "\xff\xfe",
	} {
		f.Add(s, s, s, 0, uint8(0))
		f.Add(s, "key"+s, "summary", 90, uint8(1))
		f.Add("x", s, s+s, 3000, uint8(2))
	}
	var api *botAPI
	f.Fuzz(func(t *testing.T, payload, key, claim string, repeat int, kind uint8) {
		if api == nil || api.calls > 2000 {
			api = newBotAPI(t)
		}
		api.t = t
		payload = strings.ToValidUTF8(payload, "?")
		claim = strings.ToValidUTF8(claim, "?")
		payload = strings.Repeat(payload, 1+max(0, repeat)%4000)
		if len(payload) > 60_000 || len(key) > 2000 || len(claim) > 4000 || strings.Contains(payload, "\x00") {
			return
		}
		var body any
		switch kind % 3 {
		case 0:
			body = text(payload)
		case 1:
			body = command("/srv/"+claim, append([]string{"run"}, strings.Split(payload, "\n")...)...)
		default:
			body = map[string]any{"k": payload, claim: []any{payload}}
		}
		card := testCard(t, body)
		req := &card.Request
		req.Key, req.Summary, req.Requester, req.Class, req.OnBehalfOf = key, claim, "agent:"+key, "c."+claim, "human:"+claim
		req.EstCostUSD = head(claim, 20)
		pending := card.Pending(noon, testNonce(1))
		m := api.message(pending, 0)
		api.holds(pending, m)
		if want := strings.TrimSpace(card.Body.Text); card.inline() && !strings.Contains(m.Text, want) {
			t.Fatalf("the payload %q is not on the card\n%s", want, m.Text)
		}
		for _, state := range []approvallog.State{approvallog.StateRejected, approvallog.StateGranted, approvallog.StateExpired} {
			req.State, req.Decision = state, &approvallog.Decision{By: "human:alice", At: noon, Note: claim, Seq: 9, Channel: ChannelTelegram}
			settled := card.Settled()
			api.holds(settled, api.message(settled, m.ID))
		}
		for _, d := range card.Documents() {
			checkHTML(t, card.Caption(d).HTML)
		}
		req.State = approvallog.StatePending
		listed := slices.Repeat([]approvallog.Request{*req}, digestListed)
		digest := Digest{Asker: req.Requester, Class: req.Class, Count: 37, Listed: listed}
		api.holds(digest.Message(noon, testNonce(2)), api.message(digest.Message(noon, testNonce(2)), 0))
		api.holds(digest.Settled(false), api.message(digest.Settled(false), 0))
	})
}

package telegramtest_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/approvald/approvald/internal/telegramtest"
)

func card(b *bot, chat string) {
	b.t.Helper()
	b.must(nil, "sendMessage", "chat_id", chat, "text", "card", "reply_markup", yesNo)
}

func TestTap(t *testing.T) {
	s, clock, b := manual(t, Options{})
	card(b, "111")
	alice := s.Phone(111)
	tap, err := alice.Tap("Approve")
	check(t, err)
	us := b.updates()
	if len(us) != 1 || us[0].Tap.Data != "y" || us[0].Tap.From.ID != 111 || us[0].Tap.Message.Text != "card" || us[0].ID != tap.Info().UpdateID {
		t.Fatalf("update %+v", us)
	}
	if id := us[0].Tap.ID; strings.TrimLeft(id, "-0123456789") != "" || id != tap.Info().ID {
		t.Errorf("callback id %q", id)
	}
	answerTap := func(kv ...string) answer {
		return b.call("answerCallbackQuery", append(kv, "callback_query_id", tap.Info().ID)...)
	}
	if a := answerTap("text", "ok", "show_alert", "true"); !a.OK {
		t.Fatal(a.Description)
	}
	a, err := tap.Wait(soon(t))
	check(t, err)
	if a.String() != "alert: ok" || tap.TimedOut() {
		t.Errorf("saw %s", a)
	}
	const tooOld = "Bad Request: query is too old and response timeout expired or query ID is invalid"
	if a := answerTap(); a.Description != tooOld {
		t.Errorf("second answer: %q", a.Description)
	}

	// The same press again is another query; one nobody answers times out.
	tap = tap.Resend()
	if id := tap.Info().ID; id == us[0].Tap.ID || len(b.updates()) != 2 {
		t.Error("a repeated tap is no query of its own")
	}
	clock.Advance(59 * time.Second)
	if tap.TimedOut() {
		t.Error("gave up after 59 s")
	}
	clock.Advance(time.Second)
	if a := answerTap(); a.Description != tooOld || !tap.TimedOut() {
		t.Errorf("after 60 s: %q", a.Description)
	}
	if n := len(alice.Taps()); n != 2 {
		t.Errorf("%d taps", n)
	}
}

func TestCacheTimeHidesTapsFromTheBot(t *testing.T) {
	s, clock, b := manual(t, Options{})
	card(b, "111")
	tap, err := s.Phone(111).Tap("Approve")
	check(t, err)
	b.must(nil, "answerCallbackQuery", "callback_query_id", tap.Info().ID, "text", "a", "cache_time", "10")
	again, err := s.Phone(111).Tap("Approve")
	check(t, err)
	if a, ok := again.Answer(); !ok || !a.Cached || a.String() != "toast: a" || again.Info().UpdateID != 0 {
		t.Errorf("answer %+v", a)
	}
	clock.Advance(10 * time.Second)
	again, err = s.Phone(111).Tap("Approve")
	check(t, err)
	if again.Info().UpdateID == 0 {
		t.Error("still cached after 10 s")
	}
}

func TestStaleAndForgedTaps(t *testing.T) {
	s, _, b := manual(t, Options{})
	card(b, "111")
	alice := s.Phone(111)
	m := alice.Messages()[0]
	b.must(nil, "editMessageText", "chat_id", "111", "message_id", "1", "text", "done")
	if _, err := alice.Tap("Approve"); !errors.Is(err, ErrNoButton) {
		t.Errorf("a button that is gone: %v", err)
	}
	if _, err := alice.TapMessage(m, "Approve"); !errors.Is(err, ErrNoButton) {
		t.Errorf("a button that is gone from the message: %v", err)
	}
	now, _ := s.Message(111, 1)
	tap, err := alice.TapStale(now, "Reject")
	check(t, err)
	if tap.Info().Data != "n" {
		t.Errorf("stale tap %+v", tap.Info())
	}
	_, err = alice.TapData("forged\x00")
	check(t, err)
	alice.Delete(m)
	_, err = alice.TapStale(m, "Approve")
	check(t, err)
	alice.TapInline("someone-else's", "x")
	_, err = alice.TapDataOn(Message{ChatID: 111, ID: 4000}, "z")
	check(t, err)

	us := b.updates()
	if len(us) != 5 {
		t.Fatalf("%d updates", len(us))
	}
	if us[0].Tap.Message.Text != "done" || us[1].Tap.Data != "forged\x00" {
		t.Errorf("stale %+v, forged %+v", us[0].Tap, us[1].Tap)
	}
	for _, i := range []int{2, 4} { // deleted, never was
		if m := us[i].Tap.Message; m == nil || m.Date != 0 || m.Text != "" {
			t.Errorf("inaccessible message %+v", m)
		}
	}
	if us[3].Tap.Message != nil || us[3].Tap.Inline != "someone-else's" {
		t.Errorf("inline tap %+v", us[3].Tap)
	}
	if _, err := s.Phone(222).TapMessage(now, "Approve"); err == nil {
		t.Error("a stranger tapped in Alice's chat")
	}
	if _, err := s.Phone(222).TapDataOn(now, "x"); !errors.Is(err, ErrNotThere) {
		t.Errorf("a stranger forged in Alice's chat: %v", err)
	}
}

func TestInlineMessages(t *testing.T) {
	s, _, b := manual(t, Options{})
	s.AddChat(Chat{ID: -10, Type: Group, Members: Members(111)})
	m, err := s.Phone(111).ShareInline(-10, "shared", [][]Button{{{Text: "Vote", Data: "v"}}})
	check(t, err)
	tap, err := s.Phone(111).TapMessage(m, "Vote")
	check(t, err)
	if got := tap.Info().InlineID; got == "" || got != m.InlineID {
		t.Fatalf("inline id %q", got)
	}
	if a := b.must(nil, "editMessageText", "inline_message_id", m.InlineID, "text", "voted"); string(a.Result) != "true" {
		t.Errorf("result %s", a.Result)
	}
	if m, _ = s.Message(-10, m.ID); m.Text != "voted" || m.Buttons != nil {
		t.Errorf("message %+v", m)
	}
}

func TestCallbackModes(t *testing.T) {
	for mode, want := range map[CallbackMode][2]bool{CallbackDefault: {false, false}, CallbackAuto: {false, true}, CallbackInline: {true, true}} {
		s, _, b := manual(t, Options{CallbackMode: mode})
		card(b, "111")
		m := s.Messages(111)[0]
		for i, deleted := range []bool{false, true} {
			if deleted {
				s.Phone(111).Delete(m)
			}
			tap, err := s.Phone(111).TapStale(m, "Approve")
			check(t, err)
			if inline := tap.Info().InlineID != ""; inline != want[i] {
				t.Errorf("mode %d, deleted %v: inline %v", mode, deleted, inline)
			}
		}
	}
}

func TestEditsAndKeyboards(t *testing.T) {
	s, clock, b := manual(t, Options{})
	card(b, "111")
	clock.Advance(time.Minute)
	edit := func(kv ...string) Message {
		b.must(nil, kv[0], append(kv[1:], "chat_id", "111", "message_id", "1")...)
		return s.Messages(111)[0]
	}
	m := edit("editMessageText", "text", "<b>new</b>", "parse_mode", "HTML", "reply_markup", yesNo)
	if !m.Edited() || m.Text != "new" || len(m.Buttons) != 1 || show(m.Entities) != "bold 0+3" {
		t.Errorf("edited %+v", m)
	}
	if m = edit("editMessageReplyMarkup", "reply_markup", `{"inline_keyboard":[[{"text":"x","url":"https://e.example"}]]}`); m.Buttons[0][0].URL == "" || m.Text != "new" {
		t.Errorf("keyboard %+v", m)
	}
	if m = edit("editMessageReplyMarkup"); m.Buttons != nil {
		t.Errorf("keyboard left %+v", m.Buttons)
	}
	if m = edit("editMessageText", "text", "new"); m.Entities != nil || m.Edits != 4 {
		t.Errorf("only the formatting changed: %+v", m)
	}
	if us := b.updates(); len(us) != 0 {
		t.Errorf("the bot heard of its own messages: %+v", us)
	}
	b.must(nil, "deleteMessage", "chat_id", "111", "message_id", "1")
	if len(s.Messages(111)) != 0 {
		t.Error("not deleted")
	}
}

func TestDocuments(t *testing.T) {
	s, _, b := manual(t, Options{})
	ct, body := form(t, [3]string{"chat_id", "", "111"}, [3]string{"document", "", "attach://f"}, [3]string{"f", "payload.json", `{"a":1}`},
		[3]string{"caption", "", "<code>sha</code>"}, [3]string{"parse_mode", "", "HTML"}, [3]string{"reply_markup", "", yesNo})
	a := b.body("sendDocument", ct, body)
	if !a.OK || !strings.Contains(a.Body, `"document":{"file_name":"payload.json","mime_type":"application/json","file_id":"`) {
		t.Fatal(a.Body)
	}
	m := s.Phone(111).Messages()[0]
	if string(m.Document.Data) != `{"a":1}` || m.Body() != "sha" || show(m.CaptionEntities) != "code 0+3" || len(m.Buttons) != 1 {
		t.Errorf("seen %+v", m)
	}
	b.must(nil, "sendDocument", "chat_id", "111", "document", m.Document.FileID)
	b.must(nil, "editMessageCaption", "chat_id", "111", "message_id", "1", "caption", "new")
	if m = s.Messages(111)[0]; m.Caption != "new" || m.Buttons != nil {
		t.Errorf("edited %+v", m)
	}
	call := s.Calls("sendDocument")[0]
	if len(call.Files) != 1 || call.Files[0].Name != "payload.json" || call.Files[0].Field != "f" {
		t.Errorf("logged %+v", call.Files)
	}
}

func TestTextsAndReplies(t *testing.T) {
	s, _, b := manual(t, Options{Bot: User{Username: "gate_bot"}})
	s.AddChat(Chat{ID: -10, Type: Group, Members: []Member{{User: 111}, {User: 112, Status: Administrator, Anonymous: true}}})
	card(b, "-10")
	m := s.Messages(-10)[0]
	alice, anon := s.Phone(111), s.Phone(112)
	for _, text := range []string{"not for you", "/approve", "hey @Gate_Bot"} {
		_, err := alice.TextIn(-10, text)
		check(t, err)
	}
	_, err := alice.Reply(m, "because")
	check(t, err)
	_, err = anon.TextIn(-10, "/approve")
	check(t, err)
	_, err = anon.Tap("Approve")
	check(t, err)
	us := b.updates()
	if len(us) != 5 {
		t.Fatalf("privacy mode: %+v", us)
	}
	if r := us[2].Message; r.Text != "because" || r.Reply == nil || r.Reply.ID != m.ID {
		t.Errorf("reply %+v", r)
	}
	if a := us[3].Message; a.From.ID != GroupAnonymousBot || a.SenderChat == nil || a.SenderChat.ID != -10 {
		t.Errorf("anonymous text %+v", a)
	}
	if us[4].Tap.From.ID != 112 {
		t.Errorf("anonymous tap by %d", us[4].Tap.From.ID)
	}
	s.SetPrivacy(false)
	_, err = alice.TextIn(-10, "now for you")
	check(t, err)
	if us := b.updates(); len(us) != 6 {
		t.Errorf("without privacy: %d", len(us))
	}
	if _, err := s.Phone(333).TextIn(-10, "x"); !errors.Is(err, ErrNotThere) {
		t.Errorf("a stranger wrote: %v", err)
	}
}

func TestBlocking(t *testing.T) {
	s, _, b := manual(t, Options{})
	s.AddChat(Chat{ID: -10, Type: Group, Members: Members(111)})
	s.Phone(111).Block()
	s.Phone(111).Block()
	s.Phone(111).Unblock()
	s.SetBotStatus(-10, Kicked)
	us := b.updates()
	var got []string
	for _, u := range us {
		got = append(got, u.Member.New.Status)
	}
	if want := []string{"kicked", "member", "kicked"}; !slices.Equal(got, want) {
		t.Errorf("my_chat_member %v, want %v", got, want)
	}
	card(b, "111")
}

func TestTopics(t *testing.T) {
	s, _, b := manual(t, Options{})
	s.AddChat(Chat{ID: -1001, Type: Supergroup, IsForum: true, Members: Members(111)})
	topic := s.CreateTopic(-1001, "deploys")
	id := strconv.FormatInt(topic, 10)
	var sent map[string]any
	b.must(&sent, "sendMessage", "chat_id", "-1001", "message_thread_id", id, "text", "a", "reply_markup", yesNo)
	if sent["message_thread_id"] != float64(topic) || sent["is_topic_message"] != true {
		t.Errorf("sent %v", sent)
	}
	_, err := s.Phone(111).Tap("Approve")
	check(t, err)
	if a := b.call("getUpdates"); !strings.Contains(a.Body, `"message_thread_id":`+id) {
		t.Errorf("the tap lost its topic: %s", a.Body)
	}
	s.DeleteTopic(-1001, topic)
	if _, err := s.Phone(111).Tap("Approve"); err == nil {
		t.Error("tapped in a deleted topic")
	}
}

func TestWaits(t *testing.T) {
	s := RunT(t, Options{})
	b := newBot(t, s)
	alice := s.Phone(111)
	tapped := make(chan error, 1)
	go func() {
		_, err := alice.WaitTap(soon(t), "Approve")
		tapped <- err
	}()
	card(b, "111")
	check(t, <-tapped)
	if us := b.updates("timeout", "30"); len(us) != 1 {
		t.Errorf("updates %+v", us)
	}
	first, second, err := alice.DoubleTap("Approve")
	check(t, err)
	if first.Info().UpdateID+1 != second.Info().UpdateID {
		t.Error("double tap")
	}
	s.ForgetCalls()
	if len(s.Calls()) != 0 {
		t.Error("calls")
	}
}

func TestRender(t *testing.T) {
	m := Message{
		Date: time.Date(2026, 1, 1, 13, 5, 0, 0, time.UTC), EditDate: time.Date(2026, 1, 1, 13, 6, 0, 0, time.UTC),
		Text:    "deploy.production\nargv kubectl\x1b[2J rollout restart\n✅ ok",
		Buttons: [][]Button{{{Text: "Approve"}, {Text: "Reject"}}, {{Text: "Reject because…"}}},
	}
	var es []Entity
	es = append(es, Entity{Type: "bold", Offset: 0, Length: 17}, Entity{Type: "pre", Offset: 18, Length: 33})
	m.Entities = es
	const want = `
╭─────────────────────────────────╮
│ *deploy.production*             │
│ ▏ argv kubectl\u{1b}[2J rollout │
│ ▏ restart                       │
│ ✅ ok                           │
│                    edited 13:05 │
╰─────────────────────────────────╯
[    Approve    ][    Reject     ]
[         Reject because…         ]
`
	if got := "\n" + Render(m, 36); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	text, es, err := Parse("<b>head</b>\n<blockquote expandable><code>argv\ncwd</code></blockquote>\n<code>end</code>", "HTML")
	check(t, err)
	const block = `
╭────────╮
│ *head* │
│ ▏ argv │
│ ▏ cwd  │
│ ` + "`end`" + `  │
│  00:00 │
╰────────╯
`
	if got := "\n" + Render(Message{Text: text, Entities: es}, 20); got != block {
		t.Errorf("got %s\nwant %s", got, block)
	}
	doc := Render(Message{Document: &Document{Name: "a\x1b.txt", Size: 70 << 10}, Caption: strings.Repeat("x", 50)}, 20)
	for _, want := range []string{"[file]", "a\\u{1b}.txt", "70.0 KB", strings.Repeat("x", 16)} {
		if !strings.Contains(doc, want) {
			t.Errorf("%q is not in\n%s", want, doc)
		}
	}
}

func TestManualClock(t *testing.T) {
	c := NewManualClock(time.Time{})
	start := c.Now()
	var order []string
	a, _ := c.After(2 * time.Second)
	b, _ := c.After(time.Second)
	stopped, stop := c.After(time.Second)
	stop()
	stop()
	now, _ := c.After(0)
	<-now
	c.Set(start.Add(-time.Hour))
	select {
	case <-b:
		t.Fatal("a step back fired a timer")
	default:
	}
	c.Set(start)
	c.Advance(3 * time.Second)
	order = append(order, (<-b).Sub(start).String(), (<-a).Sub(start).String())
	if fmt.Sprint(order) != "[1s 2s]" {
		t.Errorf("fired %v", order)
	}
	select {
	case <-stopped:
		t.Error("a stopped timer fired")
	default:
	}
	check(t, c.AwaitTimers(soon(t), 0))
}

func TestSameSeedSameServer(t *testing.T) {
	id := func(seed uint64) string {
		s, _, b := manual(t, Options{Seed: seed})
		card(b, "111")
		tap, err := s.Phone(111).Tap("Approve")
		check(t, err)
		return s.Token() + tap.Info().ID + strconv.FormatInt(tap.Info().UpdateID, 10)
	}
	one, again, two := id(1), id(1), id(2)
	if one != again || one == two {
		t.Error("the seed does not decide")
	}
}

// BenchmarkSendMessage is the server's own share of a sendMessage, without a
// network.
func BenchmarkSendMessage(b *testing.B) {
	s := New(Options{})
	b.Cleanup(s.Close)
	s.AddUser(User{ID: 111})
	body := url.Values{"chat_id": {"111"}, "parse_mode": {"HTML"}, "text": {"<b>deploy</b> " + strings.Repeat("api ", 100)}, "reply_markup": {yesNo}}.Encode()
	for b.Loop() {
		r := httptest.NewRequest(http.MethodPost, "/bot"+s.Token()+"/sendMessage", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != 200 {
			b.Fatal(w.Body)
		}
	}
}

// TestForwardsAndChannels: the bot is told whose words a forwarded message holds, and in whose name one was written.
func TestForwardsAndChannels(t *testing.T) {
	s, _, b := manual(t, Options{})
	s.AddChat(Chat{ID: -1002, Type: Supergroup, Members: Members(111, 222)})
	s.AddChat(Chat{ID: -1003, Type: Channel, Members: Members(111)})
	card, err := s.Phone(111).TextIn(-1002, "/card")
	check(t, err)
	words, err := s.Phone(222).TextIn(-1002, "/no")
	check(t, err)
	passed, err := s.Phone(111).ForwardReply(words, card)
	check(t, err)
	if passed.ReplyTo != card.ID || passed.From.ID != 111 || passed.Text != "/no" {
		t.Errorf("forwarded %+v", passed)
	}
	posted, err := s.Phone(111).ReplyAsChannel(card, -1003, "/no")
	check(t, err)
	if posted.From.ID != ChannelBot || posted.SenderChat != -1003 {
		t.Errorf("as a channel %+v", posted)
	}
	if _, err := s.Phone(111).ReplyAsChannel(card, -1999, "/no"); !errors.Is(err, ErrNotThere) {
		t.Errorf("written in the name of no channel: %v", err)
	}
	raw := b.call("getUpdates")
	if text := string(raw.Result); strings.Count(text, `"forward_origin":{"type":"user","sender_user":{"id":222`) != 1 {
		t.Errorf("the bot was told %s", text)
	}
}

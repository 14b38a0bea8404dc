package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// serve runs an HTTP server on loopback that answers every call alike.
func serve(t *testing.T, handle http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	return newTestClient(t, server.URL)
}

func TestNewChecksItsOptions(t *testing.T) {
	for base, good := range map[string]bool{
		"": true, "https://api.telegram.org": true, "https://api.telegram.org/": true, "https://bots.example:8443/api": true,
		"http://127.0.0.1:8081": true, "http://localhost:8081": true, "http://[::1]:80": true, "http://127.9.9.9": true,
		"http://api.telegram.org": false, "http://10.0.0.1:8081": false, "http://localhost.example.com": false, "http://0.0.0.0:1": false,
		"ftp://x": false, "api.telegram.org": false, "https://": false, "https://u:p@h": false, "https://h?x=1": false, "https://h#f": false, "://": false, "https://h\n": false,
	} {
		_, err := New(Options{Token: NewSecret(canary), APIBase: base})
		if (err == nil) != good {
			t.Errorf("%q: %v", base, err)
		}
		if err != nil && strings.Contains(err.Error(), "u:p") {
			t.Errorf("the error shows a password: %v", err)
		}
	}
	if _, err := New(Options{}); err == nil {
		t.Error("no token is accepted")
	}
	c := newTestClient(t, "https://bots.example:8443/api")
	if c.BotID() != 987654321 || c.APIHost() != "bots.example:8443" {
		t.Errorf("bot %d, host %s", c.BotID(), c.APIHost())
	}
}

// A proxy that refuses has passed nothing on, and its password is in no error.
func TestProxyThatRefuses(t *testing.T) {
	gate := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Header.Get("Proxy-Authorization") == "" {
			t.Errorf("%s without credentials", r.Method)
		}
		w.WriteHeader(http.StatusProxyAuthRequired)
	}))
	defer gate.Close()
	through, err := url.Parse(strings.Replace(gate.URL, "http://", "http://user:canary-password@", 1))
	if err != nil {
		t.Fatal(err)
	}
	c := newTestClient(t, "https://bots.example")
	c.calls.Transport.(*http.Transport).Proxy = http.ProxyURL(through)
	_, err = c.SendMessage(t.Context(), SendMessage{ChatID: 1, Text: "x"})
	if ClassOf(err) != ClassTransient || leaks(fmt.Sprintf("%v %+v %#v", err, err, errors.Unwrap(err))) {
		t.Errorf("%v (%s)", err, ClassOf(err))
	}
}

// Every attempt after a broken poll has a connection of its own.
func TestBrokenPollGetsAFreshConnection(t *testing.T) {
	release := make(chan struct{})
	var mu sync.Mutex
	var from []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		from = append(from, r.RemoteAddr)
		n := len(from)
		mu.Unlock()
		if n == 2 {
			<-release
			return
		}
		_, _ = io.WriteString(w, `{"ok":true,"result":[]}`)
	}))
	defer server.Close()
	defer close(release)
	client, err := New(Options{Token: NewSecret(canary), APIBase: server.URL, PollMargin: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i := range 3 {
		if _, err := client.GetUpdates(t.Context(), GetUpdates{}); (err != nil) != (i == 1) {
			t.Errorf("poll %d: %v", i+1, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(from) != 3 || from[0] != from[1] || from[2] == from[1] {
		t.Errorf("polls came from %v", from)
	}
}

// sent is what a call looks like on the wire.
type sent struct {
	path, file, fileName string
	form                 map[string]string
}

func record(t *testing.T, result string) (*Client, *sent) {
	t.Helper()
	var got sent
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = sent{path: r.URL.Path, form: map[string]string{}}
		if r.Proto != "HTTP/1.1" || r.ContentLength < 0 {
			t.Errorf("%s, content length %d: want HTTP/1.1 with a length", r.Proto, r.ContentLength)
		}
		if err := r.ParseMultipartForm(1 << 20); err != nil && !errors.Is(err, http.ErrNotMultipart) {
			t.Error(err)
		}
		for key := range r.Form {
			got.form[key] = r.Form.Get(key)
		}
		if r.MultipartForm != nil {
			for _, headers := range r.MultipartForm.File {
				f, err := headers[0].Open()
				if err != nil {
					t.Error(err)
					return
				}
				data, _ := io.ReadAll(f)
				got.file, got.fileName = string(data), headers[0].Filename
			}
		}
		_, _ = io.WriteString(w, `{"ok":true,"result":`+result+`}`)
	}), &got
}

// An answer that names no message is no proof of one.
func TestSentMessageWithoutAnID(t *testing.T) {
	for _, id := range []string{`"message_id":0,`, `"message_id":-7,`, ``} {
		c, _ := record(t, `{`+id+`"date":1,"chat":{"id":-100,"type":"supergroup"},"text":"x"}`)
		for name, send := range map[string]func() error{
			"sendMessage": func() error { _, err := c.SendMessage(t.Context(), SendMessage{ChatID: -100, Text: "x"}); return err },
			"sendDocument": func() error {
				_, err := c.SendDocument(t.Context(), SendDocument{ChatID: -100, Data: []byte("x")})
				return err
			},
		} {
			if err := send(); ClassOf(err) != ClassUnknownOutcome {
				t.Errorf("%s, %s: %v (%s)", name, id, err, ClassOf(err))
			}
		}
	}
}

func TestCallsOnTheWire(t *testing.T) {
	ctx := t.Context()
	keyboard := Keyboard{{{"Approve", "a"}, {"Reject", "r"}}, {{"Reject because…", "b"}}}
	const keyboardJSON = `{"inline_keyboard":[[{"text":"Approve","callback_data":"a"},{"text":"Reject","callback_data":"r"}],[{"text":"Reject because…","callback_data":"b"}]]}`
	const message = `{"message_id":5,"message_thread_id":3,"date":1,"chat":{"id":-100,"type":"supergroup"},"text":"x"}`
	const off = `{"is_disabled":true}`
	for name, tc := range map[string]struct {
		call   func(*Client) error
		result string
		form   map[string]string
	}{
		"getMe":          {func(c *Client) error { _, err := c.GetMe(ctx); return err }, `{"id":1}`, nil},
		"getWebhookInfo": {func(c *Client) error { _, err := c.GetWebhookInfo(ctx); return err }, `{"url":""}`, nil},
		"deleteWebhook":  {func(c *Client) error { return c.DeleteWebhook(ctx) }, `true`, nil},
		"getChat":        {func(c *Client) error { _, err := c.GetChat(ctx, -5); return err }, `{"id":-5}`, map[string]string{"chat_id": "-5"}},
		"getChatMember": {func(c *Client) error { _, err := c.GetChatMember(ctx, -5, 42); return err }, `{"status":"member"}`,
			map[string]string{"chat_id": "-5", "user_id": "42"}},
		"getUpdates": {func(c *Client) error {
			_, err := c.GetUpdates(ctx, GetUpdates{Offset: 8, Limit: 100, Timeout: 2 * time.Second})
			return err
		}, `[]`, map[string]string{"offset": "8", "limit": "100", "timeout": "2", "allowed_updates": `["message","callback_query","my_chat_member"]`}},
		"setWebhook": {func(c *Client) error {
			return c.SetWebhook(ctx, SetWebhook{URL: "https://h/p", Secret: NewSecret("s")})
		}, `true`, map[string]string{"url": "https://h/p", "secret_token": "s", "allowed_updates": `["message","callback_query","my_chat_member"]`}},
		"sendMessage": {func(c *Client) error {
			_, err := c.SendMessage(ctx, SendMessage{ChatID: -100, ThreadID: 3, Text: "a&b", ParseMode: "HTML", Keyboard: keyboard, ReplyTo: 4, Silent: true})
			return err
		}, message, map[string]string{
			"chat_id": "-100", "message_thread_id": "3", "text": "a&b", "parse_mode": "HTML", "reply_markup": keyboardJSON, "disable_notification": "true",
			"reply_parameters": `{"allow_sending_without_reply":true,"message_id":4}`, "link_preview_options": off,
		}},
		"sendDocument": {func(c *Client) error {
			_, err := c.SendDocument(ctx, SendDocument{ChatID: 1, FileName: "/home/x/payload.json", Data: []byte("{}"), Caption: "c", Keyboard: keyboard})
			return err
		}, message, map[string]string{"chat_id": "1", "caption": "c", "reply_markup": keyboardJSON}},
		"editMessageText": {func(c *Client) error {
			return c.EditMessageText(ctx, EditMessageText{ChatID: 1, MessageID: 2, Text: "t", ParseMode: "HTML"})
		}, message, map[string]string{"chat_id": "1", "message_id": "2", "text": "t", "parse_mode": "HTML", "link_preview_options": off, "reply_markup": `{"inline_keyboard":[]}`}},
		"editMessageReplyMarkup": {func(c *Client) error {
			return c.EditMessageReplyMarkup(ctx, EditMessageReplyMarkup{ChatID: 1, MessageID: 2, Keyboard: keyboard})
		}, `true`, map[string]string{"chat_id": "1", "message_id": "2", "reply_markup": keyboardJSON}},
		"answerCallbackQuery": {func(c *Client) error {
			return c.AnswerCallbackQuery(ctx, AnswerCallbackQuery{ID: "-9", Text: "done", Alert: true})
		}, `true`, map[string]string{"callback_query_id": "-9", "text": "done", "show_alert": "true", "cache_time": "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			client, got := record(t, tc.result)
			if err := tc.call(client); err != nil {
				t.Fatal(err)
			}
			if got.path != "/bot"+canary+"/"+name {
				t.Errorf("path %s", got.path)
			}
			if len(got.form)+len(tc.form) > 0 && !reflect.DeepEqual(got.form, tc.form) {
				t.Errorf("parameters\n%v, want\n%v", got.form, tc.form)
			}
			if name == "sendDocument" && (got.file != "{}" || got.fileName != "payload.json") {
				t.Errorf("file %q named %q", got.file, got.fileName)
			}
		})
	}
}

func TestSendMessageReturnsWhatTelegramStored(t *testing.T) {
	client, _ := record(t, `{"message_id":5,"message_thread_id":3,"date":7,"chat":{"id":-100123,"type":"supergroup"},"text":"x"}`)
	m, err := client.SendMessage(t.Context(), SendMessage{ChatID: -5, Text: "x"})
	if err != nil || m.ID != 5 || m.ThreadID != 3 || m.Chat.ID != -100123 || !m.Date.Equal(time.Unix(7, 0)) {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestAPIBaseWithPathAndPercent(t *testing.T) {
	var path string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path = r.URL.EscapedPath()
		_, _ = io.WriteString(w, `{"ok":true,"result":{"id":1}}`)
	}))
	defer server.Close()
	if _, err := newTestClient(t, server.URL+"/a%20b/").GetMe(t.Context()); err != nil || path != "/a%20b/bot"+canary+"/getMe" {
		t.Errorf("path %q, %v", path, err)
	}
}

// An upload that is repeated after a 429 carries the file again.
func TestUploadIsBuiltAnew(t *testing.T) {
	var sizes []int64
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		f, header, err := r.FormFile("document")
		if err != nil {
			t.Error(err)
			return
		}
		_ = f.Close()
		sizes = append(sizes, header.Size)
		if len(sizes) == 1 {
			w.WriteHeader(429)
			_, _ = io.WriteString(w, `{"ok":false,"error_code":429,"description":"Too Many Requests: retry after 3","parameters":{"retry_after":3}}`)
			return
		}
		_, _ = io.WriteString(w, `{"ok":true,"result":{"message_id":5,"chat":{"id":1}}}`)
	})
	doc := SendDocument{ChatID: 1, FileName: "f", Data: []byte(strings.Repeat("x", 3<<20))}
	_, err := client.SendDocument(t.Context(), doc)
	var e *Error
	if !errors.As(err, &e) || e.Class != ClassLimited || e.Code != 429 || e.RetryAfter != 3*time.Second {
		t.Fatalf("first: %#v", err)
	}
	if _, err := client.SendDocument(t.Context(), doc); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(sizes, []int64{3 << 20, 3 << 20}) {
		t.Errorf("sizes %v", sizes)
	}
}

func TestRawUpdatesComeOneByOne(t *testing.T) {
	client, _ := record(t, `[{"update_id":1},{"update_id":"x"},7]`)
	raw, err := client.GetUpdates(t.Context(), GetUpdates{})
	if err != nil || len(raw) != 3 || string(raw[2]) != "7" {
		t.Errorf("%s, %v", raw, err)
	}
}

func TestPollAndCallsDoNotShareConnections(t *testing.T) {
	release := make(chan struct{})
	polling := make(chan string, 1)
	var callFrom string
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/getUpdates") {
			polling <- r.RemoteAddr
			<-release
			_, _ = io.WriteString(w, `{"ok":true,"result":[]}`)
			return
		}
		callFrom = r.RemoteAddr
		_, _ = io.WriteString(w, `{"ok":true,"result":{"id":1}}`)
	})
	done := make(chan error, 1)
	go func() {
		_, err := client.GetUpdates(t.Context(), GetUpdates{Timeout: 20 * time.Second})
		done <- err
	}()
	pollFrom := <-polling
	if _, err := client.GetMe(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if callFrom == pollFrom {
		t.Error("a call used the poll's connection")
	}
}

func TestCallsReuseTheirConnection(t *testing.T) {
	from := map[string]bool{}
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		from[r.RemoteAddr] = true
		_, _ = io.WriteString(w, `{"ok":true,"result":{"id":1}}`)
	})
	for range 5 {
		if _, err := client.GetMe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(from) != 1 {
		t.Errorf("%d connections for 5 calls", len(from))
	}
}

func TestCallsAreBounded(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	client, err := New(Options{Token: NewSecret(canary), APIBase: server.URL, CallTimeout: 20 * time.Millisecond, PollMargin: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, err = client.GetMe(t.Context())
	if !errors.Is(err, context.DeadlineExceeded) || ClassOf(err) != ClassTransient {
		t.Errorf("getMe: %v", err)
	}
	_, err = client.GetUpdates(t.Context(), GetUpdates{})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("getUpdates: %v", err)
	}
	if _, err = client.SendMessage(t.Context(), SendMessage{}); ClassOf(err) != ClassUnknownOutcome {
		t.Errorf("sendMessage: %v", err)
	}
	if _, err = client.SendDocument(t.Context(), SendDocument{}); ClassOf(err) != ClassUnknownOutcome {
		t.Errorf("sendDocument: %v", err)
	}
}

func TestAnswersOverTheSizeLimitAreRefused(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"ok":true,"result":"`)
		chunk := strings.Repeat("x", 1<<20)
		for range 9 {
			_, _ = io.WriteString(w, chunk)
		}
		_, _ = io.WriteString(w, `"}`)
	})
	if _, err := client.GetMe(t.Context()); err == nil || !strings.Contains(err.Error(), "over 8 MiB") {
		t.Errorf("%v", err)
	}
}

func TestKeyboardJSON(t *testing.T) {
	for _, k := range []Keyboard{nil, {}} {
		if data, err := json.Marshal(k); err != nil || string(data) != `{"inline_keyboard":[]}` {
			t.Errorf("%s, %v", data, err)
		}
	}
}

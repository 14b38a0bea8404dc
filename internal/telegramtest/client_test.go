package telegramtest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	. "github.com/approvald/approvald/internal/telegramtest"
)

// bot is a Bot API client that hides nothing.
type bot struct {
	t *testing.T
	s *Server
	c *http.Client
}

// answer is what a bot gets back.
type answer struct {
	Status      int    `json:"-"`
	OK          bool   `json:"ok"`
	Code        int    `json:"error_code"`
	Description string `json:"description"`
	Parameters  struct {
		RetryAfter int   `json:"retry_after"`
		MigrateTo  int64 `json:"migrate_to_chat_id"`
	}
	Result json.RawMessage `json:"result"`
	Header http.Header     `json:"-"`
	Body   string          `json:"-"`
	Err    error           `json:"-"`
}

func newBot(t *testing.T, s *Server) *bot {
	t.Helper()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &bot{t: t, s: s, c: &http.Client{Transport: tr}}
}

func (b *bot) url(method string) string { return b.s.URL() + "/bot" + b.s.Token() + "/" + method }

func (b *bot) do(ctx context.Context, r *http.Request) answer {
	resp, err := b.c.Do(r.WithContext(ctx))
	if err != nil {
		return answer{Err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	a := answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body), Err: err}
	if err == nil {
		_ = json.Unmarshal(body, &a)
	}
	return a
}

// call posts a form: name, value, name, value ...
func (b *bot) call(method string, kv ...string) answer {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	defer cancel()
	return b.callContext(ctx, method, kv...)
}

func (b *bot) callContext(ctx context.Context, method string, kv ...string) answer {
	form := url.Values{}
	for i := 0; i+1 < len(kv); i += 2 {
		form.Set(kv[i], kv[i+1])
	}
	r, err := http.NewRequest(http.MethodPost, b.url(method), strings.NewReader(form.Encode()))
	if err != nil {
		return answer{Err: err}
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return b.do(ctx, r)
}

// must is call for something that has to work; it decodes the result.
func (b *bot) must(result any, method string, kv ...string) answer {
	b.t.Helper()
	a := b.call(method, kv...)
	if a.Err != nil || !a.OK {
		b.t.Fatalf("%s: %d %s %v", method, a.Status, a.Description, a.Err)
	}
	if result != nil {
		if err := json.Unmarshal(a.Result, result); err != nil {
			b.t.Fatalf("%s: result %s: %v", method, a.Result, err)
		}
	}
	return a
}

// body posts any body.
func (b *bot) body(method, contentType, body string) answer {
	b.t.Helper()
	r, err := http.NewRequest(http.MethodPost, b.url(method), strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	return b.do(b.t.Context(), r)
}

// form builds a multipart body of parts: field, file name ("" = a value), content.
func form(t *testing.T, parts ...[3]string) (contentType, body string) {
	t.Helper()
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	for _, p := range parts {
		var err error
		var out io.Writer
		if p[1] == "" {
			out, err = w.CreateFormField(p[0])
		} else {
			out, err = w.CreateFormFile(p[0], p[1])
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(out, p[2]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return w.FormDataContentType(), buf.String()
}

// update is the part of an update that the tests look at.
type update struct {
	ID  int64 `json:"update_id"`
	Tap *struct {
		ID      string `json:"id"`
		From    User
		Data    string
		Inline  string `json:"inline_message_id"`
		Message *struct {
			ID   int64 `json:"message_id"`
			Date int64
			Text string
		}
	} `json:"callback_query"`
	Message *struct {
		ID         int64 `json:"message_id"`
		Text       string
		From       User
		SenderChat *struct{ ID int64 } `json:"sender_chat"`
		Reply      *struct {
			ID int64 `json:"message_id"`
		} `json:"reply_to_message"`
		MigrateTo   int64 `json:"migrate_to_chat_id"`
		MigrateFrom int64 `json:"migrate_from_chat_id"`
	}
	Member *struct {
		New struct{ Status string } `json:"new_chat_member"`
	} `json:"my_chat_member"`
}

func (b *bot) updates(kv ...string) []update {
	b.t.Helper()
	var us []update
	b.must(&us, "getUpdates", kv...)
	return us
}

func ids(us []update) []int64 {
	var out []int64
	for _, u := range us {
		out = append(out, u.ID)
	}
	return out
}

// soon bounds waits for something that happens at once.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const yesNo = `{"inline_keyboard":[[{"text":"Approve","callback_data":"y"},{"text":"Reject","callback_data":"n"}]]}`

// manual returns a server on a manual clock with Alice (111) on it, and its bot.
func manual(t *testing.T, o Options) (*Server, *ManualClock, *bot) {
	t.Helper()
	c := NewManualClock(time.Time{})
	o.Clock = c
	if o.AntiHammer == Default {
		o.AntiHammer = Off
	}
	s := RunT(t, o)
	s.AddUser(User{ID: 111, FirstName: "Alice"})
	return s, c, newBot(t, s)
}

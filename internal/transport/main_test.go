package transport

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// canary is a token that must appear nowhere.
const canary = "987654321:AAcanaryCANARYcanaryCANARYcanary_-0"

func newTestClient(t *testing.T, base string) *Client {
	t.Helper()
	c, err := New(Options{Token: NewSecret(canary), APIBase: base})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// fakeAPI answers Bot API calls in memory, so that a test can run in a synctest
// bubble with its own time.
type fakeAPI struct {
	mu    sync.Mutex
	calls []apiCall
	// answer gives the status and body of a call; it may sleep, and returns an
	// error for a broken connection.
	answer func(ctx context.Context, call apiCall) (int, string, error)
}

type apiCall struct {
	method string
	form   map[string]string
	at     time.Time
}

func (f *fakeAPI) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	_ = r.Body.Close()
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	if err := r.ParseForm(); err != nil {
		return nil, err
	}
	call := apiCall{method: r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:], form: map[string]string{}, at: time.Now()}
	for key := range r.Form {
		call.form[key] = r.Form.Get(key)
	}
	f.mu.Lock()
	f.calls = append(f.calls, call)
	f.mu.Unlock()
	status, text, err := f.answer(r.Context(), call)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r,
	}, nil
}

// made returns the calls of a method so far.
func (f *fakeAPI) made(method string) []apiCall {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []apiCall
	for _, c := range f.calls {
		if c.method == method {
			out = append(out, c)
		}
	}
	return out
}

// client returns a Client whose every call goes to f.
func (f *fakeAPI) client(t *testing.T) *Client {
	t.Helper()
	c := newTestClient(t, "http://127.0.0.1:1")
	c.calls = &http.Client{Transport: f}
	c.polls = &http.Client{Transport: f}
	return c
}

func okResult(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return `{"ok":true,"result":` + string(data) + `}`
}

func refusal(code int, description string) (int, string, error) {
	return code, fmt.Sprintf(`{"ok":false,"error_code":%d,"description":%q}`, code, description), nil
}

func tapJSON(update, user int64) string {
	return fmt.Sprintf(`{"update_id":%d,"callback_query":{"id":"c%d","from":{"id":%d,"is_bot":false,"first_name":"A"},`+
		`"message":{"message_id":7,"date":1,"chat":{"id":111,"type":"private"}},"chat_instance":"1","data":"n"}}`, update, update, user)
}

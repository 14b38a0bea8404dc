package transport

import (
	"context"
	"strings"
	"testing"
)

// FuzzAnswer lets Telegram, or what stands between, answer a call with anything: no answer is taken for a message that has no id, none
// crashes, and no error repeats the token that a body shows.
func FuzzAnswer(f *testing.F) {
	for _, body := range []string{
		`{"ok":true,"result":{"message_id":7,"date":1,"chat":{"id":111,"type":"private"}}}`, `{"ok":true,"result":{"id":987654321,"is_bot":true,"first_name":"b","username":"b"}}`,
		`{"ok":false,"error_code":429,"description":"Too Many Requests: retry after 5","parameters":{"retry_after":5}}`, `{"ok":false,"error_code":409,"description":"Conflict"}`,
		`{"ok":true,"result":true}`, `{"ok":true}`, `{"ok":false}`, `<html>502 Bad Gateway</html>`, ``, `{"ok":tru`, "\x00", `{"ok":false,"error_code":401,"description":"` + canary + `"}`,
		`{"ok":true,"result":{"message_id":1e400}}`, `{"ok":true,"ok":false}`, strings.Repeat("[", 20000), `{"ok":false,"parameters":{"retry_after":-1e18,"migrate_to_chat_id":9007199254740993}}`,
	} {
		f.Add(200, body)
		f.Add(502, body)
		f.Add(429, body)
	}
	f.Fuzz(func(t *testing.T, status int, body string) {
		if status < 200 || status > 599 || status >= 300 && status < 400 {
			return
		}
		api := &fakeAPI{answer: func(context.Context, apiCall) (int, string, error) { return status, body, nil }}
		c := api.client(t)
		message, err := c.SendMessage(t.Context(), SendMessage{ChatID: 111, Text: "x"})
		if err == nil && message.ID == 0 {
			t.Errorf("%d %q: taken for a message", status, body)
		}
		_, meErr := c.GetMe(t.Context())
		for _, err := range []error{err, meErr} {
			if err != nil && strings.Contains(err.Error(), strings.SplitN(canary, ":", 2)[1]) {
				t.Errorf("%d %q: the error repeats the token: %v", status, body, err)
			}
		}
	})
}

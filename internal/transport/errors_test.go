package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func TestClasses(t *testing.T) {
	type tc struct {
		method string
		status int
		body   string
		want   Class
	}
	api := func(method string, code int, description string, want Class) tc {
		return tc{method, code, fmt.Sprintf(`{"ok":false,"error_code":%d,"description":%q}`, code, description), want}
	}
	for _, tc := range []tc{
		api("getMe", 401, "Unauthorized", ClassToken),
		api("getMe", 404, "Not Found", ClassToken),
		api("getMe", 421, "Misdirected Request: unallowed token specified", ClassToken),
		api("getMe", 404, "Not Found: method not found", ClassBadRequest),
		api("sendMessage", 403, "Forbidden: bot was blocked by the user", ClassForbidden),
		api("sendMessage", 400, "Bad Request: chat not found", ClassChatNotFound),
		api("sendMessage", 400, "Bad Request: message thread not found", ClassThreadNotFound),
		api("sendMessage", 400, "Bad Request: TOPIC_CLOSED", ClassThreadNotFound),
		api("sendMessage", 400, "Bad Request: BUTTON_DATA_INVALID", ClassBadRequest),
		api("sendMessage", 400, "Bad Request: can't parse entities: Unexpected end tag at byte offset 3", ClassUnparsable),
		api("editMessageText", 400, "Bad Request: message to edit not found", ClassGone),
		api("editMessageText", 400, "Bad Request: MESSAGE_ID_INVALID", ClassGone),
		api("editMessageText", 400, "Bad Request: message can't be edited", ClassGone),
		api("editMessageText", 400, "Bad Request: message is not modified: specified new message content and reply markup are exactly the same", ""),
		api("answerCallbackQuery", 400, "Bad Request: query is too old and response timeout expired or query ID is invalid", ClassTooOld),
		api("getUpdates", 409, "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running", ClassConflict),
		api("getUpdates", 409, "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first", ClassWebhookActive),
		api("getUpdates", 409, "Conflict: terminated by setWebhook request", ClassWebhookActive),
		api("sendMessage", 413, "Request Entity Too Large", ClassTooLarge),
		api("sendMessage", 500, "Internal Server Error: restart", ClassUnknownOutcome),
		api("sendDocument", 500, "Internal Server Error", ClassUnknownOutcome),
		api("editMessageText", 500, "Internal Server Error", ClassTransient),
		{"sendMessage", 200, `{"ok":false}`, ClassUnknownOutcome},
		{"sendMessage", 200, `{"ok":false,"error_code":400,"description":"Bad Request: chat not found"}`, ClassChatNotFound},
		{"sendMessage", 200, `{"ok":true,"result":{}}`, ClassUnknownOutcome},
		{"sendMessage", 200, `{"ok":true,"result":true}`, ClassUnknownOutcome},
		{"sendMessage", 200, `{"ok":true}`, ClassUnknownOutcome},
		{"sendMessage", 200, `{"ok":"yes"}`, ClassUnknownOutcome},
		{"sendMessage", 200, `{"ok":true,"result":{"message_id`, ClassUnknownOutcome},
		{"sendMessage", 200, ``, ClassUnknownOutcome},
		{"sendMessage", 200, `<html>log in</html>`, ClassUnknownOutcome},
		{"getMe", 200, `<html>log in</html>`, ClassTransient},
		{"sendMessage", 502, `<html>502</html>`, ClassUnknownOutcome},
		{"sendMessage", 504, ``, ClassUnknownOutcome},
		{"editMessageText", 504, ``, ClassTransient},
		{"sendDocument", 413, `<html>413</html>`, ClassTooLarge},
		{"sendMessage", 413, ``, ClassTooLarge},
		{"sendMessage", 400, ``, ClassBadRequest},
		{"sendMessage", 403, `<html>blocked by the firewall</html>`, ClassTransient},
		{"sendMessage", 407, `proxy`, ClassTransient},
		{"sendMessage", 429, `<html>slow down</html>`, ClassLimited},
		{"getMe", 401, `<html>proxy log-in</html>`, ClassTransient},
	} {
		t.Run(fmt.Sprintf("%s %d %.60s", tc.method, tc.status, tc.body), func(t *testing.T) {
			client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, tc.body)
			})
			err := callMethod(t.Context(), client, tc.method)
			if got := ClassOf(err); got != tc.want {
				t.Fatalf("class %q, want %q: %v", got, tc.want, err)
			}
			var e *Error
			if errors.As(err, &e) && (e.Method != tc.method || e.Description == "") {
				t.Errorf("%+v", e)
			}
		})
	}
}

func callMethod(ctx context.Context, c *Client, method string) error {
	var err error
	switch method {
	case "getMe":
		_, err = c.GetMe(ctx)
	case "getUpdates":
		_, err = c.GetUpdates(ctx, GetUpdates{Offset: 1})
	case "sendMessage":
		_, err = c.SendMessage(ctx, SendMessage{ChatID: 1, Text: "x"})
	case "sendDocument":
		_, err = c.SendDocument(ctx, SendDocument{ChatID: 1, FileName: "f", Data: []byte("x")})
	case "editMessageText":
		err = c.EditMessageText(ctx, EditMessageText{ChatID: 1, MessageID: 1, Text: "x"})
	case "answerCallbackQuery":
		err = c.AnswerCallbackQuery(ctx, AnswerCallbackQuery{ID: "1"})
	default:
		panic(method)
	}
	return err
}

func TestLimitedAndMigratedParameters(t *testing.T) {
	for _, method := range []string{"sendMessage", "sendDocument", "getUpdates"} {
		for body, want := range map[string]Error{
			`{"ok":false,"error_code":429,"description":"Too Many Requests: retry after 7","parameters":{"retry_after":7}}`: {Class: ClassLimited, RetryAfter: 7 * time.Second},
			`{"ok":false,"error_code":429,"description":"Too Many Requests"}`:                                               {Class: ClassLimited, RetryAfter: 9 * time.Second},
			`{"ok":false,"error_code":429,"description":"x","parameters":{"retry_after":-5}}`:                               {Class: ClassLimited, RetryAfter: 9 * time.Second},
			`{"ok":false,"error_code":429,"description":"x","parameters":{"retry_after":9000000000}}`:                       {Class: ClassLimited, RetryAfter: 24 * time.Hour},
			`{"ok":false,"error_code":400,"description":"Bad Request: group chat was upgraded to a supergroup chat","parameters":{"migrate_to_chat_id":-1001234567890}}`: {
				Class: ClassMigrated, MigrateTo: -1001234567890,
			},
		} {
			client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "9")
				w.WriteHeader(429)
				_, _ = io.WriteString(w, body)
			})
			var e *Error
			if err := callMethod(t.Context(), client, method); !errors.As(err, &e) || e.Class != want.Class || e.RetryAfter != want.RetryAfter || e.MigrateTo != want.MigrateTo {
				t.Errorf("%s %s: %+v", method, body, err)
			}
		}
	}
}

// hangUp accepts connections and ends each one as told, after the request was read.
func hangUp(t *testing.T, end func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 64<<10))
			end(conn)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-done })
	return "http://" + listener.Addr().String()
}

func reset(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }

// A send that never found a connection was certainly not executed; one whose
// connection broke may have been.
func TestSendThatNeverLeftIsToldApart(t *testing.T) {
	for name, tc := range map[string]struct {
		base string
		want Class
		is   error
	}{
		"refused":         {closedPort(t), ClassTransient, syscall.ECONNREFUSED},
		"unknown host":    {"https://approvald.invalid", ClassTransient, nil},
		"reset":           {hangUp(t, reset), ClassUnknownOutcome, nil},
		"closed":          {hangUp(t, func(net.Conn) {}), ClassUnknownOutcome, nil},
		"answer cut":      {hangUp(t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"ok\"") }), ClassUnknownOutcome, nil},
		"not HTTP at all": {hangUp(t, func(c net.Conn) { _, _ = io.WriteString(c, "SSH-2.0-OpenSSH\r\n") }), ClassUnknownOutcome, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, method := range []string{"sendMessage", "sendDocument"} {
				err := callMethod(t.Context(), newTestClient(t, tc.base), method)
				if ClassOf(err) != tc.want || (tc.is != nil && !errors.Is(err, tc.is)) {
					t.Errorf("%s: %v (%s)", method, err, ClassOf(err))
				}
			}
			if err := callMethod(t.Context(), newTestClient(t, tc.base), "editMessageText"); ClassOf(err) != ClassTransient {
				t.Errorf("edit: %v", err)
			}
		})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := callMethod(ended, newTestClient(t, hangUp(t, reset)), "sendMessage"); ClassOf(err) != ClassTransient || !errors.Is(err, context.Canceled) {
		t.Errorf("ended before it began: %v", err)
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return "http://" + listener.Addr().String()
}

// Whatever goes wrong, the token is in no text that comes out of it.
func TestCanaryIsNowhere(t *testing.T) {
	quietTLS := httptest.NewUnstartedServer(http.NotFoundHandler())
	quietTLS.Config.ErrorLog = log.New(io.Discard, "", 0)
	quietTLS.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	quietTLS.StartTLS()
	defer quietTLS.Close()
	answer := func(status int, header http.Header, body string) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for key := range header {
				w.Header().Set(key, header.Get(key))
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a redirect was followed to %s with referer %q", r.URL.Path, r.Referer())
	}))
	defer elsewhere.Close()
	location := http.Header{"Location": {elsewhere.URL + "/bot" + canary + "/getMe"}}
	echoed := fmt.Sprintf(`{"ok":false,"error_code":400,"description":"no /bot%s/x, %s"}`, canary, percent(canary, "%%%02X"))
	bases := map[string]string{
		"dns": "https://approvald.invalid", "refused": closedPort(t), "reset": hangUp(t, reset), "tls": quietTLS.URL,
		"plain http to tls": strings.Replace(quietTLS.URL, "https", "http", 1), "tls to plain": strings.Replace(answer(200, nil, ""), "http", "https", 1),
		"302": answer(302, location, ""), "307": answer(307, location, "{}"), "302 bad location": answer(302, http.Header{"Location": {"http://[" + canary}}, ""),
		"description": answer(400, nil, echoed), "description 401": answer(401, nil, strings.Replace(echoed, "400", "401", 1)),
		"bad json": answer(200, nil, `{"ok":tr `+canary), "html": answer(502, nil, "<html>"+canary), "empty": answer(200, nil, ""),
		"wrong result": answer(200, nil, `{"ok":true,"result":"`+canary+`"}`), "wrong type": answer(200, nil, `{"ok":"`+canary+`"}`),
		"proxy 407": answer(407, nil, canary), "hang": hangUp(t, func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) }), "cancelled": hangUp(t, reset),
		"header": hangUp(t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+canary+"\r\n\r\n") }),
		"status": hangUp(t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 "+canary+"\r\n\r\n") }),
	}
	methods := []string{"getMe", "getUpdates", "sendMessage", "sendDocument", "editMessageText", "answerCallbackQuery"}
	for name, base := range bases {
		t.Run(name, func(t *testing.T) {
			client, err := New(Options{Token: NewSecret(canary), APIBase: base, CallTimeout: 300 * time.Millisecond, PollMargin: 300 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if name == "cancelled" {
				cancel()
			}
			var out strings.Builder
			logger := zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(&out), zap.DebugLevel))
			for _, method := range methods {
				err := callMethod(ctx, client, method)
				if err == nil {
					// Methods that give nothing back do not look at the result.
					if name != "wrong result" {
						t.Errorf("%s succeeded", method)
					}
					continue
				}
				logger.Error(err.Error(), zap.Error(err), zap.Any("any", err))
				for e := err; e != nil; e = errors.Unwrap(e) {
					fmt.Fprintf(&out, "%v\n%+v\n%#v\n%q\n", e, e, e, e)
				}
			}
			if leaks(out.String()) {
				t.Errorf("the token is in: %s", out.String())
			}
		})
	}
}

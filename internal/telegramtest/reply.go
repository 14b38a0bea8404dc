package telegramtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// apiError is an error in the terms of the Bot API.
type apiError struct {
	Code        int
	Description string
	RetryAfter  int       // seconds
	MigrateTo   int64     // chat id
	Hold        time.Time // not to be sent before
}

// reply is a response that is ready to be written.
type reply struct {
	status     int
	header     http.Header
	body       []byte
	hold       time.Time // not to be sent before
	noResponse bool      // the server closes the connection instead
}

// success answers with a result; description is "" except where the Bot API
// gives one with a success.
func success(result any, description string) *reply {
	raw, ok := result.(json.RawMessage)
	if !ok {
		raw = encode(result)
	}
	var b bytes.Buffer
	b.Grow(len(raw) + 64)
	b.WriteString(`{"ok":true,"result":`)
	b.Write(raw)
	if description != "" {
		b.WriteString(`,"description":`)
		b.Write(encode(description))
	}
	b.WriteByte('}')
	return &reply{status: http.StatusOK, body: b.Bytes()}
}

// failure answers with an error. The HTTP status is the error code.
func failure(e *apiError) *reply {
	type parameters struct {
		MigrateTo  int64 `json:"migrate_to_chat_id,omitempty"`
		RetryAfter int   `json:"retry_after,omitempty"`
	}
	body := struct {
		OK          bool        `json:"ok"`
		Code        int         `json:"error_code"`
		Description string      `json:"description"`
		Parameters  *parameters `json:"parameters,omitempty"`
	}{Code: e.Code, Description: e.Description}
	if e.RetryAfter != 0 || e.MigrateTo != 0 {
		body.Parameters = &parameters{MigrateTo: e.MigrateTo, RetryAfter: e.RetryAfter}
	}
	r := &reply{status: e.Code, body: encode(body), hold: e.Hold}
	if e.RetryAfter != 0 {
		r.header = http.Header{"Retry-After": {strconv.Itoa(e.RetryAfter)}}
	}
	return r
}

// fail builds the error of a message in the way the Bot API server words the
// errors that come from its core: a prefix for the code, then the text with its
// first letter lowered unless it is a constant such as BUTTON_DATA_INVALID.
func fail(code int, format string, args ...any) *apiError {
	text := format
	if len(args) > 0 {
		text = fmt.Sprintf(format, args...)
	}
	prefix := ""
	switch {
	case code == 403 && text == strings.ToUpper(text):
		code, prefix = 400, "Bad Request"
	case code == 400 || code == 404 || code < 400:
		code, prefix = 400, "Bad Request"
	case code == 401:
		prefix = "Unauthorized"
	case code == 403:
		prefix = "Forbidden"
	case code == 429, code == 409, code == 421:
	case code == 500:
		prefix = "Internal Server Error"
	default:
		code, prefix = 400, "Bad Request"
	}
	if prefix == "" || strings.HasPrefix(text, prefix) {
		return &apiError{Code: code, Description: text}
	}
	first, n := utf8.DecodeRuneInString(text)
	second, _ := utf8.DecodeRuneInString(text[n:])
	if second != '_' && !unicode.IsUpper(second) {
		text = string(unicode.ToLower(first)) + text[n:]
	}
	return &apiError{Code: code, Description: prefix + ": " + text}
}

func badRequest(format string, args ...any) *apiError { return fail(400, format, args...) }

func tooMany(seconds int) *apiError {
	return &apiError{Code: 429, Description: fmt.Sprintf("Too Many Requests: retry after %d", seconds), RetryAfter: seconds}
}

// encode is json.Marshal without the escaping of <, > and & that is meant for
// HTML. It is used for the package's own types only, which always encode.
func encode(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("telegramtest: encode %T: %v", v, err))
	}
	return bytes.TrimRight(b.Bytes(), "\n")
}

func write(w http.ResponseWriter, r *reply) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	for k, v := range r.header {
		h[k] = v
	}
	h.Set("Content-Length", strconv.Itoa(len(r.body)))
	w.WriteHeader(r.status)
	_, _ = w.Write(r.body)
}

// frontError answers a request that could not be read: a page of nginx on the
// cloud, nothing but the status on a bare server. The connection is closed.
func (s *Server) frontError(w http.ResponseWriter, status int) {
	w.Header().Set("Connection", "close")
	if s.opts.Frontend == Bare {
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(status)
		return
	}
	write(w, htmlPage(status))
}

// htmlPage is the error page of the front end of api.telegram.org.
func htmlPage(status int) *reply {
	title := fmt.Sprintf("%d %s", status, http.StatusText(status))
	if status == http.StatusRequestEntityTooLarge {
		title = "413 Request Entity Too Large"
	}
	return &reply{
		status: status,
		header: http.Header{"Content-Type": {"text/html"}, "Server": {"nginx/1.18.0"}},
		body: []byte("<html>\r\n<head><title>" + title + "</title></head>\r\n<body>\r\n<center><h1>" + title +
			"</h1></center>\r\n<hr><center>nginx/1.18.0</center>\r\n</body>\r\n</html>\r\n"),
	}
}

package telegramtest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

const (
	maxArgs       = 1 << 20  // bytes of all parameters together
	maxFiles      = 50       // files in a request
	maxUpload     = 50 << 20 // bytes of a file through the cloud's front end
	maxUploadBare = 4000 << 20
)

// request is a parsed request.
type request struct {
	ctx    context.Context
	name   string // as sent
	method string // lower case
	args   map[string]string
	files  []File
	size   int
}

var errTooLarge = errors.New("too large")

// add keeps an argument; the first one of a name wins.
func (q *request) add(name, value string) error {
	q.size += len(name) + len(value)
	if q.size > maxArgs {
		return errTooLarge
	}
	if _, dup := q.args[name]; !dup {
		q.args[name] = value
	}
	return nil
}

// parse reads the arguments: the query string first, then the body, so that the
// query wins. It returns what it could read, and the HTTP status of a request that
// cannot be read to its end, or 0.
func (s *Server) parse(r *http.Request, name string) (*request, int) {
	q := &request{ctx: r.Context(), args: map[string]string{}}
	status := 0
	if err := q.addForm(r.URL.RawQuery); err != nil {
		status = http.StatusRequestEntityTooLarge
	} else if r.Method == http.MethodPost {
		status = s.parseBody(q, r)
	}
	if name == "" {
		name = q.args["method"]
	}
	q.method = strings.ToLower(name)
	q.name = name
	if m, ok := methods[q.method]; ok {
		q.name = m.name
	}
	return q, status
}

func (s *Server) parseBody(q *request, r *http.Request) int {
	var body io.Reader = r.Body
	switch strings.ToLower(r.Header.Get("Content-Encoding")) {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(body)
		if err != nil {
			return http.StatusBadRequest
		}
		body = z
	default:
		return http.StatusUnsupportedMediaType
	}
	kind, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	var err error
	switch kind {
	case "application/x-www-form-urlencoded":
		var b []byte
		if b, err = readAtMost(body, 3*maxArgs); err == nil {
			err = q.addForm(string(b))
		}
	case "application/json":
		var b []byte
		if b, err = readAtMost(body, 3*maxArgs); err == nil {
			err = q.addJSON(b)
		}
	case "multipart/form-data":
		if params["boundary"] == "" {
			return http.StatusBadRequest
		}
		limit := int64(maxUpload)
		if s.opts.Frontend == Bare {
			limit = maxUploadBare
		}
		err = q.addMultipart(multipart.NewReader(body, params["boundary"]), limit)
	default:
		// A body of another type is no argument; it is read and forgotten.
		_, _ = io.Copy(io.Discard, io.LimitReader(body, maxUpload))
	}
	switch {
	case errors.Is(err, errTooLarge):
		return http.StatusRequestEntityTooLarge
	case err != nil:
		return http.StatusBadRequest
	}
	return 0
}

func (q *request) addForm(form string) error {
	for _, pair := range strings.Split(form, "&") {
		if pair == "" {
			continue
		}
		k, v, _ := strings.Cut(pair, "=")
		if err := q.add(unescape(k), unescape(v)); err != nil {
			return err
		}
	}
	return nil
}

// addJSON takes the members of the top-level object. A body that is not one, or
// that is damaged, is no error: what came before the damage counts.
func (q *request) addJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil
		}
		name, _ := t.(string)
		var raw json.RawMessage
		if d.Decode(&raw) != nil {
			return nil
		}
		value := string(raw)
		if raw[0] == '"' {
			_ = json.Unmarshal(raw, &value)
		}
		if err := q.add(name, value); err != nil {
			return err
		}
	}
	return nil
}

func (q *request) addMultipart(m *multipart.Reader, fileLimit int64) error {
	for {
		p, err := m.NextPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		// The name as sent: a whole path is a leak that a test wants to see.
		_, disposition, _ := mime.ParseMediaType(p.Header.Get("Content-Disposition"))
		name := disposition["filename"]
		if name == "" {
			b, err := readAtMost(p, maxArgs)
			if err != nil {
				return err
			}
			if err := q.add(p.FormName(), string(b)); err != nil {
				return err
			}
			continue
		}
		if len(q.files) == maxFiles {
			return errTooLarge
		}
		b, err := readAtMost(p, fileLimit)
		if err != nil {
			return err
		}
		q.files = append(q.files, File{Field: p.FormName(), Name: name, MIME: p.Header.Get("Content-Type"), Data: b})
	}
}

// file returns the upload meant by a parameter: the part of that name, or the
// one that its value names as attach://part.
func (q *request) file(param string) (File, bool) {
	field := param
	if name, ok := strings.CutPrefix(q.args[param], "attach://"); ok {
		field = name
	}
	for _, f := range q.files {
		if f.Field == field {
			return f, true
		}
	}
	return File{}, false
}

// boolean reads a flag: true, yes and 1 are true, all else is false.
func (q *request) boolean(name string) bool {
	switch strings.ToLower(strings.TrimSpace(q.args[name])) {
	case "true", "yes", "1":
		return true
	}
	return false
}

// integer reads a number leniently (garbage is 0; absent is def) and clamps it.
func (q *request) integer(name string, def, low, high int64) int64 {
	v, ok := q.args[name]
	if !ok || v == "" {
		return def
	}
	return min(max(lenientInt(v), low), high)
}

// lenientInt reads the digits at the front of v and ignores what follows.
func lenientInt(v string) int64 {
	v = strings.TrimLeft(v, " ")
	end := 0
	if strings.HasPrefix(v, "-") {
		end = 1
	}
	for end < len(v) && v[end] >= '0' && v[end] <= '9' {
		end++
	}
	n, err := strconv.ParseInt(v[:end], 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0
	}
	return n
}

func readAtMost(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = errTooLarge
	}
	return b, err
}

// unescape decodes %XX and +, and leaves what is not properly escaped as it is.
func unescape(s string) string {
	if u, err := url.QueryUnescape(s); err == nil {
		return u
	}
	return s
}

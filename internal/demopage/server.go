package demopage

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"
)

//go:embed assets
var assets embed.FS

const (
	maxBody = 8 << 10
	// redraw is the shortest time between two states sent to a page.
	redraw = 40 * time.Millisecond
	policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

// handler serves the page under /KEY/. Who does not know the key gets 404, and so does a name that is not this machine's loopback
// address (a foreign page whose name was pointed here).
func handler(p *play, key, address string) http.Handler {
	static, err := fs.Sub(assets, "assets")
	if err != nil {
		panic(err) // the directory is embedded above
	}
	h := &hub{play: p, pages: map[chan []byte]struct{}{}}
	p.workers.Go(func() { h.run(p.ctx) })
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(static))
	mux.HandleFunc("GET /events", h.events)
	mux.HandleFunc("GET /document/{message}", p.document)
	mux.HandleFunc("POST /do", p.do)
	inner := http.StripPrefix("/"+key, mux)
	_, port, _ := net.SplitHostPort(address)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != address && r.Host != "localhost:"+port {
			http.NotFound(w, r)
			return
		}
		if site := r.Header.Get("Sec-Fetch-Site"); r.Method != http.MethodGet && site != "" && site != "same-origin" {
			http.Error(w, "this page takes orders from itself alone", http.StatusForbidden)
			return
		}
		head := w.Header()
		head.Set("Content-Security-Policy", policy)
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cache-Control", "no-store")
		inner.ServeHTTP(w, r)
	})
}

// order is what a button sends.
type order struct {
	Do      string `json:"do"`
	Kind    string `json:"kind"`
	Person  string `json:"person"`
	Message int64  `json:"message"`
	Text    string `json:"text"`
}

func (p *play) do(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Content-Type") != "application/json" { // a form of a foreign page cannot send this
		http.Error(w, "send JSON", http.StatusUnsupportedMediaType)
		return
	}
	var o order
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&o); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	err := p.obey(o)
	answer := struct {
		Error string `json:"error"`
	}{}
	if err != nil {
		answer.Error = err.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // a page that went away wants no answer
}

var errNoSuchOrder = errors.New("there is no such button")

func (p *play) obey(o order) error {
	switch o.Do { // the phones do not wait for a daemon that is being stopped
	case "tap":
		return p.tap(o.Person, o.Message, o.Text)
	case "write":
		return p.write(o.Person, o.Text, o.Message)
	}
	return p.press(func(ctx context.Context) error {
		switch o.Do {
		case "file":
			return p.file(ctx, o.Kind)
		case "kill":
			return p.endDaemon(ctx, syscall.SIGKILL)
		case "stop":
			return p.endDaemon(ctx, syscall.SIGTERM)
		case "start":
			return p.startDaemon(ctx)
		case "second":
			return p.startSecond(ctx)
		case "mode":
			return p.switchMode(ctx, o.Kind)
		case "network":
			return p.setNetwork(o.Kind == "on")
		case "limit":
			p.mute()
			return nil
		}
		return errNoSuchOrder
	})
}

// document is the text of a file in the chat.
func (p *play) document(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("message"), 10, 64)
	m, ok := p.stage.Telegram.Message(groupID, id)
	if err != nil || !ok || m.Document == nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Write(m.Document.Data) //nolint:errcheck // a page that went away wants no answer
}

// events sends the state, now and whenever it has changed, as server-sent events (HTML standard, section 9.2).
func (h *hub) events(w http.ResponseWriter, r *http.Request) {
	flusher, ok := w.(http.Flusher)
	if !ok {
		http.Error(w, "this connection cannot stream", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	page := h.join()
	defer h.leave(page)
	for {
		select {
		case text := <-page:
			if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil {
				return
			}
			flusher.Flush()
		case <-r.Context().Done():
			io.WriteString(w, "event: end\ndata: {}\n\n") //nolint:errcheck // a courtesy
			return
		}
	}
}

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// demoState is what the demo's page is sent.
type demoState struct {
	Phones []struct {
		Owner string `json:"owner"`
		Toast *struct {
			Text string `json:"text"`
		} `json:"toast"`
	} `json:"phones"`
	Messages []demoMessage `json:"messages"`
	Programs []demoProgram `json:"programs"`
	Lines    []string      `json:"lines"`
	Verified struct {
		Status  string `json:"status"`
		Records int    `json:"records"`
	} `json:"verified"`
	Daemon struct {
		Running bool   `json:"running"`
		PID     int    `json:"pid"`
		Mode    string `json:"mode"`
	} `json:"daemon"`
	Online   bool    `json:"online"`
	MutedFor float64 `json:"muted_for"`
}

type demoMessage struct {
	ID       int64                     `json:"id"`
	Text     string                    `json:"text"`
	Entities []struct{ Type, URL any } `json:"entities"`
	Document *struct {
		Name string `json:"name"`
	} `json:"document"`
	Buttons [][]string `json:"buttons"`
}

type demoProgram struct {
	Title   string   `json:"title"`
	Command string   `json:"command"`
	Lines   []string `json:"lines"`
	Running bool     `json:"running"`
	Code    int      `json:"code"`
}

// demoPage is the demo behind its page.
type demoPage struct {
	t       *testing.T
	address string
	cmd     *exec.Cmd

	mu      sync.Mutex
	state   demoState
	changed chan struct{} // closed and replaced when state changes
}

// startDemoPage starts the demo and follows its state as a page does.
func startDemoPage(t *testing.T) *demoPage {
	t.Helper()
	p := &demoPage{t: t, changed: make(chan struct{})}
	p.cmd, _ = demoProcess(t, "--no-open")
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	p.cmd.Stderr = &stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("no address: %v\n%s", err, stderr.String())
	}
	p.address = strings.TrimSpace(line[strings.LastIndex(line, "http"):])
	followed := make(chan struct{})
	t.Cleanup(func() {
		if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Error(err)
		}
		<-followed
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("the demo ended with %v\n%s", err, stderr.String())
		}
		if t.Failed() {
			text, _ := json.MarshalIndent(p.state, "", " ") //nolint:errcheck // it was read from JSON
			t.Logf("the page's last state: %s", text)
		}
	})
	response, err := http.Get(p.address + "events")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(followed)
		defer response.Body.Close()
		lines := bufio.NewReader(response.Body)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			text, isData := bytes.CutPrefix(line, []byte("data: "))
			var s demoState
			if !isData || json.Unmarshal(text, &s) != nil || s.Phones == nil {
				continue
			}
			p.mu.Lock()
			p.state = s
			close(p.changed)
			p.changed = make(chan struct{})
			p.mu.Unlock()
		}
	}()
	p.await("the daemon to run", func(s demoState) bool { return s.Daemon.Running })
	return p
}

// await waits until the page shows what it is to show.
func (p *demoPage) await(what string, cond func(demoState) bool) demoState {
	p.t.Helper()
	deadline := time.After(patience)
	for {
		p.mu.Lock()
		s, changed := p.state, p.changed
		p.mu.Unlock()
		if cond(s) {
			return s
		}
		select {
		case <-changed:
		case <-deadline:
			p.t.Fatalf("the page did not show %s", what)
		}
	}
}

// press sends an order as a button of the page does.
func (p *demoPage) press(order map[string]any) {
	p.t.Helper()
	body, err := json.Marshal(order)
	if err != nil {
		p.t.Fatal(err)
	}
	response, err := http.Post(p.address+"do", "application/json", bytes.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || string(bytes.TrimSpace(text)) != `{"error":""}` {
		p.t.Fatalf("%v: %s %s (%v)", order, response.Status, text, err)
	}
}

// card files a request of a kind and waits for its card, which is not among the messages before.
func (p *demoPage) card(kind, text string) demoMessage {
	p.t.Helper()
	var known []int64
	for _, m := range p.await("anything", func(demoState) bool { return true }).Messages {
		known = append(known, m.ID)
	}
	p.press(map[string]any{"do": "file", "kind": kind})
	isIt := func(m demoMessage) bool {
		return !slices.Contains(known, m.ID) && len(m.Buttons) > 0 && strings.Contains(m.Text, text)
	}
	s := p.await("a card with "+text, func(s demoState) bool { return slices.ContainsFunc(s.Messages, isIt) })
	return s.Messages[slices.IndexFunc(s.Messages, isIt)]
}

func (p *demoPage) tap(person string, m demoMessage, label string) {
	p.t.Helper()
	p.press(map[string]any{"do": "tap", "person": person, "message": m.ID, "text": label})
}

// ended waits until the newest program of a title has ended.
func (p *demoPage) ended(title string, code int) demoProgram {
	p.t.Helper()
	var found demoProgram
	p.await(title+" to end", func(s demoState) bool {
		i := slices.IndexFunc(s.Programs, func(g demoProgram) bool { return g.Title == title })
		if i < 0 || s.Programs[i].Running {
			return false
		}
		found = s.Programs[i]
		return true
	})
	if found.Code != code {
		p.t.Fatalf("%s ended with %d, want %d: %q", title, found.Code, code, found.Lines)
	}
	return found
}

// The page's buttons, one after the other, by what the page would show.
func TestDemoPage(t *testing.T) {
	t.Parallel()
	p := startDemoPage(t)

	p.tap("Alice", p.card("shell", "cleanup-1"), "Approve")
	shell := p.ended("an agent wants to run a command", 0)
	if !strings.Contains(strings.Join(shell.Lines, "\n"), "removed the cache") {
		t.Errorf("what was approved did not run: %q", shell.Lines)
	}

	deploy := p.card("deploy", "deploy-api-1")
	p.tap("Alice", deploy, "Approve")
	p.await("one approval of two", func(s demoState) bool {
		i := slices.IndexFunc(s.Messages, func(m demoMessage) bool { return m.ID == deploy.ID })
		return strings.Contains(s.Messages[i].Text, "1 of 2")
	})
	p.tap("Bob", deploy, "Approve")
	p.ended("a deploy that two people have to approve", 0)

	p.card("long", "migration-1")
	s := p.await("a document", func(s demoState) bool {
		return slices.ContainsFunc(s.Messages, func(m demoMessage) bool { return m.Document != nil })
	})
	document := s.Messages[slices.IndexFunc(s.Messages, func(m demoMessage) bool { return m.Document != nil })]
	if text := p.get(http.StatusOK, "document/"+strconv.FormatInt(document.ID, 10)); !strings.Contains(text, "DROP TABLE events_legacy") {
		t.Error("the document in the chat is not the payload")
	}

	hostile := p.card("hostile", "harmless-1")
	for _, e := range hostile.Entities {
		if e.Type == "text_link" || e.Type == "bold" {
			t.Errorf("markup of an agent's text is markup in the chat: %v", e)
		}
	}
	p.tap("Bob", hostile, "Reject")
	p.ended("an agent that tries to fool the person", 3)

	first := p.await("the daemon", func(s demoState) bool { return s.Daemon.Running }).Daemon.PID
	p.press(map[string]any{"do": "second"})
	second := p.ended("a second daemon", 10)
	if !strings.Contains(strings.Join(second.Lines, "\n"), strconv.Itoa(first)) {
		t.Errorf("the second daemon does not name the holder %d: %q", first, second.Lines)
	}

	pending := p.card("shell", "cleanup-2")
	p.press(map[string]any{"do": "kill"})
	p.await("a dead daemon", func(s demoState) bool { return !s.Daemon.Running })
	p.press(map[string]any{"do": "start"})
	p.await("a daemon again", func(s demoState) bool { return s.Daemon.Running && s.Daemon.PID != first })
	p.tap("Alice", pending, "Approve")
	p.ended("an agent wants to run a command", 0)

	p.press(map[string]any{"do": "mode", "kind": "webhook"})
	p.await("webhook mode", func(s demoState) bool { return s.Daemon.Running && s.Daemon.Mode == "webhook" })
	p.tap("Alice", p.card("shell", "cleanup-3"), "Reject")
	p.ended("an agent wants to run a command", 113)
	p.press(map[string]any{"do": "mode", "kind": "poll"})
	p.await("poll mode", func(s demoState) bool { return s.Daemon.Running && s.Daemon.Mode == "poll" })

	p.press(map[string]any{"do": "network", "kind": "off"})
	p.await("no network", func(s demoState) bool { return !s.Online })
	p.press(map[string]any{"do": "network", "kind": "on"})
	p.await("a network", func(s demoState) bool { return s.Online })
	p.press(map[string]any{"do": "limit"})
	p.await("429", func(s demoState) bool { return s.MutedFor > 0 })

	p.press(map[string]any{"do": "write", "person": "Bob", "text": "/pending"})
	p.await("Bob's words", func(s demoState) bool {
		return slices.ContainsFunc(s.Messages, func(m demoMessage) bool { return m.Text == "/pending" })
	})
	p.await("a verified log", func(s demoState) bool {
		return s.Verified.Status == "clean" && s.Verified.Records == len(s.Lines) && len(s.Lines) > 12
	})
}

// get reads a path of the page and wants a status.
func (p *demoPage) get(status int, path string) string {
	p.t.Helper()
	response, err := http.Get(p.address + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != status {
		p.t.Fatalf("%s: %s, want %d (%v)", path, response.Status, status, err)
	}
	return string(text)
}

// Other users of the machine, and pages of other sites in the person's browser, can neither see nor press anything.
func TestDemoPageTakesOrdersFromItselfAlone(t *testing.T) {
	t.Parallel()
	p := startDemoPage(t)
	p.get(http.StatusNotFound, "../wrong-key/")
	p.get(http.StatusNotFound, "document/1")
	p.get(http.StatusNotFound, "document/..%2f..")
	kill := `{"do":"kill"}`
	for name, tt := range map[string]struct {
		edit   func(*http.Request)
		status int
	}{
		"a name that was pointed here": {func(r *http.Request) { r.Host = "evil.example:80" }, http.StatusNotFound},
		"a form of another site":       {func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, http.StatusUnsupportedMediaType},
		"a script of another site":     {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, http.StatusForbidden},
		"another member": {func(r *http.Request) {
			r.Body = io.NopCloser(strings.NewReader(`{"do":"kill","x":1}`))
			r.ContentLength = -1
		}, http.StatusBadRequest},
	} {
		r, err := http.NewRequest(http.MethodPost, p.address+"do", strings.NewReader(kill))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		tt.edit(r)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != tt.status {
			t.Errorf("%s: %s, want %d", name, response.Status, tt.status)
		}
	}
	if s := p.await("anything", func(demoState) bool { return true }); !s.Daemon.Running {
		t.Error("somebody else killed the daemon")
	}
}

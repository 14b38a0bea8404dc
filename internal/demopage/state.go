package demopage

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

// state is all that the page shows.
type state struct {
	Phones   []phoneState   `json:"phones"`
	Messages []messageState `json:"messages"` // of the one chat, as both phones show it
	Programs []programState `json:"programs"`
	Lines    []string       `json:"lines"` // of the log, byte for byte
	Verified verification   `json:"verified"`
	Daemon   daemonState    `json:"daemon"`
	Online   bool           `json:"online"`
	MutedFor float64        `json:"muted_for"` // seconds that Telegram goes on to answer 429
}

type phoneState struct {
	Owner string `json:"owner"`
	// Toast is the newest answer to a tap; Waiting lists the messages on which a tap of this phone was not answered yet.
	Toast   *toastState `json:"toast,omitempty"`
	Waiting []int64     `json:"waiting"`
}

type toastState struct {
	ID    string `json:"id"`
	Text  string `json:"text"`
	Alert bool   `json:"alert"`
}

type messageState struct {
	ID       int64                 `json:"id"`
	From     string                `json:"from"`
	Bot      bool                  `json:"bot"`
	Time     string                `json:"time"`
	Text     string                `json:"text"`
	Entities []telegramtest.Entity `json:"entities"`
	Document *documentState        `json:"document,omitempty"`
	Buttons  [][]string            `json:"buttons"`
	ReplyTo  int64                 `json:"reply_to,omitempty"`
	Edited   bool                  `json:"edited"`
}

type documentState struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

type programState struct {
	ID      int      `json:"id"`
	Title   string   `json:"title"`
	Command string   `json:"command"`
	Lines   []string `json:"lines"`
	PID     int      `json:"pid"`
	Running bool     `json:"running"`
	Code    int      `json:"code"`
	Meaning string   `json:"meaning"`
}

type daemonState struct {
	Running bool   `json:"running"`
	PID     int    `json:"pid"`
	Mode    string `json:"mode"`
}

// now is the state of this moment.
func (p *play) now() state {
	s := state{Phones: p.phones(), Messages: p.messages()}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Programs = make([]programState, 0, len(p.programs))
	for _, prog := range slices.Backward(p.programs) {
		s.Programs = append(s.Programs, prog.state())
	}
	s.Lines = []string{}
	for line := range bytes.Lines(p.log) {
		s.Lines = append(s.Lines, strings.TrimRight(string(line), "\n"))
	}
	s.Verified, s.Online = p.verified, p.online
	s.MutedFor = max(0, time.Until(p.muted).Seconds())
	s.Daemon.Mode = p.mode
	if p.daemon != nil {
		s.Daemon.Running, s.Daemon.PID = p.daemon.process.Running(), p.daemon.process.PID()
	}
	return s
}

// state is called with play.mu held.
func (prog *program) state() programState {
	s := programState{
		ID: prog.id, Title: prog.title, Command: prog.command, Lines: append([]string{}, prog.lines...),
		PID: prog.process.PID(), Running: prog.process.Running(),
	}
	if !s.Running {
		s.Code = prog.process.Code()
		s.Meaning = meaning(prog.process.Args[1], s.Code)
	}
	return s
}

// meaning explains an exit code; the README lists them all.
func meaning(verb string, code int) string {
	if code == 0 {
		return map[string]string{"up": "stopped in order", "run": "granted, and the command's own 0", "request": "granted"}[verb]
	}
	return map[int]string{
		1: "failure", 2: "usage or configuration", 3: "rejected", 4: "expired", 5: "withdrawn or revoked", 6: "the wait's own time ran out",
		7: "conflict", 8: "log damaged", 9: "log torn", 10: "lease held by a live holder", 11: "lease lost", 12: "gate unreachable",
		113: "not run: rejected", 114: "not run: expired", 115: "not run: withdrawn or revoked", 128 + 9: "killed by SIGKILL",
	}[code]
}

func (p *play) phones() []phoneState {
	phones := make([]phoneState, 0, len(p.people))
	for _, who := range p.people {
		s := phoneState{Owner: who.name, Waiting: []int64{}}
		for _, tap := range who.phone.Taps() {
			switch {
			case tap.Answer != nil && tap.Answer.Text != "":
				s.Toast = &toastState{ID: tap.ID, Text: tap.Answer.Text, Alert: tap.Answer.Alert}
			case tap.Answer == nil && time.Since(tap.At) < time.Minute:
				s.Waiting = append(s.Waiting, tap.MessageID)
			}
		}
		phones = append(phones, s)
	}
	return phones
}

func (p *play) messages() []messageState {
	list := []messageState{}
	for _, m := range p.stage.Telegram.Messages(groupID) {
		if m.Deleted || m.Service != "" {
			continue
		}
		s := messageState{
			ID: m.ID, From: m.From.FirstName, Bot: m.FromBot(), Time: m.Date.Local().Format("15:04"), Text: m.Text, Entities: m.Entities,
			ReplyTo: m.ReplyTo, Edited: m.Edited(), Buttons: [][]string{},
		}
		if m.Document != nil {
			s.Text, s.Entities = m.Caption, m.CaptionEntities
			s.Document = &documentState{Name: m.Document.Name, Size: m.Document.Size}
		}
		if s.Entities == nil {
			s.Entities = []telegramtest.Entity{}
		}
		for _, row := range m.Buttons {
			labels := []string{}
			for _, b := range row {
				labels = append(labels, b.Text)
			}
			s.Buttons = append(s.Buttons, labels)
		}
		list = append(list, s)
	}
	return list
}

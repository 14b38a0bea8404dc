package demopage

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/approvald/approvald/internal/stage"
)

const (
	maxPrograms = 40  // shown on the page; the oldest that have ended go first
	maxLines    = 200 // kept of one program
)

// program is one process as the page's terminal shows it.
type program struct {
	id      int
	title   string
	command string
	process *stage.Process
	lines   []string // guarded by play.mu
}

// show starts approvald with args and shows it in the terminal.
func (p *play) show(title string, args ...string) (*program, error) {
	prog := &program{title: title, command: stage.CommandLine(append([]string{"approvald"}, args...))}
	p.mu.Lock()
	for _, other := range p.programs {
		prog.id = max(prog.id, other.id+1)
	}
	p.mu.Unlock()
	process, err := p.stage.Start(sinkFunc(func(line []byte) {
		p.mu.Lock()
		prog.lines = append(prog.lines, readable(line))
		prog.lines = prog.lines[max(0, len(prog.lines)-maxLines):]
		p.mu.Unlock()
		p.touch()
	}), args...)
	if err != nil {
		return nil, err
	}
	prog.process = process
	p.mu.Lock()
	p.programs = append(p.programs, prog)
	if len(p.programs) > maxPrograms {
		if i := slices.IndexFunc(p.programs, func(o *program) bool { return !o.process.Running() }); i >= 0 {
			p.programs = slices.Delete(p.programs, i, i+1)
		}
	}
	p.mu.Unlock()
	p.workers.Go(func() {
		select {
		case <-process.Done():
		case <-p.ctx.Done():
		}
		p.touch()
	})
	p.touch()
	return prog, nil
}

// readable makes a line of the daemon's JSON log one for people; others stay as they are.
func readable(line []byte) string {
	var entry struct {
		Level  string `json:"level"`
		Logger string `json:"logger"`
		Msg    string `json:"msg"`
		TS     string `json:"ts"`
	}
	var all map[string]any
	if json.Unmarshal(line, &entry) != nil || entry.Msg == "" || json.Unmarshal(line, &all) != nil {
		return strings.TrimRight(string(line), "\r\n")
	}
	text := entry.Msg
	if t, err := time.Parse(time.RFC3339, entry.TS); err == nil {
		text = t.Local().Format("15:04:05") + " " + text
	}
	if entry.Level != "info" {
		text = strings.ToUpper(entry.Level) + " " + text
	}
	for _, known := range []string{"level", "logger", "msg", "ts"} {
		delete(all, known)
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		text += fmt.Sprintf(" %s=%v", name, all[name])
	}
	return text
}

// sinkFunc takes whole lines.
type sinkFunc func(line []byte)

func (f sinkFunc) Write(p []byte) (int, error) {
	f(bytes.Clone(p))
	return len(p), nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

package demopage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/approvald/approvald/internal/stage"
)

// followLog waits with `approvald log tail -f` for records, shows the file's bytes, which a program's output need not be, and has
// them verified. A log that is not there yet is asked for again.
func (p *play) followLog() {
	for p.ctx.Err() == nil {
		grown := make(chan struct{}, 1)
		tail, err := p.stage.Start(sinkFunc(func([]byte) {
			select {
			case grown <- struct{}{}:
			default:
			}
		}), "log", "tail", "-f", "--json")
		if err != nil {
			return // the stage is closed
		}
		p.verifyWhile(tail, grown)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-p.ctx.Done():
		}
	}
}

// verifyWhile verifies the log after each growth, until the process that follows it has ended.
func (p *play) verifyWhile(tail *stage.Process, grown <-chan struct{}) {
	for {
		select {
		case <-grown:
			text, err := os.ReadFile(filepath.Join(p.stage.Home(), "log", "events.jsonl"))
			if err != nil {
				continue
			}
			p.mu.Lock()
			p.log = text[:bytes.LastIndexByte(text, '\n')+1]
			p.mu.Unlock()
			p.touch()
			if v, err := p.verify(); err == nil {
				p.mu.Lock()
				p.verified = v
				p.mu.Unlock()
				p.touch()
			}
		case <-tail.Done():
			return
		case <-p.ctx.Done():
			return
		}
	}
}

func (p *play) verify() (verification, error) {
	ctx, cancel := context.WithTimeout(p.ctx, stepLimit)
	defer cancel()
	var v verification
	verify, _, err := p.stage.Run(ctx, nil, "log", "verify", "--json")
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal([]byte(firstLine(verify.Output())), &v); err != nil {
		return v, fmt.Errorf("read what log verify printed: %w", err)
	}
	if v.Status == "" {
		return v, errors.New("log verify printed no status")
	}
	return v, nil
}

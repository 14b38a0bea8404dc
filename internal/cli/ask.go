package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/visible"
)

// askRest asks for what the flags left open, when a person sits there to
// answer.
func (e *env) askRest(ctx context.Context, s *setup) error {
	if !e.interactive() {
		return nil
	}
	in := e.answers()
	for s.chatID == 0 {
		text, err := e.askLine(ctx, in, "Chat id that the cards go to (a number, negative for a group): ", "")
		if err != nil {
			return err
		}
		if s.chatID, err = strconv.ParseInt(text, 10, 64); err != nil || s.chatID == 0 {
			s.chatID = 0
			e.ui.say("%s is not a chat's number", verbatim(visible.Quote(text)))
		}
	}
	if len(s.approvers) == 0 {
		if err := e.askApprovers(ctx, in, s); err != nil {
			return err
		}
	}
	if s.mode == "" && s.webhookURL == "" && !s.paired {
		mode, err := e.askLine(ctx, in, "Updates by poll or webhook? [poll] ", gate.ModePoll)
		if err != nil {
			return err
		}
		s.mode = mode
	}
	if s.mode == gate.ModeWebhook && s.webhookURL == "" {
		url, err := e.askLine(ctx, in, "Public https URL that Telegram is to call: ", "")
		if err != nil {
			return err
		}
		s.webhookURL = url
	}
	return nil
}

func (e *env) askApprovers(ctx context.Context, in *lines, s *setup) error {
	for {
		question := "Approver as NAME=ID, with the numeric Telegram user id: "
		if len(s.approvers) > 0 {
			question = "Another approver (empty for no more): "
		}
		text, err := e.askLine(ctx, in, question, "")
		if err != nil {
			return err
		}
		if text == "" && len(s.approvers) > 0 {
			return nil
		}
		if _, err := parseApprover(text); err != nil {
			e.ui.say("%s", err)
			continue
		}
		s.approvers = append(s.approvers, text)
	}
}

// askLine asks one question. An empty answer is fallback.
func (e *env) askLine(ctx context.Context, in *lines, question, fallback string) (string, error) {
	e.ui.ask("%s", question)
	select {
	case a := <-in.next():
		in.taken()
		switch {
		case a.err != nil:
			return "", e.noAnswer(a.err)
		case a.text == "":
			return fallback, nil
		}
		return a.text, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// askSecret asks without echo until check accepts the answer. The echo stays off from
// before the first question to the end: who types or pastes at once must not see the
// answer either. A signal meanwhile gives the terminal its echo back.
func (e *env) askSecret(ctx context.Context, question string, check func(answer string) error) (answer string, err error) {
	fd := int(e.stdin.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return "", fmt.Errorf("look at the terminal: %w", err)
	}
	if err := echoOff(fd); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, term.Restore(fd, before)) }()
	for {
		e.ui.ask("%s", question)
		answer, err := await(ctx, func() (string, error) {
			b, err := term.ReadPassword(fd)
			return string(b), err
		})
		e.ui.tell("")
		if err != nil {
			return "", e.noAnswer(err)
		}
		refused := check(answer)
		if refused == nil {
			return answer, nil
		}
		e.ui.say("%s", refused)
	}
}

func echoOff(fd int) error {
	mode, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err == nil {
		mode.Lflag &^= unix.ECHO
		err = unix.IoctlSetTermios(fd, unix.TCSETS, mode)
	}
	if err != nil {
		return fmt.Errorf("switch the terminal's echo off: %w", err)
	}
	return nil
}

func (e *env) noAnswer(err error) error {
	if errors.Is(err, io.EOF) {
		return &gate.Error{Code: codeUsage, Message: "no answer; nothing was written"}
	}
	return err
}

// await runs a read of the terminal that a signal must be able to end. The read
// itself cannot be ended, but the process is about to.
func await(ctx context.Context, read func() (string, error)) (string, error) {
	type result struct {
		text string
		err  error
	}
	got := make(chan result, 1)
	go func() {
		text, err := read()
		got <- result{text, err}
	}()
	select {
	case r := <-got:
		return r.text, r.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

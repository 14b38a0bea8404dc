package rehearse

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/approvald/approvald/internal/stage"
	"github.com/approvald/approvald/internal/telegramtest"
)

const (
	chatID = -1001
	// people is how many approvers a rehearsal has: as many as a quorum may be expected to need.
	people = 5
	// stepLimit bounds what a machine has to do for one step; long, so that a slow machine rehearses the same.
	stepLimit = 30 * time.Second
)

// approver answers the cards as the scenario says.
type approver struct {
	stage    *stage.Stage
	scenario Scenario
	phones   []*telegramtest.Phone

	mu     sync.Mutex
	daemon *stage.Process
	err    error // the first thing that did not work; not a matter of the program
}

// watch answers each card once, until ctx ends.
func (a *approver) watch(ctx context.Context) {
	var answering sync.WaitGroup
	defer answering.Wait()
	seen := map[int64]bool{}
	for {
		card, err := a.stage.Telegram.WaitMessage(ctx, chatID, func(m telegramtest.Message) bool {
			_, ok := m.Button("Approve")
			return ok && !seen[m.ID]
		})
		if err != nil {
			return
		}
		seen[card.ID] = true
		answering.Go(func() {
			if err := a.answer(ctx, card); err != nil && ctx.Err() == nil {
				a.fail(err)
			}
		})
	}
}

func (a *approver) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil {
		a.err = err
	}
}

func (a *approver) answer(ctx context.Context, card telegramtest.Message) error {
	r, err := a.requestOf(card)
	if err != nil {
		return err
	}
	todo := a.scenario.answer(r.class, r.key)
	select {
	case <-time.After(time.Duration(todo.After)):
	case <-ctx.Done():
		return nil
	}
	switch todo.Do {
	case Approve:
		return a.approve(ctx, card)
	case Reject:
		_, err := a.phones[0].TapMessage(card, "Reject")
		return err
	case Late:
		if _, err := a.stage.Telegram.WaitMessage(ctx, chatID, func(m telegramtest.Message) bool { return m.ID == card.ID && len(m.Buttons) == 0 }); err != nil {
			return err
		}
		_, err := a.phones[0].TapStale(card, "Approve")
		return err
	case KilledMidway:
		if err := a.killAndStart(ctx); err != nil {
			return err
		}
		return a.approve(ctx, card)
	}
	return nil // Silent, Deaf
}

// approve taps for one person after the other, until the card has lost its buttons.
func (a *approver) approve(ctx context.Context, card telegramtest.Message) error {
	for _, phone := range a.phones {
		current, ok := a.stage.Telegram.Message(chatID, card.ID)
		if _, open := current.Button("Approve"); !ok || !open {
			return nil
		}
		if _, err := phone.TapMessage(current, "Approve"); err != nil {
			return err
		}
		limit, cancel := context.WithTimeout(ctx, stepLimit)
		_, err := a.stage.Telegram.WaitMessage(limit, chatID, func(m telegramtest.Message) bool { return m.ID == card.ID && m.Edits > current.Edits })
		cancel()
		if err != nil {
			return fmt.Errorf("a card did not change after Approve was tapped: %w", err)
		}
	}
	return nil
}

func (a *approver) killAndStart(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	if err := a.stage.AwaitNoted(ctx); err != nil {
		return err
	}
	if err := a.daemon.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-a.daemon.Done()
	var err error
	a.daemon, _, err = a.stage.StartDaemon(ctx)
	return err
}

// requestOf finds the request that a card is about: the one whose key stands in it, the longest of several.
func (a *approver) requestOf(card telegramtest.Message) (request, error) {
	list, err := readRequests(a.stage.Home())
	if err != nil {
		return request{}, err
	}
	var found request
	for _, r := range list {
		if strings.Contains(card.Body(), r.key) && len(r.key) > len(found.key) {
			found = r
		}
	}
	if found.key == "" && len(list) == 1 {
		found = list[0] // a key that is shown escaped
	}
	if found.key == "" {
		return found, errors.New("a card names no request of the log")
	}
	return found, nil
}

package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/approvald/approvald/internal/stage"
	"github.com/approvald/approvald/internal/telegramtest"
)

const (
	aliceID = 111
	// stepLimit bounds what a machine has to do between two lines of the story. It is long, so that a slow machine tells the same
	// story; a fast one never gets near it.
	stepLimit = 20 * time.Second
)

// world is where the story happens: the stage, Alice's phone, the daemon of the moment.
type world struct {
	*stage.Stage
	screen *screen
	alice  *telegramtest.Phone
	daemon *stage.Process
}

func newWorld(s *screen, program string) (*world, error) {
	set, err := stage.New(stage.Options{Program: program, Name: "demo"})
	if err != nil {
		return nil, err
	}
	w := &world{screen: s, Stage: set}
	w.Telegram.AddUser(telegramtest.User{ID: aliceID, FirstName: "Alice"})
	w.alice = w.Telegram.Phone(aliceID)
	if err := w.Configure(aliceID, fmt.Sprintf("[[approvers]]\nid = \"alice\"\ntelegram_user_id = %d\n", aliceID)); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// explain shows what a person needs to see why a step did not hold.
func (w *world) explain() {
	if w.daemon == nil {
		return
	}
	w.screen.line("  what the daemon said last:")
	lines := strings.Split(strings.TrimSpace(w.daemon.Output()), "\n")
	for _, line := range lines[max(0, len(lines)-15):] {
		w.screen.line("    " + line)
	}
}

// startDaemon starts the daemon and waits until it serves.
func (w *world) startDaemon(ctx context.Context) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	w.daemon, took, err = w.StartDaemon(ctx)
	return took, err
}

// stopDaemon asks the daemon to stop and returns its exit code.
func (w *world) stopDaemon(ctx context.Context) (int, time.Duration, error) {
	began := time.Now()
	if err := w.daemon.Signal(syscall.SIGTERM); err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	code, err := w.daemon.Exit(ctx)
	return code, time.Since(began), err
}

// cards returns the messages on Alice's phone that name a key.
func (w *world) cards(key string) []telegramtest.Message {
	return slices.DeleteFunc(w.Telegram.Messages(aliceID), func(m telegramtest.Message) bool { return !strings.Contains(m.Body(), key) })
}

// awaitCard waits until a message that names the key can be tapped.
func (w *world) awaitCard(ctx context.Context, key string) (telegramtest.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	card, err := w.Telegram.WaitMessage(ctx, aliceID, func(m telegramtest.Message) bool {
		return strings.Contains(m.Body(), key) && len(m.Buttons) > 0
	})
	if err != nil {
		return card, fmt.Errorf("no card for %s reached the phone: %w", key, err)
	}
	return card, nil
}

// awaitNoted waits until a kill of the daemon cannot make it send a card again, which would be right, and not this chapter's story.
func (w *world) awaitNoted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	return w.AwaitNoted(ctx)
}

// awaitSettled waits until a message has lost its buttons.
func (w *world) awaitSettled(ctx context.Context, card telegramtest.Message) (telegramtest.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	settled, err := w.Telegram.WaitMessage(ctx, aliceID, func(m telegramtest.Message) bool {
		return m.ID == card.ID && len(m.Buttons) == 0
	})
	if err != nil {
		return settled, fmt.Errorf("the card kept its buttons: %w", err)
	}
	return settled, nil
}

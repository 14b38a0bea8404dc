package app

import (
	"context"
	"fmt"
	"sync"

	"github.com/approvald/approvald/internal/rescue"
)

// stage is a named point of the start that is reached at most once. Actors run side by side from the first moment; what
// orders them is that each waits for the stage before its own. What an actor stored before it reached a stage may be
// read by everybody who waited for that stage.
type stage struct {
	name string
	once sync.Once
	done chan struct{}
}

func newStage(name string) *stage { return &stage{name: name, done: make(chan struct{})} }

// reach opens the stage for all who wait, now and later.
func (s *stage) reach() {
	s.once.Do(func() {
		rescue.At("stage " + s.name)
		close(s.done)
	})
}

// reached says whether the stage is behind us.
func (s *stage) reached() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// wait returns nil once the stage is reached, or the reason for which ctx ended before. An actor waits with its own
// context: one that waited for a stage alone could not be stopped while an earlier actor is still trying.
func (s *stage) wait(ctx context.Context) error {
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stopped before %q: %w", s.name, context.Cause(ctx))
	}
}

// stages is the start, in order. The stop has the reverse order and stands in the clean-up stack.
type stages struct {
	lease     *stage // the gate's lease is held
	verified  *stage // the log was read and verified, a torn tail noted
	epoch     *stage // the journal has this lease's epoch; older writers are fenced
	socket    *stage // agents can ask
	bot       *stage // Telegram answered getMe and no other gate drives this bot
	recovered *stage // what an earlier daemon left is taken up
	transport *stage // the first exchange for updates succeeded
	ready     *stage // the service manager was told
}

func newStages() stages {
	return stages{
		lease: newStage("lease"), verified: newStage("log verified"), epoch: newStage("epoch"), socket: newStage("socket"),
		bot: newStage("bot"), recovered: newStage("recovery"), transport: newStage("transport"), ready: newStage("ready"),
	}
}

// list returns the stages in the order in which they are reached.
func (s stages) list() []*stage {
	return []*stage{s.lease, s.verified, s.epoch, s.socket, s.bot, s.recovered, s.transport, s.ready}
}

// current names the first stage that is not reached yet, for people who ask what a start waits for.
func (s stages) current() string {
	for _, stage := range s.list() {
		if !stage.reached() {
			return stage.name
		}
	}
	return ""
}

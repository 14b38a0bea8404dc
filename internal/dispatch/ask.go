package dispatch

import (
	"context"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
)

// askLimit is how long Stats and Alarm wait for the loop.
const askLimit = time.Second

// Stats is how dispatch is doing. It asks the loop and does not wait long for it: of a loop that does not run, or is
// busy, it gives the last that is known.
func (l *Loop) Stats() Stats {
	reply := make(chan Stats, 1)
	if l.askBriefly(func() { reply <- l.publish(true) }) {
		return <-reply
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// Serving reports whether Run is going: before that nothing is sent.
func (l *Loop) Serving() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.serving
}

// Unshown is [Deliveries.Unshown] by the loop's journal.
func (l *Loop) Unshown(pending []approvallog.Request) (list []Failing, err error) {
	err = l.o.Journal.View(func() { list = l.o.Deliveries.Unshown(pending) })
	return list, err
}

// Alarm is what keeps requests from people, asked for like Stats.
func (l *Loop) Alarm() Alarm {
	reply := make(chan Alarm, 1)
	var a Alarm
	if l.askBriefly(func() { reply <- l.core.Alarm() }) {
		a = <-reply
	} else {
		l.mu.Lock()
		s := l.stats
		l.mu.Unlock()
		a = Alarm{ChatProblem: s.ChatProblem, ChatClosed: s.ChatClosed, Failing: s.Failing}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a.StorageProblem = l.storageProblem
	return a
}

// Ping returns nil once the goroutine that owns the core has answered, at once when Run is not going, and ctx's error
// when no answer came.
func (l *Loop) Ping(ctx context.Context) error {
	_, err := l.ask(ctx, func() {})
	return err
}

func (l *Loop) askBriefly(answer func()) bool {
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	asked, err := l.ask(ctx, answer)
	return asked && err == nil
}

// ask has the goroutine that owns the core call answer, and returns after that; false when Run is not going.
func (l *Loop) ask(ctx context.Context, answer func()) (bool, error) {
	l.mu.Lock()
	serving := l.serving
	l.mu.Unlock()
	if !serving {
		return false, nil
	}
	done := make(chan struct{})
	l.mailbox.put(question{func() {
		answer()
		close(done)
	}})
	select {
	case <-done:
		return true, nil
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

// question is answered by the goroutine that owns the core.
type question struct{ answer func() }

func (question) isEvent() {}

// publish keeps the core's state for those who ask while the loop does not run.
func (l *Loop) publish(serving bool) Stats {
	s := l.core.Stats()
	l.mu.Lock()
	defer l.mu.Unlock()
	s.StorageProblem = l.storageProblem
	l.stats, l.serving = s, serving
	return s
}

package dispatch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/rescue"
)

// How long a follow-up that could not be asked for is left alone: what stands in its way is a limit of the gate, a full disk, or something
// that a person has to put right.
const (
	followUpRetry    = time.Second
	maxFollowUpRetry = 30 * time.Second
)

// maxOpening bounds how many follow-ups are being asked for at once: each reads a payload.
const maxOpening = 4

// chain is a follow-up that is to be asked for.
type chain struct {
	parent   approvallog.Request
	opening  bool // it is being tried
	next     time.Time
	attempts int
	reason   string // why it was not possible, empty while nothing is wrong
	since    time.Time
}

// followUpsDue takes over which follow-ups are to be asked for: the log's fold knows, the core only tries again.
func (c *Core) followUpsDue(parents []approvallog.Request) {
	due := make(map[string]*chain, len(parents))
	for _, r := range parents {
		ch := c.chains[r.FollowUpKey]
		if ch == nil {
			ch = &chain{parent: r}
		}
		due[r.FollowUpKey] = ch
	}
	c.chains = due
}

// openFollowUps asks for every follow-up whose time has come, the oldest asking first.
func (c *Core) openFollowUps() {
	opening, ready := 0, 0
	for _, ch := range c.chains {
		switch {
		case ch.opening:
			opening++
		case !c.now.Before(ch.next):
			ready++
		}
	}
	if ready == 0 || opening >= maxOpening {
		return // as at almost every event
	}
	for _, ch := range c.chainsInOrder() {
		if opening == maxOpening {
			return
		}
		if !ch.opening && !c.now.Before(ch.next) {
			ch.opening = true
			opening++
			c.emit(OpenFollowUp{Parent: ch.parent})
		}
	}
}

func (c *Core) chainsInOrder() []*chain {
	if len(c.chains) == 0 {
		return nil
	}
	list := make([]*chain, 0, len(c.chains))
	for _, ch := range c.chains {
		list = append(list, ch)
	}
	slices.SortFunc(list, func(a, b *chain) int {
		return compareCycles(CycleID{a.parent.Key, a.parent.Seq}, CycleID{b.parent.Key, b.parent.Seq})
	})
	return list
}

func (c *Core) followUpOpened(ev FollowUpOpened) {
	ch := c.chains[ev.Key]
	if ch == nil {
		return // the log has it already
	}
	ch.opening = false
	if ev.Err == "" {
		delete(c.chains, ev.Key)
		return
	}
	text := fmt.Sprintf("the follow-up of %q could not be asked for: %s", ch.parent.Key, ev.Err)
	if ch.reason != text {
		c.emit(Complain{Key: ev.Key, Text: text})
	}
	if ch.reason == "" {
		ch.since = c.now
	}
	ch.reason = text
	ch.next = c.now.Add(min(followUpRetry<<min(ch.attempts, 10), maxFollowUpRetry))
	ch.attempts++
}

// nextFollowUp is when a follow-up is to be tried again, zero for none.
func (c *Core) nextFollowUp() (next time.Time) {
	for _, ch := range c.chains {
		// One that is ready waits for the end of another, which is an event.
		if !ch.opening && ch.next.After(c.now) && (next.IsZero() || ch.next.Before(next)) {
			next = ch.next
		}
	}
	return next
}

// failingFollowUps are the follow-ups that nobody is shown because they cannot be asked for.
func (c *Core) failingFollowUps() (list []Failing) {
	for _, ch := range c.chainsInOrder() {
		if ch.reason != "" && len(list) < maxFailing {
			list = append(list, Failing{Key: ch.parent.FollowUpKey, Reason: ch.reason, Since: ch.since, Next: ch.next})
		}
	}
	return list
}

// FollowUps asks for what follows a request. It may be told of one that was asked for already, and then does nothing.
type FollowUps interface {
	OpenFollowUp(ctx context.Context, parent approvallog.Request) (approvallog.Request, error)
}

// tellFollowUps tells the core which follow-ups are to be asked for.
func (l *Loop) tellFollowUps() ([]Effect, error) {
	var due []approvallog.Request
	if err := l.o.Log.View(func() { due = l.o.Requests.Due() }); err != nil {
		return nil, err
	}
	if len(due) == 0 && len(l.core.chains) == 0 {
		return nil, nil
	}
	return l.core.Step(l.o.Now(), FollowUpsDue{Parents: due}), nil
}

// openFollowUp asks for one follow-up. Its error ends the loop.
func (l *Loop) openFollowUp(ctx context.Context, parent approvallog.Request) (Event, error) {
	rescue.At("follow-up due")
	_, err := l.o.FollowUps.OpenFollowUp(ctx, parent)
	rescue.At("follow-up asked for")
	ev := FollowUpOpened{Key: parent.FollowUpKey}
	if err != nil {
		ev.Err = err.Error()
		if fatal(err) {
			return ev, fmt.Errorf("ask for the follow-up of %q: %w", parent.Key, err)
		}
	}
	return ev, nil
}

// unreadablePlan stands for the class of a follow-up of which cannot be read what it is. It cannot be asked for either, as long as that
// is so.
const unreadablePlan = "something that cannot be read"

// classesAfter are the classes of what is asked for after the request, in their order. Its error passes.
func (l *Loop) classesAfter(req approvallog.Request) (classes []string, err error) {
	for hash := req.FollowUp; hash != "" && len(classes) < gate.MaxFollowUps; {
		canonical, _, err := l.o.Payloads.Payload(hash)
		if passing(err) {
			return nil, fmt.Errorf("read the follow-up: %w", err)
		}
		var plan gate.Plan
		if err == nil {
			plan, err = gate.ReadPlan(canonical)
		}
		if err != nil {
			return append(classes, unreadablePlan), nil
		}
		classes, hash = append(classes, plan.Class), plan.FollowUp
	}
	return classes, nil
}

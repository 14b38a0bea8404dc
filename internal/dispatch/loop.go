package dispatch

import (
	"context"
	"crypto/rand"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/transport"
)

// Options configure a Loop. All but FollowUps, Now, Drain and Logger are needed. Rules, Deputy, Reminder, ConfigHash and the chat's topic are
// what holds at first; see [Loop.Configure].
type Options struct {
	Log        Log
	Journal    Log
	Requests   Requests    // the fold of Log
	Deliveries *Deliveries // the fold of Journal
	Sender     Sender
	Payloads   Payloads
	Pacer      Pacer
	FollowUps  FollowUps // needed as soon as a request has one
	Rules      Rules
	Chat       Chat
	Deputy     Chat    // asked too when nobody answers; ID 0 for none
	Reminder   float64 // part of a request's time after which its people are reminded, 0 for never
	ConfigHash string
	Epoch      int64
	// Check is the lease's: asked before every send and append. Its error ends the loop.
	Check func() error
	// LastContact is when updates could last be received before this process, zero when that is not known. NoteContact
	// keeps it for the next; nil keeps nothing. It is called at most every ten seconds.
	LastContact time.Time
	NoteContact func(time.Time)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Stopping, when it is closed, lets no more calls begin although Run goes on: updates that are in hand still need it. nil is never.
	Stopping <-chan struct{}
	// Drain bounds how long calls that are under way may still take from Stopping, or else from the end of Run's context, on; 0 is 4 s.
	Drain  time.Duration
	Logger *zap.Logger
	// Observe is told what happens; nil is nobody.
	Observe Observer
}

const (
	defaultDrain  = 4 * time.Second
	answerTimeout = 10 * time.Second
	maxAnswering  = 16
	maxReplying   = 2
	maxMenus      = 4
	// appendRetry and maxAppendRetry are the first and the longest pause before a journal that could not be written, or
	// a log that could not be read, is tried again.
	appendRetry    = 200 * time.Millisecond
	maxAppendRetry = 2 * time.Second
)

// Loop runs a [Core]. One goroutine owns the core; what it asks for runs beside it: one call at a time for each chat,
// answers to taps apart from those, appends apart from both.
type Loop struct {
	o    Options
	core *Core

	logSeq, journalSeq int64    // of the last records told to the core
	held               []Effect // deliveries and calls that Recover found due, for Run

	stopping bool // no call is begun any more
	draining bool // nothing new is begun

	// current is the policy in force. Decisions hold deciding for reading from the look at it until they are on disk.
	current  atomic.Pointer[Policy]
	deciding sync.RWMutex

	mailbox mailbox
	home    atomic.Int64   // the chat where the cards go now
	running sync.WaitGroup // effects that are being run
	answers chan struct{}  // slots for answers to taps
	menus   chan struct{}  // slots for the second keyboard of a card, which may wait for a limit's end
	quiet   quiet          // for answers to taps
	replies chan struct{}  // slots for replies to commands, which may wait
	fatal   chan error     // the first error that ends the loop

	// calls is for everything that talks to Telegram; ended when the drain is over.
	calls     context.Context
	stopCalls context.CancelFunc

	mu        sync.Mutex
	cancelled map[int64]context.CancelFunc // calls that still wait for their turn
	stats     Stats
	serving   bool // Run is going
	// storageProblem is why the journal cannot be written.
	storageProblem string
}

// New returns a Loop that has not looked at anything yet.
func New(o Options) *Loop {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Drain <= 0 {
		o.Drain = defaultDrain
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Observe == nil {
		o.Observe = nobody{}
	}
	l := &Loop{
		o:         o,
		core:      NewCore(CoreOptions{Chat: o.Chat, Deputy: o.Deputy, Reminder: o.Reminder, Rules: o.Rules, Epoch: o.Epoch, Nonce: randomNonce}),
		mailbox:   newMailbox(),
		answers:   make(chan struct{}, maxAnswering),
		replies:   make(chan struct{}, maxReplying),
		menus:     make(chan struct{}, maxMenus),
		fatal:     make(chan error, 1),
		cancelled: make(map[int64]context.CancelFunc),
	}
	l.current.Store(&Policy{Rules: o.Rules, ConfigHash: o.ConfigHash, Deputy: o.Deputy, Reminder: o.Reminder, ThreadID: o.Chat.ThreadID})
	l.home.Store(o.Chat.ID)
	l.calls, l.stopCalls = context.WithCancel(context.Background())
	return l
}

func randomNonce() Nonce {
	var n Nonce
	rand.Read(n[:]) // never fails; see crypto/rand
	return n
}

// Recover tells the core all that log and journal hold and records what the dead process left open: requests past
// their deadline as expired, sends without an outcome as unknown. It makes no call to Telegram; what has to be sent
// goes out in Run. A request that cannot be recovered is logged and does not stop the others.
func (l *Loop) Recover(ctx context.Context) error {
	if err := l.load(ctx); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	for todo := l.core.Step(l.o.Now(), Recovered{}); len(todo) > 0; {
		var next []Effect
		for _, e := range batch(todo) {
			if _, begins := e.(Prepare); begins {
				l.held = append(l.held, e) // the first step of a delivery
				continue
			}
			events, local, err := l.runLocal(ctx, e)
			if err != nil {
				return fmt.Errorf("recover: %w", err)
			}
			if !local {
				l.held = append(l.held, e)
			}
			for _, ev := range events {
				next = append(next, l.absorb(ev)...)
			}
		}
		todo = next
	}
	l.publish(false)
	// Reading the files left more behind than what is kept of them, and a daemon may be at rest for days.
	debug.FreeOSMemory()
	return nil
}

// Run drives the gate until ctx ends, and then finishes what is under way, for at most Options.Drain. It returns nil
// after that, and an error when it cannot go on: the lease or the epoch is lost, or log or journal failed.
func (l *Loop) Run(ctx context.Context) error {
	defer l.stopCalls()
	logChanged, stopLog := l.o.Log.Changed()
	defer stopLog()
	journalChanged, stopJournal := l.o.Journal.Changed()
	defer stopJournal()

	l.publish(true)
	defer func() { l.publish(false) }()
	for chatID, m := range l.core.deliveries.muted {
		if left := m.left(l.o.Now()); left > 0 {
			l.o.Pacer.Limited(chatID, left) // binds also what is sent past the core's lanes
		}
	}
	l.offerCommands()
	l.start(l.held)
	l.held = nil
	timer := time.NewTimer(0)
	defer timer.Stop()
	stopping := l.o.Stopping
	var err error
	for ctx.Err() == nil && err == nil {
		behind := l.catchUp(ctx)
		if fatal(behind) {
			err = behind
			break
		}
		l.deliver()
		l.setTimer(timer)
		if behind != nil && ctx.Err() == nil {
			l.o.Logger.Error("the gate's files cannot be read; trying again", zap.Error(behind))
			timer.Reset(maxAppendRetry)
		}
		select {
		case <-ctx.Done():
		case err = <-l.fatal:
		case <-stopping:
			stopping = nil
			defer l.stopSending().Stop()
		case <-logChanged:
		case <-journalChanged:
		case <-l.mailbox.ready:
		case <-timer.C:
			l.step(Ticked{})
		}
	}
	l.drain()
	return err
}

// setTimer sets the timer to when the core wants to be woken.
func (l *Loop) setTimer(t *time.Timer) {
	l.home.Store(l.core.chat.ID)
	const never = time.Hour
	wait := never
	if next, ok := l.core.Next(); ok {
		wait = min(never, max(0, next.Sub(l.o.Now())))
	}
	t.Reset(wait)
}

func (l *Loop) step(ev Event) { l.start(l.core.Step(l.o.Now(), ev)) }

// deliver tells the core what came of effects.
func (l *Loop) deliver() {
	for _, ev := range l.mailbox.take() {
		l.tell(ev)
	}
}

func (l *Loop) tell(ev Event) {
	switch ev := ev.(type) {
	case question:
		ev.answer()
	case replyWanted:
		l.answer(ev.send, l.replies)
	default:
		l.start(l.absorb(ev))
	}
}

// absorb tells the core an event. Records that this loop has written are told without reading them again, unless
// somebody else's stand between.
func (l *Loop) absorb(ev Event) []Effect {
	if tap, ok := ev.(TapRuled); ok {
		var err error
		if ev, err = l.recallTapped(tap); err != nil {
			l.fail(err)
		}
	}
	own, ok := ev.(appended)
	if !ok {
		return l.core.Step(l.o.Now(), ev)
	}
	var effects []Effect
	for _, rec := range own.records {
		switch {
		case rec.Seq <= l.journalSeq: // told already
		case rec.Seq == l.journalSeq+1:
			l.journalSeq = rec.Seq
			effects = append(effects, l.core.Step(l.o.Now(), Journaled{Record: rec})...)
		default:
			more, err := l.readJournal()
			if err != nil {
				l.fail(err)
			}
			effects = append(effects, more...)
		}
	}
	return effects
}

// appended are records that this loop has written to the journal.
type appended struct{ records []approvallog.Record }

func (appended) isEvent() {}

// stopSending lets no more calls begin, those that wait for their turn included. The timer that it returns cuts off those that are
// under way.
func (l *Loop) stopSending() *time.Timer {
	l.stopping = true
	l.mu.Lock()
	for _, cancel := range l.cancelled {
		cancel()
	}
	l.mu.Unlock()
	return time.AfterFunc(l.o.Drain, l.stopCalls)
}

// drain lets calls that are under way end, so that their outcome is known to the next daemon, and records it. Nothing
// new is begun.
func (l *Loop) drain() {
	l.draining = true
	if !l.stopping {
		defer l.stopSending().Stop()
	}
	for {
		idle := make(chan struct{})
		go func() {
			l.running.Wait()
			close(idle)
		}()
		<-idle
		events := l.mailbox.take()
		if len(events) == 0 {
			return
		}
		for _, ev := range events {
			l.tell(ev)
		}
	}
}

// fail ends the loop with the first error that is reported.
func (l *Loop) fail(err error) {
	select {
	case l.fatal <- err:
	default:
	}
}

// mailbox takes events from other goroutines without ever making them wait.
type mailbox struct {
	mu     *sync.Mutex
	events *[]Event
	ready  chan struct{}
}

func newMailbox() mailbox {
	return mailbox{mu: new(sync.Mutex), events: new([]Event), ready: make(chan struct{}, 1)}
}

func (m mailbox) put(ev Event) {
	m.mu.Lock()
	*m.events = append(*m.events, ev)
	m.mu.Unlock()
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

func (m mailbox) take() []Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	events := *m.events
	*m.events = nil
	return events
}

// Contact tells the loop that updates could be received at this time. It may be told as often as it is known.
func (l *Loop) Contact(at time.Time) { l.mailbox.put(Contacted{At: at}) }

func (l *Loop) noteContact(at time.Time) {
	if l.o.NoteContact != nil && l.o.Check() == nil {
		l.o.NoteContact(at)
	}
}

// HandleUpdate deals with one update from Telegram. It returns nil once the outcome is on disk, and an error when the
// update has to come again.
func (l *Loop) HandleUpdate(ctx context.Context, u transport.Update) error {
	switch {
	case u.Tap != nil:
		return l.handleTap(ctx, *u.Tap)
	case u.Message != nil:
		return l.handleMessage(ctx, *u.Message)
	case u.Chat != nil:
		switch u.Chat.New {
		case "left", "kicked":
			l.mailbox.put(ChatClosed{ChatID: u.Chat.Chat.ID, Reason: "the bot was blocked in the chat, or removed from it"})
		default:
			l.mailbox.put(ChatOpened{ChatID: u.Chat.Chat.ID})
		}
	}
	return nil
}

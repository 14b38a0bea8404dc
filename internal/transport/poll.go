package transport

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/visible"
)

const (
	// defaultPollHold is how long Telegram holds an empty poll. Proxies and NATs
	// drop silent connections from 30 s on.
	defaultPollHold = 25 * time.Second
	pollLimit       = 100
	// handleGrace is what the update in hand gets to finish after a stop.
	handleGrace = 2 * time.Second
	// confirmTimeout bounds the confirmation on stop.
	confirmTimeout = 2 * time.Second
	// tapLife is how long Telegram keeps an undelivered tap.
	tapLife = 150 * time.Second
	// staleOffset: Telegram chooses a new random id after a quiet week. An old
	// offset that lies just above the new ids would confirm them unseen, so it is
	// forgotten long before; all it could repeat has expired by then.
	staleOffset = 24 * time.Hour
)

// PollOptions configure a Poller.
type PollOptions struct {
	Client *Client
	Logger *zap.Logger
	// Hold is how long Telegram holds an empty poll, whole seconds; 0 means 25 s.
	Hold time.Duration
	// Own tells whether a webhook that appears while polling is this gate's own
	// leftover; it is then removed, without dropping pending updates. nil: never.
	Own func(webhookURL string) bool
	// ConfirmOnStop is asked on stop, when handled updates are not confirmed yet,
	// whether Telegram may still be talked to; nil means no. Without the
	// confirmation those updates come again after the next start.
	ConfirmOnStop func() bool
}

// Poller receives updates by long polling.
type Poller struct {
	client        *Client
	log           *zap.Logger
	hold          time.Duration
	own           func(string) bool
	confirmOnStop func() bool

	// The loop's own; Health does not look at them.
	offset     int64 // the next poll confirms everything below
	confirmed  int64 // the offset of the last poll that was answered
	lastUpdate time.Time
	recent     recentIDs
	transient  backoff
	conflict   backoff
	idle       backoff
	token      backoff

	ready     chan struct{}
	readyOnce sync.Once

	mu     sync.Mutex
	health Health
	dead   bool // the token is rejected
}

// NewPoller returns a Poller; Run starts it.
func NewPoller(o PollOptions) *Poller {
	p := &Poller{
		client:        o.Client,
		log:           cmp.Or(o.Logger, zap.NewNop()),
		hold:          cmp.Or(o.Hold, defaultPollHold),
		own:           o.Own,
		confirmOnStop: o.ConfirmOnStop,
		// The first retry comes almost at once: a cut poll is an everyday thing.
		transient: backoff{first: 300 * time.Millisecond, limit: 12 * time.Second, factor: 2},
		// Slow enough that a supervised twin does not hammer Telegram, quick enough
		// that a tap (150 s) survives.
		conflict: backoff{first: 7 * time.Second, limit: 15 * time.Second, factor: 1.3},
		idle:     backoff{first: 300 * time.Millisecond, limit: 5 * time.Second, factor: 2},
		token:    backoff{first: 5 * time.Second, limit: 30 * time.Second, factor: 2},
		ready:    make(chan struct{}),
	}
	p.health = Health{Mode: "poll", Error: "no contact with Telegram yet"}
	return p
}

// Ready is closed by the first answered poll.
func (p *Poller) Ready() <-chan struct{} { return p.ready }

// Health reports the age of the last answered poll: two hold times without one
// is unhealthy, and so is a rejected token at once.
func (p *Poller) Health() Health {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.health
	age := time.Since(h.LastSuccess)
	h.Patience = 2 * p.hold
	h.Healthy = !p.dead && !h.LastSuccess.IsZero() && age <= h.Patience
	if !h.Healthy && h.Error == "" {
		h.Error = fmt.Sprintf("no answered poll for %s", visible.Duration(age.Round(time.Second)))
	}
	return h
}

// Run polls until ctx ends and then returns nil. No failure ends it: everything
// but a stop is retried for ever, since a daemon that lives on without polling
// would look well and hear nothing. handle is called for one update at a time, in
// order; an update that it refuses is offered again until it takes it, and none
// after it before.
func (p *Poller) Run(ctx context.Context, handle Handler) error {
	defer p.client.polls.CloseIdleConnections()
	// A poll without hold proves contact at once: the first one, and the next one
	// after a network failure.
	first, probe := true, true
	for ctx.Err() == nil {
		hold := p.hold
		if probe {
			hold = 0
		}
		asked := time.Now()
		p.due(hold)
		raw, err := p.client.GetUpdates(ctx, GetUpdates{Offset: p.nextOffset(), Limit: pollLimit, Timeout: hold})
		if ctx.Err() != nil {
			break
		}
		var wait time.Duration
		if err != nil {
			wait = p.failed(ctx, err)
			first, probe = false, ClassOf(err) == ClassTransient
		} else {
			p.answered()
			progress := p.deliver(ctx, raw, handle)
			held := hold > 0 && time.Since(asked) >= hold/2
			wait = p.pace(progress || held || first)
			first, probe = false, false
		}
		p.due(wait)
		if !sleep(ctx, wait) {
			break
		}
	}
	p.confirm(ctx)
	return nil
}

func (p *Poller) nextOffset() int64 {
	// Wall time, which runs on while the machine sleeps.
	if p.offset != 0 && time.Since(p.lastUpdate.Round(0)) > staleOffset {
		p.offset, p.confirmed = 0, 0
	}
	return p.offset
}

// deliver hands a batch to handle and moves the offset behind each update that
// was taken. It reports whether the batch held anything new.
func (p *Poller) deliver(ctx context.Context, raw []json.RawMessage, handle Handler) bool {
	p.confirmed = p.offset
	received := time.Now()
	updates := make([]Update, 0, len(raw))
	nameless := 0
	for _, r := range raw {
		u, err := DecodeUpdate(r, received)
		if err == nil {
			updates = append(updates, u)
			continue
		}
		p.skip(u, err)
		if u.ID == 0 {
			nameless++
			continue
		}
		u.Raw = nil
		updates = append(updates, u)
	}
	slices.SortStableFunc(updates, func(a, b Update) int { return cmp.Compare(a.ID, b.ID) })
	if len(updates) == 0 && nameless > 0 && p.offset != 0 {
		// Nothing in the batch tells its id. They are counted up from the offset,
		// so stepping by one passes the first of them and nothing else.
		p.offset++
		return true
	}
	progress := false
	for _, u := range updates {
		if u.Raw != nil && !p.handle(ctx, u, handle) {
			return progress
		}
		progress = p.recent.add(u.ID) || progress
		p.offset, p.lastUpdate = u.ID+1, received
	}
	return progress
}

// handle offers u until it is taken; false means that ctx ended first.
func (p *Poller) handle(ctx context.Context, u Update, handle Handler) bool {
	retry := backoff{first: 200 * time.Millisecond, limit: 5 * time.Second, factor: 2}
	for failures := 0; ctx.Err() == nil; failures++ {
		p.due(0)
		working, cancel := withGrace(ctx, handleGrace)
		err := handle(working, u)
		cancel()
		if err == nil {
			if failures > 0 {
				p.note("", "")
				p.log.Info("update stored at last", zap.Int64("update", u.ID), zap.Int("failures", failures))
			}
			return true
		}
		text := fmt.Sprintf("update %d could not be stored, it is kept and tried again: %v", u.ID, err)
		p.note(text, CauseStorage)
		if failures == 0 {
			p.log.Error(text)
		}
		if !sleep(ctx, retry.wait()) {
			return false
		}
	}
	return false
}

// skip reports an update that cannot be read.
func (p *Poller) skip(u Update, err error) {
	p.mu.Lock()
	p.health.Skipped++
	p.mu.Unlock()
	p.log.Error("passed over an update that cannot be read; it may have been a tap: have the person tap again",
		zap.Int64("update", u.ID), zap.Error(err), zap.Int("bytes", len(u.Raw)))
}

// pace keeps a server that answers at once, with nothing or with what it has sent
// before, from being asked in a tight loop.
func (p *Poller) pace(asItShould bool) time.Duration {
	if asItShould {
		p.idle.reset()
		return 0
	}
	return p.idle.wait()
}

// confirm tells Telegram what was handled, so that it does not come again after
// the next start. It cannot lose an update: it confirms ids below the offset,
// which were all taken by the handler, and an update that it returns is not
// confirmed by that. Failing does no harm either, the handler is idempotent.
func (p *Poller) confirm(ctx context.Context) {
	if p.offset == p.confirmed || p.confirmOnStop == nil || !p.confirmOnStop() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmTimeout)
	defer cancel()
	if _, err := p.client.GetUpdates(ctx, GetUpdates{Offset: p.offset, Limit: 1}); err != nil {
		p.log.Info("the last updates were handled but not confirmed; they will come again and change nothing", zap.Error(err))
	}
}

func (p *Poller) answered() {
	p.transient.reset()
	p.conflict.reset()
	p.token.reset()
	p.mu.Lock()
	gap := time.Duration(0)
	if !p.health.LastSuccess.IsZero() {
		gap = time.Since(p.health.LastSuccess.Round(0))
	}
	was := p.health.Error
	p.health.LastSuccess, p.health.Error, p.health.Cause, p.health.ConflictSince, p.dead = time.Now(), "", "", time.Time{}, false
	p.mu.Unlock()
	p.readyOnce.Do(func() { close(p.ready) })
	if was != "" {
		p.log.Info("polling works", zap.String("before", was))
	}
	if gap > tapLife {
		p.log.Warn("Telegram could not be polled for longer than it keeps a tap: taps made meanwhile may be lost and have to be repeated",
			zap.Duration("gap", gap))
	}
}

// due notes that the loop is alive and comes round again after wait.
func (p *Poller) due(wait time.Duration) {
	p.mu.Lock()
	p.health.Due = time.Now().Add(wait)
	p.mu.Unlock()
}

func (p *Poller) note(text string, cause Cause) {
	p.mu.Lock()
	p.health.Error, p.health.Cause = text, cause
	p.mu.Unlock()
}

// failed records what went wrong with a poll and returns how long to wait.
func (p *Poller) failed(ctx context.Context, err error) time.Duration {
	p.due(0)
	class := ClassOf(err)
	var text string
	var wait time.Duration
	switch class {
	case ClassLimited:
		if e, ok := asError(err); ok {
			wait = e.RetryAfter
		}
		text = fmt.Sprintf("Telegram limits polling, next try in %s", wait)
		if wait > tapLife {
			text += ": longer than it keeps a tap, so taps may have to be repeated"
		}
	case ClassConflict:
		text = "another program polls with this bot's token: stop it, or give this gate a bot of its own"
		wait = p.conflict.wait()
	case ClassWebhookActive:
		text = p.displaced(ctx)
		wait = p.conflict.wait()
	case ClassToken:
		text, wait = p.tokenRefused(ctx, err)
	default:
		text = err.Error()
		wait = p.transient.wait()
	}
	p.mu.Lock()
	changed := p.health.Error != text
	p.health.Error = text
	p.health.Cause = "" // of this failure alone: an earlier one does not explain it
	switch {
	case p.dead:
		p.health.Cause = CauseToken
	case class == ClassConflict:
		p.health.Cause = CauseConflict
	case class == ClassWebhookActive:
		p.health.Cause = CauseDisplaced
	}
	conflicting := class == ClassConflict || class == ClassWebhookActive
	if conflicting && p.health.ConflictSince.IsZero() {
		p.health.ConflictSince = time.Now()
	}
	p.mu.Unlock()
	if changed {
		p.log.Warn("polling failed, retrying: "+text, zap.String("class", string(class)), zap.Error(err))
	}
	return wait
}

// displaced looks at the webhook that keeps polls from working, and removes it
// when it is this gate's own leftover.
func (p *Poller) displaced(ctx context.Context) string {
	const remedy = "polling is refused while a webhook is registered"
	info, err := p.client.GetWebhookInfo(ctx)
	switch {
	case err != nil || info.URL == "":
		return remedy
	case p.own == nil || !p.own(info.URL):
		return fmt.Sprintf("%s at %s: remove it with deleteWebhook if it is not needed, or give this gate a bot of its own", remedy, hostOf(info.URL))
	}
	if err := p.client.DeleteWebhook(ctx); err != nil {
		return fmt.Sprintf("%s; removing this gate's own one failed: %v", remedy, err)
	}
	return remedy + "; removed this gate's own one"
}

// tokenRefused asks getMe whether the token is really dead: a single 401 has been
// seen to pass.
func (p *Poller) tokenRefused(ctx context.Context, poll error) (string, time.Duration) {
	if _, err := p.client.GetMe(ctx); ClassOf(err) != ClassToken {
		return poll.Error() + "; getMe does not confirm it", max(p.transient.wait(), retryAfter(err))
	}
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	return "Telegram rejects the bot token: put the current one from @BotFather in place and restart; no request is decided meanwhile", p.token.wait()
}

// hostOf is the part of a foreign webhook's URL that may be shown: its path often
// is a secret.
func hostOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return "an unknown host"
	}
	return u.Host
}

// recentIDs remembers the last update ids, to tell repetitions from news. It
// never decides whether an update is handled.
type recentIDs struct {
	ring [512]int64
	at   int
	set  map[int64]struct{}
}

// add reports whether id is new.
func (r *recentIDs) add(id int64) bool {
	if _, known := r.set[id]; known {
		return false
	}
	if r.set == nil {
		r.set = make(map[int64]struct{}, len(r.ring))
	}
	if old := r.ring[r.at]; old != 0 {
		delete(r.set, old)
	}
	r.ring[r.at] = id
	r.at = (r.at + 1) % len(r.ring)
	r.set[id] = struct{}{}
	return true
}

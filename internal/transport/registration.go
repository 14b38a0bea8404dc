package transport

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// refusedBeforeCheck is how many posts without the right secret make us look at
// the registration early: another program may have registered the same URL
// without our secret, which getWebhookInfo does not show.
const refusedBeforeCheck = 5

// registration is the state of keeping the webhook registered.
type registration struct {
	ours bool      // read back as ours after our last setWebhook
	set  time.Time // our last setWebhook

	delivered, refused int64 // the counters at the last check
}

// keepRegistered registers the webhook and reads the registration back, again
// and again until ctx ends. Only a foreign registration at the start ends it.
func (w *Webhook) keepRegistered(ctx context.Context) error {
	var r registration
	retry := backoff{first: 1250 * time.Millisecond, limit: 15 * time.Second, factor: 2}
	if err := w.mayStart(ctx, &retry); err != nil {
		return err
	}
	retry.reset()
	for ctx.Err() == nil {
		wait := w.checkEvery
		if err := w.ensure(ctx, &r); err != nil {
			w.note(err.Error())
			wait = max(retry.wait(), retryAfter(err))
		} else {
			retry.reset()
		}
		w.await(ctx, wait)
	}
	return nil
}

// mayStart looks for a foreign registration until Telegram answers.
func (w *Webhook) mayStart(ctx context.Context, retry *backoff) error {
	for ctx.Err() == nil {
		info, err := w.client.GetWebhookInfo(ctx)
		if err == nil {
			if info.URL == "" || info.URL == w.url || w.replace || (w.own != nil && w.own(info.URL)) {
				return nil
			}
			return &RegistrationError{Mode: "webhook", Host: hostOf(info.URL)}
		}
		w.note(err.Error())
		sleep(ctx, max(retry.wait(), retryAfter(err)))
	}
	return nil
}

// await waits for the next check, or for refused posts that make an earlier one
// worth while; at most one such in ten seconds.
func (w *Webhook) await(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	const early = 10 * time.Second
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-w.alarm:
		if wait > early {
			sleep(ctx, early)
		}
	}
}

// ensure makes one round: read the registration, set it when it is not ours to
// begin with or is gone, read it back.
func (w *Webhook) ensure(ctx context.Context, r *registration) error {
	if r.set.IsZero() {
		return w.register(ctx, r)
	}
	info, err := w.client.GetWebhookInfo(ctx)
	if err != nil {
		return err
	}
	delivered, refused := w.delivered.Load(), w.refused.Load()
	quiet, strangers := delivered == r.delivered, refused-r.refused
	r.delivered, r.refused = delivered, refused
	switch {
	case info.URL == "":
		w.log.Warn("the webhook's registration is gone, registering again")
		return w.register(ctx, r)
	case info.URL != w.url:
		return w.displacedBy(info, r)
	case strangers >= refusedBeforeCheck && time.Since(r.set) >= w.checkEvery:
		w.log.Warn("posts arrive without this gate's secret: another program may have registered the same URL, registering again",
			zap.Int64("posts", strangers))
		return w.register(ctx, r)
	case info.LastErrorMessage != "" && info.Pending > 0 && quiet:
		w.note(fmt.Sprintf("Telegram cannot deliver %d updates: %s", info.Pending, info.LastErrorMessage))
		return nil
	}
	r.ours = true
	w.succeeded()
	return nil
}

// displacedBy reports that another program took the bot's webhook. It is not
// taken back: two programs that both insist would leave nobody with updates.
func (w *Webhook) displacedBy(info WebhookInfo, r *registration) error {
	r.ours = false
	w.mu.Lock()
	if w.health.ConflictSince.IsZero() {
		w.health.ConflictSince = time.Now()
	}
	w.mu.Unlock()
	w.note(fmt.Sprintf("another program registered a webhook at %s with this bot's token: stop it, or give this gate a bot of its own", hostOf(info.URL)))
	return nil
}

// register calls setWebhook, at most once a second, and reads the registration
// back whatever the answer: a failing setWebhook can leave none, and one whose
// answer was lost may have worked.
func (w *Webhook) register(ctx context.Context, r *registration) error {
	if !sleep(ctx, setEvery-time.Since(r.set)) {
		return ctx.Err()
	}
	setErr := w.client.SetWebhook(ctx, SetWebhook{URL: w.url, Secret: w.secret})
	r.set = time.Now()
	r.delivered, r.refused = w.delivered.Load(), w.refused.Load()
	info, err := w.client.GetWebhookInfo(ctx)
	switch {
	case setErr != nil:
		r.set = time.Time{} // not known to carry our secret: set again
		return setErr
	case err != nil:
		return err
	case info.URL == "":
		return fmt.Errorf("telegram setWebhook: answered ok, but no webhook is registered")
	case info.URL != w.url:
		return w.displacedBy(info, r)
	}
	r.ours = true
	w.succeeded()
	return nil
}

// deregister takes the webhook down if it is still ours, so that the next start,
// in whatever mode, finds a free bot. Pending updates stay.
func (w *Webhook) deregister(ctx context.Context) {
	if w.removeOnStop == nil || !w.removeOnStop() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	info, err := w.client.GetWebhookInfo(ctx)
	if err == nil {
		if info.URL != w.url {
			return
		}
		err = w.client.DeleteWebhook(ctx)
	}
	if err != nil {
		w.log.Warn("the webhook could not be removed; the next start of this gate takes it over", zap.Error(err))
	}
}

// retryAfter is the wait that an error asks for, or 0.
func retryAfter(err error) time.Duration {
	if e, ok := asError(err); ok {
		return e.RetryAfter
	}
	return 0
}

package transport

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
)

// refusedBeforeCheck is how many posts without the right secret make us look at
// the registration early: another program may have registered the same URL
// without our secret, which getWebhookInfo does not show.
const refusedBeforeCheck = 5

// registration is the state of keeping the webhook registered.
type registration struct {
	found  string    // what was there at the start and may be replaced
	ours   bool      // was read back as ours at least once
	unsure bool      // the last setWebhook failed or was not answered
	set    time.Time // our last setWebhook

	delivered, refused int64 // the counters at the last check
	errorDate          int64 // last_error_date at the last check
	failing            bool  // Telegram has updates and its tries to deliver them fail
	again              bool  // set once more because its posts lacked the secret
}

// look takes up what Telegram and the listener say since the last check. Telegram
// never clears its last error, so only one with a new date counts, until an update
// arrives or none is left; that a post was refused shows a stranger at most.
func (r *registration) look(w *Webhook, info WebhookInfo) {
	delivered := w.delivered.Load()
	quiet := delivered == r.delivered
	fresh := info.LastErrorDate != 0 && info.LastErrorDate != r.errorDate
	r.delivered, r.errorDate = delivered, info.LastErrorDate
	r.failing = quiet && info.Pending > 0 && info.LastErrorMessage != "" && (fresh || r.failing)
	r.again = r.again && r.failing
}

// lacksSecret tells that Telegram's own posts were refused for the secret: it says
// that it was answered so, and posts were.
func (r *registration) lacksSecret(w *Webhook, info WebhookInfo) bool {
	return r.failing && strings.Contains(info.LastErrorMessage, "401") && w.refused.Load()-r.refused >= refusedBeforeCheck
}

// keepRegistered registers the webhook and reads the registration back, again
// and again until ctx ends. Only a foreign registration at the start ends it.
func (w *Webhook) keepRegistered(ctx context.Context) error {
	var r registration
	retry := backoff{first: 1250 * time.Millisecond, limit: 15 * time.Second, factor: 2}
	var err error
	if r.found, err = w.mayStart(ctx, &retry); err != nil {
		return err
	}
	retry.reset()
	for ctx.Err() == nil {
		wait := w.checkEvery
		if err := w.ensure(ctx, &r); err != nil {
			w.failed(err)
			wait = max(retry.wait(), retryAfter(err))
			if limited := retryAfter(err); limited > 0 {
				// No alarm makes the next call come before Telegram takes it.
				w.due(wait)
				sleep(ctx, limited)
				wait -= limited
			}
		} else {
			retry.reset()
		}
		w.due(wait)
		w.await(ctx, wait)
	}
	return nil
}

// mayStart asks until Telegram answers what is registered, and returns it when it
// may be replaced.
func (w *Webhook) mayStart(ctx context.Context, retry *backoff) (string, error) {
	for ctx.Err() == nil {
		info, err := w.client.GetWebhookInfo(ctx)
		if err == nil {
			if info.URL == "" || info.URL == w.url || w.replace || (w.own != nil && w.own(info.URL)) {
				return info.URL, nil
			}
			return "", &RegistrationError{Mode: "webhook", Host: hostOf(info.URL)}
		}
		w.failed(err)
		wait := max(retry.wait(), retryAfter(err))
		w.due(wait)
		sleep(ctx, wait)
	}
	return "", nil
}

// await waits for the next check, or for refused posts that make an earlier one
// worth while; never for less than ten seconds, however many they are.
func (w *Webhook) await(ctx context.Context, wait time.Duration) {
	const early = 10 * time.Second
	if !sleep(ctx, min(early, wait)) {
		return
	}
	rest := time.NewTimer(wait - early)
	defer rest.Stop()
	select {
	case <-ctx.Done():
	case <-rest.C:
	case <-w.alarm:
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
	r.look(w, info)
	switch {
	case info.URL == "":
		w.log.Warn("no webhook is registered any more, registering again")
		return w.register(ctx, r)
	case info.URL != w.url && (r.ours || info.URL != r.found):
		w.displacedBy(info)
		return nil
	case info.URL != w.url || r.unsure:
		return w.register(ctx, r)
	case r.lacksSecret(w, info) && time.Since(r.set) >= w.checkEvery:
		text := "Telegram's posts arrive without this gate's secret: another program has registered the same URL, registering again"
		if r.again {
			text = "Telegram's posts still arrive without this gate's secret although it was registered again: another program insists on the same URL, " +
				"or the reverse proxy does not pass the header " + secretHeader + " on"
		}
		w.note(text, "")
		r.again = true
		return w.register(ctx, r)
	case r.failing:
		if !r.again {
			w.note(fmt.Sprintf("Telegram cannot deliver %d updates: %s", info.Pending, info.LastErrorMessage), "")
		}
		return nil
	}
	r.ours = true
	w.succeeded()
	return nil
}

// displacedBy reports that another program took the bot's webhook. It is not
// taken back: two programs that both insist would leave nobody with updates.
func (w *Webhook) displacedBy(info WebhookInfo) {
	w.mu.Lock()
	if w.health.ConflictSince.IsZero() {
		w.health.ConflictSince = time.Now()
	}
	w.mu.Unlock()
	w.note(fmt.Sprintf("another program registered a webhook at %s with this bot's token: stop it, or give this gate a bot of its own", hostOf(info.URL)), CauseDisplaced)
}

// register calls setWebhook, at most once a second, and reads the registration
// back. After a failure the next round reads it before it sets anything: a failing
// setWebhook can leave none, one whose answer was lost may have worked, and
// another program may have come in between.
func (w *Webhook) register(ctx context.Context, r *registration) error {
	if !sleep(ctx, setEvery-time.Since(r.set)) {
		return ctx.Err()
	}
	setErr := w.client.SetWebhook(ctx, SetWebhook{URL: w.url, Secret: w.secret})
	r.set = time.Now()
	r.unsure = setErr != nil
	r.refused = w.refused.Load()
	if setErr != nil {
		return setErr
	}
	info, err := w.client.GetWebhookInfo(ctx)
	switch {
	case err != nil:
		return err
	case info.URL == "":
		return errors.New("telegram setWebhook: answered ok, but no webhook is registered")
	case info.URL != w.url:
		w.displacedBy(info)
		return nil
	}
	r.ours = true
	if r.errorDate == 0 {
		r.errorDate = info.LastErrorDate // from before this start
	}
	if !r.failing {
		w.succeeded()
	}
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

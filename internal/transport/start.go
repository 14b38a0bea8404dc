package transport

import (
	"context"
	"fmt"
)

// StartOptions say what a transport is about to do with the bot.
type StartOptions struct {
	// Mode is "poll" or "webhook".
	Mode string
	// URL is the webhook's own address in webhook mode.
	URL string
	// Replace allows taking the bot from another registration, in webhook mode.
	Replace bool
	// Bot, when set, is called with the bot between getMe and everything else; its
	// error ends the check and is returned as it is.
	Bot func(User) error
	// Own tells whether a registration is this gate's leftover; nil: never.
	Own func(webhookURL string) bool
}

// StartReport is what CheckStart found.
type StartReport struct {
	Bot User
	// Webhook is the registration that was found.
	Webhook WebhookInfo
	// Removed is set when it was this gate's own leftover and was taken down.
	Removed bool
}

// RegistrationError refuses to start: the bot's updates go elsewhere.
type RegistrationError struct {
	// Mode is the mode that was to be started.
	Mode string
	// Host is where the updates go; the rest of the URL may be a secret.
	Host string
}

// NewRegistrationError refuses mode because of a webhook that is registered.
func NewRegistrationError(mode, webhookURL string) *RegistrationError {
	return &RegistrationError{Mode: mode, Host: hostOf(webhookURL)}
}

// Error implements error.
func (e *RegistrationError) Error() string {
	if e.Mode == "webhook" {
		return fmt.Sprintf("this bot already has a webhook at %s: stop that program, or take the bot over with --replace-webhook (replace = true under [transport.webhook])", e.Host)
	}
	return fmt.Sprintf("this bot has a webhook at %s, so it cannot be polled: stop that program and remove its webhook, or give this gate a bot of its own", e.Host)
}

// CheckStart asks Telegram who the bot is and where its updates go, and decides
// whether a transport may start. It tries once; an error of another kind than
// *RegistrationError and [ClassToken] is worth a retry. Pending updates are kept
// in every case.
func CheckStart(ctx context.Context, c *Client, o StartOptions) (StartReport, error) {
	var report StartReport
	var err error
	if report.Bot, err = c.GetMe(ctx); err != nil {
		return report, err
	}
	if o.Bot != nil {
		if err := o.Bot(report.Bot); err != nil {
			return report, err
		}
	}
	if report.Webhook, err = c.GetWebhookInfo(ctx); err != nil {
		return report, err
	}
	registered := report.Webhook.URL
	if registered == "" {
		return report, nil
	}
	own := o.Own != nil && o.Own(registered)
	switch {
	case o.Mode == "webhook" && (own || o.Replace):
		return report, nil
	case o.Mode == "webhook" || !own:
		return report, NewRegistrationError(o.Mode, registered)
	}
	if err := c.DeleteWebhook(ctx); err != nil {
		return report, fmt.Errorf("removing this gate's own webhook: %w", err)
	}
	report.Removed = true
	return report, nil
}

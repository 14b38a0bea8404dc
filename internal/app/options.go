package app

import (
	"errors"
	"io"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/sdnotify"
)

// Options are what one daemon is made of. Gate and Config are required; every other field has a working zero value.
type Options struct {
	// Gate is the gate's name, for people and for the service manager.
	Gate string
	// Config is the gate's configuration, loaded and checked.
	Config gate.Config
	// Version is written into the lease's record and the journal.
	Version string

	// Standby waits for a lease that is held instead of refusing, and takes over when it becomes free.
	Standby bool
	// AllowRemoteFS takes a lease on a network file system, where it may reach one host only.
	AllowRemoteFS bool

	// Signals stop the daemon: the first one in order, a second one at once by the signal's default action. With none the
	// instance is embedded and stops by its context or by Stop.
	Signals []os.Signal

	// Logger takes the log lines. Default: NewLogger over Stderr; secrets are taken out of either.
	Logger *zap.Logger
	// Stderr is where the default logger writes. Default os.Stderr.
	Stderr io.Writer
	// Notify is the service manager. nil is none.
	Notify *sdnotify.Notifier
	// Sockets are those that a socket unit passed. nil is none.
	Sockets *sdnotify.Sockets
	// ReplaceWebhook takes the bot over from a webhook that is not this gate's, as webhook.replace in the configuration does.
	ReplaceWebhook bool
	// Now is the clock of records and deadlines. Default time.Now.
	Now func() time.Time

	// StopLimit bounds a whole stop, from the signal to the return of Run, however many things hang. Default 8 s.
	StopLimit time.Duration
	// RetryMin and RetryMax bound the wait between two tries to reach Telegram at start. Defaults 1 s and 15 s.
	RetryMin, RetryMax time.Duration
}

const (
	defaultStopLimit = 8 * time.Second
	defaultRetryMin  = time.Second
	defaultRetryMax  = 15 * time.Second
)

func (o *Options) validate() error {
	var faults []error
	if o.Gate == "" {
		faults = append(faults, errors.New("the gate has no name"))
	}
	if o.Config.Home == "" {
		faults = append(faults, errors.New("the configuration was not loaded: it names no home"))
	}
	if o.StopLimit < 0 || o.RetryMin < 0 || o.RetryMax < 0 {
		faults = append(faults, errors.New("a limit is negative"))
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Stderr == nil {
		o.Stderr = os.Stderr
	}
	if o.StopLimit == 0 {
		o.StopLimit = defaultStopLimit
	}
	if o.RetryMin == 0 {
		o.RetryMin = defaultRetryMin
	}
	if o.RetryMax == 0 {
		o.RetryMax = max(defaultRetryMax, o.RetryMin)
	}
	return nil
}

package app

import (
	"errors"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/transport"
)

func TestAStartNeverTriesAgainBeforeTelegramTakesIt(t *testing.T) {
	for _, asked := range []time.Duration{time.Second, 25 * time.Second, 110 * time.Second} {
		for _, wait := range []time.Duration{time.Millisecond, time.Second, time.Minute} {
			for range 200 {
				got := startPause(wait, &transport.Error{Class: transport.ClassLimited, RetryAfter: asked})
				if got < asked || got > max(wait, asked+maxStartJitter) {
					t.Fatalf("with a wait of %s and retry_after %s: tries again in %s", wait, asked, got)
				}
			}
		}
	}
	if got := startPause(time.Second, errors.New("no route")); got < time.Second/2 || got > time.Second {
		t.Errorf("without a limit: tries again in %s", got)
	}
}

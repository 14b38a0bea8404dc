package cli

import (
	"context"
	"slices"
	"time"

	"github.com/approvald/approvald/internal/gateapi"
)

// When a waiting program looks whether its request has reached anybody. A
// request that cannot be delivered is told within ten seconds.
const (
	firstLook = 2 * time.Second
	nextLooks = 5 * time.Second
)

// watchDelivery tells the person who waits for a request when it cannot be
// shown to anybody, and why, until stop is called. Only the daemon knows that;
// while none answers there is nothing to tell.
func (e *env) watchDelivery(ctx context.Context, key string) (stop func()) {
	clients, err := e.clients(e.loadConfig())
	if err != nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for _, c := range clients {
				c.Close()
			}
		}()
		told := ""
		for pause := firstLook; ; pause = nextLooks {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			told = e.tellDelivery(ctx, clients, key, told)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// tellDelivery looks once and answers what the person knows now.
func (e *env) tellDelivery(ctx context.Context, clients []*gateapi.Client, key, told string) string {
	for _, c := range clients {
		st, err := c.Status(ctx)
		if err != nil {
			continue
		}
		i := slices.IndexFunc(st.Undelivered, func(u gateapi.Undelivered) bool { return u.Key == key })
		switch {
		case i < 0 && told == "":
		case i < 0:
			e.ui.say("%s: delivered now", key)
			return ""
		case st.Undelivered[i].Reason != told:
			e.ui.say("%s: not delivered yet, nobody has seen it: %s", key, st.Undelivered[i].Reason)
			return st.Undelivered[i].Reason
		}
		return told
	}
	return told
}

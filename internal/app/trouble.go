package app

import (
	"context"
	"fmt"
	"time"

	"github.com/approvald/approvald/internal/dispatch"
	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/transport"
	"github.com/approvald/approvald/internal/visible"
)

const (
	// lookEvery is how often the daemon looks how it is doing.
	lookEvery = 2 * time.Second
	// lookAtFirst is how often it looks for the first contact with Telegram. One that is killed soon after each start must have noted
	// it by then: else the next would tell people of an absence in which taps were taken all the time.
	lookAtFirst = 50 * time.Millisecond
	// silenceAtStart is how long Telegram may be silent before the first exchange without that being trouble.
	silenceAtStart = 50 * time.Second
)

// watchTrouble looks every other second how the daemon is doing: it tells dispatch of contact with Telegram, and the operator of
// trouble.
func (a *App) watchTrouble(ctx context.Context) error {
	if err := a.stages.epoch.wait(ctx); err != nil {
		return err
	}
	ctx, beside := newHelpers(ctx)
	beside.run("on_trouble", func() { a.notifier.serve(ctx) })
	return beside.end(ctx, keepLooking(ctx, a.tellContact, func() {
		troubles := a.troubles(a.loop.Alarm())
		a.notifier.consider(a.opts.Now(), troubles)
		a.tellStanding(func(s *standing) { s.troubles = troubles })
	}))
}

// keepLooking calls both functions at once and every other second until ctx ends; contact more often until it was true once.
func keepLooking(ctx context.Context, contact func() bool, look func()) error {
	tick, first := time.NewTicker(lookEvery), time.NewTicker(lookAtFirst)
	defer tick.Stop()
	defer first.Stop()
	for whole := true; ; {
		if contact() {
			first.Stop()
		}
		if whole {
			look()
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
			whole = true
		case <-first.C:
			whole = false
		}
	}
}

// tellContact passes on when updates could last be received, and reports whether they ever could.
func (a *App) tellContact() bool {
	h, ok := a.health()
	if !ok || h.LastSuccess.IsZero() {
		return false
	}
	if !h.LastSuccess.Equal(a.contact) {
		a.contact = h.LastSuccess
		// Without the monotonic reading: a machine that slept had no contact meanwhile.
		a.loop.Contact(h.LastSuccess.Round(0))
	}
	return true
}

// health is how the transport is doing; false before there is one.
func (a *App) health() (transport.Health, bool) {
	a.mu.Lock()
	r := a.receiver
	a.mu.Unlock()
	if r == nil {
		return transport.Health{}, false
	}
	return r.Health(), true
}

// troubles is what keeps people from being asked or heard at the moment.
func (a *App) troubles(alarm dispatch.Alarm) []gateapi.Trouble {
	a.mu.Lock()
	starting, chat := a.trouble, a.chatTrouble
	a.mu.Unlock()
	health, ok := a.health()
	if !ok {
		health = transport.Health{Error: "Telegram cannot be reached yet", Patience: silenceAtStart}
		if starting != nil {
			health.Error = starting.Error()
		}
	}
	if alarm.ChatProblem == "" && chat != "" {
		alarm.ChatProblem, alarm.ChatClosed = chat, true
	}
	return a.sightings.note(a.opts.Now(), describe(a.opts.Now(), a.began, health, alarm))
}

var troubleOfCause = map[transport.Cause]string{
	transport.CauseToken: gateapi.TroubleToken, transport.CauseConflict: gateapi.TroubleConflict,
	transport.CauseDisplaced: gateapi.TroubleDisplaced, transport.CauseStorage: gateapi.TroubleStorage,
}

// describe names the troubles, each code once, the one that explains the others first. Since is left open.
func describe(now, began time.Time, h transport.Health, alarm dispatch.Alarm) []gateapi.Trouble {
	var list []gateapi.Trouble
	add := func(code, text string) {
		for _, t := range list {
			if t.Code == code {
				return
			}
		}
		list = append(list, gateapi.Trouble{Code: code, Text: text})
	}
	if alarm.StorageProblem != "" {
		add(gateapi.TroubleStorage, "nothing can be recorded, so nothing is sent: "+alarm.StorageProblem)
	}
	if code := troubleOfCause[h.Cause]; code != "" {
		add(code, h.Error)
	}
	last, what := h.LastSuccess, "Telegram was last heard"
	if last.IsZero() {
		last, what = began, "Telegram was never heard since the start"
	}
	if silence := now.Sub(last.Round(0)); silence > h.Patience {
		text := fmt.Sprintf("%s (%s ago)", what, visible.Duration(silence.Round(time.Second)))
		if h.Error != "" {
			text += ": " + h.Error
		}
		add(gateapi.TroubleDeaf, text)
	}
	switch {
	case alarm.ChatClosed:
		add(gateapi.TroubleChat, alarm.ChatProblem)
	case len(alarm.Failing) > 0 && alarm.StorageProblem == "":
		first := alarm.Failing[0]
		text := fmt.Sprintf("nobody has been shown %s yet: %s", first.Key, first.Reason)
		if first.MaybeSeen {
			text = fmt.Sprintf("it is not known whether anybody was shown %s: %s", first.Key, first.Reason)
		}
		if more := len(alarm.Failing) - 1; more > 0 {
			text += fmt.Sprintf(" (and %d more)", more)
		}
		add(gateapi.TroubleUndelivered, text)
	}
	return list
}

package app

import (
	"context"
	"fmt"
	"slices"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/dispatch"
	"github.com/approvald/approvald/internal/gateapi"
)

// status is what agents and `approvald status` are told.
func (a *App) status(ctx context.Context) (gateapi.Status, error) {
	holder := a.lease.Holder()
	stats := a.loop.Stats()
	// The loop does not run before Telegram was reached; requests are taken all the same.
	log := a.gate.Log()
	if err := log.Refresh(ctx); err != nil {
		return gateapi.Status{}, err
	}
	pending := 0
	var waiting []approvallog.Request
	serving := a.loop.Serving()
	err := log.View(func() {
		pending, _ = a.gate.Requests().PendingCount(a.opts.Now(), "")
		if !serving {
			waiting = a.gate.Requests().Pending()
		}
	})
	if err != nil {
		return gateapi.Status{}, err
	}
	s := gateapi.Status{
		Gate:      a.opts.Gate,
		Holder:    &gateapi.Holder{PID: holder.PID, Mode: holder.Mode, Since: holder.Since, Epoch: a.epoch},
		Transport: gateapi.Transport{Mode: a.opts.Config.Transport.Mode},
		Pending:   pending,
		Unsettled: stats.Unsettled,
		Config:    a.inForce.status(),
		Limits:    gateapi.LimitsOf(a.config().Requests),
	}
	a.mu.Lock()
	r, trouble := a.receiver, a.trouble
	a.mu.Unlock()
	if trouble != nil {
		s.Transport.Error = trouble.Error()
	}
	if r != nil {
		health := r.Health()
		s.Transport.Healthy, s.Transport.Error = health.Healthy, health.Error
		if !health.LastSuccess.IsZero() {
			s.Transport.LastSuccess = &health.LastSuccess
		}
	}
	if !stats.MutedUntil.IsZero() {
		s.Transport.MutedUntil = &stats.MutedUntil
	}
	s.Undelivered, s.UndeliveredTotal = undelivered(stats), stats.Undelivered
	if !serving {
		unshown, err := a.loop.Unshown(waiting)
		if err != nil {
			return gateapi.Status{}, err
		}
		s.Undelivered, s.UndeliveredTotal = Unshown(unshown, "the daemon is not ready"), len(unshown)
	}
	s.Troubles = a.troubles(dispatch.Alarm{
		ChatProblem: stats.ChatProblem, ChatClosed: stats.ChatClosed, StorageProblem: stats.StorageProblem, Failing: stats.Failing,
	})
	judgeHealth(&s.Transport, s.Troubles, stats)
	return s, nil
}

// undelivered lists the requests that were shown to nobody yet, those first that something is wrong with.
func undelivered(stats dispatch.Stats) (list []gateapi.Undelivered) {
	for i, f := range slices.Concat(stats.Failing, stats.Waiting) {
		list = append(list, gateapi.Undelivered{
			Key: f.Key, Reason: f.Reason, Since: f.Since, MaybeSeen: f.MaybeSeen, Waiting: i >= len(stats.Failing),
		})
	}
	return list
}

// maxListed is how many undelivered requests a status names.
const maxListed = 200

// Unshown lists requests that were shown to nobody, while why keeps them all from being sent.
func Unshown(all []dispatch.Failing, why string) (list []gateapi.Undelivered) {
	for _, f := range all[:min(len(all), maxListed)] {
		reason := why
		if f.Reason != "" {
			reason += "; " + f.Reason
		}
		list = append(list, gateapi.Undelivered{Key: f.Key, Reason: reason, Since: f.Since, MaybeSeen: f.MaybeSeen})
	}
	return list
}

// judgeHealth makes of what the transport says of itself what holds for people: while a trouble lasts, they are not asked or not
// heard, however good the exchange with Telegram. What is left out, or has to be set right by somebody, is told beside good health.
func judgeHealth(way *gateapi.Transport, troubles []gateapi.Trouble, stats dispatch.Stats) {
	problem := deliveryProblem(stats)
	switch {
	case problem != "":
		way.Healthy, way.Error = false, problem
	case len(troubles) > 0:
		way.Healthy = false
		if way.Error == "" {
			way.Error = troubles[0].Text
		}
	case way.Error == "":
		way.Error = stats.Degraded
	}
}

// deliveryProblem says why requests do not reach a person although updates come in; "" when they do.
func deliveryProblem(stats dispatch.Stats) string {
	switch {
	case stats.StorageProblem != "":
		return stats.StorageProblem
	case stats.ChatProblem != "":
		return stats.ChatProblem
	case len(stats.Failing) > 0:
		first := stats.Failing[0]
		if first.MaybeSeen {
			return fmt.Sprintf("the delivery of %s is not confirmed: %s", first.Key, first.Reason)
		}
		return fmt.Sprintf("%s was not delivered: %s", first.Key, first.Reason)
	default:
		return ""
	}
}

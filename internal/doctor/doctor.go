// Package doctor looks at one gate as an operator does whose gate does not work: at everything that it depends on, what
// others depend on first, so that the first thing found to be wrong explains the rest.
//
// Guarantees: it repairs nothing, writes nothing, takes no lease and no lock, and asks Telegram for no update, so that it
// may run beside a daemon, and without one. It ends within 15 s, also with a dead network or file system. What it says
// may be shown in public: it holds no secret, no id of a chat or person, no address and no name of a host.
//
// Not guaranteed: that a gate works of which nothing is said to have failed. A program elsewhere that polls with the bot's
// token, for one, shows only while the daemon runs.
package doctor

import (
	"context"
	"time"
)

// Status is how one check ended.
type Status string

// The ends of a check. Their names are frozen.
const (
	OK            Status = "ok"
	NotApplicable Status = "n/a" // it has no meaning here, or what it builds on failed
	Failed        Status = "failed"
)

// Finding is what one check found. Its JSON members are frozen.
type Finding struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	What   string `json:"what"`
	// Repair is the one thing to do, a command for a shell unless it begins with "in Telegram:"; empty unless Status is
	// Failed.
	Repair string `json:"repair"`
}

// verdict is a Finding before it was made fit for the public.
type verdict struct {
	status       Status
	what, repair string
}

func fine(what string) verdict           { return verdict{status: OK, what: what} }
func moot(what string) verdict           { return verdict{status: NotApplicable, what: what} }
func failed(what, repair string) verdict { return verdict{Failed, what, repair} }

// check is one thing to look at.
type check struct {
	name string
	// needs are checks without which this one makes no sense.
	needs []string
	// moot says why the check has no meaning for this gate, empty when it has one. It is asked only once the
	// configuration is known, and may be nil.
	moot func(*patient) string
	run  func(context.Context, *patient) verdict
}

// Names of the checks. They are frozen.
const (
	checkConfiguration = "configuration"
	checkDisk          = "disk"
	checkFiles         = "files"
	checkToken         = "token"
	checkSecret        = "secret"
	checkBot           = "bot"
	checkClock         = "clock"
	checkChat          = "chat"
	checkWebhook       = "webhook"
	checkLease         = "lease"
	checkPollers       = "pollers"
	checkLog           = "log"
	checkJournal       = "journal"
	checkDaemon        = "daemon"
	checkUnit          = "unit"
	checkProxy         = "proxy"
)

// checks is the order, what others build on first.
var checks = []check{
	{checkConfiguration, nil, nil, lookAtConfiguration},
	{checkDisk, []string{checkConfiguration}, nil, lookAtDisk},
	{checkFiles, []string{checkConfiguration}, nil, lookAtFiles},
	{checkToken, []string{checkConfiguration}, nil, lookAtToken},
	{checkSecret, []string{checkConfiguration, checkToken}, polls, lookAtSecret},
	{checkBot, []string{checkToken}, nil, lookAtBot},
	{checkClock, []string{checkToken}, nil, lookAtClock},
	{checkChat, []string{checkBot}, nil, lookAtChat},
	{checkWebhook, []string{checkBot}, nil, lookAtWebhook},
	{checkLease, []string{checkConfiguration}, nil, lookAtLease},
	{checkPollers, []string{checkToken}, nil, lookAtPollers},
	{checkLog, []string{checkConfiguration}, nil, lookAtLog},
	{checkJournal, []string{checkConfiguration}, nil, lookAtJournal},
	{checkDaemon, []string{checkConfiguration}, nil, lookAtDaemon},
	{checkUnit, nil, nil, lookAtUnit},
	{checkProxy, []string{checkConfiguration}, polls, lookAtProxy},
}

// Names are the names of all checks in their order.
func Names() []string {
	list := make([]string, len(checks))
	for i, c := range checks {
		list[i] = c.name
	}
	return list
}

// limit bounds a whole run.
const limit = 13 * time.Second

// remoteLimit bounds what is asked of Telegram, so that a slow network leaves time for what is on this machine.
const remoteLimit = 8 * time.Second

// Run makes all checks in order and tells report of each as soon as it is made. report may be nil.
func Run(ctx context.Context, o Options, report func(Finding)) []Finding {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	p := newPatient(o)
	remote, stop := context.WithTimeout(ctx, remoteLimit)
	defer stop()
	p.remote = remote
	var list []Finding
	ended := make(map[string]end)
	for _, c := range checks {
		e, excused := c.excused(p, ended)
		if !excused {
			e.verdict = c.make(ctx, p)
			if e.status == Failed {
				e.cause = c.name
			}
		}
		v := e.verdict
		ended[c.name] = e
		f := Finding{Check: c.name, Status: v.status, What: p.public(v.what), Repair: p.public(v.repair)}
		list = append(list, f)
		if report != nil {
			report(f)
		}
	}
	return list
}

// end is how a check ended, and which one that failed is to blame, if any.
type end struct {
	verdict
	cause string
}

// excused is the end of a check that is not to be made.
func (c check) excused(p *patient, ended map[string]end) (end, bool) {
	if c.moot != nil && ended[checkConfiguration].status == OK {
		if why := c.moot(p); why != "" {
			return end{verdict: moot(why)}, true
		}
	}
	for _, need := range c.needs {
		switch e := ended[need]; {
		case e.cause != "":
			return end{moot("needs " + e.cause + ", which failed"), e.cause}, true
		case e.status == NotApplicable:
			return end{verdict: moot("needs " + need + ", which could not be looked at")}, true
		}
	}
	return end{}, false
}

// make makes the check, for as long as ctx lasts: a file system may hold up who looks at it for ever.
func (c check) make(ctx context.Context, p *patient) verdict {
	if ctx.Err() != nil {
		return moot("there was no time left for it: what was looked at before took too long")
	}
	done := make(chan verdict, 1)
	go func() { done <- c.run(ctx, p) }()
	select {
	case v := <-done:
		return v
	case <-ctx.Done():
	}
	// Who heeds ctx has its own words.
	grace := time.NewTimer(time.Second)
	defer grace.Stop()
	select {
	case v := <-done:
		return v
	case <-grace.C:
		// It still works on p, so nothing else may.
		p.abandoned = true
		return failed("no answer in time", "approvald doctor"+p.gateFlags())
	}
}

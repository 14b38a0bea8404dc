package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/dispatch"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/gateapi"
	"github.com/approvald/approvald/internal/lease"
	"github.com/approvald/approvald/internal/transport"
)

func lookAtLease(ctx context.Context, p *patient) verdict {
	rep, err := lease.Inspect(p.cfg.Home)
	if err != nil {
		return failed(err.Error(), "approvald lease"+p.gateFlags())
	}
	up := p.up(ctx)
	holder := "a process"
	if h := rep.Holder; h != nil && h.PID != 0 {
		holder = fmt.Sprintf("pid %d (%s, since %s)", h.PID, h.Mode, h.Since.UTC().Format(timeLayout))
	}
	switch rep.Verdict {
	case "free":
		return fine("nobody holds it: no daemon runs; one is started with: " + up)
	case "stale", "torn":
		return failed(fmt.Sprintf("it is left from a daemon that has ended without letting go, and none runs now (%s); the next start takes over", rep.Why), up)
	case "unavailable":
		repair := commandIn(rep.Hint)
		if repair == "" {
			repair = "ls -ld " + quote(existing(filepath.Join(p.cfg.Home, "daemon")))
		}
		return failed("a start would be refused: "+rep.Why, repair)
	}
	if rep.Holder != nil && rep.Holder.Foreign {
		return fine(holder + " holds it, of another implementation of a gate")
	}
	if st := p.daemon(ctx); st != nil {
		return fine(fmt.Sprintf("%s holds it and answers, epoch %d", holder, st.Holder.Epoch))
	}
	why := "it has no socket"
	if p.daemonErr != nil {
		why = p.daemonErr.Error()
	}
	if errors.Is(p.daemonErr, fs.ErrPermission) {
		return failed(fmt.Sprintf("%s holds it, and this user may not ask it: %s", holder, why), p.asOwner(p.cfg.Home))
	}
	if rep.Holder == nil || rep.Holder.PID == 0 {
		return failed(fmt.Sprintf("%s holds it and does not answer: %s", holder, why), "approvald lease"+p.gateFlags())
	}
	return failed(fmt.Sprintf("%s holds it and does not answer: %s; it may be stopped, or on its way in or out", holder, why),
		fmt.Sprintf("kill -CONT %d", rep.Holder.PID))
}

// lookAtPollers looks for whoever else takes the bot's updates. It asks Telegram for none: that would take the poll from
// under a daemon. Who polls elsewhere shows in what the daemon says.
func lookAtPollers(ctx context.Context, p *patient) verdict {
	st := p.daemon(ctx)
	if held := lease.InspectBot(p.botID, p.cfg.Telegram.APIBase); held != nil && !p.isHome(held.Gate) {
		repair := "approvald lease"
		if held.PID != 0 {
			repair = fmt.Sprintf("kill -TERM %d", held.PID)
		}
		return failed(lease.CodeBotOwned+": "+held.Error(), repair)
	}
	if st == nil {
		return fine("no other gate of this machine has the bot; who polls elsewhere shows only while the daemon runs")
	}
	for _, t := range st.Troubles {
		if t.Code == gateapi.TroubleConflict {
			return failed(t.Code+": "+t.Text, "in Telegram: get a new token with /revoke at @BotFather, put it in place with "+p.writeToken()+" and restart the daemon")
		}
	}
	return fine("none: the daemon has the bot for itself")
}

func (p *patient) isHome(path string) bool {
	if path == "" {
		return p.status != nil
	}
	home, err := lease.ResolveHome(p.cfg.Home)
	return err == nil && home == path
}

func lookAtLog(ctx context.Context, p *patient) verdict {
	paths := p.cfg.Paths()
	verify := "approvald log verify" + p.gateFlags()
	rep, err := approvallog.VerifyAll(ctx, paths.Log, paths.Journal, approvallog.VerifyOptions{})
	switch {
	case ctx.Err() != nil:
		return moot("it is too large to be verified here; that is done with: " + verify)
	case errors.Is(err, fs.ErrNotExist):
		return p.missingLog(paths.Log)
	case errors.Is(err, fs.ErrPermission):
		return failed(err.Error(), p.asOwner(paths.Log))
	case err != nil:
		return failed(err.Error(), verify)
	case rep.Status == approvallog.StatusTorn:
		return failed(fmt.Sprintf("%v; nothing is lost by it: the next append, whichever it is, moves the torn bytes to quarantine and goes on", rep.Err()),
			`approvald request --class test.append --summary "mends the end of the log" --ttl 1s`+p.gateFlags())
	case rep.Status != approvallog.StatusClean:
		return damaged(rep.Err(), paths)
	}
	archived := ""
	if len(rep.Archive) > 0 {
		archived = ", and " + count(len(rep.Archive), "archived segment")
	}
	return fine(fmt.Sprintf("clean, %s%s", count(int(rep.Records), "record"), archived))
}

// damaged is the verdict on a corrupt log: no command repairs one. What comes first is to keep it as it is.
func damaged(err error, paths gate.Paths) verdict {
	return failed(fmt.Sprintf("%v; the gate is read-only until it is put right, docs/recovery.md says how", err),
		"cp -a "+quote(paths.Home)+" "+quote(paths.Home+".evidence"))
}

// missingLog tells a gate that was never used from one that has lost its log.
func (p *patient) missingLog(path string) verdict {
	log, err := approvallog.Open(approvallog.Options{Path: path})
	if err != nil {
		return damaged(err, p.cfg.Paths())
	}
	if err := log.Close(); err != nil {
		return failed(err.Error(), "ls -l "+quote(path))
	}
	return fine("there is none yet; the gate's first request makes it")
}

func lookAtJournal(_ context.Context, p *patient) verdict {
	deliveries := dispatch.NewDeliveries()
	paths := p.cfg.Paths()
	journal, err := paths.OpenJournal(approvallog.Options{Fold: deliveries})
	if err != nil {
		what, repair := err.Error(), ""
		if errors.Is(err, fs.ErrPermission) {
			return failed(what, p.asOwner(paths.Journal))
		}
		if e, ok := errors.AsType[*gate.Error](err); ok && e.Code == gate.CodeLogCorrupt {
			what += "; " + e.Hint
			repair = "mv " + quote(paths.Journal) + " " + quote(paths.Journal+".damaged")
		}
		if repair == "" {
			repair = "ls -l " + quote(paths.Journal)
		}
		return failed(what, repair)
	}
	// Nothing was written through it.
	defer func() { _ = journal.Close() }()
	if journal.Last() == 0 {
		return fine("there is none yet; the daemon makes it")
	}
	return fine(fmt.Sprintf("sound, %s, epoch %d", count(int(journal.Last()), "record"), deliveries.Epoch()))
}

// lookAtDaemon goes by what the daemon says of itself: what it suffers from, and which configuration it goes by.
func lookAtDaemon(ctx context.Context, p *patient) verdict {
	st := p.daemon(ctx)
	if st == nil {
		return moot("none answers: see lease")
	}
	if len(st.Troubles) > 0 {
		t := st.Troubles[0]
		return failed(fmt.Sprintf("%s: %s, since %s", t.Code, t.Text, t.Since.UTC().Format(timeLayout)), "approvald status"+p.gateFlags())
	}
	c, pid := st.Config, st.Holder.PID
	switch {
	case c == nil:
	case c.Error != "":
		return failed("it could not read the configuration again, and goes by an older text: "+strings.ReplaceAll(c.Error, "\n", "; "), edit(p.cfg.File, 0))
	case len(c.NeedsRestart) > 0:
		return failed("it goes by an older configuration until it is restarted, for "+strings.Join(c.NeedsRestart, ", "), p.restart(ctx, pid))
	case c.SHA256 != p.cfg.Hash:
		return failed("it goes by an older text of the configuration, or another file of it", p.reload(ctx, pid))
	}
	health := ""
	if st.Transport.LastSuccess != nil {
		health = ", and heard from Telegram last at " + st.Transport.LastSuccess.UTC().Format(timeLayout)
	}
	return fine(fmt.Sprintf("no trouble, %s pending%s", count(st.Pending, "request"), health))
}

// timeLayout is how times are written for people.
const timeLayout = "2006-01-02 15:04:05Z"

// lookAtProxy posts to the webhook's public address as Telegram does, with a secret that is none: the gate's own
// belongs to Telegram alone, and who answers there is not known yet. The daemon says 401 to it, and which header it missed.
func lookAtProxy(ctx context.Context, p *patient) verdict {
	if p.daemon(ctx) == nil {
		return moot("no daemon listens: see lease")
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	// Without a body: the daemon answers before it reads one, and a proxy that is still writing it would report that as its own failure.
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.cfg.Transport.Webhook.URL, http.NoBody)
	if err != nil {
		return failed("the webhook's address is not one: "+err.Error(), edit(p.cfg.File, 0))
	}
	r.Header.Set(transport.SecretHeader, "doctor-"+rand.Text())
	try := p.curl("url", p.cfg.Transport.Webhook.URL, "-sv -o /dev/null -X POST")
	answer, err := p.o.Proxy.RoundTrip(r)
	if err != nil {
		return failed("the public address does not lead to the daemon: "+err.Error(), try)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 64<<10)) // what it says is nobody's
	_ = answer.Body.Close()
	const routes = `sudo nginx -T 2>/dev/null | grep -nE 'server_name|location|proxy_pass|proxy_set_header' || cat /etc/caddy/Caddyfile`
	said := answer.Header.Get("WWW-Authenticate")
	switch code := answer.StatusCode; {
	case code == http.StatusUnauthorized && said == transport.SecretWrong:
		return fine("the public address leads to a daemon that serves this path, and the secret's header arrives")
	case code == http.StatusUnauthorized && said == transport.SecretMissing:
		return failed("the proxy takes the header "+transport.SecretHeader+" off: the daemon refuses all that Telegram posts", routes)
	case code == http.StatusUnauthorized:
		return failed("something before the daemon wants a password (401), which Telegram does not have", routes)
	case code == http.StatusNotFound:
		return failed("nobody knows the path there (404): the proxy strips or changes it, or passes it elsewhere", routes)
	case code >= 300 && code < 400:
		return failed(fmt.Sprintf("the public address redirects (%d), which Telegram does not follow", code), routes)
	case code == http.StatusBadGateway, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		return failed(fmt.Sprintf("the proxy does not reach the daemon (%d)", code), "systemctl status approvald-webhook@"+p.o.Gate+".socket")
	default:
		return failed(fmt.Sprintf("something else than the daemon answers there (%d)", code), try)
	}
}

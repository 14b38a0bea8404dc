package cli

import (
	"context"
	"errors"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gateapi"
)

// When a waiting program looks whether its request has reached anybody. What
// keeps it from that is told within ten seconds.
const (
	firstLook = 2 * time.Second
	nextLooks = 5 * time.Second
)

// patience is how long a request may wait for its turn, with nothing wrong, before
// that is told.
const patience = 8 * time.Second

// waited is how a wait ended, as --json prints it: the request, and what kept
// people from being asked or heard when it was looked last; never null.
type waited struct {
	approvallog.Request
	Troubles []gateapi.Trouble `json:"troubles"`
}

// deliveryWatch tells the person who waits for a request when it cannot be shown
// to anybody, or nobody can answer, and why. Only the daemon knows that; that
// none answers is told as well.
type deliveryWatch struct {
	ui      *ui
	key     string
	clients []*gateapi.Client
	told    []gateapi.Trouble
	cancel  context.CancelFunc
	done    chan struct{}
}

// watchDelivery begins to look, until stop is called.
func (e *env) watchDelivery(ctx context.Context, key string) *deliveryWatch {
	clients, err := e.clients(e.loadConfig())
	if err != nil {
		clients = nil // the wait itself reports that
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &deliveryWatch{ui: e.ui, key: key, clients: clients, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for pause := firstLook; ; pause = nextLooks {
			timer := time.NewTimer(pause)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
			}
			w.look(ctx, oneLook)
		}
	}()
	return w
}

// lastLook bounds the look at the end of a wait that had no answer.
const lastLook = time.Second

// oneLook is how long a daemon has to answer: one that is stopped takes calls and
// never does. With nextLooks it stays below the ten seconds.
const oneLook = 3 * time.Second

// stop ends the watch and answers what was wrong when it looked last; that is
// now, when the wait ended without an answer.
func (w *deliveryWatch) stop(ctx context.Context, answered bool) []gateapi.Trouble {
	w.cancel()
	<-w.done
	if !answered {
		w.look(ctx, lastLook)
	}
	for _, c := range w.clients {
		c.Close()
	}
	return w.told
}

// look asks the daemon once, for at most limit, and tells what has changed.
func (w *deliveryWatch) look(ctx context.Context, limit time.Duration) {
	brief, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	nobody := true // no daemon is there at all
	for _, c := range w.clients {
		st, err := c.Status(brief)
		if err != nil {
			u, ok := errors.AsType[*gateapi.UnreachableError](err)
			nobody = nobody && ok && u.NobodyThere()
			continue
		}
		now := troublesOf(st, w.key)
		if gone, was := troubleOf(w.told, gateapi.TroubleNoDaemon); was {
			w.ui.say("%s: the daemon answers again; none did since %s", w.key, stamp(gone.Since))
			w.told = nil
		}
		for _, t := range now {
			if before, known := troubleOf(w.told, t.Code); known && (before.Text == t.Text || t.Code != gateapi.TroubleUndelivered) {
				continue
			}
			if t.Code == gateapi.TroubleUndelivered {
				w.ui.say("%s: %s", w.key, t.Text)
			} else {
				w.ui.say("%s: nobody may be able to answer (%s): %s", w.key, t.Code, t.Text)
			}
		}
		for _, t := range w.told {
			if _, still := troubleOf(now, t.Code); still {
				continue
			}
			if t.Code == gateapi.TroubleUndelivered {
				w.ui.say("%s: delivered now", w.key)
			} else {
				w.ui.say("%s: over: %s", w.key, t.Code)
			}
		}
		w.told = now
		return
	}
	if ctx.Err() == nil && len(w.clients) > 0 {
		w.alone(nobody)
	}
}

// alone tells once that no daemon answers. What the last one said of the request
// holds no more.
func (w *deliveryWatch) alone(nobody bool) {
	text := "the daemon does not answer on its socket"
	if nobody {
		text = "no daemon serves the gate"
	}
	t, known := troubleOf(w.told, gateapi.TroubleNoDaemon)
	if !known {
		t.Code, t.Since = gateapi.TroubleNoDaemon, time.Now().UTC()
	}
	if t.Text != text {
		t.Text = text
		w.ui.say("%s: %s, noticed at %s; the request waits until a daemon serves it", w.key, text, stamp(t.Since))
	}
	w.told = []gateapi.Trouble{t}
}

// troublesOf are the troubles of a gate that concern one request: that others
// are not delivered is not its asker's affair.
func troublesOf(st gateapi.Status, key string) []gateapi.Trouble {
	var list []gateapi.Trouble
	for _, u := range st.Undelivered {
		if u.Key == key && (!u.Waiting || time.Since(u.Since) > patience) {
			list = append(list, gateapi.Trouble{Code: gateapi.TroubleUndelivered, Text: u.Text(), Since: u.Since})
		}
	}
	for _, t := range st.Troubles {
		if t.Code != gateapi.TroubleUndelivered {
			list = append(list, t)
		}
	}
	return list
}

func troubleOf(list []gateapi.Trouble, code string) (gateapi.Trouble, bool) {
	for _, t := range list {
		if t.Code == code {
			return t, true
		}
	}
	return gateapi.Trouble{}, false
}

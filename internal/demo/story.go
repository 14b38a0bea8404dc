package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/approvald/approvald/internal/stage"
	"github.com/approvald/approvald/internal/telegramtest"
)

// Exit codes of the program that the story relies on; the README lists them all.
const (
	exitGranted  = 0
	exitRejected = 3
	exitExpired  = 4
	exitHeld     = 10
)

// The buttons of a card.
const (
	buttonApprove = "Approve"
	buttonReject  = "Reject"
)

const chapters = 6

// request is one scene's request. want is the button that the story would like, "" to leave the card alone.
type request struct {
	key, class, summary string
	payload, text       string // file name and content
	more                []string
	want                string
}

func (r request) args() []string {
	args := []string{"request", r.key, "--class", r.class, "--summary", r.summary, "--payload", r.payload, "--as", "ci"}
	return append(append(args, r.more...), "--wait")
}

var (
	deploy = request{
		key: "deploy:api#41", class: "deploy.production", summary: "restart after config change",
		payload: "deploy.json", text: `{"kind":"command","argv":["kubectl","-n","prod","rollout","restart","deploy/api"],"cwd":"/srv/api"}`,
		want: buttonApprove,
	}
	purge = request{
		key: "db:purge-2019", class: "data.delete", summary: "free some space",
		payload: "purge.sql", text: "DELETE FROM customers WHERE last_login < '2019-01-01';\n", more: []string{"--irreversible"},
		want: buttonReject,
	}
	mail = request{
		key: "mail:newsletter-12", class: "mail.send", summary: "newsletter to 48,000 people",
		payload: "mail.txt", text: "Subject: News in December\n\nDear readers, ...\n", more: []string{"--ttl", "2s"},
	}
	release = request{
		key: "release:v2.4.0", class: "release.publish", summary: "publish the release",
		payload: "release.json", text: `{"kind":"command","argv":["gh","release","create","v2.4.0"],"cwd":"/srv/api"}`,
		want: buttonApprove,
	}
)

// tell plays the chapters. Each returns what did not hold.
func tell(ctx context.Context, w *world, h hand) error {
	s := w.screen
	s.say("approvald puts a person in front of an agent's risky action. What you see is the real thing: the real daemon and the real "+
		"commands as processes of their own, on a gate in %s. Only Telegram is played by a Bot API server on %s; nothing leaves this machine.",
		w.Dir, w.Telegram.URL())
	if h.numbered() {
		s.say("You hold Alice's phone: tap a button by its number. q leaves.")
	}
	for _, chapter := range []func(context.Context, *world, hand) error{
		openTheGate, askAndGetAYes, askAndGetANo, askAndGetSilence, survive, refuseASecond,
	} {
		if err := chapter(ctx, w, h); err != nil {
			return err
		}
	}
	return showTheRecord(ctx, w)
}

func openTheGate(ctx context.Context, w *world, _ hand) error {
	w.screen.chapter(1, chapters, "A gate opens")
	w.screen.say("One daemon serves the gate. It takes the gate's lease, verifies the log and asks Telegram who the bot is.")
	w.screen.command("up")
	took, err := w.startDaemon(ctx)
	if err != nil {
		return err
	}
	w.screen.note("the daemon is up as process %d, %s after it was started", w.daemon.PID(), round(took))
	return nil
}

func askAndGetAYes(ctx context.Context, w *world, h hand) error {
	w.screen.chapter(2, chapters, "An agent asks, a person agrees")
	w.screen.say("An agent is about to restart production. It asks first, and waits. The phone shows the exact command that was bound, computed " +
		"by approvald; what the agent says about it stands last and is labelled as unchecked.")
	return scene(ctx, w, h, deploy)
}

func askAndGetANo(ctx context.Context, w *world, h hand) error {
	w.screen.chapter(3, chapters, "A person says no")
	w.screen.say("This one cannot be undone, and the card says so.")
	return scene(ctx, w, h, purge)
}

func askAndGetSilence(ctx context.Context, w *world, h hand) error {
	w.screen.chapter(4, chapters, "Nobody answers")
	r := mail
	if h.numbered() {
		r.more = []string{"--ttl", "15s"}
		w.screen.say("Leave this one alone for 15 seconds and see that silence is not a yes. You may also tap.")
	} else {
		w.screen.say("Alice does not look at her phone. Silence is never a decision: after its two seconds the request expires.")
	}
	return scene(ctx, w, h, r)
}

// scene files a request, lets the hand answer it and checks that phone and waiting program agree with what was tapped.
func scene(ctx context.Context, w *world, h hand, r request) error {
	waiter, card, err := w.file(ctx, r)
	if err != nil {
		return err
	}
	return w.answer(ctx, h, r, waiter, card)
}

// file starts a program that asks and waits, and returns it with the card that reached the phone.
func (w *world) file(ctx context.Context, r request) (*stage.Process, telegramtest.Message, error) {
	if err := w.Write(r.payload, r.text); err != nil {
		return nil, telegramtest.Message{}, err
	}
	args := r.args()
	w.screen.command(args...)
	waiter, err := w.Start(w.screen, args...)
	if err != nil {
		return nil, telegramtest.Message{}, err
	}
	card, err := w.awaitCard(ctx, r.key)
	return waiter, card, err
}

// answer lets the hand act on a card until the program that waits for it ends, and checks its exit code.
func (w *world) answer(ctx context.Context, h hand, r request, waiter *stage.Process, card telegramtest.Message) error {
	w.screen.show("Alice", card, h.numbered())
	tapped, at, err := w.taps(ctx, h, r, card)
	if err != nil {
		return err
	}
	exitCtx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	code, err := waiter.Exit(exitCtx)
	if err != nil {
		return err
	}
	settled, err := w.awaitSettled(ctx, card)
	if err != nil {
		return err
	}
	w.screen.show("Alice", settled, false)
	switch {
	case code == exitGranted && tapped == buttonApprove:
		w.screen.note("exit code 0: granted. The waiting program went on %s after the tap, the decision was on disk before.", round(waiter.Ended().Sub(at)))
	case code == exitRejected && strings.HasPrefix(tapped, buttonReject):
		w.screen.note("exit code 3: rejected. `set -e` and `cmd && next` stop here.")
	case code == exitExpired && tapped == "":
		w.screen.note("exit code 4: expired, and the card lost its buttons.")
	case tapped == "":
		return fmt.Errorf("nobody answered %s and its program ended with exit code %d, want %d", r.key, code, exitExpired)
	default:
		return fmt.Errorf("%q was tapped for %s and its program ended with exit code %d", tapped, r.key, code)
	}
	return nil
}

// taps lets the hand tap, several times where a button opens more buttons, until the card is closed. It returns the last button and
// when it was tapped; "" when the card was closed by nobody's tap.
func (w *world) taps(ctx context.Context, h hand, r request, card telegramtest.Message) (tapped string, at time.Time, err error) {
	want := r.want
	for {
		open, next := w.whileOpen(ctx, card)
		labels := labelsOf(card)
		choice, err := h.choose(open, labels, want)
		if err == nil {
			tapped, at = labels[choice], time.Now()
			err = w.tap(open, card, tapped)
		}
		changed, ok := next()
		switch {
		case errors.Is(err, ErrQuit):
			return "", at, err
		case !ok && ctx.Err() != nil:
			return "", at, context.Cause(ctx)
		case !ok:
			return "", at, err
		case len(changed.Buttons) == 0:
			return tapped, at, nil
		}
		card, want = changed, ""
		w.screen.show("Alice", card, h.numbered())
	}
}

func labelsOf(card telegramtest.Message) []string {
	var labels []string
	for _, row := range card.Buttons {
		for _, button := range row {
			labels = append(labels, button.Text)
		}
	}
	return labels
}

// whileOpen returns a context that ends when the card changes, and a function that gives up waiting for that and returns the changed
// card, if it did change.
func (w *world) whileOpen(ctx context.Context, card telegramtest.Message) (open context.Context, next func() (telegramtest.Message, bool)) {
	open, cancel := context.WithCancel(ctx)
	var changed telegramtest.Message
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		changed, err = w.Telegram.WaitMessage(open, aliceID, func(m telegramtest.Message) bool { return m.ID == card.ID && m.Edits != card.Edits })
	}()
	return open, func() (telegramtest.Message, bool) {
		cancel()
		<-done
		return changed, err == nil
	}
}

// tap presses a button, tells what the phone shows in answer, and waits for the change of the card that follows a tap.
func (w *world) tap(ctx context.Context, card telegramtest.Message, button string) error {
	w.screen.say("Alice taps %s.", button)
	tap, err := w.alice.TapMessage(card, button)
	if err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	<-limit.Done()
	if ctx.Err() == nil {
		return fmt.Errorf("the card did not change after %q was tapped", button)
	}
	if answer, answered := tap.Answer(); answered && answer.Text != "" {
		w.screen.line("      " + w.screen.style(styleDim, "Telegram says: "+answer.Text))
	}
	return nil
}

func survive(ctx context.Context, w *world, h hand) error {
	w.screen.chapter(5, chapters, "The daemon is killed")
	w.screen.say("A request is on the phone when the daemon dies the hard way.")
	waiter, card, err := w.file(ctx, release)
	if err != nil {
		return err
	}
	w.screen.show("Alice", card, false)
	if err := w.awaitNoted(ctx); err != nil {
		return err
	}
	w.screen.line("  " + w.screen.style(styleCyan, fmt.Sprintf("$ kill -9 %d", w.daemon.PID())))
	if err := w.daemon.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-w.daemon.Done()
	if !waiter.Running() {
		return fmt.Errorf("the program that waits for %s did not survive the daemon", release.key)
	}
	w.screen.note("the program that asked still waits; nothing was decided")
	w.screen.command("up")
	took, err := w.startDaemon(ctx)
	if err != nil {
		return err
	}
	if n := len(w.cards(release.key)); n != 1 {
		return fmt.Errorf("after the restart %d messages on the phone are about %s, want the one of before", n, release.key)
	}
	w.screen.note("up again as process %d after %s: the lease was free at once, and the card was not sent a second time", w.daemon.PID(), round(took))
	w.screen.say("The card of before the crash still works.")
	return w.answer(ctx, h, release, waiter, card)
}

func refuseASecond(ctx context.Context, w *world, _ hand) error {
	w.screen.chapter(6, chapters, "Two daemons on one gate")
	w.screen.say("Each would put every request on the phone under its own button, and only one of them could resolve a tap. So a second one is refused " +
		"before it does anything.")
	before := len(w.Telegram.Calls("getMe"))
	w.screen.command("up")
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	_, code, err := w.Run(ctx, w.screen, "up")
	if err != nil {
		return err
	}
	if code != exitHeld {
		return fmt.Errorf("a second daemon ended with exit code %d, want %d", code, exitHeld)
	}
	if n := len(w.Telegram.Calls("getMe")) - before; n != 0 {
		return fmt.Errorf("a second daemon called Telegram %d times before it was refused", n)
	}
	if !w.daemon.Running() {
		return fmt.Errorf("the second daemon took the first one down")
	}
	w.screen.note("exit code 10, without a call to Telegram; the first daemon goes on")
	return nil
}

// showTheRecord stops the daemon and ends with what can be proved.
func showTheRecord(ctx context.Context, w *world) error {
	s := w.screen
	s.line("")
	s.line(s.style(styleBold, "── What is on record ") + s.style(styleDim, strings.Repeat("─", max(3, s.width-21))))
	code, took, err := w.stopDaemon(ctx)
	if err != nil {
		return err
	}
	if code != 0 {
		return fmt.Errorf("the daemon stopped with exit code %d", code)
	}
	s.note("the daemon stopped in order within %s", round(took))
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	for _, args := range [][]string{{"log", "tail", "-n", "100"}, {"log", "verify"}} {
		s.command(args...)
		_, code, err := w.Run(ctx, s, args...)
		if err != nil {
			return err
		}
		if code != 0 {
			return fmt.Errorf("approvald %s ended with exit code %d", strings.Join(args, " "), code)
		}
	}
	s.line("")
	s.say("Every line carries the hash of the one before it: whoever changes, drops or inserts one is found out. Next: `approvald init` for a gate of your own.")
	return nil
}

// round shows a time as a person would say it.
func round(d time.Duration) string {
	if d < 10*time.Millisecond {
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

package pairing

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
	"github.com/approvald/approvald/internal/transport"
)

const (
	alice = 111
	bob   = 222
	group = -10077
)

// world is a Telegram with a client of the bot.
type world struct {
	t        *testing.T
	telegram *telegramtest.Server
	client   *transport.Client

	mu   sync.Mutex
	said []string
}

func newWorld(t *testing.T) *world { return newWorldWith(t, telegramtest.Options{}) }

func newWorldWith(t *testing.T, o telegramtest.Options) *world {
	t.Helper()
	w := &world{t: t, telegram: telegramtest.RunT(t, o)}
	w.telegram.AddUser(telegramtest.User{ID: alice, FirstName: "Alice", Username: "alice"})
	w.telegram.AddUser(telegramtest.User{ID: bob, FirstName: "Bob"})
	w.telegram.AddChat(telegramtest.Chat{ID: group, Type: telegramtest.Group, Title: "Ops", Members: []telegramtest.Member{
		{User: alice, Status: telegramtest.Administrator}, {User: bob, Status: telegramtest.Ordinary},
	}})
	client, err := transport.New(transport.Options{Token: transport.NewSecret(w.telegram.Token()), APIBase: w.telegram.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	w.client = client
	return w
}

func (w *world) bot() string { return w.telegram.Bot().Username }

func (w *world) told(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, text)
}

func (w *world) writes(user int64, text string) {
	w.t.Helper()
	if _, err := w.telegram.Phone(user).Text(text); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) listen() *Listener {
	w.t.Helper()
	l, err := Listen(w.t.Context(), w.client, w.bot(), time.Now)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// pending are the updates that wait for the daemon.
func (w *world) pending() []transport.Update {
	w.t.Helper()
	raw, err := w.client.Peek(w.t.Context(), false)
	if err != nil {
		w.t.Fatal(err)
	}
	var updates []transport.Update
	for _, r := range raw {
		u, err := transport.DecodeUpdate(r, time.Now())
		if err != nil {
			w.t.Fatal(err)
		}
		updates = append(updates, u)
	}
	return updates
}

// Listening takes nothing away: a tap and a message that wait are there afterwards, for the daemon.
func TestListeningLeavesEverythingInTheQueue(t *testing.T) {
	w := newWorld(t)
	card, err := w.client.SendMessage(t.Context(), transport.SendMessage{
		ChatID: alice, Text: "a card", Keyboard: transport.Keyboard{{{Text: "Approve", Data: "x"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.telegram.Phone(alice).Tap("Approve"); err != nil {
		t.Fatal(err)
	}
	w.writes(bob, "/start OLDCODE") // of an earlier pairing: nobody could know this one yet
	l := w.listen()
	o, code := New(time.Now(), Life)
	w.writes(alice, "/start "+string(code))
	claim, err := l.Await(t.Context(), o, w.told)
	if err != nil || claim.UserID != alice || claim.Name != "Alice" || claim.Username != "alice" || claim.ChatID != alice {
		t.Fatalf("claim %+v, %v", claim, err)
	}
	if o.Wrong != 0 {
		t.Errorf("%d wrong codes counted, and none was presented", o.Wrong)
	}
	got := w.pending()
	if len(got) != 3 || got[0].Tap == nil || got[0].Tap.MessageID != card.ID || got[2].Message == nil {
		t.Errorf("%d updates wait, want the tap and both messages: %+v", len(got), got)
	}
	if all := w.telegram.Messages(alice); !strings.HasPrefix(all[len(all)-1].Text, "Seen. Confirm at the terminal") {
		t.Errorf("the person was answered %q", all[len(all)-1].Text)
	}
}

func TestAGroupIsBroughtInByAnAdministratorOnly(t *testing.T) {
	w := newWorld(t)
	for who, want := range map[int64]bool{alice: true, bob: false} {
		l := w.listen()
		o, code := New(time.Now(), Life)
		if _, err := w.telegram.Phone(who).TextIn(group, "/pair@"+w.bot()+" "+code.String()); err != nil {
			t.Fatal(err)
		}
		claim, err := l.Await(t.Context(), o, w.told)
		ended, refused := errors.AsType[*EndedError](err)
		switch {
		case want && (err != nil || claim.ChatID != group || claim.UserID != who || claim.ChatTitle != "Ops"):
			t.Errorf("an administrator: %+v, %v", claim, err)
		case !want && (!refused || !strings.Contains(ended.Why, "no administrator") || claim != (Claim{})):
			t.Errorf("an ordinary member: %+v, %v", claim, err)
		}
		if o.Open(time.Now()) {
			t.Errorf("the code that user %d presented is still good", who)
		}
	}
}

func TestAnAnonymousAdministratorIsNobody(t *testing.T) {
	w := newWorld(t)
	w.telegram.SetMember(group, telegramtest.Member{User: alice, Status: telegramtest.Administrator, Anonymous: true})
	l := w.listen()
	o, code := New(time.Now(), Life)
	if _, err := w.telegram.Phone(alice).TextIn(group, "/pair "+string(code)); err != nil {
		t.Fatal(err)
	}
	claim, err := l.Await(t.Context(), o, w.told)
	if _, ok := errors.AsType[*EndedError](err); !ok || !strings.Contains(err.Error(), "anonymous") {
		t.Errorf("%+v, %v", claim, err)
	}
}

// Guesses are told to the terminal one by one, and the fifth ends the offer. The clock runs ahead here, so that nobody waits.
func TestFiveGuessesEndTheOffer(t *testing.T) {
	w := newWorld(t)
	clock := time.Now()
	l := w.listen()
	l.now = func() time.Time { clock = clock.Add(5 * time.Second); return clock }
	o, code := New(clock, Life)
	for i := range MaxWrong {
		w.writes(bob, fmt.Sprintf("/start GUESS%d", i))
	}
	w.writes(alice, "/start "+string(code)) // too late
	_, err := l.Await(t.Context(), o, w.told)
	if _, ok := errors.AsType[*EndedError](err); !ok || o.Ended != EndWrong || len(w.said) != MaxWrong {
		t.Errorf("%v, ended %q, told %q", err, o.Ended, w.said)
	}
}

func TestAnOfferExpiresUnheard(t *testing.T) {
	w := newWorld(t)
	l := w.listen()
	o, _ := New(time.Now(), time.Millisecond)
	if _, err := l.Await(t.Context(), o, w.told); !errors.Is(err, ErrExpired) {
		t.Errorf("%v, want that it expired", err)
	}
}

func TestWhereNobodyCanListenItIsSaid(t *testing.T) {
	w := newWorld(t)
	if err := w.client.SetWebhook(t.Context(), transport.SetWebhook{URL: "https://example.com/hook"}); err != nil {
		t.Fatal(err)
	}
	_, err := Listen(t.Context(), w.client, w.bot(), time.Now)
	if e, ok := errors.AsType[*transport.RegistrationError](err); !ok || e.Host != "example.com" {
		t.Errorf("with a webhook: %v", err)
	}
	if err := w.client.DeleteWebhook(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range peekLimit {
		w.writes(bob, "hello")
	}
	if _, err := Listen(t.Context(), w.client, w.bot(), time.Now); !errors.Is(err, ErrBacklog) {
		t.Errorf("with a hundred updates: %v", err)
	}
}

// A program elsewhere that polls the bot is noticed as Telegram lets two pollers notice each other.
func TestAnotherPollerIsNoticed(t *testing.T) {
	w := newWorldWith(t, telegramtest.Options{AntiHammer: telegramtest.On, ConflictHold: time.Millisecond})
	l := w.listen()
	other, stop := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	defer beside.Wait()
	defer stop()
	beside.Go(func() {
		for other.Err() == nil {
			_, _ = w.client.GetUpdates(other, transport.GetUpdates{Timeout: 25 * time.Second}) // it too is thrown out now and then
		}
	})
	o, _ := New(time.Now(), Life)
	if _, err := l.Await(t.Context(), o, w.told); transport.ClassOf(err) != transport.ClassConflict {
		t.Errorf("%v, want a conflict", err)
	}
}

// A network that comes and goes is told once, and waited for.
func TestAnOfferOutlivesTheNetwork(t *testing.T) {
	w := newWorld(t)
	l := w.listen()
	w.telegram.Offline()
	o, code := New(time.Now(), Life)
	back := func(text string) {
		w.told(text)
		if err := w.telegram.Online(); err != nil {
			t.Error(err)
		}
		w.writes(alice, "/start "+string(code))
	}
	if claim, err := l.Await(t.Context(), o, back); err != nil || claim.UserID != alice || len(w.said) != 1 {
		t.Errorf("%+v, %v, told %q", claim, err, w.said)
	}
}

// A bot whose earlier program wanted no messages is told to send them.
func TestABotThatWasToldToSendNoMessagesIsHeard(t *testing.T) {
	w := newWorld(t)
	w.telegram.RememberAllowedUpdates(`["callback_query"]`)
	l := w.listen()
	o, code := New(time.Now(), Life)
	w.writes(alice, "/start "+string(code))
	if claim, err := l.Await(t.Context(), o, w.told); err != nil || claim.UserID != alice {
		t.Errorf("%+v, %v", claim, err)
	}
}

// desk is the daemon's side in a directory.
func (w *world) desk(dir string) *Desk {
	var beside sync.WaitGroup
	w.t.Cleanup(beside.Wait)
	return NewDesk(DeskOptions{
		DaemonDir: dir, Bot: w.bot(), Telegram: w.client, Now: time.Now, Log: w.told,
		Later: func(f func(context.Context)) { beside.Go(func() { f(context.WithoutCancel(w.t.Context())) }) },
	})
}

// asked starts the terminal's side and returns when its offer can be seen.
func (w *world) asked(dir string, o *Offer) (end func() (Claim, error)) {
	type result struct {
		claim Claim
		err   error
	}
	ended := make(chan result, 1)
	opened := make(chan struct{})
	go func() {
		c, err := Ask(w.t.Context(), dir, o, time.Now, func() { close(opened) }, w.told)
		ended <- result{c, err}
	}()
	<-opened
	return func() (Claim, error) { r := <-ended; return r.claim, r.err }
}

func say(user int64, text string) transport.Update {
	return transport.Update{ID: 1, Message: &transport.Message{
		ID: 1, Text: text, From: &transport.User{ID: user, FirstName: "Somebody"}, Chat: transport.Chat{ID: user, Type: "private"},
	}}
}

func TestTheDaemonListensForTheTerminal(t *testing.T) {
	w, dir := newWorld(t), t.TempDir()
	d := w.desk(dir)
	if d.Hear(say(alice, "/start SOMETHING")) {
		t.Error("without an offer a presentation is taken away from the daemon")
	}
	o, code := New(time.Now(), Life)
	sealed := *o
	end := w.asked(dir, o)
	info, err := os.Stat(slipPath(dir))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the offer's file: %v, %v", info.Mode(), err)
	}
	if text, _ := os.ReadFile(slipPath(dir)); strings.Contains(string(text), string(code)) || !strings.Contains(string(text), sealed.SHA256) {
		t.Errorf("the file holds %s, want the code's hash alone", text)
	}
	if d.Hear(say(alice, "hello")) || d.Hear(transport.Update{ID: 2}) {
		t.Error("what presents no code is taken away from the daemon")
	}
	if !d.Hear(say(alice, "/start "+string(code))) {
		t.Error("the presentation was not taken")
	}
	if d.Hear(say(bob, "/start "+string(code))) {
		t.Error("the code was taken twice")
	}
	if claim, err := end(); err != nil || claim.UserID != alice {
		t.Errorf("claim %+v, %v", claim, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

// Wrong codes count across a restart of the daemon, and the terminal hears of each.
func TestTheDaemonCountsGuesses(t *testing.T) {
	w, dir := newWorld(t), t.TempDir()
	o, _ := New(time.Now(), Life)
	clock := time.Now()
	end := w.asked(dir, o)
	for i := range MaxWrong {
		d := w.desk(dir) // a new daemon each time
		d.now = func() time.Time { return clock }
		if !d.Hear(say(bob, "/start GUESS")) {
			t.Fatalf("guess %d was not taken", i+1)
		}
		if i < MaxWrong-1 {
			if s, err := readSlip(slipPath(dir)); err != nil || s.Wrong != i+1 || s.Ended != "" {
				t.Fatalf("after guess %d the offer is %+v, %v", i+1, s, err)
			}
		}
		clock = clock.Add(time.Minute)
	}
	_, err := end()
	if e, ok := errors.AsType[*EndedError](err); !ok || !strings.Contains(e.Why, "5 wrong codes") {
		t.Errorf("%v, want that five wrong codes ended it", err)
	}
}

// Who presents the code while none is looked at is heard a moment later, and does not have to do it again.
func TestTheDaemonHearsLaterWhatCameTooSoon(t *testing.T) {
	w, dir := newWorld(t), t.TempDir()
	o, code := New(time.Now(), Life)
	end := w.asked(dir, o)
	d := w.desk(dir)
	d.Hear(say(bob, "/start GUESS"))
	if !d.Hear(say(alice, "/start "+string(code))) {
		t.Error("the presentation was not taken")
	}
	if claim, err := end(); err != nil || claim.UserID != alice {
		t.Errorf("claim %+v, %v", claim, err)
	}
}

func TestAFloodIsNotKept(t *testing.T) {
	w, dir := newWorld(t), t.TempDir()
	o, code := New(time.Now(), Life)
	end := w.asked(dir, o)
	d := w.desk(dir)
	real := d.later
	kept := 0
	d.later = func(func(context.Context)) { kept++ }
	for range 100 {
		d.Hear(say(bob, "/start GUESS"))
	}
	if kept != maxDeferred {
		t.Errorf("%d presentations are kept, want %d", kept, maxDeferred)
	}
	d.later, d.now = real, func() time.Time { return time.Now().Add(time.Minute) }
	d.Hear(say(alice, "/start "+string(code)))
	if claim, err := end(); err != nil || claim.UserID != alice {
		t.Errorf("claim %+v, %v", claim, err)
	}
}

// A second terminal's offer takes the place of the first's, which is told, and leaves the second's alone.
func TestTwoTerminals(t *testing.T) {
	w, dir := newWorld(t), t.TempDir()
	first, firstCode := New(time.Now(), Life)
	endFirst := w.asked(dir, first)
	second, code := New(time.Now(), Life)
	endSecond := w.asked(dir, second)
	if _, err := endFirst(); err == nil || !strings.Contains(err.Error(), "another terminal") {
		t.Errorf("the first terminal: %v", err)
	}
	d := w.desk(dir)
	d.Hear(say(bob, "/start "+string(firstCode)))
	d = w.desk(dir)
	d.now = func() time.Time { return time.Now().Add(time.Minute) }
	d.Hear(say(alice, "/start "+string(code)))
	if claim, err := endSecond(); err != nil || claim.UserID != alice {
		t.Errorf("the second terminal: %+v, %v", claim, err)
	}
}

// A terminal that is gone when the answer comes finds nothing of it later.
func TestTheTerminalIsGone(t *testing.T) {
	w, dir := newWorld(t), t.TempDir()
	o, code := New(time.Now(), Life)
	if err := writeSlip(slipPath(dir), slip{Offer: *o}); err != nil {
		t.Fatal(err)
	}
	d := w.desk(dir)
	var rest func(context.Context)
	d.later = func(f func(context.Context)) { rest = f }
	d.Hear(say(alice, "/start "+string(code)))
	if err := os.Remove(slipPath(dir)); err != nil {
		t.Fatal(err)
	}
	rest(t.Context())
	if _, err := os.Lstat(slipPath(dir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file came back: %v", err)
	}
}

// Root and the daemon's user share the directory; a link in the file's place is not followed.
func TestALinkInTheFilesPlaceIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(`{"sha256":"x","why":"leaked"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, slipPath(dir)); err != nil {
		t.Fatal(err)
	}
	if s, err := readSlip(slipPath(dir)); err == nil {
		t.Errorf("read %+v through a link", s)
	}
	if err := writeSlip(slipPath(dir), slip{}); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(secret); !strings.Contains(string(text), "leaked") {
		t.Errorf("written through a link: %s", text)
	}
}

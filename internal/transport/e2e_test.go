package transport_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
	"github.com/approvald/approvald/internal/transport"
)

const (
	alice   = 111
	limit   = 10 * time.Second // for what should take milliseconds
	hookURL = "https://approve.example.com/telegram/prod"
)

// bot starts a Bot API server with one person on it, and a client of its bot.
func bot(t *testing.T, o telegramtest.Options) (*telegramtest.Server, *transport.Client) {
	t.Helper()
	o.ConflictHold = -1
	server := telegramtest.RunT(t, o)
	server.AddUser(telegramtest.User{ID: alice, FirstName: "Alice"})
	client, err := transport.New(transport.Options{Token: transport.NewSecret(server.Token()), APIBase: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return server, client
}

// feed is a handler that passes on what it got.
func feed() (transport.Handler, chan transport.Update) {
	updates := make(chan transport.Update, 100)
	return func(_ context.Context, u transport.Update) error {
		updates <- u
		return nil
	}, updates
}

func next(t *testing.T, updates <-chan transport.Update) transport.Update {
	t.Helper()
	select {
	case u := <-updates:
		return u
	case <-time.After(limit):
		t.Fatal("no update")
		return transport.Update{}
	}
}

type receiver interface {
	Run(context.Context, transport.Handler) error
	Ready() <-chan struct{}
}

// start runs r; the returned stop waits for its end.
func start(t *testing.T, r receiver, handle transport.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, handle) }()
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	select {
	case <-r.Ready():
	case <-time.After(limit):
		t.Fatal("not ready")
	}
	return stop
}

func poller(c *transport.Client) *transport.Poller {
	return transport.NewPoller(transport.PollOptions{Client: c, ConfirmOnStop: func() bool { return true }})
}

func card(t *testing.T, c *transport.Client, chat int64) transport.Message {
	t.Helper()
	m, err := c.SendMessage(t.Context(), transport.SendMessage{
		ChatID: chat, Text: "<b>deploy</b> &amp; go", ParseMode: "HTML", Keyboard: transport.Keyboard{{{Text: "Approve", Data: "yes"}, {Text: "Reject", Data: "no"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestATapFromCardToAnswer(t *testing.T) {
	server, client := bot(t, telegramtest.Options{})
	handle, updates := feed()
	stop := start(t, poller(client), handle)
	sent := card(t, client, alice)
	phone := server.Phone(alice)
	tap, err := phone.Tap("Approve")
	if err != nil {
		t.Fatal(err)
	}
	u := next(t, updates)
	if u.Tap == nil || u.Tap.Data != "yes" || u.Tap.From.ID != alice || u.Tap.ChatID != alice || u.Tap.MessageID != sent.ID || u.Tap.Inaccessible {
		t.Fatalf("update %+v, tap %+v", u, u.Tap)
	}
	if err := client.AnswerCallbackQuery(t.Context(), transport.AnswerCallbackQuery{ID: u.Tap.ID, Text: "noted", Alert: true}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if answer, err := tap.Wait(ctx); err != nil || answer.Text != "noted" || !answer.Alert {
		t.Errorf("the person saw %+v, %v", answer, err)
	}
	if err := client.AnswerCallbackQuery(t.Context(), transport.AnswerCallbackQuery{ID: u.Tap.ID}); transport.ClassOf(err) != transport.ClassTooOld {
		t.Errorf("a second answer: %v", err)
	}
	edit := transport.EditMessageText{ChatID: alice, MessageID: sent.ID, Text: "granted"}
	for range 2 { // the second changes nothing, and that is fine
		if err := client.EditMessageText(t.Context(), edit); err != nil {
			t.Fatal(err)
		}
	}
	if shown := phone.Messages()[0]; shown.Text != "granted" || len(shown.Buttons) != 0 {
		t.Errorf("the phone shows %+v", shown)
	}
	stop()
	// What was handled is confirmed: the next poller gets nothing of it.
	again := start(t, poller(client), handle)
	if _, err := phone.Text("hello"); err != nil {
		t.Fatal(err)
	}
	if u := next(t, updates); u.Message == nil || u.Message.Text != "hello" {
		t.Errorf("first after the restart: %+v", u)
	}
	again()
}

func TestTapsOfTheDowntimeAndAnInheritedFilter(t *testing.T) {
	server, client := bot(t, telegramtest.Options{})
	card(t, client, alice)
	if _, err := server.Phone(alice).Tap("Reject"); err != nil {
		t.Fatal(err)
	}
	handle, updates := feed()
	stop := start(t, poller(client), handle)
	if u := next(t, updates); u.Tap == nil || u.Tap.Data != "no" {
		t.Errorf("a tap made while nobody polled: %+v", u)
	}
	stop()
	server.RememberAllowedUpdates(`["message"]`)
	start(t, poller(client), handle)
	if _, err := server.Phone(alice).Tap("Approve"); err != nil {
		t.Fatal(err)
	}
	if u := next(t, updates); u.Tap == nil || u.Tap.Data != "yes" {
		t.Errorf("with a filter left by another program: %+v", u)
	}
	for _, c := range server.Calls() {
		if c.Args["drop_pending_updates"] != "" {
			t.Errorf("%s dropped pending updates", c.Method)
		}
	}
}

func TestSendWhoseAnswerIsLost(t *testing.T) {
	for name, do := range map[string]telegramtest.Action{
		"dropped": telegramtest.Drop(), "reset": telegramtest.Reset(), "cut short": telegramtest.CutShort(), "truncated": telegramtest.Truncate(),
		"502": telegramtest.HTML(502), "504": telegramtest.HTML(504), "empty": telegramtest.EmptyBody(200),
	} {
		t.Run(name, func(t *testing.T) {
			server, client := bot(t, telegramtest.Options{})
			server.Fault(telegramtest.Fault{Method: "sendMessage", After: true, Do: do})
			_, err := client.SendMessage(t.Context(), transport.SendMessage{ChatID: alice, Text: "x"})
			if transport.ClassOf(err) != transport.ClassUnknownOutcome {
				t.Errorf("%v (%s)", err, transport.ClassOf(err))
			}
			if n := len(server.Phone(alice).Messages()); n != 1 {
				t.Errorf("%d messages on the phone; net/http must not have repeated the send", n)
			}
		})
	}
}

func TestRefusalsHaveTheirClass(t *testing.T) {
	server, client := bot(t, telegramtest.Options{})
	ctx := t.Context()
	group := server.AddChat(telegramtest.Chat{ID: -5, Type: telegramtest.Group, Members: telegramtest.Members(alice)})
	forum := server.AddChat(telegramtest.Chat{ID: -1001, Type: telegramtest.Supergroup, IsForum: true, Members: telegramtest.Members(alice)})
	topic := server.CreateTopic(forum, "approvals")
	send := func(chat, thread int64) error {
		_, err := client.SendMessage(ctx, transport.SendMessage{ChatID: chat, ThreadID: thread, Text: "x"})
		return err
	}
	if err := send(forum, topic); err != nil {
		t.Fatal(err)
	}
	server.DeleteTopic(forum, topic)
	gone := card(t, client, alice)
	server.Phone(alice).Delete(server.Phone(alice).Messages()[0])
	moved := server.MigrateGroup(group)
	for name, tc := range map[string]struct {
		err  error
		want transport.Class
	}{
		"unknown chat":  {send(12345, 0), transport.ClassChatNotFound},
		"deleted topic": {send(forum, topic), transport.ClassThreadNotFound},
		"migrated":      {send(group, 0), transport.ClassMigrated},
		"deleted card":  {client.EditMessageText(ctx, transport.EditMessageText{ChatID: alice, MessageID: gone.ID, Text: "y"}), transport.ClassGone},
		"deleted, too":  {client.EditMessageReplyMarkup(ctx, transport.EditMessageReplyMarkup{ChatID: alice, MessageID: gone.ID}), transport.ClassGone},
		"unknown query": {client.AnswerCallbackQuery(ctx, transport.AnswerCallbackQuery{ID: "1"}), transport.ClassTooOld},
	} {
		if got := transport.ClassOf(tc.err); got != tc.want {
			t.Errorf("%s: class %q, want %q: %v", name, got, tc.want, tc.err)
		}
		if e, ok := errors.AsType[*transport.Error](tc.err); name == "migrated" && (!ok || e.MigrateTo != moved) {
			t.Errorf("migrated to %+v, want %d", e, moved)
		}
	}
	server.Phone(alice).Block()
	if err := send(alice, 0); transport.ClassOf(err) != transport.ClassForbidden {
		t.Errorf("blocked: %v", err)
	}
	server.Revoke("")
	if _, err := client.GetMe(ctx); transport.ClassOf(err) != transport.ClassToken {
		t.Errorf("revoked: %v", err)
	}
}

func TestUploadArrivesWhole(t *testing.T) {
	server, client := bot(t, telegramtest.Options{})
	data := []byte(strings.Repeat("payload\n", 1<<17))
	server.Fault(telegramtest.Fault{Method: "sendDocument", Do: telegramtest.Limited(time.Second)})
	doc := transport.SendDocument{ChatID: alice, FileName: "dir/payload.json", Data: data, Caption: "c"}
	_, err := client.SendDocument(t.Context(), doc)
	if e, ok := errors.AsType[*transport.Error](err); !ok || e.Class != transport.ClassLimited || e.RetryAfter != time.Second {
		t.Fatalf("%v", err)
	}
	if _, err := client.SendDocument(t.Context(), doc); err != nil {
		t.Fatal(err)
	}
	calls := server.Calls("sendDocument")
	for i, c := range calls {
		if len(c.Files) != 1 {
			t.Fatalf("attempt %d: %d files", i, len(c.Files))
		}
		if f := c.Files[0]; f.Name != "payload.json" || !slices.Equal(f.Data, data) {
			t.Errorf("attempt %d: %q with %d bytes", i, f.Name, len(f.Data))
		}
	}
}

func TestTheOlderOfTwoPollersIsTold(t *testing.T) {
	server, client := bot(t, telegramtest.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	poll := func(ctx context.Context) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := client.GetUpdates(ctx, transport.GetUpdates{Timeout: 25 * time.Second})
			done <- err
		}()
		return done
	}
	older := poll(ctx)
	if err := server.WaitPolling(ctx); err != nil {
		t.Fatal(err)
	}
	newerCtx, stop := context.WithCancel(ctx)
	newer := poll(newerCtx)
	if err := <-older; transport.ClassOf(err) != transport.ClassConflict {
		t.Errorf("the older poll: %v", err)
	}
	stop()
	if err := <-newer; !errors.Is(err, context.Canceled) {
		t.Errorf("the newer poll: %v", err)
	}
}

// The same taps come by webhook and by polling, and none is lost or doubled when
// the mode changes.
func TestModesGiveTheSameAndSwitchWithoutLoss(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, client := bot(t, telegramtest.Options{Webhook: telegramtest.WebhookOptions{Transport: telegramtest.RouteTo("http://" + listener.Addr().String())}})
	secret := transport.NewSecret("Secret_1")
	hook, err := transport.NewWebhook(transport.WebhookOptions{Client: client, URL: hookURL, Listener: listener, Secret: secret, RemoveOnStop: func() bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	handle, updates := feed()
	stop := start(t, hook, handle)
	card(t, client, alice)
	phone := server.Phone(alice)
	if _, err := phone.Tap("Approve"); err != nil {
		t.Fatal(err)
	}
	byHook := next(t, updates)
	if byHook.Tap == nil || byHook.Tap.Data != "yes" {
		t.Fatalf("by webhook: %+v", byHook)
	}
	if _, err := client.GetUpdates(t.Context(), transport.GetUpdates{}); transport.ClassOf(err) != transport.ClassWebhookActive {
		t.Errorf("polling beside a webhook: %v", err)
	}
	// A delivery whose 200 has not arrived when the webhook goes comes again.
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := server.WaitFor(ctx, func(s telegramtest.State) bool { return s.Pending() == 0 }); err != nil {
		t.Fatal(err)
	}
	stop()
	if info, err := client.GetWebhookInfo(t.Context()); err != nil || info.URL != "" {
		t.Errorf("after the stop: %+v, %v", info, err)
	}
	if _, err := phone.Tap("Reject"); err != nil {
		t.Fatal(err)
	}
	start(t, poller(client), handle)
	byPoll := next(t, updates)
	if byPoll.Tap == nil || byPoll.Tap.Data != "no" || byPoll.Tap.MessageID != byHook.Tap.MessageID || byPoll.Tap.From != byHook.Tap.From {
		t.Errorf("by polling: %+v, by webhook: %+v", byPoll.Tap, byHook.Tap)
	}
	select {
	case u := <-updates:
		t.Errorf("one too many: %+v", u)
	default:
	}
}

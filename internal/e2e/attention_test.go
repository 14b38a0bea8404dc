package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

// top puts keys at the top of the configuration, where those without a table stand.
func top(lines string) func(*world, string) string {
	return func(w *world, config string) string { return strings.ReplaceAll(lines, "DIR", w.dir) + "\n" + config }
}

// reminders counts what alice was sent about a key beside its cards.
func reminders(messages []telegramtest.Message, key string) (found []telegramtest.Message) {
	for _, m := range messages {
		if strings.Contains(m.Body(), key) && strings.Contains(m.Body(), "⏰") {
			found = append(found, m)
		}
	}
	return found
}

// TestNobodyIsForgotten: a request that nobody answers is brought up once more, also over restarts, and then in the deputy's chat,
// where an approver decides.
func TestNobodyIsForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, top("reminder = 0.2\ndeputy_chat_id = 222"))
	daemon := w.up()
	waiter, card := w.request(daemon, "deploy:api#41", "--ttl", "15s")
	w.await(daemon, "the reminder", func(s telegramtest.State) bool { return len(reminders(s.Messages(alice), "deploy:api#41")) > 0 })
	w.until("the reminder to be recorded", func() bool { return w.journalEvents("delivery.sent") == 2 })
	daemon.kill()
	daemon = w.up()
	var second telegramtest.Message
	w.await(daemon, "a card for the deputy", func(s telegramtest.State) bool {
		for _, m := range s.Messages(bob) {
			if strings.Contains(m.Body(), "deploy:api#41") && len(m.Buttons) > 0 {
				second = m
				return true
			}
		}
		return false
	})
	found := reminders(w.telegram.Messages(alice), "deploy:api#41")
	if len(found) != 1 || found[0].ReplyTo != card.ID {
		t.Errorf("reminders: %+v", found)
	}
	w.until("the deputy's card to be recorded", func() bool { return w.journalEvents("delivery.sent") == 3 })
	if _, err := w.telegram.Phone(bob).TapMessage(second, "Approve"); err != nil {
		t.Fatal(err)
	}
	if code := waiter.code(); code != 0 {
		t.Errorf("exit code %d: %s", code, waiter.stderr.String())
	}
	w.wantEvents("deploy:api#41", "approval.requested", "approval.granted")
	w.await(daemon, "all to be settled", func(s telegramtest.State) bool {
		for _, m := range append(s.Messages(alice), s.Messages(bob)...) {
			if len(m.Buttons) > 0 {
				return false
			}
		}
		left := reminders(s.Messages(alice), "deploy:api#41")
		return len(left) == 1 && strings.Contains(left[0].Body(), "no longer waits")
	})
}

// TestLostTapsAreTold: a daemon that was down for longer than Telegram keeps a tap says so, once, however often it is started.
func TestLostTapsAreTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	w.request(daemon, "deploy:api#41")
	w.request(daemon, "deploy:api#42")
	contact := filepath.Join(w.home, "daemon", "contact")
	w.until("the contact to be noted", func() bool {
		_, err := os.Stat(contact)
		return err == nil
	})
	daemon.signal(syscall.SIGTERM)
	daemon.code()
	w.must(os.Chtimes(contact, time.Time{}, time.Now().Add(-time.Hour)))
	notices := func(s telegramtest.State) (found []telegramtest.Message) {
		for _, m := range s.Messages(alice) {
			if strings.Contains(m.Body(), "were lost") {
				found = append(found, m)
			}
		}
		return found
	}
	for round := range 3 {
		daemon = w.up()
		w.await(daemon, "word of the absence", func(s telegramtest.State) bool {
			found := notices(s)
			return len(found) == 1 && strings.Contains(found[0].Body(), "2 requests wait")
		})
		w.until("it to be recorded", func() bool { return w.journalEvents("delivery.sent") == 3 })
		if round == 0 {
			daemon.kill()
			// As if the daemon had died before it could note that there is contact again.
			w.must(os.Chtimes(contact, time.Time{}, time.Now().Add(-time.Hour)))
			continue
		}
		noted := time.Now()
		w.until("contact to be noted", func() bool {
			info, err := os.Stat(contact)
			return err == nil && info.ModTime().After(noted.Add(-time.Minute))
		})
		daemon.signal(syscall.SIGTERM)
		daemon.code()
	}
	if n := w.journalEvents("delivery.sent"); n != 3 {
		t.Errorf("%d messages, want two cards and one notice", n)
	}
}

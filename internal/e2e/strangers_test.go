package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/approvald/approvald/internal/telegramtest"
)

// TestWhoDecidesNothing: every way in which somebody or something that is no approver, or an approver's words that are not their own,
// can reach the gate. None decides, the log does not grow, and the journal by no more than a handful of records.
func TestWhoDecidesNothing(t *testing.T) {
	t.Parallel()
	const (
		stranger = 444
		robot    = 555
		channel  = -1005678
	)
	w := newWorld(t, inGroup)
	w.telegram.AddUser(telegramtest.User{ID: stranger, FirstName: "Stranger"})
	w.telegram.AddUser(telegramtest.User{ID: robot, FirstName: "Robot", IsBot: true})
	w.telegram.SetMember(group, telegramtest.Member{User: stranger})
	w.telegram.SetMember(group, telegramtest.Member{User: robot})
	w.telegram.AddChat(telegramtest.Chat{ID: channel, Type: telegramtest.Channel, Members: telegramtest.Members(alice)})
	daemon := w.up()
	w.run(0, "request", "deploy:api#41", "--class", "deploy.production", "--summary", "s", "--as", "ci")
	card := w.groupCard(daemon, "deploy:api#41", "needs")
	w.until("the card to be noted", func() bool { return w.journalEvents("delivery.sent") == 1 })
	approve, _ := card.Button("Approve")
	before := w.records()
	phone := w.telegram.Phone

	alert := func(tap *telegramtest.Tap, err error, want string) {
		t.Helper()
		w.must(err)
		answer, err := tap.Wait(t.Context())
		w.must(err)
		if !strings.Contains(answer.Text, want) {
			t.Errorf("a tap was answered with %q, want %q", answer.Text, want)
		}
	}
	// A copy of the card has no buttons; a modified app taps its message with the data of the true one.
	copied, err := phone(alice).Forward(card, alice)
	w.must(err)
	tap, err := phone(alice).TapDataOn(copied, approve.Data)
	alert(tap, err, "another message")
	copied, err = phone(alice).Forward(card, group)
	w.must(err)
	tap, err = phone(alice).TapDataOn(copied, approve.Data)
	alert(tap, err, "another message")
	// A tap that names no message: by a stranger, or without a nonce that was ever given out.
	alert(phone(stranger).TapInline("inline-1", approve.Data), nil, "Not yours")
	alert(phone(alice).TapInline("inline-1", approve.Data[:len(approve.Data)-4]+"AAAA"), nil, "not known")
	tap, err = phone(stranger).TapMessage(card, "Approve")
	alert(tap, err, "Not yours")
	tap, err = phone(robot).TapMessage(card, "Approve")
	alert(tap, err, "Not yours")

	// Words: of somebody else, of nobody in particular, of a bot, of a stranger.
	theirs, err := phone(stranger).TextIn(group, "/no never")
	w.must(err)
	sends := len(w.telegram.Calls("sendMessage"))
	_, err = phone(alice).ForwardReply(theirs, card)
	w.must(err)
	words, err := phone(bob).TextIn(group, "no, this would drop the table")
	w.must(err)
	_, err = phone(alice).ForwardReply(words, card)
	w.must(err)
	w.await(daemon, "alice to be told that forwarded words are not hers", func(s telegramtest.State) bool {
		for _, m := range s.Messages(group) {
			if strings.Contains(m.Body(), "somebody else's words") {
				return true
			}
		}
		return false
	})
	_, err = phone(stranger).Reply(card, "wrong environment")
	w.must(err)
	_, err = phone(robot).Reply(card, "wrong environment")
	w.must(err)
	_, err = phone(alice).ReplyAsChannel(card, channel, "wrong environment")
	w.must(err)
	w.telegram.SetMember(group, telegramtest.Member{User: alice, Status: telegramtest.Administrator, Anonymous: true})
	_, err = phone(alice).Reply(card, "wrong environment")
	w.must(err)
	_, err = phone(alice).TextIn(group, "/approve deploy:api#41")
	w.must(err)
	w.telegram.SetMember(group, telegramtest.Member{User: alice})

	// A flood, behind which an approver's tap is answered like any other.
	for range 300 {
		_, err := phone(stranger).TapMessage(card, "Approve")
		w.must(err)
	}
	if answer := w.tapBy(bob, card, "Approve"); answer.Text != "Granted." {
		t.Errorf("bob is told %q", answer.Text)
	}
	if after := w.records(); len(after) != len(before)+1 || after[len(before)].Actor != "human:bob" {
		t.Errorf("the log grew from %d to %d records, the last by %s", len(before), len(after), after[len(after)-1].Actor)
	}
	if n := w.journalEvents("tap.refused"); n == 0 || n > 40 {
		t.Errorf("%d refused taps are in the journal", n)
	}
	if n := len(w.telegram.Calls("sendMessage")) - sends; n > 2 {
		t.Errorf("%d messages in answer to what decides nothing", n)
	}
	if info, err := os.Stat(filepath.Join(w.home, "daemon", "deliveries.jsonl")); err != nil || info.Size() > 64<<10 {
		t.Errorf("the journal has %d bytes, %v", info.Size(), err)
	}
}

// TestAnAnonymousAdministratorTapsAsThemselves: Telegram names the person behind a tap also when they write in the group's name, so
// that the tap counts as theirs, and only theirs.
func TestAnAnonymousAdministratorTapsAsThemselves(t *testing.T) {
	t.Parallel()
	w := newWorld(t, inGroup)
	for _, who := range []int64{alice, carol} {
		w.telegram.SetMember(group, telegramtest.Member{User: who, Status: telegramtest.Administrator, Anonymous: true})
	}
	daemon := w.up()
	w.run(0, "request", "k", "--class", "deploy.production", "--summary", "s", "--as", "ci")
	card := w.groupCard(daemon, "k", "needs")
	if answer := w.tapBy(carol, card, "Approve"); !strings.Contains(answer.Text, "Not yours") {
		t.Errorf("carol, who is no approver, is told %q", answer.Text)
	}
	if answer := w.tapBy(alice, card, "Approve"); answer.Text != "Granted." {
		t.Errorf("alice is told %q", answer.Text)
	}
	if d := w.decision("k"); d.Actor != "human:alice" {
		t.Errorf("decided by %s", d.Actor)
	}
}

// TestAnInlineTapIsJudgedByItsNonce: Telegram may tell of a tap on the card without naming the message. A nonce that was given out, and an
// approver's account, make it count.
func TestAnInlineTapIsJudgedByItsNonce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	daemon := w.up()
	for i, verdict := range []string{"Approve", "Reject"} {
		key := fmt.Sprint("k", i)
		w.run(0, "request", key, "--class", "deploy.production", "--summary", "s", "--as", "ci")
		button, _ := w.card(daemon, key).Button(verdict)
		tap := w.telegram.Phone(alice).TapInline("inline-1", button.Data)
		if _, err := tap.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.wantEvents(key, "approval.requested", map[string]string{"Approve": "approval.granted", "Reject": "approval.rejected"}[verdict])
	}
}

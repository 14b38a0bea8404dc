package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/approvald/approvald/internal/telegramtest"
)

const (
	bob   = 222
	team  = -10077
	fresh = "config/approvald/fresh.toml"
)

// people are Alice, who administers a group with the bot in it, and Bob.
func (w *world) people() {
	w.bot.AddUser(telegramtest.User{ID: alice, FirstName: "Alice", LastName: "\x1b[2KA.", Username: "alice"})
	w.bot.AddUser(telegramtest.User{ID: bob, FirstName: "Bob"})
	w.bot.AddChat(telegramtest.Chat{ID: team, Type: telegramtest.Group, Title: "Ops", Members: []telegramtest.Member{
		{User: alice, Status: telegramtest.Administrator}, {User: bob, Status: telegramtest.Ordinary},
	}})
}

// code is the newest one that was shown.
func (w *world) code(shown string) string {
	w.t.Helper()
	codes := regexp.MustCompile(`\?start=([A-Z2-7]{16})\s`).FindAllStringSubmatch(shown, -1)
	if len(codes) == 0 {
		w.t.Fatalf("no code was shown: %s", shown)
	}
	return codes[len(codes)-1][1]
}

func (w *world) writes(user int64, text string) {
	w.t.Helper()
	if _, err := w.bot.Phone(user).Text(text); err != nil {
		w.t.Fatal(err)
	}
}

// fromToken starts init at a terminal and gets to where the code is shown.
func (w *world) fromToken(args ...string) *terminal {
	w.t.Helper()
	x := w.terminal(append([]string{"init", "--gate", "fresh", "--api-base", w.bot.URL()}, args...)...)
	x.sees("Bot token")
	x.types(w.bot.Token() + "\n")
	x.sees("waiting for it")
	return x
}

// wrote are the files of gate fresh.
func (w *world) wrote() []string {
	files, _ := filepath.Glob(filepath.Join(w.dir, "config", "approvald", "*fresh*"))
	return files
}

// From the token to a configuration, with nothing looked up by hand.
func TestInitPairs(t *testing.T) {
	w := newWorld(t)
	w.people()
	w.env = append(w.env, "TERM=xterm")
	x := w.fromToken()
	x.sees("▀") // to scan
	w.writes(bob, "/start NOTTHECODE")
	x.sees("a wrong code was presented (1 of 5)")
	w.writes(alice, "/start "+w.code(x.seen.String()))
	x.sees("Let this person approve? [y/N]")
	for _, shown := range []string{`"Alice \u{1b}[2KA."`, "@alice (not used", "id        111", "private chat with the bot, 111"} {
		if !strings.Contains(x.seen.String(), shown) {
			t.Errorf("the terminal does not show %s: %s", shown, x.seen)
		}
	}
	x.types("y\n")
	x.sees("Name for the log, as human:NAME [alice]:")
	x.types("no good\n")
	x.sees("is no approver's name")
	if files := w.wrote(); len(files) != 0 {
		t.Errorf("written before the end: %q", files)
	}
	x.types("\n")
	x.sees("first test request? [Y/n]")
	x.types("n\n")
	if ws := x.ended(); ws.ExitStatus() != 0 {
		t.Fatalf("exit code %d: %s", ws.ExitStatus(), x.seen)
	}
	text := w.read(fresh)
	for _, want := range []string{"chat_id = 111", "id = \"alice\"\ntelegram_user_id = 111"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(x.seen.String(), w.bot.Token()) || strings.Contains(x.seen.String(), "\x1b[2KA") {
		t.Errorf("the token or a foreign escape sequence is on the screen: %q", x.seen)
	}
	w.run(w.env, 0, "queue", "--gate", "fresh")
}

// A group is brought in by an administrator; what an ordinary member presents costs a code.
func TestInitPairsInAGroup(t *testing.T) {
	w := newWorld(t)
	w.people()
	x := w.fromToken()
	if _, err := w.bot.Phone(bob).TextIn(team, "/pair "+w.code(x.seen.String())); err != nil {
		t.Fatal(err)
	}
	x.sees("no administrator there")
	x.sees("here is another code")
	first := w.code(x.seen.String())
	for w.code(x.seen.String()) == first && strings.Count(x.seen.String(), "waiting for it") < 2 {
		<-x.seen.more
	}
	if _, err := w.bot.Phone(alice).TextIn(team, "/pair@"+w.bot.Bot().Username+" "+w.code(x.seen.String())); err != nil {
		t.Fatal(err)
	}
	x.sees(`group "Ops", -10077`)
	x.sees("[y/N]")
	x.types("y\n")
	x.sees("Name for the log")
	x.types("al\n")
	x.sees("[Y/n]")
	x.types("n\n")
	if ws := x.ended(); ws.ExitStatus() != 0 {
		t.Fatalf("exit code %d: %s", ws.ExitStatus(), x.seen)
	}
	if text := w.read(fresh); !strings.Contains(text, "chat_id = -10077") || !strings.Contains(text, "id = \"al\"\ntelegram_user_id = 111") {
		t.Errorf("configuration is\n%s", text)
	}
}

// Whoever is not the one gets nowhere, and nothing is written.
func TestInitRefusesThePerson(t *testing.T) {
	w := newWorld(t)
	w.people()
	x := w.fromToken()
	w.writes(bob, "/start "+w.code(x.seen.String()))
	x.sees("[y/N]")
	x.types("\n")
	if ws := x.ended(); ws.ExitStatus() != 1 || len(w.wrote()) != 0 {
		t.Errorf("exit code %d, files %q: %s", ws.ExitStatus(), w.wrote(), x.seen)
	}
}

// A break at any question, and while the code waits, leaves nothing behind.
func TestInitBreaks(t *testing.T) {
	w := newWorld(t)
	w.people()
	steps := []func(x *terminal){
		func(x *terminal) { x.sees("Bot token") },
		func(x *terminal) { x.types(w.bot.Token() + "\n"); x.sees("waiting for it") },
		func(x *terminal) { w.writes(alice, "/start "+w.code(x.seen.String())); x.sees("[y/N]") },
		func(x *terminal) { x.types("y\n"); x.sees("Name for the log") },
	}
	for n := range steps {
		x := w.terminal("init", "--gate", "fresh", "--api-base", w.bot.URL())
		for _, step := range steps[:n+1] {
			step(x)
		}
		x.types("\x03") // the terminal makes SIGINT of it
		if ws := x.ended(); !ws.Signaled() || ws.Signal() != syscall.SIGINT || len(w.wrote()) != 0 {
			t.Errorf("at question %d: ended with %#x, want by SIGINT; files %q: %s", n+1, ws, w.wrote(), x.seen)
		}
	}
	x := w.fromToken()
	x.types("\n")
	x.sees("Chat id")
	x.types("\x03")
	if ws := x.ended(); !ws.Signaled() || len(w.wrote()) != 0 {
		t.Errorf("at the chat's id: %#x, files %q: %s", ws, w.wrote(), x.seen)
	}
}

// In a script whoever presents the code is the one; the code stands on stderr and stdout has one JSON value.
func TestInitPairsInAScript(t *testing.T) {
	w := newWorld(t)
	w.people()
	args := []string{"init", "--gate", "fresh", "--api-base", w.bot.URL(), "--token-file", filepath.Join(w.dir, "token"), "--pair", "al", "--json"}
	p := w.run(w.env, 1, append(args, "--pair-timeout", "10ms")...)
	if !strings.Contains(p.out.String(), `"code":"pairing-ended"`) || len(w.wrote()) != 0 {
		t.Errorf("nobody came: %s, files %q", p.out, w.wrote())
	}
	w.run(w.env, 2, "init", "--gate", "fresh", "--token-file", filepath.Join(w.dir, "token"), "--pair", "a b")
	p = w.start(w.env, args...)
	p.sees(p.errOut, "waiting for it")
	w.writes(alice, "/start "+w.code(p.errOut.String()))
	want := `"chat_id":111,"approver":"human:al","telegram_user_id":111}` + "\n"
	if ws := p.ended(); ws.ExitStatus() != 0 || !strings.HasSuffix(p.out.String(), want) || strings.Count(p.out.String(), "\n") != 1 {
		t.Errorf("exit code %d: %s", ws.ExitStatus(), p.out)
	}
}

// Where nobody can listen, the person at the terminal is told why and types; a script is refused.
func TestInitWhereNobodyCanListen(t *testing.T) {
	w := newWorld(t)
	for range 100 {
		w.writes(bob, "hello")
	}
	x := w.terminal("init", "--gate", "fresh", "--api-base", w.bot.URL())
	x.sees("Bot token")
	x.types(w.bot.Token() + "\n")
	x.sees("cannot be seen")
	x.sees("Chat id")
	x.types("\x03")
	x.ended()
	p := w.run(w.env, 1, "init", "--gate", "fresh", "--api-base", w.bot.URL(), "--token-file", filepath.Join(w.dir, "token"), "--pair", "al")
	if !strings.Contains(p.errOut.String(), "approvald up") {
		t.Errorf("said: %s", p.errOut)
	}
}

// One more approver without a daemon: a tap that waits in Telegram's queue is there for the next daemon, and the new approver decides.
func TestPairWithoutADaemon(t *testing.T) {
	w := newWorld(t)
	w.people()
	d := w.up()
	w.run(w.env, 0, "request", "k", "--class", "a.b", "--summary", "s")
	if _, err := w.bot.Phone(alice).WaitButton(t.Context(), "Approve"); err != nil {
		t.Fatal(err)
	}
	d.signal(syscall.SIGTERM)
	d.ended()
	if _, err := w.bot.Phone(alice).Tap("Approve"); err != nil { // waits for a daemon
		t.Fatal(err)
	}
	before := w.read(config)
	x := w.terminal("pair")
	x.sees("waiting for it")
	second := w.run(w.env, 10, "up")
	if !strings.Contains(second.errOut.String(), "telegram-poller-running") {
		t.Errorf("a daemon beside a pairing: %s", second.errOut)
	}
	w.terminal("pair").refuses("another terminal pairs already")
	w.writes(bob, "/start "+w.code(x.seen.String()))
	x.sees("[y/N]")
	x.types("y\n")
	x.sees("[bob]")
	x.types("\n")
	x.sees("no daemon runs")
	if ws := x.ended(); ws.ExitStatus() != 0 {
		t.Fatalf("exit code %d: %s", ws.ExitStatus(), x.seen)
	}
	if after := w.read(config); !strings.HasPrefix(after, before) || !strings.Contains(after[len(before):], "id = \"bob\"\ntelegram_user_id = 222") {
		t.Errorf("configuration is\n%s", after)
	}
	w.up()
	w.run(w.env, 0, "wait", "k", "--timeout", "1m")
	if _, ending := w.state("k"); !strings.Contains(ending, "human:alice") {
		t.Errorf("the tap that waited did not decide: %s", ending)
	}
}

// A break leaves the configuration, and nothing in the daemon's directory that was not there.
func TestPairBreaks(t *testing.T) {
	w := newWorld(t)
	w.people()
	before := w.read(config)
	for _, daemon := range []bool{false, true} {
		if daemon {
			w.up()
		}
		for n := range 3 {
			x := w.terminal("pair")
			x.sees("waiting for it")
			if n > 0 {
				w.writes(bob, "/start "+w.code(x.seen.String()))
				x.sees("[y/N]")
			}
			if n > 1 {
				x.types("y\n")
				x.sees("Name for the log")
			}
			x.types("\x03")
			if ws := x.ended(); !ws.Signaled() || ws.Signal() != syscall.SIGINT {
				t.Errorf("daemon %v, question %d: ended with %#x: %s", daemon, n, ws, x.seen)
			}
			if w.read(config) != before || exists(filepath.Join(w.dir, "state/approvald/default/.approval/daemon/pairing.json")) {
				t.Errorf("daemon %v, question %d: something was left behind", daemon, n)
			}
		}
	}
}

// One more approver with a running daemon: it listens, it is told, and the new approver's next tap decides.
func TestPairWithARunningDaemon(t *testing.T) {
	w := newWorld(t)
	w.people()
	w.write(config, strings.Replace(w.read(config), "chat_id = 111", "chat_id = -10077", 1)+"[[rules]]\nclass = \"never\"\n")
	d := w.up()
	w.run(w.env, 0, "request", "k", "--class", "a.b", "--summary", "s")
	card, err := w.bot.Phone(bob).WaitButton(t.Context(), "Approve")
	if err != nil {
		t.Fatal(err)
	}
	p := w.start(w.env, "pair", "bob", "--yes", "--json")
	p.sees(p.errOut, "waiting for it")
	w.writes(alice, "/start WRONG")
	p.sees(p.errOut, "a wrong code was presented (1 of 5)")
	code := w.code(p.errOut.String())
	w.writes(bob, "/start "+code) // slowed by a second
	if ws := p.ended(); ws.ExitStatus() != 0 || !strings.Contains(p.out.String(), `"approver":"human:bob","telegram_user_id":222`) ||
		!strings.Contains(p.out.String(), `"in_force":true`) {
		t.Fatalf("exit code %d: %s%s", ws.ExitStatus(), p.out, p.errOut)
	}
	now, _ := w.bot.Message(card.ChatID, card.ID)
	if _, err := w.bot.Phone(bob).TapMessage(now, "Approve"); err != nil {
		t.Fatal(err)
	}
	w.run(w.env, 0, "wait", "k", "--timeout", "1m")
	if _, ending := w.state("k"); !strings.Contains(ending, "human:bob") {
		t.Errorf("bob's tap did not decide: %s", ending)
	}
	if !strings.Contains(d.errOut.String(), "presented the code") || strings.Contains(d.errOut.String(), code) {
		t.Errorf("the daemon's log should tell of it without the code: %s", d.errOut)
	}
	// The same person again, and the same name for another.
	w.run(w.env, 1, "pair", "bob", "--yes")
	again := w.start(w.env, "pair", "robert", "--yes")
	again.sees(again.errOut, "waiting for it")
	w.writes(bob, "/start "+w.code(again.errOut.String()))
	if ws := again.ended(); ws.ExitStatus() != 1 || !strings.Contains(again.errOut.String(), "human:bob") {
		t.Errorf("exit code %d: %s", ws.ExitStatus(), again.errOut)
	}
}

// Root at a terminal may not have the token that the daemon was given: the code does without a link then.
func TestPairWithoutTheToken(t *testing.T) {
	w := newWorld(t)
	w.people()
	w.write(config, strings.Replace(w.read(config), "token_file = \""+filepath.Join(w.dir, "token")+"\"", "token_env = \"BOT_TOKEN\"", 1))
	d := w.start(append(slices.Clone(w.env), "BOT_TOKEN="+w.bot.Token()), "up")
	d.sees(d.errOut, `"msg":"ready"`)
	p := w.start(w.env, "pair", "bob", "--yes")
	p.sees(p.errOut, "waiting for it")
	m := regexp.MustCompile(`write to the gate's bot: (/start [A-Z2-7-]{19})\n`).FindStringSubmatch(p.errOut.String())
	if m == nil {
		t.Fatalf("no code was shown: %s", p.errOut)
	}
	w.writes(bob, m[1])
	if ws := p.ended(); ws.ExitStatus() != 0 || !strings.Contains(p.errOut.String(), "the running daemon goes by it") {
		t.Errorf("exit code %d: %s", ws.ExitStatus(), p.errOut)
	}
}

// A daemon whose home is another than the terminal sees is not listened beside.
func TestPairBesideADaemonWithAnotherHome(t *testing.T) {
	w := newWorld(t)
	d := w.start(append(slices.Clone(w.env), "STATE_DIRECTORY="+filepath.Join(w.dir, "elsewhere")), "up")
	d.sees(d.errOut, `"msg":"ready"`)
	if p := w.run(w.env, 2, "pair", "bob", "--yes"); !strings.Contains(p.errOut.String(), "home = ") {
		t.Errorf("said: %s", p.errOut)
	}
}

func TestPairAsksForWhatItNeeds(t *testing.T) {
	w := newWorld(t)
	for _, args := range [][]string{{"pair"}, {"pair", "bob"}, {"pair", "--yes"}, {"pair", "a b", "--yes"}, {"pair", "a", "b"}} {
		w.run(w.env, 2, args...)
	}
	w.run(w.env, 1, "pair", "alice", "--yes")
	if err := os.Chmod(filepath.Join(w.dir, config), 0o666); err != nil {
		t.Fatal(err)
	}
	w.run(w.env, 2, "pair", "bob", "--yes")
}

// From the token to a first approved request; then the gate is left as it was set up, with no process behind.
func TestInitEndsWithAnApprovedRequest(t *testing.T) {
	w := newWorld(t)
	w.people()
	x := w.fromToken()
	w.writes(alice, "/start "+w.code(x.seen.String()))
	x.sees("[y/N]")
	x.types("y\n")
	x.sees("Name for the log")
	x.types("\n")
	x.sees("[Y/n]")
	x.types("\n")
	x.sees("tap Approve on it")
	w.tap("Approve")
	x.sees("the test request was granted by human:alice")
	if ws := x.ended(); ws.ExitStatus() != 0 {
		t.Errorf("exit code %d: %s", ws.ExitStatus(), x.seen)
	}
	if p := w.run(w.env, 0, "lease", "--gate", "fresh"); !strings.Contains(p.out.String(), "lease: free") {
		t.Errorf("after the test: %s", p.out)
	}
	w.run(w.env, 0, "log", "verify", "--gate", "fresh")
}

// A break in the middle of the test takes the request back and stops the daemon; the gate stays set up. A script learns the outcome by its code.
func TestInitTest(t *testing.T) {
	w := newWorld(t)
	w.people()
	args := []string{"--api-base", w.bot.URL(), "--token-file", filepath.Join(w.dir, "token"), "--chat-id", "111", "--approver", "alice=111", "--test"}
	x := w.terminal(append([]string{"init", "--gate", "broken-off", "--mode", "poll"}, args...)...)
	card, err := w.bot.Phone(alice).WaitButton(t.Context(), "Reject")
	if err != nil {
		t.Fatal(err)
	}
	x.types("\x03")
	if ws := x.ended(); !ws.Signaled() || ws.Signal() != syscall.SIGINT {
		t.Errorf("ended with %#x: %s", ws, x.seen)
	}
	if p := w.run(w.env, 0, "lease", "--gate", "broken-off"); !strings.Contains(p.out.String(), "lease: free") {
		t.Errorf("after the break: %s", p.out)
	}
	if now, _ := w.bot.Message(card.ChatID, card.ID); len(now.Buttons) > 0 {
		t.Errorf("the card of the request that was taken back still has buttons: %+v", now.Buttons)
	}
	p := w.start(w.env, append([]string{"init", "--gate", "no"}, args...)...)
	w.tap("Reject")
	if ws := p.ended(); ws.ExitStatus() != 3 || !strings.Contains(p.errOut.String(), "rejected by human:alice") {
		t.Errorf("exit code %d: %s", ws.ExitStatus(), p.errOut)
	}
}

// initByHand does what the guides say around `approvald init`: the token, the code, a yes, and the first request's Approve.
func (w *world) initByHand() {
	w.t.Helper()
	x := w.terminal("init", "--api-base", w.bot.URL())
	x.sees("Bot token")
	x.types(w.bot.Token() + "\n")
	x.sees("waiting for it")
	w.writes(alice, "/start "+w.code(x.seen.String()))
	x.sees("[y/N]")
	x.types("y\n")
	x.sees("Name for the log")
	x.types("\n")
	x.sees("[Y/n]")
	x.types("\n")
	w.tap("Approve")
	x.sees("granted by human:alice")
	if ws := x.ended(); ws.ExitStatus() != 0 {
		w.t.Fatalf("init: exit code %d: %s", ws.ExitStatus(), x.seen)
	}
}

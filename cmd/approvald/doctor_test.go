package main

import (
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

// Whatever is broken, doctor's first failed line names it, with the command that repairs it. Where broken things can be
// repaired on this machine, the command is run, and nothing has failed after it.
func TestThingsBrokenOnPurpose(t *testing.T) {
	ask := func(w *world, key string) {
		w.run(w.env, 0, "request", key, "--class", "a.b", "--summary", "s")
	}
	logFile := func(w *world) string { return "state/approvald/default/.approval/log/events.jsonl" }
	for name, tc := range map[string]struct {
		with         telegramtest.Options
		breakIt      func(t *testing.T, w *world)
		check        string
		what, repair string // parts of both
		exit         int    // 1 unless given
		repaired     func(w *world, repair string)
	}{
		"mode of the token file": {
			breakIt: func(t *testing.T, w *world) { os.Chmod(filepath.Join(w.dir, "token"), 0o644) },
			check:   "token", what: "mode 0644", repair: "chmod 600 ~/token",
			repaired: func(w *world, repair string) { w.sh(repair, "") },
		},
		"no token": {
			breakIt: func(t *testing.T, w *world) { w.write("token", "hunter2\n") },
			check:   "token", what: "not a bot token", repair: "(umask 077; cat >~/token)",
			repaired: func(w *world, repair string) { w.sh(repair, w.bot.Token()) },
		},
		"wrong token": {
			breakIt: func(t *testing.T, w *world) { w.bot.Revoke(w.bot.Token() + "x") },
			check:   "bot", what: "Telegram rejects the token: telegram getMe: 401 Unauthorized", repair: "(umask 077; cat >~/token)",
			repaired: func(w *world, repair string) { w.sh(repair, w.bot.Token()) },
		},
		"no network": {
			breakIt: func(t *testing.T, w *world) { w.bot.Offline() },
			check:   "bot", what: "Telegram cannot be reached", repair: "curl ",
		},
		"bot not in the chat": {
			breakIt: func(t *testing.T, w *world) { w.inGroup(telegramtest.Left) },
			check:   "chat", what: "the gate's chat …890: telegram getChat: 403 Forbidden", repair: "in Telegram: add the bot to the group",
		},
		"bot may not write": {
			breakIt: func(t *testing.T, w *world) { w.inGroup(telegramtest.Restricted) },
			check:   "chat", what: "the bot may not write there (restricted)", repair: "in Telegram: give the bot the right to send messages",
		},
		"chat with nobody who may decide": {
			breakIt: func(t *testing.T, w *world) {
				w.bot.AddUser(telegramtest.User{ID: 5550001234, FirstName: "Eve"})
				w.write(config, strings.Replace(w.read(config), "\nchat_id = 111", "\nchat_id = 5550001234", 1))
			},
			check: "chat", what: "the gate's chat …234 is a private one with somebody who is no approver", repair: "approvald pair",
		},
		"foreign webhook": {
			breakIt: func(t *testing.T, w *world) {
				w.shellCall("setWebhook", url.Values{"url": {"https://elsewhere.example.com/hook"}})
			},
			check: "webhook", what: "somebody else's is registered", repair: "/deleteWebhook",
		},
		"second poller": {
			breakIt: func(t *testing.T, w *world) {
				w.up()
				w.bot.Fault(telegramtest.Fault{
					Method: "getUpdates", Count: telegramtest.Always, Match: func(c telegramtest.Call) bool { return c.Args["timeout"] != "1" },
					Do: telegramtest.Fail(409, "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"),
				})
				w.shellCall("getUpdates", url.Values{"timeout": {"1"}}) // ends the poll that waits
				w.until("updates-taken", "status")
			},
			check: "pollers", what: "updates-taken: another program polls", repair: "in Telegram: get a new token with /revoke",
		},
		"another gate with the bot": {
			breakIt: func(t *testing.T, w *world) {
				w.write("config/approvald/other.toml", w.read(config))
				p := w.start(w.env, "up", "--gate", "other")
				p.sees(p.errOut, `"msg":"ready"`)
			},
			check: "pollers", what: "bot-owned-elsewhere: bot ", repair: "kill -TERM ",
			repaired: func(w *world, repair string) {
				w.sh(repair, "")
				w.until(`"holder":null`, "status", "--gate", "other", "--json")
			},
		},
		"dead lease record": {
			breakIt: func(t *testing.T, w *world) {
				p := w.up()
				p.signal(syscall.SIGKILL)
				p.ended()
			},
			check: "lease", what: "left from a daemon that has ended without letting go", repair: "approvald up",
			repaired: func(w *world, repair string) { w.up() },
		},
		"stopped daemon": {
			breakIt: func(t *testing.T, w *world) { w.up().signal(syscall.SIGSTOP) },
			check:   "lease", what: "holds it and does not answer", repair: "kill -CONT ",
			repaired: func(w *world, repair string) { w.sh(repair, "") },
		},
		"torn log": {
			breakIt: func(t *testing.T, w *world) {
				ask(w, "k")
				w.write(logFile(w), w.read(logFile(w))+`{"actor":"agent:x`)
			},
			check: "log", what: "torn", repair: "approvald request ",
			repaired: func(w *world, repair string) { w.sh(repair, "") },
		},
		"corrupt log": {
			breakIt: func(t *testing.T, w *world) {
				ask(w, "k")
				ask(w, "l")
				w.write(logFile(w), strings.Replace(w.read(logFile(w)), `"summary":"s"`, `"summary":"t"`, 1))
			},
			check: "log", what: "hash-mismatch", repair: "cp -a ~/state/approvald/default/.approval ~/state/approvald/default/.approval.evidence",
		},
		"lost log": {
			breakIt: func(t *testing.T, w *world) {
				ask(w, "k")
				os.Remove(filepath.Join(w.dir, logFile(w)))
			},
			check: "log", what: "log-missing", repair: "cp -a ",
		},
		"corrupt journal": {
			breakIt: func(t *testing.T, w *world) {
				p := w.up()
				p.signal(syscall.SIGTERM)
				p.ended()
				const journal = "state/approvald/default/.approval/daemon/deliveries.jsonl"
				w.write(journal, strings.Replace(w.read(journal), `"epoch":1`, `"epoch":2`, 1))
				os.RemoveAll(filepath.Join(w.dir, filepath.Dir(journal), "journal"))
			},
			check: "journal", what: "the delivery journal is damaged, not the approval log", repair: "mv ~/state/approvald/default/.approval/daemon/deliveries.jsonl ",
			repaired: func(w *world, repair string) { w.sh(repair, "") },
		},
		"configuration that the daemon has not read": {
			breakIt: func(t *testing.T, w *world) {
				w.up()
				w.write(config, w.read(config)+"[requests]\nttl = \"2h\"\n")
			},
			check: "daemon", what: "it goes by an older text of the configuration", repair: "kill -HUP ",
			repaired: func(w *world, repair string) {
				w.sh(repair, "")
				w.until(`"ttl":"2h"`, "status", "--json")
			},
		},
		"configuration that takes a restart": {
			breakIt: func(t *testing.T, w *world) {
				p := w.up()
				w.write(config, w.read(config)+"[metrics]\nlisten = \"unix:"+w.dir+"/run/m.sock\"\n")
				p.signal(syscall.SIGHUP)
				w.until("needs a restart", "status")
			},
			check: "daemon", what: "until it is restarted, for metrics.listen", repair: "kill -TERM ",
		},
		"chat that was closed": {
			breakIt: func(t *testing.T, w *world) {
				w.up()
				w.bot.Phone(alice).Block()
				ask(w, "k")
				w.until("chat-unreachable", "status")
			},
			check: "daemon", what: "chat-unreachable: ", repair: "approvald status",
		},
		"mode of the log": {
			breakIt: func(t *testing.T, w *world) {
				ask(w, "k")
				os.Chmod(filepath.Join(w.dir, logFile(w)), 0o666)
			},
			check: "files", what: "others may use it (mode 0666)", repair: "chmod g-w,o-rwx ~/" + logFile(nil),
			repaired: func(w *world, repair string) { w.sh(repair, "") },
		},
		"clock": {
			with:    telegramtest.Options{Clock: ahead{}},
			breakIt: func(t *testing.T, w *world) {},
			check:   "clock", what: "this machine's clock is 10m", repair: "timedatectl set-ntp true",
		},
		"proxy that strips the path": {
			with: telegramtest.Options{Local: true},
			breakIt: func(t *testing.T, w *world) {
				w.behindProxy(func(r *http.Request) { r.URL.Path = strings.TrimPrefix(r.URL.Path, "/telegram") })
				w.up()
			},
			check: "proxy", what: "the proxy strips or changes it", repair: "nginx -T",
		},
		"proxy that strips the header": {
			with: telegramtest.Options{Local: true},
			breakIt: func(t *testing.T, w *world) {
				w.behindProxy(func(r *http.Request) { r.Header.Del("X-Telegram-Bot-Api-Secret-Token") })
				w.up()
			},
			check: "proxy", what: "the proxy takes the header X-Telegram-Bot-Api-Secret-Token off", repair: "nginx -T",
		},
		"unknown key": {
			breakIt: func(t *testing.T, w *world) { w.write(config, w.read(config)+"colour = \"red\"\n") },
			check:   "configuration", what: "unknown key", repair: "${EDITOR:-vi} +8 ~/" + config, exit: 2,
		},
		"webhook where Telegram posts to none": {
			breakIt: func(t *testing.T, w *world) {
				w.behindProxy(func(*http.Request) {})
				w.write(config, strings.Replace(w.read(config), "https://example.com/", "https://example.com:8080/", 1))
			},
			check: "configuration", what: "port 8080", repair: "${EDITOR:-vi} ~/" + config, exit: 2,
		},
		"no configuration": {
			breakIt: func(t *testing.T, w *world) { os.Remove(filepath.Join(w.dir, config)) },
			check:   "configuration", what: "gate default has no configuration", repair: "approvald init", exit: 2,
		},
		"configuration that others may write": {
			breakIt: func(t *testing.T, w *world) { os.Chmod(filepath.Join(w.dir, config), 0o666) },
			check:   "configuration", what: "others may write this file", repair: "chmod go-w ~/" + config, exit: 2,
			repaired: func(w *world, repair string) { w.sh(repair, "") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldWith(t, tc.with)
			tc.breakIt(t, w)
			list := w.doctor(max(tc.exit, 1))
			f := firstFailed(list)
			if f.Check != tc.check || !strings.Contains(f.What, tc.what) || !strings.Contains(f.Repair, tc.repair) {
				t.Errorf("first failed is %+v,\nwant check %s: %q, repair: %q", f, tc.check, tc.what, tc.repair)
			}
			if tc.repaired == nil {
				return
			}
			tc.repaired(w, f.Repair)
			if f := firstFailed(w.doctor(0)); f.Check != "" {
				t.Errorf("after the repair: %+v", f)
			}
		})
	}
}

// tree is everything below the world's directory: names, modes, times, contents.
func (w *world) tree() map[string]string {
	w.t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(w.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if info.Name() == "contact" {
			return nil // the daemon's own clock
		}
		text := ""
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text = string(data)
		}
		at := info.ModTime().UnixNano()
		if info.IsDir() {
			at = 0 // the daemon notes its contact with Telegram in a file of its own
		}
		all[path] = fmt.Sprint(info.Mode(), at, text)
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// Doctor changes nothing: no file of the gate, nothing at Telegram, no update is taken from the daemon or from the one to come.
func TestDoctorChangesNothing(t *testing.T) {
	for _, running := range []bool{false, true} {
		t.Run(fmt.Sprint("daemon runs: ", running), func(t *testing.T) {
			w := newWorld(t)
			if running {
				w.up()
			} else {
				p := w.up()
				p.signal(syscall.SIGTERM)
				p.ended()
				w.bot.InjectUpdate("message", `{"message_id":5,"date":1,"chat":{"id":111,"type":"private"},"from":{"id":111,"is_bot":false,"first_name":"A"},"text":"hi"}`)
			}
			w.run(w.env, 0, "request", "k", "--class", "a.b", "--summary", "s")
			if running {
				w.until(`"undelivered_total":0`, "status", "--json")
			}
			before, calls := w.tree(), len(w.bot.Calls())
			var pending int
			w.bot.View(func(st telegramtest.State) { pending = st.Pending() })
			w.doctor(0)
			p := w.run(w.env, 0, "doctor")
			w.isPublic(p.out.String())
			after := w.tree()
			for path, was := range before {
				if after[path] != was {
					t.Errorf("%s was changed", path)
				}
			}
			for path := range after {
				if _, ok := before[path]; !ok {
					t.Errorf("%s was made", path)
				}
			}
			w.bot.View(func(st telegramtest.State) {
				if st.Pending() != pending {
					t.Errorf("%d updates wait, there were %d", st.Pending(), pending)
				}
			})
			for _, c := range w.bot.Calls()[calls:] {
				reads := []string{"getMe", "getChat", "getChatMember", "getWebhookInfo"}
				if !slices.Contains(reads, c.Method) && !(running && c.Method == "getUpdates") {
					t.Errorf("doctor called %s", c.Method)
				}
			}
			if running && !strings.Contains(p.out.String(), "holds it and answers, epoch 1") {
				t.Errorf("with a daemon: %s", p.out)
			}
		})
	}
}

// A gate behind a proxy that does as it should.
func TestDoctorOfAWebhook(t *testing.T) {
	w := newWorldWith(t, telegramtest.Options{Local: true})
	w.behindProxy(func(*http.Request) {})
	list := w.doctor(0)
	for check, want := range map[string]string{"webhook": "the daemon does that when it starts", "proxy": "no daemon listens", "secret": "holds one"} {
		if i := slices.IndexFunc(list, func(f finding) bool { return f.Check == check }); !strings.Contains(list[i].What, want) {
			t.Errorf("without a daemon: %+v, want %q", list[i], want)
		}
	}
	w.up()
	list = w.doctor(0)
	for check, want := range map[string]string{"webhook": "this gate's own is registered", "proxy": "the public address leads to a daemon"} {
		if i := slices.IndexFunc(list, func(f finding) bool { return f.Check == check }); !strings.Contains(list[i].What, want) {
			t.Errorf("with a daemon: %+v, want %q", list[i], want)
		}
	}
}

// A network that swallows everything holds doctor up for less than 15 s.
func TestDoctorEndsWithADeadNetwork(t *testing.T) {
	w := newWorld(t)
	w.bot.Fault(telegramtest.Fault{Count: telegramtest.Always, Do: telegramtest.Hang()})
	began := time.Now()
	f := firstFailed(w.doctor(1))
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("took %s", took)
	}
	if f.Check != "bot" || !strings.Contains(f.What, "no answer in time") {
		t.Errorf("%+v", f)
	}
	w.bot.ClearFaults()
}

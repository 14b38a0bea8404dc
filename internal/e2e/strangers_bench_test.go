package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
)

// floodVariable makes the test binary a stranger who floods a webhook.
const floodVariable = "APPROVALD_E2E_FLOOD"

// flood is what strangers do, told to their process in floodVariable.
type flood struct {
	Address string
	Path    string
	Rate    int  // posts a second
	Churn   bool // a connection for each
	Loris   int  // connections that send one byte a second
}

// floodFromEnvironment is the life of the process that floods.
func floodFromEnvironment(order string) {
	var f flood
	if err := errors.Join(json.Unmarshal([]byte(order), &f), f.run()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run floods until stdin is closed and prints how many posts were answered 401 and in how many seconds.
func (f flood) run() error {
	const senders = 32
	var answered atomic.Int64
	var all sync.WaitGroup
	stop := make(chan struct{})
	post := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: h\r\nX-Telegram-Bot-Api-Secret-Token: %s\r\nContent-Length: 300\r\n\r\n%300s", f.Path, strings.Repeat("x", 32), "{")
	for i := range f.Loris {
		all.Go(func() { drip(f.Address, post, i, stop) })
	}
	began := time.Now()
	for i := range senders {
		all.Go(func() {
			each := time.Duration(senders) * time.Second / time.Duration(f.Rate)
			next := began.Add(each * time.Duration(i) / senders)
			var conn net.Conn
			var reader *bufio.Reader
			for ; ; next = next.Add(each) {
				select {
				case <-stop:
					return
				case <-time.After(time.Until(next)):
				}
				if time.Since(next) > time.Second {
					next = time.Now() // what was missed is not made up for
				}
				if conn == nil {
					var err error
					if conn, err = net.Dial("tcp", f.Address); err != nil {
						conn = nil
						continue
					}
					reader = bufio.NewReader(conn)
				}
				_, err := io.WriteString(conn, post)
				var response *http.Response
				if err == nil {
					response, err = http.ReadResponse(reader, nil)
				}
				if err == nil && response.StatusCode == http.StatusUnauthorized {
					answered.Add(1)
				}
				if err != nil || f.Churn || response.Close {
					conn.Close()
					conn = nil
				}
			}
		})
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	took := time.Since(began)
	close(stop)
	all.Wait()
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode([]float64{float64(answered.Load()), took.Seconds()}))
}

// drip opens a connection and sends one byte a second, again and again.
func drip(address, text string, at int, stop chan struct{}) {
	for {
		conn, err := net.Dial("tcp", address)
		for i := 0; err == nil; i++ {
			select {
			case <-stop:
				conn.Close()
				return
			case <-time.After(time.Second):
			}
			_, err = io.WriteString(conn, text[i%len(text):i%len(text)+1])
		}
		if conn != nil {
			conn.Close()
		}
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(at%100) * time.Millisecond):
		}
	}
}

// BenchmarkTapAmongStrangers measures how long Telegram waits for the answer to a tap, which is when its outcome is on disk, while
// another process floods the webhook with posts that lack the secret. Every tap is another approver's and is recorded.
//
//	go test -run '^$' -bench TapAmongStrangers -benchtime 1x ./internal/e2e
func BenchmarkTapAmongStrangers(b *testing.B) {
	for _, c := range []struct {
		name string
		f    flood
	}{
		{"quiet", flood{}},
		{"10000-a-second", flood{Rate: 10_000}},
		{"10000-connections-a-second", flood{Rate: 10_000, Churn: true}},
		{"10000-a-second-and-2000-slow", flood{Rate: 10_000, Loris: 2000}},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				amongStrangers(b, c.f)
			}
		})
	}
}

func amongStrangers(b *testing.B, f flood) {
	const people, cards = 50, 4
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	f.Address, f.Path = l.Addr().String(), "/telegram/default"
	l.Close()
	m := newModesWith(b, telegramtest.Options{Webhook: telegramtest.WebhookOptions{Transport: telegramtest.RouteTo("http://" + f.Address)}},
		func(w *world, config string) string {
			members := []int64{alice, bob}
			for id := int64(1000); id < 1000+people; id++ {
				w.telegram.AddUser(telegramtest.User{ID: id, FirstName: fmt.Sprint("P", id)})
				members = append(members, id)
				config += fmt.Sprintf("\n[[approvers]]\nid = \"p%d\"\ntelegram_user_id = %d\n", id, id)
			}
			w.telegram.AddChat(telegramtest.Chat{ID: team, Type: telegramtest.Supergroup, Members: telegramtest.Members(members...)})
			return strings.Replace(config, fmt.Sprint("chat_id = ", alice), fmt.Sprint("chat_id = ", team), 1)
		})
	m.webhook = strings.Replace(m.webhook, "unix:"+m.proxy.socket, f.Address, 1)
	daemon := m.start(m.webhook)
	var shown []telegramtest.Message
	for i := range cards {
		key := fmt.Sprint("deploy:", i)
		m.run(0, "request", key, "--class", "deploy.production", "--summary", "a test", "--quorum", fmt.Sprint(people))
		m.await(daemon, "a card for "+key, func(s telegramtest.State) bool {
			for _, c := range s.Messages(team) {
				if strings.Contains(c.Body(), key) && len(c.Buttons) > 0 {
					shown = append(shown, c)
					return true
				}
			}
			return false
		})
	}
	strangers := f.start(m.world)
	var took []time.Duration
	for _, card := range shown {
		for id := int64(1000); id < 1000+people; id++ {
			began := time.Now()
			if _, err := m.telegram.Phone(id).TapStale(card, "Approve"); err != nil {
				b.Fatal(err)
			}
			m.await(daemon, "the tap to be taken", func(s telegramtest.State) bool { return s.Pending() == 0 })
			took = append(took, time.Since(began))
			time.Sleep(20 * time.Millisecond) // the pace of taps is not what is measured
		}
	}
	rate := strangers()
	slices.Sort(took)
	b.ReportMetric(rate, "posts/s")
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
	b.ReportMetric(0, "ns/op")
	for i := range cards {
		m.wantEvents(fmt.Sprint("deploy:", i), "approval.requested", "approval.granted")
	}
}

// start lets the strangers loose; the returned function ends them and tells how many posts a second were answered.
func (f flood) start(w *world) func() float64 {
	w.t.Helper()
	if f.Rate == 0 {
		return func() float64 { return 0 }
	}
	order, err := json.Marshal(f)
	w.must(err)
	self, err := os.Executable()
	w.must(err)
	cmd := exec.Command(self)
	cmd.Env = []string{floodVariable + "=" + string(order)}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	w.must(err)
	stdout, err := cmd.StdoutPipe()
	w.must(err)
	w.must(cmd.Start())
	return func() float64 {
		w.must(stdin.Close())
		var said []float64
		w.must(json.NewDecoder(stdout).Decode(&said))
		w.must(cmd.Wait())
		return said[0] / said[1]
	}
}

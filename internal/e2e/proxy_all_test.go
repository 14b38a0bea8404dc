//go:build all

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/approvald/approvald/internal/telegramtest"
	"github.com/approvald/approvald/internal/transport"
)

const (
	hookHost = "approve.example.com"
	hookPath = "/telegram/default"
)

// front is a real reverse proxy with the shipped configuration, in which only paths, ports and the gate's name were changed, between
// Telegram, which trusts the test's own authority, and a daemon.
type front struct {
	*modes
	address   string // where it listens
	roots     *x509.CertPool
	cert, key string // files
	cmd       *exec.Cmd
	command   []string
	ended     chan struct{}
}

// newFront makes a gate with a place for a proxy in front of it. The daemon listens in a directory that lets in the web server's
// group, which is not the daemon's.
func newFront(t *testing.T) *front {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{address: l.Addr().String()}
	l.Close()
	certificates(t, f)
	f.modes = newModesWith(t, telegramtest.Options{Webhook: telegramtest.WebhookOptions{Transport: telegramtest.RouteTLS(f.address, f.roots)}})
	f.must(os.Chmod(f.dir, 0o711))
	f.must(os.Chmod(filepath.Join(f.dir, "run"), 0o711))
	dir := filepath.Join(f.dir, "run", "hook")
	f.must(os.Mkdir(dir, 0o750))
	f.must(os.Chown(dir, -1, f.group("www-data")))
	f.must(os.Chmod(dir, 0o750|os.ModeSetgid))
	f.webhook = strings.Replace(f.webhook, f.proxy.socket, filepath.Join(dir, "hook.sock"), 1)
	f.proxy.socket = filepath.Join(dir, "hook.sock")
	return f
}

func (f *front) group(name string) int {
	f.t.Helper()
	g, err := user.LookupGroup(name)
	f.must(err)
	id, err := strconv.Atoi(g.Gid)
	f.must(err)
	return id
}

// certificates makes an authority and, signed by it, what the proxy shows.
func certificates(t *testing.T, f *front) {
	t.Helper()
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	sign := func(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(err)
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		if signer == nil {
			parent, signer = template, key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
		must(err)
		cert, err := x509.ParseCertificate(der)
		must(err)
		return cert, key
	}
	ca, caKey := sign(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil, nil)
	leaf, key := sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: hookHost}, DNSNames: []string{hookHost}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, ca, caKey)
	f.roots = x509.NewCertPool()
	f.roots.AddCert(ca)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	must(err)
	f.cert, f.key = filepath.Join(dir, "fullchain.pem"), filepath.Join(dir, "privkey.pem")
	must(os.WriteFile(f.cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}), 0o600))
	must(os.WriteFile(f.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
}

// shipped reads a file of deploy/ and replaces in it what stands only once or for the same thing.
func (f *front) shipped(name string, replace ...string) string {
	f.t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", name))
	f.must(err)
	out := string(text)
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(out, replace[i]) {
			f.t.Fatalf("deploy/%s has no %q any more", name, replace[i])
		}
		out = strings.ReplaceAll(out, replace[i], replace[i+1])
	}
	return out
}

// run starts the proxy and waits until it takes connections.
func (f *front) runProxy(command ...string) {
	f.t.Helper()
	f.command = command
	f.cmd = exec.Command(command[0], command[1:]...)
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
	f.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + f.dir, "XDG_DATA_HOME=" + f.dir, "XDG_CONFIG_HOME=" + f.dir}
	var said output
	f.cmd.Stdout, f.cmd.Stderr = &said, &said
	f.must(f.cmd.Start())
	cmd, ended := f.cmd, make(chan struct{})
	f.ended = ended
	go func() { defer close(ended); cmd.Wait() }() //nolint:errcheck // how it ends is not the question
	f.t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) //nolint:errcheck // it may have ended
		<-ended
		if f.t.Failed() {
			f.t.Logf("%s: %s", command[0], said.String())
		}
	})
	f.until(command[0]+" to listen", func() bool {
		select {
		case <-ended:
			f.t.Fatalf("%s ended: %s", command[0], said.String())
		default:
		}
		c, err := net.Dial("tcp", f.address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func (f *front) stopProxy() {
	f.t.Helper()
	f.must(f.cmd.Process.Signal(syscall.SIGTERM))
	<-f.ended
}

// nginx starts nginx with the shipped configuration, upstream being the daemon's socket.
func (f *front) nginx() {
	f.t.Helper()
	f.write("approvald.conf", f.shipped("nginx/approvald.conf",
		"unix:/run/approvald-webhook/prod.sock", "unix:"+f.proxy.socket, "listen 443 ", "listen "+f.address+" ", "/telegram/prod", hookPath,
		"/etc/letsencrypt/live/approve.example.com/fullchain.pem", f.cert, "/etc/letsencrypt/live/approve.example.com/privkey.pem", f.key))
	temp := filepath.Join(f.dir, "nginx")
	f.must(os.MkdirAll(temp, 0o755))
	config := fmt.Sprintf("daemon off;\nuser www-data;\nworker_processes 1;\npid %s/pid;\nerror_log %s/error.log;\nevents {}\nhttp {\naccess_log %s/access.log;\n", temp, temp, temp)
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		config += fmt.Sprintf("%s_temp_path %s/%s;\n", kind, temp, kind)
	}
	path := f.write("nginx.conf", config+"include "+filepath.Join(f.dir, "approvald.conf")+";\n}\n")
	f.runProxy("nginx", "-p", f.dir, "-e", temp+"/error.log", "-c", path)
	f.t.Cleanup(func() {
		if f.t.Failed() {
			for _, name := range []string{"error.log", "access.log"} {
				text, _ := os.ReadFile(filepath.Join(temp, name))
				f.t.Logf("nginx's %s:\n%s", name, text[max(0, len(text)-4000):])
			}
		}
	})
}

// post makes a stranger's request to the proxy.
func (f *front) post(client *http.Client, method, path, secret string, body io.Reader) *http.Response {
	f.t.Helper()
	r, err := http.NewRequest(method, "https://"+hookHost+path, body)
	f.must(err)
	if secret != "" {
		r.Header.Set("X-Telegram-Bot-Api-Secret-Token", secret)
	}
	r.Header.Set("X-Forwarded-For", "149.154.160.1")
	r.Header.Set("X-Real-IP", "149.154.160.1")
	response, err := client.Do(r)
	f.must(err)
	_, err = io.Copy(io.Discard, response.Body)
	f.must(err)
	f.must(response.Body.Close())
	if after := response.Header.Get("Retry-After"); after != "" {
		f.t.Errorf("%s %s: %s with Retry-After %s: a tap may not live that long", method, path, response.Status, after)
	}
	return response
}

func (f *front) client() *http.Client {
	transport := telegramtest.RouteTLS(f.address, f.roots)
	f.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// granted files a request, lets meanwhile act on its card, and wants it granted.
func (f *front) granted(daemon *process, key string, meanwhile func(card telegramtest.Message)) {
	f.t.Helper()
	waiter, card := f.request(daemon, key)
	meanwhile(card)
	if code := waiter.code(); code != 0 {
		f.t.Fatalf("%s: exit code %d: %s", key, code, waiter.stderr.String())
	}
	f.wantEvents(key, "approval.requested", "approval.granted")
}

// tellsWhatLacks wants the proxy to pass on by what `approvald doctor` tells one that takes the secret off from one that does not.
func (f *front) tellsWhatLacks(client *http.Client) {
	f.t.Helper()
	for secret, want := range map[string]string{"": transport.SecretMissing, "x": transport.SecretWrong} {
		if got := f.post(client, "POST", hookPath, secret, nil).Header.Get("WWW-Authenticate"); got != want {
			f.t.Errorf("with the secret %q: %q, want %q", secret, got, want)
		}
	}
}

func TestThroughNginx(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	f.nginx()
	daemon := f.start(f.webhook)
	approve := func(card telegramtest.Message) { f.tap(card, "Approve") }
	f.granted(daemon, "deploy:plain", approve)
	if got := f.telegram.WebhookInfo(); got.LastError != "" || got.URL != "https://"+hookHost+hookPath {
		t.Errorf("Telegram says %+v", got)
	}
	access, err := os.ReadFile(filepath.Join(f.dir, "nginx", "access.log"))
	f.must(err)
	if !strings.Contains(string(access), `"POST `+hookPath+` HTTP/1.1" 200 0`) {
		t.Errorf("nginx served %s", access)
	}

	// Strangers.
	client, lines := f.client(), daemon.stderr.String()
	for name, c := range map[string]struct {
		method, path, secret string
		body                 string
		want                 int
	}{
		"no secret":     {"POST", hookPath, "", "{}", 401},
		"a wrong one":   {"POST", hookPath, "x", "{}", 401},
		"another path":  {"POST", "/telegram/other", "x", "{}", 404},
		"a longer path": {"POST", hookPath + "/", "x", "{}", 404},
		"an escaped":    {"POST", "/telegram/%64efault", "x", "{}", 404},
		"a look":        {"GET", hookPath, "", "", 405},
		"a large body":  {"POST", hookPath, "x", strings.Repeat("x", 2<<20), 413},
	} {
		if got := f.post(client, c.method, c.path, c.secret, strings.NewReader(c.body)); got.StatusCode != c.want {
			t.Errorf("%s: %s, want %d", name, got.Status, c.want)
		}
	}
	f.tellsWhatLacks(client)
	if now := daemon.stderr.String(); now != lines {
		t.Errorf("strangers made the daemon write %q", strings.TrimPrefix(now, lines))
	}

	// nginx restarts while a person taps.
	f.granted(daemon, "deploy:restart", func(card telegramtest.Message) {
		f.stopProxy()
		f.tap(card, "Approve")
		f.await(daemon, "Telegram to find nobody", func(s telegramtest.State) bool { return s.Webhook().LastError == "Connection refused" })
		f.nginx()
	})
	f.granted(daemon, "deploy:after", approve)

	// The daemon dies; nginx says so without telling Telegram to wait, and finds the next one.
	f.granted(daemon, "deploy:down", func(card telegramtest.Message) {
		daemon.kill()
		f.tap(card, "Approve")
		f.await(nil, "nginx to answer for the daemon", func(s telegramtest.State) bool { return strings.Contains(s.Webhook().LastError, "502 Bad Gateway") })
		if got := f.post(client, "POST", hookPath, "x", strings.NewReader("{}")); got.StatusCode != 502 {
			t.Errorf("%s for a daemon that is gone", got.Status)
		}
		daemon = f.start(f.webhook)
	})

	// Whoever floods from Telegram's own address gets it held off; its taps come all the same.
	var limited atomic.Bool
	var strangers sync.WaitGroup
	for range 8 {
		strangers.Go(func() {
			for began := time.Now(); !limited.Load() && time.Since(began) < patience; {
				if f.post(client, "POST", hookPath, "x", strings.NewReader("{}")).StatusCode == 429 {
					limited.Store(true)
				}
			}
		})
	}
	strangers.Wait()
	if !limited.Load() {
		t.Error("nginx held nobody off")
	}
	f.granted(daemon, "deploy:flood", approve)
	daemon.signal(syscall.SIGTERM)
	if code := daemon.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	f.records()
}

// TestThroughNginxAndASocketOfSystemd: the socket outlives the daemon, so a post that comes between two daemons waits and is answered
// the first time.
func TestThroughNginxAndASocketOfSystemd(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: f.proxy.socket, Net: "unix"})
	f.must(err)
	defer l.Close()
	f.must(os.Chmod(f.proxy.socket, 0o660)) // its group is the directory's
	socket, err := l.File()
	f.must(err)
	defer socket.Close()
	f.nginx()
	config := strings.Replace(f.webhook, `"unix:`+f.proxy.socket+`"`, `"systemd"`, 1)
	f.write("config/approvald/default.toml", config)
	if refused := f.run(2, "up").stderr.String(); !strings.Contains(refused, "approvald-webhook@default.socket") {
		t.Errorf("without a socket: %s", refused)
	}
	up := func() *process {
		t.Helper()
		before := len(f.telegram.Calls("setWebhook"))
		self, err := os.Executable()
		f.must(err)
		cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=webhook exec "$0" up`, self)
		cmd.ExtraFiles = []*os.File{socket}
		p := f.startCommand(cmd, []string{"up"})
		f.await(p, "the webhook to be registered", func(s telegramtest.State) bool { return len(s.Calls("setWebhook")) > before })
		return p
	}
	daemon := up()
	f.granted(daemon, "deploy:between", func(card telegramtest.Message) {
		daemon.kill()
		f.tap(card, "Approve")
		daemon = up()
	})
	if got := f.telegram.WebhookInfo().LastError; got != "" {
		t.Errorf("Telegram was told %q", got)
	}
	daemon.signal(syscall.SIGTERM)
	if code := daemon.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Lstat(f.proxy.socket); err != nil {
		t.Errorf("systemd's socket was taken away: %v", err)
	}
}

func TestThroughCaddy(t *testing.T) {
	t.Parallel()
	f := newFront(t)
	path := f.write("Caddyfile", f.shipped("caddy/Caddyfile",
		"\n{\n\tservers {", "\n{\n\tadmin off\n\tauto_https disable_redirects\n\tservers {",
		"\napprove.example.com {", "\nhttps://approve.example.com"+f.address[strings.LastIndex(f.address, ":"):]+" {\n\tbind 127.0.0.1\n\ttls "+f.cert+" "+f.key,
		"/telegram/prod", hookPath, "unix//run/approvald-webhook/prod.sock", "unix/"+f.proxy.socket))
	for _, args := range [][]string{
		{"validate", "--config", filepath.Join("..", "..", "deploy", "caddy", "Caddyfile"), "--adapter", "caddyfile"},
		{"adapt", "--config", path, "--adapter", "caddyfile"},
	} {
		cmd := exec.Command("caddy", args...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + f.dir}
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "not formatted") {
			t.Fatalf("caddy %s: %v\n%s", args[0], err, out)
		}
	}
	f.runProxy("caddy", "run", "--config", path, "--adapter", "caddyfile")
	daemon := f.start(f.webhook)
	f.granted(daemon, "deploy:plain", func(card telegramtest.Message) { f.tap(card, "Approve") })
	if got := f.telegram.WebhookInfo().LastError; got != "" {
		t.Errorf("Telegram was told %q", got)
	}
	client := f.client()
	for want, c := range map[int]struct{ path, body string }{
		401: {hookPath, "{}"}, 404: {"/telegram/other", "{}"},
	} {
		if got := f.post(client, "POST", c.path, "x", strings.NewReader(c.body)); got.StatusCode != want {
			t.Errorf("%s: %s, want %d", c.path, got.Status, want)
		}
	}
	f.tellsWhatLacks(client)
	f.granted(daemon, "deploy:down", func(card telegramtest.Message) {
		daemon.kill()
		f.tap(card, "Approve")
		f.await(nil, "Caddy to answer for the daemon", func(s telegramtest.State) bool { return strings.Contains(s.Webhook().LastError, "502") })
		daemon = f.start(f.webhook)
	})
}

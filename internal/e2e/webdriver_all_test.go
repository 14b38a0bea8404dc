//go:build all

package e2e

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// browser is Debian's Chromium, driven by its chromedriver in the words of the W3C's WebDriver recommendation.
type browser struct {
	t       *testing.T
	session string // the session's address
}

// elementKey names an element in WebDriver's JSON (W3C WebDriver, section 12.2).
const elementKey = "element-6066-11e4-a52e-4f735466cecf"

func startBrowser(t *testing.T, width, height int, dark bool) *browser {
	t.Helper()
	driver := exec.Command("chromedriver", "--port=0")
	stdout, err := driver.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	driver.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := driver.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	t.Cleanup(func() {
		syscall.Kill(-driver.Process.Pid, syscall.SIGKILL) //nolint:errcheck // with the browser
		driver.Wait()                                      //nolint:errcheck // killed
	})
	port := ""
	for port == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("chromedriver named no port: %v", err)
		}
		if _, after, ok := strings.Cut(line, "started successfully on port "); ok {
			port = strings.Trim(after, ". \r\n")
		}
	}
	go io.Copy(io.Discard, lines) //nolint:errcheck // ends with the driver
	args := []string{
		"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--disable-dev-shm-usage", "--user-data-dir=" + t.TempDir(), fmt.Sprintf("--window-size=%d,%d", width, height),
	}
	if dark {
		args = append(args, "--force-dark-mode", "--blink-settings=preferredColorScheme=0")
	}
	b := &browser{t: t, session: "http://127.0.0.1:" + port + "/session"}
	answer := b.call(http.MethodPost, "", map[string]any{"capabilities": map[string]any{"alwaysMatch": map[string]any{
		"browserName": "chrome", "goog:chromeOptions": map[string]any{"args": args},
	}}})
	id, _ := answer.(map[string]any)["sessionId"].(string)
	b.session += "/" + id
	t.Cleanup(func() {
		if t.Failed() {
			b.shot("failed-" + t.Name())
		}
		b.call(http.MethodDelete, "", nil)
	})
	return b
}

func (b *browser) call(method, path string, body any) any {
	b.t.Helper()
	answer, err := b.try(method, path, body)
	if err != nil {
		b.t.Fatalf("the browser: %s %s: %v", method, path, err)
	}
	return answer
}

func (b *browser) try(method, path string, body any) (any, error) {
	var text []byte
	if method == http.MethodPost {
		if body == nil {
			body = struct{}{}
		}
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	r, err := http.NewRequest(method, b.session+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var answer struct {
		Value any `json:"value"`
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%v", answer.Value)
	}
	return answer.Value, nil
}

func (b *browser) open(address string) {
	b.t.Helper()
	b.call(http.MethodPost, "/url", map[string]any{"url": address})
}

// js runs the body of a function in the page and returns its value.
func (b *browser) js(body string, args ...any) any {
	b.t.Helper()
	if args == nil {
		args = []any{}
	}
	return b.call(http.MethodPost, "/execute/sync", map[string]any{"script": body, "args": args})
}

// await waits until an expression is true in the page.
func (b *browser) await(what, expression string, args ...any) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for b.js("return Boolean("+expression+")", args...) != true {
		if time.Now().After(deadline) {
			b.t.Fatalf("the page did not show %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// click clicks, as a person does with a mouse, on the last visible button inside scope (a CSS selector) whose text begins with label. The page
// may draw the button anew between finding and clicking it: it is looked for again then.
func (b *browser) click(scope, label string) {
	b.t.Helper()
	const find = `return [...document.querySelectorAll(arguments[0] + " button")].filter(b => b.textContent.startsWith(arguments[1]) && !b.disabled && b.checkVisibility()).pop() ?? null`
	deadline := time.Now().Add(patience)
	for {
		var err error
		if element, ok := b.js(find, scope, label).(map[string]any); ok {
			id, _ := element[elementKey].(string)
			if _, err = b.try(http.MethodPost, "/element/"+id+"/click", nil); err == nil {
				return
			}
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("no button %q could be clicked in %s (%v)", label, scope, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// keys types on the keyboard, to whatever has the focus.
func (b *browser) keys(text string) {
	b.t.Helper()
	var actions []any
	for _, r := range text {
		actions = append(actions, map[string]any{"type": "keyDown", "value": string(r)}, map[string]any{"type": "keyUp", "value": string(r)})
	}
	b.call(http.MethodPost, "/actions", map[string]any{"actions": []any{map[string]any{"type": "key", "id": "keyboard", "actions": actions}}})
}

// artifacts is where screenshots are kept.
func artifacts(t *testing.T) string {
	dir := os.Getenv("APPROVALD_ARTIFACTS")
	if dir == "" {
		dir = filepath.Join("..", "..", "bin", "artifacts")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// shot keeps a screenshot.
func (b *browser) shot(name string) {
	b.t.Helper()
	text, _ := b.call(http.MethodGet, "/screenshot", nil).(string)
	png, err := base64.StdEncoding.DecodeString(text)
	if err == nil {
		err = os.WriteFile(filepath.Join(artifacts(b.t), strings.ReplaceAll(name, "/", "-")+".png"), png, 0o644)
	}
	if err != nil {
		b.t.Error(err)
	}
}

package gate

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/approvald/approvald/internal/transport"
)

const canary = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw"

func writeFile(t *testing.T, path, content string, mode fs.FileMode) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// checkRefused fails unless err is a refusal of the configuration that does not hold the secret.
func checkRefused(t *testing.T, err error) {
	t.Helper()
	if ErrorCode(err) != CodeConfig {
		t.Errorf("err = %v", err)
	}
	if text := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(text, canary[:9]) || strings.Contains(text, canary[10:]) {
		t.Errorf("the error holds the token: %s", text)
	}
}

func TestTokenComesFromAFileThatNobodyElseMayTouch(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "token")
	cfg := Config{File: "f", Telegram: Telegram{TokenFile: path}}
	for _, mode := range []fs.FileMode{0o600, 0o400} {
		writeFile(t, path, canary+"\n", 0o600)
		os.Chmod(path, mode)
		token, err := cfg.Token()
		if err != nil || token.Reveal() != canary {
			t.Errorf("mode %04o: %v", mode, err)
		}
		if text := fmt.Sprintf("%v %+v %#v %s", token, token, token, cfg); strings.Contains(text, canary) {
			t.Errorf("printed: %s", text)
		}
		os.Remove(path)
	}
	for _, mode := range []fs.FileMode{0o640, 0o604, 0o644, 0o620, 0o601, 0o666, 0o610} {
		writeFile(t, path, canary, mode)
		_, err := cfg.Token()
		checkRefused(t, err)
	}
	for name, content := range map[string]string{
		"two newlines": canary + "\n\n", "space": canary + " ", "carriage return": canary + "\r\n", "empty": "", "only a newline": "\n",
		"no colon": "110201543", "quoted": `"` + canary + `"`, "huge": strings.Repeat("x", 10_000), "url": "https://api.telegram.org/bot" + canary,
	} {
		writeFile(t, path, content, 0o600)
		_, err := cfg.Token()
		if t.Run(name, func(t *testing.T) { checkRefused(t, err) }); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	os.Remove(path)
	_, err := cfg.Token()
	checkRefused(t, err)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = cfg.Token()
	checkRefused(t, err)
	_, err = Config{Telegram: Telegram{TokenFile: dir}}.Token()
	checkRefused(t, err)
}

func TestTokenComesFromTheEnvironmentOrACredential(t *testing.T) {
	t.Setenv("GATE_TEST_TOKEN", canary)
	named := Config{Telegram: Telegram{TokenEnv: "GATE_TEST_TOKEN"}}
	if token, err := named.Token(); err != nil || token.Reveal() != canary {
		t.Errorf("token_env: %v", err)
	}
	t.Setenv("GATE_TEST_TOKEN", "")
	_, err := named.Token()
	checkRefused(t, err)

	t.Setenv("CREDENTIALS_DIRECTORY", "")
	_, err = Config{File: "f.toml"}.Token()
	checkRefused(t, err)
	dir := t.TempDir()
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	// The mask of the ACL by which systemd gives access shows as the group's bits.
	path := writeFile(t, filepath.Join(dir, "telegram-token"), canary, 0o440)
	if token, err := (Config{}).Token(); err != nil || token.Reveal() != canary {
		t.Errorf("credential: %v", err)
	}
	os.Remove(path)
	writeFile(t, path, canary, 0o444)
	_, err = Config{}.Token()
	checkRefused(t, err)
}

func TestWebhookSecretIsOfItsOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	cfg := Config{File: "f", Transport: Transport{Webhook: Webhook{SecretFile: path}}}
	writeFile(t, path, "s3cret_-X\n", 0o600)
	token := transport.NewSecret(canary)
	if secret, err := cfg.WebhookSecret(token); err != nil || secret.Reveal() != "s3cret_-X" {
		t.Errorf("err = %v", err)
	}
	writeFile(t, path, canary, 0o600)
	_, err := cfg.WebhookSecret(token)
	checkRefused(t, err)
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	_, err = Config{}.WebhookSecret(token)
	checkRefused(t, err)
	dir := t.TempDir()
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	_, err = Config{}.WebhookSecret(token)
	checkRefused(t, err)
	writeFile(t, filepath.Join(dir, "webhook-secret"), "of-systemd", 0o440)
	if secret, err := (Config{}).WebhookSecret(token); err != nil || secret.Reveal() != "of-systemd" {
		t.Errorf("credential: %v", err)
	}
	writeFile(t, path, "s3cret_-X\n", 0o600)
	if secret, err := cfg.WebhookSecret(token); err != nil || secret.Reveal() != "s3cret_-X" {
		t.Errorf("a file that is named comes first: %v", err)
	}
}

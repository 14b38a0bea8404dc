package gate

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/approvald/approvald/internal/transport"
)

// The names of the systemd credentials (LoadCredential=) that hold the bot token and the webhook's secret.
const (
	credential       = "telegram-token"
	secretCredential = "webhook-secret"
)

// maxSecretBytes is more than any token or webhook secret has.
const maxSecretBytes = 4096

// Token reads the bot token: from telegram.token_file, the variable that telegram.token_env names,
// or the systemd credential telegram-token. It must look like one; no error repeats it.
func (c Config) Token() (transport.Secret, error) {
	text, source, err := c.readToken()
	if err != nil {
		return transport.Secret{}, err
	}
	token, err := transport.ParseToken(text)
	if err != nil {
		return transport.Secret{}, &Error{Code: CodeConfig, Err: err, Message: source + ": " + err.Error(),
			Hint: "copy the whole token, NUMBER:LETTERS, as @BotFather shows it, on one line"}
	}
	return token, nil
}

// TokenAt reads the bot token from a file that the configuration does not name, as [Config.Token] reads one that it names.
func TokenAt(file string) (transport.Secret, error) {
	return Config{Telegram: Telegram{TokenFile: file}}.Token()
}

func (c Config) readToken() (text, source string, err error) {
	switch {
	case c.Telegram.TokenFile != "":
		text, err = readSecret(c.Telegram.TokenFile, forbidSecret)
		return text, c.Telegram.TokenFile, err
	case c.Telegram.TokenEnv != "":
		source = "environment variable " + c.Telegram.TokenEnv
		text = os.Getenv(c.Telegram.TokenEnv)
		if text == "" {
			return "", source, refuse(CodeConfig, "set it, or name a file in telegram.token_file",
				"%s: holds no bot token (telegram.token_env names it)", source)
		}
		return text, source, nil
	}
	source = credentialPath(credential)
	if source == "" {
		return "", "", refuse(CodeConfig, "put the token into a file of mode 0600 and name it in telegram.token_file",
			"%s: no bot token is named: neither telegram.token_file nor telegram.token_env, and no systemd credential %s", c.File, credential)
	}
	text, err = readSecret(source, forbidCredential)
	return text, source, err
}

// credentialPath is where systemd puts a credential of this service (systemd.exec(5)); empty outside of a service that has any.
func credentialPath(name string) string {
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); filepath.IsAbs(dir) {
		return filepath.Join(dir, name)
	}
	return ""
}

// WebhookSecret reads the secret by which calls of the webhook prove that they come from Telegram: from
// transport.webhook.secret_file, else the systemd credential webhook-secret.
func (c Config) WebhookSecret(token transport.Secret) (transport.Secret, error) {
	file, forbid := c.Transport.Webhook.SecretFile, forbidSecret
	if file == "" {
		file, forbid = credentialPath(secretCredential), forbidCredential
	}
	if file == "" {
		return transport.Secret{}, refuse(CodeConfig, "name a file of mode 0600 there; `approvald init` makes one",
			"%s: transport.webhook.secret_file: is missing, and there is no systemd credential %s", c.File, secretCredential)
	}
	text, err := readSecret(file, forbid)
	if err != nil {
		return transport.Secret{}, err
	}
	secret, err := transport.ParseWebhookSecret(text, token)
	if err != nil {
		return transport.Secret{}, &Error{Code: CodeConfig, Err: err, Message: file + ": " + err.Error(),
			Hint: "write a random one: openssl rand -hex 32"}
	}
	return secret, nil
}

// Permission bits that a secret's file must not have. For a unit with User=, systemd gives the user
// access to a credential by an ACL, whose mask shows as the group's bits.
const (
	forbidSecret     fs.FileMode = 0o077
	forbidCredential fs.FileMode = 0o037
)

// readSecret reads a file that nobody else may touch, without the one newline at its end that
// editors add.
func readSecret(path string, forbid fs.FileMode) (string, error) {
	// Without O_NONBLOCK a pipe in the file's place would hold the start up for ever.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		hint := "make it with mode 0600 and the secret as its only line"
		if errors.Is(err, fs.ErrPermission) {
			hint = "it must belong to the user that runs approvald"
		}
		return "", &Error{Code: CodeConfig, Err: err, Hint: hint, Message: "read secret: " + err.Error()}
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", &Error{Code: CodeConfig, Err: err, Message: "read secret: " + err.Error()}
	}
	if !info.Mode().IsRegular() {
		return "", refuse(CodeConfig, "name a file", "%s: is not a regular file", path)
	}
	if perm := info.Mode().Perm(); perm&forbid != 0 {
		return "", refuse(CodeConfig, "run: chmod 600 "+path+" (and replace the secret if others could read it)",
			"%s: others than its owner have permissions on this secret (mode %04o)", path, perm)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	if err != nil {
		return "", &Error{Code: CodeConfig, Err: err, Message: "read secret: " + err.Error()}
	}
	text := strings.TrimSuffix(string(data), "\n")
	switch {
	case len(data) > maxSecretBytes:
		return "", refuse(CodeConfig, "write the secret as the file's only line", "%s: is too long to hold a secret", path)
	case text == "":
		return "", refuse(CodeConfig, "write the secret as the file's only line", "%s: is empty", path)
	}
	return text, nil
}

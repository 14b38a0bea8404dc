package transport

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Redacted stands wherever a secret would have been.
const Redacted = "[redacted]"

// Secret holds a bot token or a webhook secret and never prints it: every verb
// of fmt, encoding/json and zap give [Redacted]. The value lies behind a pointer
// because fmt prints unexported fields of an enclosing struct by reflection,
// without asking their methods.
type Secret struct{ value *string }

// NewSecret wraps s.
func NewSecret(s string) Secret { return Secret{value: &s} }

// Reveal returns the value itself. Whoever calls it answers for where it goes.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsZero reports whether the secret is unset or empty.
func (s Secret) IsZero() bool { return s.Reveal() == "" }

// Equal compares in constant time.
func (s Secret) Equal(o Secret) bool {
	return s.matches(o.Reveal())
}

// matches compares in a time that depends on neither content nor length.
func (s Secret) matches(given string) bool {
	a, b := sha256.Sum256([]byte(s.Reveal())), sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// String returns [Redacted].
func (s Secret) String() string { return Redacted }

// GoString returns [Redacted].
func (s Secret) GoString() string { return Redacted }

// Format writes [Redacted] whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(Redacted)) }

// MarshalText returns [Redacted]; encoding/json uses it too.
func (s Secret) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// Made when they are first needed: their counts make them large, and most runs of the program need none.
var (
	tokenPattern         = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[1-9][0-9]{0,17}:[A-Za-z0-9_-]{1,128}$`) })
	webhookSecretPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-]{1,256}$`) })
)

// ParseToken checks the shape of a bot token, BOTID:SECRET, so that a file with
// something else in it is found before anything is sent. The error does not
// repeat what was given.
func ParseToken(s string) (Secret, error) {
	if !tokenPattern().MatchString(s) {
		return Secret{}, errors.New("not a bot token: expected digits, a colon, then letters, digits, _ or - as @BotFather gives it")
	}
	return NewSecret(s), nil
}

// BotID is the number in front of a token's colon, which is no secret; 0 of what is no token.
func BotID(token Secret) int64 {
	number, _, _ := strings.Cut(token.Reveal(), ":")
	id, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return 0
	}
	return id
}

// ParseWebhookSecret checks a webhook secret against what setWebhook accepts
// (1 to 256 of A-Z a-z 0-9 _ -) and refuses the bot token in its place: the
// secret travels in a header through proxies that have no business knowing it.
func ParseWebhookSecret(s string, token Secret) (Secret, error) {
	if !token.IsZero() && token.matches(s) {
		return Secret{}, errors.New("the webhook secret is the bot token: make a random one of its own")
	}
	if !webhookSecretPattern().MatchString(s) {
		return Secret{}, errors.New("the webhook secret must be 1 to 256 characters of A-Z a-z 0-9 _ -")
	}
	return NewSecret(s), nil
}

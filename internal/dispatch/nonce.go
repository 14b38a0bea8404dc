package dispatch

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
)

// Nonce is what the buttons of one delivery carry: the receipt that a tap hands in. It names no key, and only its
// SHA-256 is ever stored, so that nobody who can read the gate's files can forge a tap.
type Nonce [16]byte

// Sum is the SHA-256 of the nonce in hex, as the journal and the log hold it.
func (n Nonce) Sum() string {
	sum := sha256.Sum256(n[:])
	return hex.EncodeToString(sum[:])
}

// Verdict is what a button means.
type Verdict byte

// The verdicts. Approve and Reject decide; Because opens the list of reasons and Back leaves it. Revoke takes a grant
// back; there is no button for it. Open brings up a request's card from a digest.
const (
	Approve Verdict = 'a'
	Reject  Verdict = 'r'
	Because Verdict = 'w'
	Back    Verdict = 'b'
	Revoke  Verdict = 'v'
	Open    Verdict = 'o'
)

// Button is the data of a button: version, verdict, with Reject perhaps the tag of a reason, and the nonce.
type Button struct {
	Verdict Verdict
	Reason  string // tag of a preset reason, or with Open of a request; empty for none
	Nonce   Nonce
}

// dataVersion begins all button data; another version's buttons are not known here.
const dataVersion = "1"

// Data is the callback data: ASCII, at most 37 bytes, where Telegram allows 64.
func (b Button) Data() string {
	return dataVersion + string(b.Verdict) + b.Reason + ":" + base64.RawURLEncoding.EncodeToString(b.Nonce[:])
}

// ParseButton reads callback data. A client can send anything here, so all that is not exactly what Data makes is
// refused.
func ParseButton(data string) (Button, bool) {
	head, tail, ok := strings.Cut(data, ":")
	if !ok || len(head) < 2 || head[:1] != dataVersion {
		return Button{}, false
	}
	b := Button{Verdict: Verdict(head[1]), Reason: head[2:]}
	switch {
	case b.Verdict == Reject && (b.Reason == "" || isReasonTag(b.Reason)):
	case b.Verdict == Open && isReasonTag(b.Reason):
	case (b.Verdict == Approve || b.Verdict == Because || b.Verdict == Back) && b.Reason == "":
	default:
		return Button{}, false
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(tail)
	if err != nil || len(raw) != len(b.Nonce) {
		return Button{}, false
	}
	copy(b.Nonce[:], raw)
	return b, b.Data() == data
}

const reasonTagLen = 8

// reasonTag names a preset reason by its text and not by its place, so that a button made before the configuration was
// changed cannot give another reason than it showed.
func reasonTag(reason string) string {
	sum := sha256.Sum256([]byte(reason))
	return hex.EncodeToString(sum[:])[:reasonTagLen]
}

// requestTag names one of the requests that a digest lists. Two with one tag would only open one for the other.
func requestTag(id CycleID) string { return reasonTag(fmt.Sprintf("%d %s", id.Seq, id.Key)) }

func isReasonTag(s string) bool {
	if len(s) != reasonTagLen {
		return false
	}
	_, err := hex.DecodeString(s)
	return err == nil && strings.ToLower(s) == s
}

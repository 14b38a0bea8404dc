package gate

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/visible"
)

// Bounds of what a request says.
const (
	MaxKeyBytes     = 256
	MaxSummaryRunes = 1000
	maxClassBytes   = 128
	maxNameBytes    = 128
)

// Peer is the process on the other side of the agents' socket, as the kernel names it.
type Peer = approvallog.Peer

// NewRequest is what somebody asks for.
type NewRequest struct {
	Key       string // the idempotency key
	Class     string // dotted name of the side effect
	Summary   string // what the asker says about it, one line
	Task      string // empty means the key
	Requester string // agent:NAME
	// OnBehalfOf is the person for whom this is asked, human:NAME, empty for nobody in particular. Under a rule
	// with four_eyes that person may not decide.
	OnBehalfOf string

	// Payload is the canonical JSON to bind, from [BindPayload]; empty means {}. File are the bytes
	// that it names when it is of kind file.
	Payload []byte
	File    []byte

	TTL        time.Duration // 0 when the asker gave none
	Quorum     int           // 0 when the asker gave none
	Exclusive  string        // at most one pending request may hold this key; empty for none
	Then       *FollowUp     // what is asked for once this was granted and executed, nil for nothing
	Reversible bool
	EstCostUSD *float64 // nil when the asker gave none
	Again      bool     // open a fresh cycle when the key's last one has ended

	// WaitFor is how long the asker will wait before it takes the request back, 0 for as long as
	// the request lives. It shortens what the approvers are shown, not the deadline.
	WaitFor time.Duration

	// Peer is who connected, nil when the request did not come through the socket.
	Peer *Peer
	// WriterUID is the user id of a program that files the request by writing the files itself, nil for the daemon. It is
	// recorded where there is no Peer: whoever may write the files could write another, so that it guards against a
	// program that runs wild, not against a forger.
	WriterUID *uint32
}

// uid is the user id of whoever asks, nil for unknown.
func (r NewRequest) uid() *uint32 {
	if r.Peer != nil {
		return &r.Peer.UID
	}
	return r.WriterUID
}

// CheckKey refuses what cannot be an action key: it must be 1 to 256 bytes of UTF-8 without control
// characters. Anything else goes, ../x and __proto__ included: keys never become paths.
func CheckKey(key string) error { return checkKey("action key", key) }

func checkKey(what, key string) error {
	hint := fmt.Sprintf("use 1 to %d bytes of UTF-8 without control characters", MaxKeyBytes)
	switch {
	case key == "":
		return refuse(CodeInvalidRequest, hint, "the %s is empty", what)
	case len(key) > MaxKeyBytes:
		return refuse(CodeInvalidRequest, hint, "the %s has %d bytes, and at most %d are allowed", what, len(key), MaxKeyBytes)
	case !utf8.ValidString(key):
		return refuse(CodeInvalidRequest, hint, "the %s %q is not valid UTF-8", what, clip(key))
	}
	if i := strings.IndexFunc(key, unicode.IsControl); i >= 0 {
		r, _ := utf8.DecodeRuneInString(key[i:])
		return refuse(CodeInvalidRequest, hint, "the %s %q has the control character %U at byte %d", what, clip(key), r, i)
	}
	return nil
}

// CheckClass refuses what is no dotted name. Only lower case is allowed, so that no spelling of a
// class slips past a rule.
func CheckClass(class string) error {
	if isClassName(class) && len(class) <= maxClassBytes {
		return nil
	}
	const hint = `name the side effect in lower case with dots, such as "deploy.production" (a-z, 0-9, - and _; at most 128 bytes)`
	if class == "" {
		return refuse(CodeInvalidRequest, hint, "the class is missing")
	}
	return refuse(CodeInvalidRequest, hint, "%q is not a class", clip(class))
}

// CheckSummary refuses what is not one line of 1 to 1,000 characters.
func CheckSummary(summary string) error {
	if what := checkLine(summary, MaxSummaryRunes); what != "" {
		return refuse(CodeInvalidRequest, "say in one line what is going to happen; the payload has room for the rest", "the summary %s", what)
	}
	return nil
}

// checkLine says what keeps s from being one line of 1 to limit characters, "" when nothing does.
func checkLine(s string, limit int) string {
	switch n := utf8.RuneCountInString(s); {
	case !utf8.ValidString(s):
		return "is not valid UTF-8"
	case strings.TrimSpace(s) == "":
		return "is empty"
	case n > limit:
		return fmt.Sprintf("has %d characters, and at most %d are allowed", n, limit)
	}
	broken := func(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }
	if i := strings.IndexFunc(s, broken); i >= 0 {
		r, _ := utf8.DecodeRuneInString(s[i:])
		if r == '\n' || r == '\r' || r == '\u0085' || r == '\u2028' || r == '\u2029' {
			return "has more than one line"
		}
		return fmt.Sprintf("has the control character %U at byte %d", r, i)
	}
	return ""
}

// CheckRequester refuses what is not agent:NAME, NAME being 1 to 128 bytes of UTF-8 on one line.
func CheckRequester(actor string) error {
	const hint = "name the asker as agent:NAME (--as NAME)"
	name, ok := strings.CutPrefix(actor, "agent:")
	if !ok {
		return refuse(CodeInvalidRequest, hint, "the requester %q is not agent:NAME", clip(actor))
	}
	if what := checkLine(name, maxNameBytes); what != "" || len(name) > maxNameBytes {
		if what == "" {
			what = fmt.Sprintf("has %d bytes, and at most %d are allowed", len(name), maxNameBytes)
		}
		return refuse(CodeInvalidRequest, hint, "the requester's name %s", what)
	}
	return nil
}

// checkOnBehalfOf refuses what is neither empty nor human:NAME. NAME need not be an approver's.
func checkOnBehalfOf(actor string) error {
	name, ok := strings.CutPrefix(actor, "human:")
	if actor == "" || ok && isApproverID(name) {
		return nil
	}
	return refuse(CodeInvalidRequest, "name the person as human:NAME (--on-behalf-of human:alice)",
		"the request is made on behalf of %q, which is not human:NAME", clip(actor))
}

// check holds the request against everything that does not depend on the log.
func (r NewRequest) check() error {
	if err := CheckKey(r.Key); err != nil {
		return err
	}
	if err := CheckClass(r.Class); err != nil {
		return err
	}
	if err := CheckSummary(r.Summary); err != nil {
		return err
	}
	if err := CheckRequester(r.Requester); err != nil {
		return err
	}
	if err := checkOnBehalfOf(r.OnBehalfOf); err != nil {
		return err
	}
	if r.Task != "" {
		if err := checkKey("task", r.Task); err != nil {
			return err
		}
	}
	if r.Exclusive != "" {
		if err := checkKey("exclusive key", r.Exclusive); err != nil {
			return err
		}
	}
	if err := r.checkLimits(); err != nil {
		return err
	}
	return checkPayload(r.Payload, r.File)
}

func (r NewRequest) checkLimits() error {
	switch {
	case r.TTL != 0 && (r.TTL < MinTTL || r.TTL > MaxTTL):
		return refuse(CodeInvalidRequest, fmt.Sprintf("give %v to %v", MinTTL, visible.Duration(MaxTTL)), "a ttl of %s is out of range", visible.Duration(r.TTL))
	case r.WaitFor < 0:
		return refuse(CodeInvalidRequest, "give a positive duration", "a wait of %v is out of range", r.WaitFor)
	case r.Quorum < 0:
		return refuse(CodeInvalidRequest, "give 1 or more", "a quorum of %d is out of range", r.Quorum)
	case r.EstCostUSD != nil && (math.IsNaN(*r.EstCostUSD) || math.IsInf(*r.EstCostUSD, 0) || *r.EstCostUSD < 0):
		return refuse(CodeInvalidRequest, "give an amount of 0 or more", "the estimated cost is no amount")
	default:
		return nil
	}
}

// digestInput is all that makes two requests the same. What the asker left out is left out here:
// a change of the configuration does not turn a retry into a conflict.
type digestInput struct {
	Gate        string `json:"gate"`
	Class       string `json:"class"`
	PayloadHash string `json:"payload_hash"`
	Summary     string `json:"summary"`
	Reversible  bool   `json:"reversible"`
	Exclusive   string `json:"exclusive,omitempty"`
	FollowUp    string `json:"follow_up,omitempty"`
	TTL         string `json:"ttl,omitempty"`
	Quorum      int    `json:"quorum,omitempty"`
	// OnBehalfOf decides who may agree, as Quorum decides how many have to: the same key for somebody else is
	// another request, and not a retry that would quietly keep the first one's approvers.
	OnBehalfOf string `json:"on_behalf_of,omitempty"`
}

// digest is the SHA-256 of the canonical text of all that makes two requests the same.
func (r NewRequest) digest(gate, payloadHash, followUp string) (string, error) {
	in := digestInput{
		Gate: gate, Class: r.Class, PayloadHash: payloadHash, Summary: r.Summary,
		Reversible: r.Reversible, Exclusive: r.Exclusive, FollowUp: followUp, Quorum: r.Quorum,
		OnBehalfOf: r.OnBehalfOf,
	}
	if r.TTL != 0 {
		in.TTL = r.TTL.String()
	}
	canonical, err := canonicalOf(in)
	if err != nil {
		return "", err
	}
	return hashHex(canonical), nil
}

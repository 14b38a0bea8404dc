// Package pairing finds out a person's Telegram id, and that of a chat, by a code that is shown at a terminal and presented in
// Telegram: "/start CODE" to the bot in private, "/pair CODE" by an administrator in a group.
//
// It guarantees that a code is presented with success at most once, by a person whom Telegram names, within ten minutes; that guesses
// are counted, slowed, and end the code; and that listening takes no update away from the gate's daemon. Where a daemon runs, it alone
// listens, and is asked to by a file in its own directory, which agents cannot write.
//
// A pairing makes nobody an approver: it says who presented the code. A person at the terminal, or a script that was told to, decides.
package pairing

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/transport"
)

const (
	// Life is how long a code may be presented.
	Life = 10 * time.Minute
	// MaxWrong is how many wrong codes end an offer.
	MaxWrong = 5

	// codeLength is in characters of base32: 80 random bits, which five guesses do not hit and a person can still copy by hand.
	codeLength = 16
	// firstDelay is how long nothing is looked at after the first wrong code; it doubles with each.
	firstDelay = time.Second
)

// Code is what a person presents. It is a secret until it is presented.
type Code string

// String groups the code for reading.
func (c Code) String() string {
	var groups []string
	for s := string(c); s != ""; s = s[min(4, len(s)):] {
		groups = append(groups, s[:min(4, len(s))])
	}
	return strings.Join(groups, "-")
}

// Links to open on a phone: the first presents the code to the bot in private, the second adds the bot to a group and presents it there.
func (c Code) Links(bot string) (private, group string) {
	return "https://t.me/" + bot + "?start=" + string(c), "https://t.me/" + bot + "?startgroup=" + string(c)
}

// Ends of an offer.
const (
	EndUsed  = "used"        // the code was presented
	EndWrong = "wrong-codes" // too many wrong ones were
)

// Offer is a code that may be presented. It holds the code's hash only, so that the file of an offer pairs nobody.
type Offer struct {
	SHA256  string    `json:"sha256"`
	Expires time.Time `json:"expires"`
	Wrong   int       `json:"wrong"`
	// Next is when the next code is looked at, zero for at once.
	Next time.Time `json:"next,omitzero"`
	// Ended is empty while the code may be presented.
	Ended string `json:"ended,omitempty"`
}

// New makes an offer that ends after life, [Life] at most.
func New(now time.Time, life time.Duration) (*Offer, Code) {
	code := Code(rand.Text()[:codeLength])
	return &Offer{SHA256: sum(string(code)), Expires: now.Add(min(life, Life))}, code
}

func sum(code string) string {
	s := sha256.Sum256([]byte(code))
	return hex.EncodeToString(s[:])
}

// Open reports whether a code may still be presented.
func (o *Offer) Open(now time.Time) bool { return o.Ended == "" && now.Before(o.Expires) }

// Claim is who presented the code, and where. Names are whatever their owners chose.
type Claim struct {
	UserID    int64  `json:"user_id"`
	Name      string `json:"name"`
	Username  string `json:"username,omitempty"`
	ChatID    int64  `json:"chat_id"`
	ChatType  string `json:"chat_type"` // private, group or supergroup
	ChatTitle string `json:"chat_title,omitempty"`
	// ThreadID is the topic of a forum, 0 for none.
	ThreadID int64 `json:"thread_id,omitempty"`
}

// InGroup reports whether the code was presented in a group, where the person has to be an administrator.
func (c Claim) InGroup() bool { return c.ChatType != "private" }

// Verdict is what a message means for an offer.
type Verdict int

// The verdicts.
const (
	Nothing Verdict = iota // the message presents no code
	TooSoon                // it presents one while none is looked at, after a wrong one; it may be presented again
	Wrong                  // it presents another code
	Dead                   // it presents one when none can be presented any more
	Refused                // it presents the code, by somebody who cannot be known; the code is used up
	Shown                  // it presents the code; the code is used up
)

// Heard is a judged message.
type Heard struct {
	Verdict Verdict
	Claim   Claim  // with Shown
	Why     string // with Refused: for the person at the terminal
}

// Presented answers the code that a message presents to the bot of that user name, empty for none. It is cheap, and does
// not look at who sent it.
func Presented(m *transport.Message, bot string) string {
	if m == nil || !strings.HasPrefix(m.Text, "/") {
		return ""
	}
	words := strings.Fields(m.Text)
	if len(words) != 2 {
		return ""
	}
	command, to, addressed := strings.Cut(words[0], "@")
	if command != "/start" && command != "/pair" || addressed && !strings.EqualFold(to, bot) {
		return ""
	}
	return strings.ToUpper(strings.ReplaceAll(words[1], "-", ""))
}

// Hear judges a message to the bot of that user name. Whoever gets Shown for a code that was presented in a group still has to
// ask Telegram whether the person is an administrator there ([Admit]).
func (o *Offer) Hear(m *transport.Message, bot string, now time.Time) Heard {
	code := Presented(m, bot)
	switch {
	case code == "":
		return Heard{}
	case !o.Open(now):
		return Heard{Verdict: Dead}
	case now.Before(o.Next):
		return Heard{Verdict: TooSoon}
	case subtle.ConstantTimeCompare([]byte(sum(code)), []byte(o.SHA256)) != 1:
		o.Wrong++
		o.Next = now.Add(firstDelay << (o.Wrong - 1))
		if o.Wrong >= MaxWrong {
			o.Ended = EndWrong
		}
		return Heard{Verdict: Wrong}
	}
	// Whoever presented it, others may have read it.
	o.Ended = EndUsed
	if why := unknowable(m); why != "" {
		return Heard{Verdict: Refused, Why: why}
	}
	claim := Claim{
		UserID: m.From.ID, Name: strings.TrimSpace(m.From.FirstName + " " + m.From.LastName), Username: m.From.Username,
		ChatID: m.Chat.ID, ChatType: m.Chat.Type, ChatTitle: m.Chat.Title,
	}
	if m.Chat.IsForum {
		claim.ThreadID = m.ThreadID
	}
	return Heard{Verdict: Shown, Claim: claim}
}

// unknowable says why the sender of a message is nobody who could be an approver.
func unknowable(m *transport.Message) string {
	switch {
	case m.SenderChat != nil:
		return "it came from an anonymous administrator or a channel, whose person Telegram does not name: switch \"remain anonymous\" off, or write to the bot in private"
	case m.From == nil || m.From.ID <= 0:
		return "Telegram does not name the sender"
	case m.From.IsBot:
		return "it came from a bot"
	case gate.Placeholder(m.From.ID) != "":
		return "it came from " + gate.Placeholder(m.From.ID)
	case m.Forwarded:
		return "it was forwarded, so who sent it did not write it"
	case m.Chat.Type == "private" && m.Chat.ID == m.From.ID, m.Chat.Type == "group", m.Chat.Type == "supergroup":
		return ""
	default:
		return "it came neither in the private chat with the bot nor in a group"
	}
}

// Admit says why somebody with that status in a group may not bring it in, empty when they may. status is Telegram's word.
func Admit(c Claim, status string) string {
	if status == "creator" || status == "administrator" {
		return ""
	}
	return fmt.Sprintf("it was presented in a group by user %d, who is no administrator there (%s)", c.UserID, status)
}

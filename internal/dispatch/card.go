package dispatch

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/transport"
	"github.com/approvald/approvald/internal/visible"
)

// Limits of a card. Telegram counts a message's characters after parsing; the HTML itself is kept below that number in
// UTF-16 units, which is safe under every way of counting.
const (
	maxMessage   = 4096
	maxForeign   = 3100 // of payload and claims together on a card; a longer payload goes into a document
	maxPreview   = 700  // of a payload that is in a document
	maxNames     = 250  // of a list of approvers
	maxKey       = 500
	maxRequester = 200
	maxSummary   = 900
	maxNote      = 500
)

const rule = "──────────"

// Message is a text in Telegram's HTML with its buttons.
type Message struct {
	HTML     string
	Keyboard transport.Keyboard
}

// Card renders one request. All that it says about a request comes from the log, the configuration and the payload;
// what the asker claims stands last and is labelled as a claim.
type Card struct {
	Request approvallog.Request
	Rule    Rule
	Body    Body
	// Approved are the approvers whose approval is noted.
	Approved []string
	// Then are the classes of what is asked for once this request was granted and executed, in their order.
	Then []string
}

// Documents are the files that have to be in the chat before the card, in order: none when all fits on the card.
func (c Card) Documents() []Document {
	var docs []Document
	if c.clipped() {
		docs = append(docs, newDocument("request.txt", []byte(c.claims())))
	}
	if !c.inline() {
		docs = append(docs, c.Body.Document)
	}
	return docs
}

// inline reports whether the whole payload stands on the card.
func (c Card) inline() bool {
	used := escapedUnits(c.Body.Text)
	for _, f := range c.fields() {
		used += min(escapedUnits(visible.Line(f.text)), f.limit)
	}
	return !c.Body.File && used <= maxForeign
}

// limited is a claim of the asker and how much of it fits the card.
type limited struct {
	text  string
	limit int
}

func (c Card) fields() []limited {
	r := c.Request
	list := []limited{{r.Class, maxRequester}, {r.Key, maxKey}, {r.Requester, maxRequester}, {r.OnBehalfOf, maxRequester}, {r.Summary, maxSummary}}
	if len(c.Then) > 0 {
		list = append(list, limited{c.Then[0], maxRequester})
	}
	return list
}

// clipped reports whether a claim is too long to be shown whole.
func (c Card) clipped() bool {
	for _, f := range c.fields() {
		if shown := visible.Line(f.text); head(shown, f.limit) != shown {
			return true
		}
	}
	return false
}

// claims is the text of the document that holds what was too long for the card.
func (c Card) claims() string {
	r := c.Request
	return fmt.Sprintf("class: %s\nkey: %s\nasker: %s\nfor: %s\n\nsays, not checked:\n%s\n",
		visible.Line(r.Class), visible.Line(r.Key), visible.Line(r.Requester), visible.Line(orElse(r.OnBehalfOf, "nobody named")), visible.Line(r.Summary))
}

// Pending is the card with its buttons, as of now.
func (c Card) Pending(now time.Time, nonce Nonce) Message {
	req := c.Request
	m := &markup{}
	m.text("🔒 ").code(field(req.Class, maxRequester)).text(" · " + undo(req)).line()
	c.asker(m)
	m.line()
	m.text("until " + deadline(req, now) + " · " + c.needs()).line()
	c.then(m)
	m.text(rule).line()
	c.payload(m)
	m.text(rule).line()
	c.says(m)
	return Message{HTML: m.String(), Keyboard: c.Keyboard(nonce)}
}

// Keyboard is the card's buttons.
func (c Card) Keyboard(nonce Nonce) transport.Keyboard {
	k := transport.Keyboard{{
		{Text: "Approve", Data: Button{Verdict: Approve, Nonce: nonce}.Data()},
		{Text: "Reject", Data: Button{Verdict: Reject, Nonce: nonce}.Data()},
	}}
	if len(c.Rule.RejectReasons) > 0 {
		k = append(k, []transport.Button{{Text: "Reject because…", Data: Button{Verdict: Because, Nonce: nonce}.Data()}})
	}
	return k
}

// maxReasons bounds the second keyboard; Telegram takes about a hundred buttons.
const maxReasons = 20

// ReasonKeyboard is the second step of "Reject because…".
func ReasonKeyboard(reasons []string, nonce Nonce) transport.Keyboard {
	var k transport.Keyboard
	for i, reason := range reasons[:min(len(reasons), maxReasons)] {
		b := transport.Button{
			Text: clip(visible.Line(reason), 60),
			Data: Button{Verdict: Reject, Reason: reasonTag(reason), Nonce: nonce}.Data(),
		}
		if i%2 == 0 {
			k = append(k, nil)
		}
		k[len(k)-1] = append(k[len(k)-1], b)
	}
	return append(k, []transport.Button{{Text: "Back", Data: Button{Verdict: Back, Nonce: nonce}.Data()}})
}

// Settled is the card after its end: the outcome first, what was decided folded below it, no buttons.
func (c Card) Settled() Message {
	req := c.Request
	m := &markup{}
	outcome(m, req)
	m.line()
	m.code(field(req.Class, maxRequester)).text(" · " + undo(req)).line()
	c.asker(m)
	m.line()
	text := c.Body.Text
	if !c.inline() {
		text = c.attached(m)
	}
	m.fold(text)
	if text != "" {
		m.line()
	}
	c.counts(m)
	m.line()
	c.says(m)
	if req.State == approvallog.StateGranted {
		m.text("\nto take it back before it is used, reply with the word revoke")
	}
	return Message{HTML: m.String()}
}

// Renewed is the card once a fresh one has taken its place. Nothing is decided yet, and it has no buttons.
func (c Card) Renewed() Message {
	m := &markup{}
	m.text("replaced · who has to decide has changed: decide on the newer card that replies to this one").line()
	m.code(field(c.Request.Class, maxRequester)).text(" · ").code(field(c.Request.Key, maxKey))
	return Message{HTML: m.String()}
}

// SettledPlain is the least that a card has to say after its end, as text without markup: for when Telegram takes no
// other. What others wrote stands on a line of its own.
func (c Card) SettledPlain() string {
	m := &markup{}
	outcome(m, c.Request)
	m.line().text(field(c.Request.Class, maxRequester)).line().text(field(c.Request.Key, maxKey))
	return plain(m.String())
}

// Caption is what stands below a document that goes before the card.
func (c Card) Caption(d Document) Message {
	m := &markup{}
	m.text("for ").code(field(c.Request.Key, 250)).text(" · " + size(len(d.Data)) + " · sha256 ").code(d.SHA256)
	return Message{HTML: m.String()}
}

// asker is the line that says which request this is and who asks.
func (c Card) asker(m *markup) {
	req := c.Request
	m.code(field(req.Key, maxKey)).text(" · ").code(field(req.Requester, maxRequester))
	if req.Peer != nil {
		m.text(fmt.Sprintf(" (uid %d)", req.Peer.UID))
	} else if req.WriterUID != nil {
		m.text(fmt.Sprintf(" (uid %d, by its own word)", *req.WriterUID))
	}
	if req.OnBehalfOf != "" {
		m.text(" · for ").code(field(req.OnBehalfOf, maxRequester))
	}
	if req.Previous != "" {
		m.text(" · asked again, last time " + visible.Line(string(req.Previous)))
	}
}

// then says what is asked for once this has been executed. It is no part of what is decided here.
func (c Card) then(m *markup) {
	if len(c.Then) == 0 {
		return
	}
	m.text("after a run with exit 0 asks separately for ").code(field(c.Then[0], maxRequester))
	if n := len(c.Then) - 1; n > 0 {
		m.text(fmt.Sprintf(", and %d more after that", n))
	}
	m.line()
}

// needs says who has to agree, and who has.
func (c Card) needs() string {
	need := c.Rule.need(c.Request)
	names, own := c.deciders()
	count := strconv.Itoa(need)
	if need == 1 && len(names) > 1 {
		count = "1 of" // it must not read as if all of them had to
	}
	s := fmt.Sprintf("needs %s: %s", count, listed(names))
	switch {
	case len(own) > 0:
		s += fmt.Sprintf(" · four eyes: not %s, whose request this is", listed(own))
	case c.Rule.FourEyes:
		s += " · four eyes: not the asker"
	}
	if len(c.Approved) > 0 {
		s += fmt.Sprintf(" · %d of %d: %s", len(c.Approved), need, listed(c.Approved))
	}
	return s
}

// deciders are the names of the approvers whose word counts, and of those whom four eyes leave out.
func (c Card) deciders() (names, own []string) {
	for _, a := range c.Rule.Approvers {
		if c.Rule.excludes(a, c.Request) {
			own = append(own, a.ID)
		} else {
			names = append(names, a.ID)
		}
	}
	return names, own
}

// listed is a list of names, or as many as fit and how many more there are.
func listed(names []string) string {
	s := ""
	for i, name := range names {
		if escapedUnits(s)+escapedUnits(name) > maxNames {
			return fmt.Sprintf("%s and %d more", s, len(names)-i)
		}
		if i > 0 {
			s += ", "
		}
		s += name
	}
	return s
}

// payload adds what is bound: all of it, or where all of it is and how it begins.
func (c Card) payload(m *markup) {
	if c.inline() {
		if c.Body.Text != "" {
			m.block(c.Body.Text, c.Body.Language).line()
		}
		c.counts(m)
		m.line()
		return
	}
	if text := c.attached(m); text != "" {
		m.block(text, c.Body.Language).line()
	}
	c.counts(m)
	m.line()
}

// attached says where all of the payload is and how much of it follows, and returns what follows.
func (c Card) attached(m *markup) string {
	doc := c.Body.Document
	m.text("attached above: ").code(visible.Line(doc.Name)).text(", " + size(len(doc.Data)) + ", sha256 ").code(doc.SHA256).line()
	text, extent := preview(c.Body.Text)
	if text != "" {
		m.text(extent + ":").line()
	}
	return text
}

// counts is the line of what we counted ourselves.
func (c Card) counts(m *markup) {
	m.text(size(c.Body.Size) + " · sha256 " + shortHash(c.Request.PayloadHash))
	if c.Body.Note != "" {
		m.text(" · " + c.Body.Note)
	}
	if n := c.Body.Hidden + visible.Count(c.Request.Key) + visible.Count(c.Request.Summary) + visible.Count(c.Request.Requester); n > 0 {
		m.text(fmt.Sprintf("\n⚠ hidden characters: %d, each shown as an escape", n))
	}
}

// says is the asker's claim. Its last character is ours, since Telegram trims blanks at the end of a message.
func (c Card) says(m *markup) {
	m.text("says, not checked: “").code(field(c.Request.Summary, maxSummary)).text("”")
	if c.Request.EstCostUSD != "" {
		m.text(" · costs, not checked: ").code(field(c.Request.EstCostUSD, 40)).text(" USD")
	}
	if c.clipped() {
		m.text(" · whole in request.txt above")
	}
}

// field is one line of unknown origin within its limit. What is left out is told, and [Card.Documents] has it whole.
func field(s string, limit int) string {
	shown := visible.Line(s)
	if part := head(shown, limit); part != shown {
		return fmt.Sprintf("%s… (first %d of %d characters)", part, runes(part), runes(shown))
	}
	return shown
}

// preview is the beginning of a text and how much of it that is.
func preview(text string) (part, extent string) {
	if escapedUnits(text) <= maxPreview {
		return text, "all of it"
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n") // an LF ends a line and begins none
	left, n := maxPreview, 0
	for n < len(lines) {
		if left -= escapedUnits(lines[n]) + 1; left < 0 {
			break
		}
		n++
	}
	if n == 0 {
		part = head(text, maxPreview)
		return part, fmt.Sprintf("first %d of %d characters", runes(part), runes(text))
	}
	return strings.Join(lines[:n], "\n"), fmt.Sprintf("first %d of %d lines", n, len(lines))
}

// outcome is the settled card's first line, and a second one after a run.
func outcome(m *markup, req approvallog.Request) {
	who := func(d *approvallog.Decision) string { return person(d.By) + " " + d.At.UTC().Format("15:04") }
	switch d, end := req.Decision, req.Ending; {
	case req.State == approvallog.StateRejected && d != nil:
		m.text("❌ rejected · " + who(d) + " UTC")
		if d.Note != "" {
			m.text(" · “").code(field(d.Note, maxNote)).text("”")
		}
		m.text(where(d) + fmt.Sprintf(" · record %d", d.Seq))
	case req.State == approvallog.StateExpired:
		m.text("⌛ expired " + moment(req.ExpiresAt, req.RequestedAt) + ", nobody decided")
	case req.State == approvallog.StateWithdrawn && end != nil:
		m.text("↩ withdrawn by the asker (" + visible.Line(orElse(end.Reason, "no reason")) + ") " + clock(end.At))
	case req.State == approvallog.StateRevoked && end != nil:
		m.text(fmt.Sprintf("⛔ revoked · %s %s · record %d", person(end.By), clock(end.At), end.Seq))
		if end.Reason != "" {
			m.text(" · “").code(field(end.Reason, maxNote)).text("”")
		}
	case req.State.Approved() && d != nil:
		names := make([]string, 0, len(req.Approvals))
		for _, a := range req.Approvals {
			names = append(names, person(a.By)+" "+a.At.UTC().Format("15:04"))
		}
		if len(names) == 0 {
			names = append(names, who(d))
		}
		m.text("✅ granted · " + listed(names) + " UTC")
		if d.Note != "" {
			m.text(" · “").code(field(d.Note, maxNote)).text("”")
		}
		m.text(where(d) + fmt.Sprintf(" · record %d · %s", d.Seq, shortHash(req.PayloadHash)))
		ran(m, req)
	default:
		m.text("ended: " + visible.Line(string(req.State)))
	}
}

// ran tells of the use of the grant.
func ran(m *markup, req approvallog.Request) {
	e := req.Execution
	if e == nil || e.EndedAt.IsZero() {
		return
	}
	verb := "ran"
	if req.State == approvallog.StateFailed {
		verb = "ran and failed"
	}
	m.text("\n▶ " + verb + " " + clock(e.EndedAt))
	if e.ExitCode != nil {
		m.text(fmt.Sprintf(", exit %d", *e.ExitCode))
	}
}

func where(d *approvallog.Decision) string {
	if d.Channel == ChannelTelegram || d.Channel == "" {
		return ""
	}
	return " · at a " + visible.Line(d.Channel)
}

func undo(req approvallog.Request) string {
	if req.Reversible {
		return "can be undone"
	}
	return "cannot be undone"
}

// deadline is until when somebody waits for the decision: the request's deadline or the waiting program's own.
func deadline(req approvallog.Request, now time.Time) string {
	at := heldUntil(req)
	own := !at.Equal(req.ExpiresAt)
	if at.IsZero() {
		return "decided (no deadline)"
	}
	s := moment(at, now) + " (" + remaining(at.Sub(now)) + ")"
	if own {
		s += ", then the asker stops waiting"
	}
	return s
}

// moment is a time in UTC, with its date when that is not the day of the other.
func moment(at, other time.Time) string {
	at, other = at.UTC(), other.UTC()
	if at.Format(time.DateOnly) == other.Format(time.DateOnly) {
		return clock(at)
	}
	return at.Format("2 Jan 15:04") + " UTC"
}

func remaining(d time.Duration) string {
	switch {
	case d <= 0:
		return "over"
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	}
}

func size(n int) string {
	switch {
	case n == 1:
		return "1 byte"
	case n < 10_000:
		return fmt.Sprintf("%d bytes", n)
	case n < 1<<20:
		return fmt.Sprintf("%d KB", (n+512)/1024)
	default:
		return fmt.Sprintf("%.1f MB", float64(n)/(1<<20))
	}
}

func shortHash(h string) string {
	if len(h) < 16 {
		return visible.Line(h)
	}
	return h[:8] + "…" + h[len(h)-4:]
}

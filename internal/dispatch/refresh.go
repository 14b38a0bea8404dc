package dispatch

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"github.com/approvald/approvald/internal/approvallog"
)

// A card says who has to decide, how many of them, and who has agreed already. The configuration can change that under a
// card: an approver goes, gets another account, a rule asks for more. Taps are always judged by what holds; a card that says
// otherwise is brought up to date. The process that knows its nonce edits it in place. After a restart nobody does, and an
// edit has to repeat the buttons: one fresh card is sent in reply to it, after all that nobody was shown yet, and then the old
// one loses its buttons and says that it was replaced. Its nonce stays good: it stands for the same bytes, and whoever tapped
// it before the edit reached their phone is judged like anybody else. A card that would say the same is left alone.

// stateRenewed is what a card is settled to when a fresh one has taken its place while its request waits.
const stateRenewed approvallog.State = "renewed"

// said is what a card tells of who decides.
type said struct {
	terms    string // what Card.terms was, empty when that is not known
	approved string // the approvers that it named as having agreed, blanks between them
	seq      int64  // of the record that tells so; approvals noted later may have been shown since
}

// termsOf is what a card of this asking has to say by the rules of now.
func (c *Core) termsOf(o *op) string {
	if o.terms == "" {
		o.terms = Card{Request: o.req, Rule: c.o.Rules.Rule(o.req.Class)}.terms()
	}
	return o.terms
}

// terms names what the card says of who has to decide, beside who has. Two cards with the same terms say the same.
func (c Card) terms() string {
	names, own := c.deciders()
	text, err := json.Marshal([]any{c.Rule.need(c.Request), names, own, c.Rule.FourEyes})
	if err != nil {
		panic(err) // names and numbers always encode
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// live reports whether a message is a card with buttons in a chat, and no fresh one has taken its place.
func (d Delivery) live() bool {
	return d.Kind == KindCard && d.Phase == PhaseSent && d.Settled == "" && !d.Gone && !d.Replaced
}

// outdated reports whether a card says of who decides, or has agreed, what holds no longer. An approval that it does not
// name yet is no reason: nothing that it says is wrong.
func (c *Core) outdated(o *op, d Delivery) bool {
	if !d.live() || d.Said.terms == "" || !o.pending() {
		return false
	}
	if d.Said.terms != c.termsOf(o) {
		return true
	}
	notes := c.deliveries.Notes(o.id)
	if len(notes) == 0 {
		return false
	}
	counted := c.approved(o)
	return slices.ContainsFunc(notes, func(n Note) bool {
		return !slices.Contains(counted, n.Approver) && (n.Seq > d.Said.seq || slices.Contains(strings.Fields(d.Said.approved), n.Approver))
	})
}

// stale is the card of an asking in a chat that has to be replaced by a fresh one: all that are there are outdated, and
// none can be edited.
func (c *Core) stale(o *op, chatID int64) (card Delivery, ok bool) {
	for d := range c.deliveries.Of(o.id) {
		if d.ChatID != chatID || !d.live() {
			continue
		}
		if _, known := c.nonces[d.ID]; known || !c.outdated(o, d) {
			return Delivery{}, false
		}
		card, ok = d, true
	}
	return card, ok
}

// owesRenewed reports whether a card still shows its buttons though a fresh one has taken its place. That is so for good,
// whatever the configuration says later: an edit that nobody heard the answer of may have taken the buttons off.
func (d Delivery) owesRenewed() bool {
	return d.Replaced && d.Phase == PhaseSent && d.Settled == "" && !d.Gone
}

// refresh makes sure that the cards of a pending asking will be edited where they are outdated and can be, or replaced.
func (c *Core) refresh(o *op) {
	for d := range c.deliveries.Of(o.id) {
		if _, known := c.nonces[d.ID]; d.owesRenewed() || known && c.outdated(o, d) {
			c.owe(d)
		}
	}
}

// replaceBefore notes that the cards of an asking which were made before a fresh one have been replaced, once that is sent.
func (log *cycleLog) replaceBefore() {
	for _, fresh := range log.deliveries {
		if !fresh.Renews || fresh.MessageID == 0 {
			continue
		}
		for _, p := range log.deliveries {
			if p.Kind == KindCard && p.ChatID == fresh.ChatID && p.Seq < fresh.Seq {
				p.Replaced = true
			}
		}
	}
}

// refreshDue is what an outdated card is owed now, nil for nothing.
func (c *Core) refreshDue(e *edit, o *op, d Delivery) Action {
	nonce, known := c.nonces[d.ID]
	switch {
	case d.owesRenewed() && e.strip != "":
		return StripButtons{MessageID: d.MessageID}
	case d.owesRenewed():
		return EditRenewed{Request: o.req, MessageID: d.MessageID}
	case !known || !c.outdated(o, d) || o.req.PastDeadline(c.now):
		return nil
	default:
		by := c.approved(o)
		c.progressShown[d.ID] = len(by)
		return EditProgress{Request: o.req, MessageID: d.MessageID, Nonce: nonce, Approved: by}
	}
}

// refreshed deals with the outcome of an edit that was to bring a card up to date. It reports whether it did.
func (c *Core) refreshed(l *lane, r Result) bool {
	t := l.busy
	if t.renews == nil {
		return false
	}
	switch r.Kind {
	case ResultDone:
		t.edit.failures = 0
		c.record(l, EventDeliveryRefreshed, *t.renews)
	case ResultRefused, ResultUnparsed:
		// It cannot be edited, so that a fresh card has to take its place.
		delete(c.nonces, t.delivery)
		l.busy = nil
		c.evaluate(t.op)
	case ResultClosed, ResultMigrated, ResultThread:
		t.edit.failures++
		t.edit.next = c.now.Add(pauseClosed.after(t.edit.failures))
		l.busy = nil
	default:
		return false
	}
	return true
}

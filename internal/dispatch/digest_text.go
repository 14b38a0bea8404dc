package dispatch

import (
	"fmt"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/transport"
)

// Digest renders what stands for many requests of one asker and class. It has no button that decides.
type Digest struct {
	Asker, Class string
	Count        int
	Listed       []approvallog.Request // the oldest of them
}

// Message is the digest with a button for each listed request, as of now.
func (d Digest) Message(now time.Time, nonce Nonce) Message {
	m := &markup{}
	m.text(fmt.Sprintf("📚 %d waiting from ", d.Count)).code(field(d.Asker, maxRequester)).text(" · ").code(field(d.Class, maxRequester)).text(" · can be undone").line()
	m.text("Nothing is decided here: open a card to read all of it and to decide.").line()
	m.text(rule)
	var keys transport.Keyboard
	for i, r := range d.Listed {
		m.line().text(fmt.Sprintf("%d. ", i+1)).code(field(r.Key, 100)).text(" until " + deadline(r, now))
		if d.Asker != r.Requester {
			m.text(" · ").code(field(r.Requester, 100))
		}
		m.text(" · says, not checked: “").code(field(r.Summary, 120)).text("”")
		b := transport.Button{
			Text: fmt.Sprintf("Open %d", i+1),
			Data: Button{Verdict: Open, Reason: requestTag(CycleID{r.Key, r.Seq}), Nonce: nonce}.Data(),
		}
		if i%2 == 0 {
			keys = append(keys, nil)
		}
		keys[len(keys)-1] = append(keys[len(keys)-1], b)
	}
	if more := d.Count - len(d.Listed); more > 0 {
		m.line().text(fmt.Sprintf("and %d more, which move up as these are opened or end; /show KEY brings up any", more))
	}
	return Message{HTML: m.String(), Keyboard: keys}
}

// Reminder says that the requests of a digest still wait.
func (d Digest) Reminder() Message {
	m := &markup{}
	m.text(fmt.Sprintf("⏰ %d still waiting from ", d.Count)).code(field(d.Asker, maxRequester)).text(" · ").code(field(d.Class, maxRequester)).line()
	m.text("The buttons of the message that this replies to open them as cards, which decide.")
	return Message{HTML: m.String()}
}

// Settled is a digest that stands for nothing any more, since its requests ended or since a newer one stands for them.
func (d Digest) Settled(replaced bool) Message {
	m := &markup{}
	if replaced {
		m.text("replaced · a newer message below stands for what waits").line()
	} else {
		m.text("ended · no request waits behind this message any more").line()
	}
	m.text("it stood for requests from ").code(field(orElse(d.Asker, "an asker"), maxRequester)).text(" · ").code(field(orElse(d.Class, "any class"), maxRequester))
	return Message{HTML: m.String()}
}

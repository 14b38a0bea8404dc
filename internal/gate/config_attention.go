package gate

import (
	"path/filepath"
	"strings"
)

// Attention is what the gate does so that nobody is forgotten.
type Attention struct {
	// OnTrouble is the operator's command that is told of trouble: an absolute path and arguments; empty for none.
	OnTrouble []string
	// Reminder is the part of a request's time after which its people are reminded; 0 for never.
	Reminder float64
	// DeputyChatID is the chat that is asked too when nobody answers; 0 for none.
	DeputyChatID int64
}

// maxCommandWords bounds on_trouble: a longer one is a script that wants a file.
const maxCommandWords = 32

func (c *Config) readAttention(n *node) {
	c.Attention = Attention{OnTrouble: n.command("on_trouble"), Reminder: n.part("reminder"), DeputyChatID: c.deputy(n)}
}

// command answers a program with its arguments, or nil when the key is missing or holds none.
func (n *node) command(name string) []string {
	const want = `a program with its arguments: ["/usr/local/bin/page-me", "approvald"]`
	words, ok := n.strings(name, want)
	if !ok {
		return nil
	}
	var what string
	switch {
	case len(words) == 0:
		what = "names no program"
	case len(words) > maxCommandWords:
		what = "has too many words"
	case !filepath.IsAbs(words[0]):
		// Looking it up on PATH would let whoever can write there be told, or act, in the operator's place.
		n.faults.add(n.key(name)+"[0]", "write the program's path in full, from / on", "%q is not an absolute path", clip(words[0]))
		return nil
	case strings.ContainsRune(strings.Join(words, ""), 0):
		what = "holds a NUL character"
	default:
		return words
	}
	n.fault(name, "write "+want, "%s", what)
	return nil
}

// part answers a number above 0 and below 1, or 0 when the key is missing or holds none.
func (n *node) part(name string) float64 {
	const want = "a number above 0 and below 1: 0.5 is half of a request's time"
	v, ok := n.take(name)
	if !ok {
		return 0
	}
	f, isFloat := v.(float64)
	whole, isWhole := v.(int64)
	switch {
	case !isFloat && !isWhole:
		n.fault(name, "write "+want, "is %s", describe(v))
	case isWhole:
		n.fault(name, "write "+want, "%d is out of range", whole)
	case !(f > 0 && f < 1): // also what is not a number at all
		n.fault(name, "write "+want, "%v is out of range", f)
	default:
		return f
	}
	return 0
}

func (c *Config) deputy(n *node) int64 {
	const name, want = "deputy_chat_id", "the chat's numeric id, negative for a group"
	id, ok := typed[int64](n, name, want)
	switch {
	case !ok:
		return 0
	case id == 0:
		n.fault(name, "write "+want, "0 is no chat")
	case id == c.Telegram.ChatID:
		n.fault(name, "name another chat, or leave the key out", "is telegram.chat_id itself")
	default:
		return id
	}
	return 0
}

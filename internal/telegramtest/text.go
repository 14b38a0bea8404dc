package telegramtest

import (
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	maxText     = 4096  // code points of a message after parsing
	maxCaption  = 1024  // code points of a caption after parsing
	maxRawText  = 32768 // bytes as sent
	maxEntities = 100
)

// Parse reads text as the server does for a parse_mode: "HTML", "Markdown",
// "MarkdownV2" or "" for text without markup. It returns what people see, with
// its entities; the error is worded as the description of the answer.
func Parse(text, parseMode string) (string, []Entity, error) {
	out, es, err := formatted(text, parseMode, "")
	if err != nil {
		return "", nil, errors.New(err.Description)
	}
	return out, es, nil
}

// formatted parses a text argument with its parse_mode or entities argument.
func formatted(text, mode, entities string) (string, []Entity, *apiError) {
	if !utf8.ValidString(text) {
		return "", nil, badRequest("strings must be encoded in UTF-8")
	}
	var es []Entity
	var err *apiError
	switch strings.ToLower(mode) {
	case "", "none":
		if mode == "" && entities != "" {
			es = givenEntities(text, entities)
		}
	case "html":
		text, es, err = parseHTML(text)
	case "markdown":
		text, es, err = parseMarkdown(text)
	case "markdownv2":
		text, es, err = parseMarkdownV2(text)
	default:
		err = badRequest("Unsupported parse_mode")
	}
	if err != nil {
		return "", nil, err
	}
	text, es = clean(text, es)
	text, es = trim(text, es)
	es = settle(append(es, autoEntities(text, es)...))
	return text, es, nil
}

// givenEntities reads an entities argument. What is not an array is ignored, and
// so are entities that lie outside the text.
func givenEntities(text, arg string) []Entity {
	var es []Entity
	if json.Unmarshal([]byte(arg), &es) != nil {
		return nil
	}
	units := unitLen(text)
	return slices.DeleteFunc(es, func(e Entity) bool {
		return e.Offset < 0 || e.Length <= 0 || e.Offset+e.Length > units || e.Type == ""
	})
}

// clean drops what Telegram does not keep in a text: carriage returns and the
// line and direction controls U+2028 to U+202E; other control characters become
// spaces.
func clean(text string, es []Entity) (string, []Entity) {
	var b strings.Builder
	units := 0
	var cuts []int // UTF-16 offsets, in the old text, of dropped characters
	for _, r := range text {
		switch {
		case r == '\r' || r >= 0x2028 && r <= 0x202e:
			cuts = append(cuts, units)
		case r < ' ' && r != '\n' && r != '\t':
			b.WriteByte(' ')
		default:
			b.WriteRune(r)
		}
		units += utf16.RuneLen(r)
	}
	if len(cuts) == 0 {
		return b.String(), es
	}
	move := func(at int) int {
		n, _ := slices.BinarySearch(cuts, at)
		return at - n
	}
	return b.String(), remap(es, move)
}

// trim removes white space at both ends, at the front only up to the first
// entity, as Telegram does.
func trim(text string, es []Entity) (string, []Entity) {
	text = strings.TrimRight(text, " \n\t")
	front := len(text) - len(strings.TrimLeft(text, " \n\t"))
	for _, e := range es {
		front = min(front, e.Offset) // white space is one byte and one unit each
	}
	text = text[front:]
	units := unitLen(text)
	return text, remap(es, func(at int) int { return min(max(at-front, 0), units) })
}

// remap moves the ends of entities and drops those that become empty.
func remap(es []Entity, move func(int) int) []Entity {
	var out []Entity
	for _, e := range es {
		from, to := move(e.Offset), move(e.Offset+e.Length)
		if from < to {
			e.Offset, e.Length = from, to-from
			out = append(out, e)
		}
	}
	return out
}

// settle orders entities, drops what may not stand inside code, and cuts the
// list where Telegram stops reading.
func settle(es []Entity) []Entity {
	slices.SortStableFunc(es, func(a, b Entity) int {
		if a.Offset != b.Offset {
			return a.Offset - b.Offset
		}
		if a.Length != b.Length {
			return b.Length - a.Length
		}
		// A quote around all of a code block is outside of it.
		return order(isQuote(b)) - order(isQuote(a))
	})
	var out []Entity
	codeEnd := 0
	for _, e := range es {
		code := e.Type == "code" || e.Type == "pre"
		if e.Offset < codeEnd {
			continue
		}
		if code {
			codeEnd = e.Offset + e.Length
			out = slices.DeleteFunc(out, func(o Entity) bool {
				return o.Offset == e.Offset && o.Length == e.Length && !isQuote(o)
			})
		}
		if e.Type == "code" {
			e.Language = ""
		}
		out = append(out, e)
	}
	return out[:min(len(out), maxEntities)]
}

func isQuote(e Entity) bool { return strings.HasSuffix(e.Type, "blockquote") }

func order(b bool) int {
	if b {
		return 1
	}
	return 0
}

type autoPattern struct {
	kind string
	re   *regexp.Regexp
}

// autoPatterns is made when it is first needed: a program with the server in it starts without.
var autoPatterns = sync.OnceValue(func() []autoPattern {
	return []autoPattern{
		{"url", regexp.MustCompile(`(?:https?://|\bwww\.)[^\s<>"']*[^\s<>"'.,;:!?)]`)},
		{"mention", regexp.MustCompile(`(?:^|[^\w/@])(@[A-Za-z]\w{3,31})\b`)},
		{"bot_command", regexp.MustCompile(`(?:^|[\s(])(/[A-Za-z0-9_]{1,64}(?:@\w{3,32})?)\b`)},
		{"hashtag", regexp.MustCompile(`(?:^|[^\w#])(#\w*[A-Za-z_]\w*)`)},
	}
})

// autoEntities finds links, mentions, commands and hashtags that nobody marked.
func autoEntities(text string, es []Entity) []Entity {
	if !strings.ContainsAny(text, "@/#.") {
		return nil
	}
	var out []Entity
	taken := func(from, to int, list []Entity, all bool) bool {
		for _, e := range list {
			blocks := all || e.Type == "code" || e.Type == "pre" || e.Type == "text_link" || e.Type == "text_mention"
			if blocks && from < e.Offset+e.Length && to > e.Offset {
				return true
			}
		}
		return false
	}
	for _, p := range autoPatterns() {
		for _, m := range p.re.FindAllStringSubmatchIndex(text, -1) {
			from, to := m[len(m)-2], m[len(m)-1]
			offset := unitLen(text[:from])
			end := offset + unitLen(text[from:to])
			if !taken(offset, end, es, false) && !taken(offset, end, out, true) {
				out = append(out, Entity{Type: p.kind, Offset: offset, Length: end - offset})
			}
		}
	}
	return out
}

// unitLen is the length of s in UTF-16 code units.
func unitLen(s string) int {
	n := 0
	for _, r := range s {
		n += utf16.RuneLen(r)
	}
	return n
}

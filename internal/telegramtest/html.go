package telegramtest

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// styled is text being built together with its entities.
type styled struct {
	text     strings.Builder
	units    int // UTF-16 length of text
	entities []Entity
}

func (s *styled) writeRune(r rune) {
	s.text.WriteRune(r)
	s.units += utf16.RuneLen(r)
}

// htmlTags maps the tags that Telegram knows to the entities they make.
var htmlTags = map[string]string{
	"b": "bold", "strong": "bold", "i": "italic", "em": "italic", "u": "underline", "ins": "underline",
	"s": "strikethrough", "strike": "strikethrough", "del": "strikethrough", "tg-spoiler": "spoiler", "span": "spoiler",
	"a": "text_link", "code": "code", "pre": "pre", "blockquote": "blockquote", "tg-emoji": "custom_emoji",
}

// htmlParser reads Telegram's HTML the way its server does, with its errors.
// Offsets in errors are byte offsets into the text.
type htmlParser struct {
	in   string
	pos  int
	out  styled
	open []openTag
}

type openTag struct {
	name, argument string
	offset         int // UTF-16 offset of its start
	bytes          int // byte offset of its start in the output
}

func parseHTML(in string) (string, []Entity, *apiError) {
	p := &htmlParser{in: in}
	for p.pos < len(in) {
		switch c := in[p.pos]; c {
		case '&':
			if r, n := htmlEntity(in[p.pos:]); n > 0 {
				p.out.writeRune(r)
				p.pos += n
				continue
			}
			p.out.writeRune('&')
			p.pos++
		case '<':
			var err *apiError
			if strings.HasPrefix(in[p.pos:], "</") {
				err = p.endTag()
			} else {
				err = p.startTag()
			}
			if err != nil {
				return "", nil, err
			}
		default:
			r, n := utf8.DecodeRuneInString(in[p.pos:])
			p.out.writeRune(r)
			p.pos += n
		}
	}
	if len(p.open) > 0 {
		return "", nil, entityError("Can't find end tag corresponding to start tag \"%s\"", p.open[len(p.open)-1].name)
	}
	return p.out.text.String(), p.out.entities, nil
}

func entityError(format string, args ...any) *apiError {
	return &apiError{Code: 400, Description: "Bad Request: can't parse entities: " + fmt.Sprintf(format, args...)}
}

// at returns the byte at the cursor, 0 at the end.
func (p *htmlParser) at() byte {
	if p.pos < len(p.in) {
		return p.in[p.pos]
	}
	return 0
}

func (p *htmlParser) skipSpace() {
	for isSpace(p.at()) {
		p.pos++
	}
}

func (p *htmlParser) startTag() *apiError {
	begin := p.pos
	p.pos++
	for p.at() != 0 && !isSpace(p.at()) && p.at() != '>' {
		p.pos++
	}
	if p.at() == 0 {
		return entityError("Unclosed start tag at byte offset %d", begin)
	}
	tag := openTag{name: strings.ToLower(p.in[begin+1 : p.pos]), offset: p.out.units, bytes: p.out.text.Len()}
	if htmlTags[tag.name] == "" {
		return entityError("Unsupported start tag \"%s\" at byte offset %d", tag.name, begin)
	}
	for {
		p.skipSpace()
		if p.at() == '>' {
			break
		}
		if err := p.attribute(&tag, begin); err != nil {
			return err
		}
	}
	p.pos++
	if tag.name == "span" && tag.argument != "spoiler" {
		return entityError("Tag \"span\" must have class \"tg-spoiler\" at byte offset %d", begin)
	}
	p.open = append(p.open, tag)
	return nil
}

// attribute reads one attribute of a tag that began at byte offset begin.
func (p *htmlParser) attribute(tag *openTag, begin int) *apiError {
	unclosed := func() *apiError { return entityError("Unclosed start tag \"%s\" at byte offset %d", tag.name, begin) }
	from := p.pos
	for c := p.at(); c != 0 && !isSpace(c) && c != '=' && c != '>'; c = p.at() {
		p.pos++
	}
	name := strings.ToLower(p.in[from:p.pos])
	if name == "" && p.at() != 0 {
		return entityError("Empty attribute name in the tag \"%s\" at byte offset %d", tag.name, begin)
	}
	p.skipSpace()
	if p.at() == 0 {
		return unclosed()
	}
	value := ""
	if p.at() == '=' {
		p.pos++
		p.skipSpace()
		if p.at() == 0 {
			return unclosed()
		}
		var err *apiError
		if value, err = p.value(); err != nil {
			return err
		}
		if p.at() == 0 {
			return unclosed()
		}
	}
	switch {
	case tag.name == "a" && name == "href", tag.name == "tg-emoji" && name == "emoji-id":
		tag.argument = value
	case tag.name == "code" && name == "class" && strings.HasPrefix(value, "language-"):
		tag.argument = value[len("language-"):]
	case tag.name == "span" && name == "class" && strings.HasPrefix(value, "tg-"):
		tag.argument = value[len("tg-"):]
	case tag.name == "blockquote" && name == "expandable":
		tag.argument = "expandable"
	}
	return nil
}

func (p *htmlParser) value() (string, *apiError) {
	quote := p.at()
	if quote != '"' && quote != '\'' {
		from := p.pos
		for c := p.at(); c == '.' || c == '-' || c >= '0' && c <= '9' || isLetter(c); c = p.at() {
			p.pos++
		}
		if c := p.at(); c != 0 && !isSpace(c) && c != '>' {
			return "", entityError("Unexpected end of name token at byte offset %d", from)
		}
		return strings.ToLower(p.in[from:p.pos]), nil
	}
	p.pos++
	var b strings.Builder
	for c := p.at(); c != 0 && c != quote; c = p.at() {
		if c == '&' {
			if r, n := htmlEntity(p.in[p.pos:]); n > 0 {
				b.WriteRune(r)
				p.pos += n
				continue
			}
		}
		b.WriteByte(c)
		p.pos++
	}
	if p.at() == quote {
		p.pos++
	}
	return b.String(), nil
}

func (p *htmlParser) endTag() *apiError {
	begin := p.pos
	if len(p.open) == 0 {
		return entityError("Unexpected end tag at byte offset %d", begin)
	}
	p.pos += 2
	for p.at() != 0 && !isSpace(p.at()) && p.at() != '>' {
		p.pos++
	}
	name := strings.ToLower(p.in[begin+2 : p.pos])
	p.skipSpace()
	if p.at() != '>' {
		return entityError("Unclosed end tag at byte offset %d", begin)
	}
	p.pos++
	tag := p.open[len(p.open)-1]
	if name != "" && name != tag.name {
		return entityError("Unmatched end tag at byte offset %d, expected \"</%s>\", found \"</%s>\"", begin, tag.name, name)
	}
	p.open = p.open[:len(p.open)-1]
	if p.out.units > tag.offset {
		p.entity(tag)
	}
	return nil
}

// entity adds the entity of a tag that was closed around some text.
func (p *htmlParser) entity(tag openTag) {
	e := Entity{Type: htmlTags[tag.name], Offset: tag.offset, Length: p.out.units - tag.offset}
	switch tag.name {
	case "a":
		link := tag.argument
		if link == "" {
			link = p.out.text.String()[tag.bytes:]
		}
		if !setLink(&e, link) {
			return
		}
	case "tg-emoji":
		e.EmojiID = tag.argument
	case "blockquote":
		if tag.argument != "" {
			e.Type = "expandable_blockquote"
		}
	case "pre", "code":
		// <pre><code class="language-x"> is one block with a language.
		if n := len(p.out.entities); n > 0 {
			inner := &p.out.entities[n-1]
			if (inner.Type == "code" || inner.Type == "pre") && inner.Type != e.Type && inner.Offset == e.Offset && inner.Length == e.Length {
				language := inner.Language
				if tag.name == "code" {
					language = tag.argument
				}
				inner.Type, inner.Language = "pre", language
				return
			}
		}
		if tag.name == "code" {
			e.Language = tag.argument // until it is known whether a pre surrounds it
		}
	}
	p.out.entities = append(p.out.entities, e)
}

// setLink makes e a link to a web page or a mention of a person; it reports
// false for an address that Telegram drops without an error.
func setLink(e *Entity, link string) bool {
	if id, ok := strings.CutPrefix(link, "tg://user?id="); ok {
		n, err := strconv.ParseInt(id, 10, 64)
		if err != nil || n <= 0 {
			return false
		}
		e.Type, e.User = "text_mention", &User{ID: n, FirstName: "User " + id}
		return true
	}
	link = strings.TrimSpace(link)
	scheme, rest, found := strings.Cut(link, "://")
	if !found {
		rest, link = link, "http://"+link
		scheme = "http"
	}
	host, _, _ := strings.Cut(rest, "/")
	switch strings.ToLower(scheme) {
	case "http", "https", "ftp":
		if !strings.Contains(host, ".") && !strings.HasPrefix(host, "localhost") {
			return false
		}
	case "tg", "ton":
	default:
		return false
	}
	if host == rest && (scheme == "http" || scheme == "https") && !strings.Contains(rest, "?") {
		link += "/"
	}
	e.Type, e.URL = "text_link", link
	return true
}

// htmlEntity reads &lt; &gt; &amp; &quot; or a numeric reference at the start of
// s and returns its length, 0 when it is none. The semicolon may be missing.
func htmlEntity(s string) (rune, int) {
	end := 1
	var r rune
	if strings.HasPrefix(s, "&#") {
		base, digits := 10, "0123456789"
		end = 2
		if strings.HasPrefix(s, "&#x") || strings.HasPrefix(s, "&#X") {
			base, digits, end = 16, "0123456789abcdefABCDEF", 3
		}
		start := end
		for end < len(s) && strings.IndexByte(digits, s[end]) >= 0 {
			end++
		}
		n, err := strconv.ParseUint(s[start:end], base, 32)
		if err != nil || n == 0 || n >= 0x10ffff || end-start >= 10 || !utf8.ValidRune(rune(n)) {
			return 0, 0
		}
		r = rune(n)
	} else {
		for end < len(s) && isLetter(s[end]) {
			end++
		}
		r = map[string]rune{"lt": '<', "gt": '>', "amp": '&', "quot": '"'}[s[1:end]]
		if r == 0 {
			return 0, 0
		}
	}
	if end < len(s) && s[end] == ';' {
		end++
	}
	return r, end
}

func isSpace(c byte) bool {
	return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f'
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

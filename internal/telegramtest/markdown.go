package telegramtest

import (
	"strings"
	"unicode/utf8"
)

// parseMarkdown reads the legacy mode: *bold*, _italic_, `code`, ```pre``` and
// [text](link), without nesting.
func parseMarkdown(in string) (string, []Entity, *apiError) {
	var out styled
	for pos := 0; pos < len(in); {
		c := in[pos]
		if c == '\\' && pos+1 < len(in) && strings.IndexByte("_*`[", in[pos+1]) >= 0 {
			out.writeRune(rune(in[pos+1]))
			pos += 2
			continue
		}
		if strings.IndexByte("_*`[", c) < 0 {
			r, n := utf8.DecodeRuneInString(in[pos:])
			out.writeRune(r)
			pos += n
			continue
		}
		begin := pos
		kind, open, end := "bold", 1, string(c)
		switch {
		case strings.HasPrefix(in[pos:], "```"):
			kind, open, end = "pre", 3, "```"
		case c == '`':
			kind = "code"
		case c == '_':
			kind = "italic"
		case c == '[':
			kind, end = "text_link", "]"
		}
		body, _, found := strings.Cut(in[pos+open:], end)
		if !found {
			return "", nil, entityError("Can't find end of the entity starting at byte offset %d", begin)
		}
		pos += open + len(body) + len(end)
		e := Entity{Type: kind, Offset: out.units}
		if kind == "pre" {
			e.Language, body = language(body)
		}
		for _, r := range body {
			out.writeRune(r)
		}
		e.Length = out.units - e.Offset
		keep := true
		if kind == "text_link" {
			link := ""
			if strings.HasPrefix(in[pos:], "(") {
				link, _, _ = strings.Cut(in[pos+1:], ")")
				pos = min(pos+len(link)+2, len(in))
			}
			keep = link != "" && setLink(&e, link)
		}
		if keep && e.Length > 0 {
			out.entities = append(out.entities, e)
		}
	}
	return out.text.String(), out.entities, nil
}

// language takes the name of a language off the first line of a block.
func language(body string) (name, rest string) {
	first, after, found := strings.Cut(body, "\n")
	if found && first != "" && !strings.ContainsAny(first, " \t") {
		return first, after
	}
	return "", strings.TrimPrefix(body, "\n")
}

// markdownV2Reserved must be escaped outside of what they mean.
const markdownV2Reserved = "_*[]()~`>#+-=|{}.!"

// markdownV2Marks are the marks that open and close an entity, longest first.
var markdownV2Marks = []struct{ mark, kind, name string }{
	{"```", "pre", "Pre"}, {"`", "code", "Code"}, {"||", "spoiler", "Spoiler"}, {"__", "underline", "Underline"},
	{"_", "italic", "Italic"}, {"*", "bold", "Bold"}, {"~", "strikethrough", "Strikethrough"},
}

type openMark struct {
	mark, kind, name string
	entity           int // index of the entity reserved for it
	begin, offset    int
}

// parseMarkdownV2 reads MarkdownV2: nested marks, links, block quotes, and an
// error for every reserved character that is not escaped.
func parseMarkdownV2(in string) (string, []Entity, *apiError) {
	var out styled
	var open []openMark
	quote := -1 // offset where the block quote began
	lineStart := true
	for pos := 0; pos < len(in); {
		c := in[pos]
		var top openMark
		if len(open) > 0 {
			top = open[len(open)-1]
		}
		inCode := top.kind == "code" || top.kind == "pre"
		start := lineStart
		lineStart = c == '\n'
		switch {
		case c == '\\' && pos+1 < len(in) && in[pos+1] > 0 && in[pos+1] <= 126:
			out.writeRune(rune(in[pos+1]))
			pos += 2
			continue
		case inCode && !strings.HasPrefix(in[pos:], top.mark):
			r, n := utf8.DecodeRuneInString(in[pos:])
			out.writeRune(r)
			pos += n
			continue
		case start && c == '>' && !inCode:
			if quote < 0 {
				quote = out.units
			}
			pos++
			continue
		case c == '\n' && quote >= 0 && !strings.HasPrefix(in[pos+1:], ">"):
			out.entities = append(out.entities, Entity{Type: "blockquote", Offset: quote, Length: out.units - quote})
			quote = -1
		}
		if strings.IndexByte(markdownV2Reserved, c) < 0 {
			r, n := utf8.DecodeRuneInString(in[pos:])
			out.writeRune(r)
			pos += n
			continue
		}
		if c == ']' && top.mark == "]" {
			open = open[:len(open)-1]
			n, err := closeLink(&out, in, pos, top)
			if err != nil {
				return "", nil, err
			}
			pos += n
			continue
		}
		if c == '[' {
			open = append(open, openMark{"]", "text_link", "TextUrl", len(out.entities), pos, out.units})
			out.entities = append(out.entities, Entity{})
			pos++
			continue
		}
		n, err := markV2(&out, &open, in, pos)
		if err != nil {
			return "", nil, err
		}
		pos += n
	}
	if len(open) > 0 {
		top := open[len(open)-1]
		return "", nil, entityError("Can't find end of %s entity at byte offset %d", top.name, top.begin)
	}
	if quote >= 0 {
		out.entities = append(out.entities, Entity{Type: "blockquote", Offset: quote, Length: out.units - quote})
	}
	var es []Entity
	for _, e := range out.entities {
		if e.Length > 0 {
			es = append(es, e)
		}
	}
	return out.text.String(), es, nil
}

// markV2 opens or closes the mark at pos and returns its length.
func markV2(out *styled, open *[]openMark, in string, pos int) (int, *apiError) {
	for _, m := range markdownV2Marks {
		if !strings.HasPrefix(in[pos:], m.mark) {
			continue
		}
		stack := *open
		if len(stack) > 0 && stack[len(stack)-1].mark == m.mark {
			top := stack[len(stack)-1]
			*open = stack[:len(stack)-1]
			out.entities[top.entity] = Entity{
				Type: m.kind, Offset: top.offset, Length: out.units - top.offset, Language: out.entities[top.entity].Language,
			}
			return len(m.mark), nil
		}
		*open = append(stack, openMark{m.mark, m.kind, m.name, len(out.entities), pos, out.units})
		e := Entity{}
		n := len(m.mark)
		if m.kind == "pre" {
			body, _, _ := strings.Cut(in[pos+n:], m.mark)
			var rest string
			e.Language, rest = language(body)
			n += len(body) - len(rest)
		}
		out.entities = append(out.entities, e)
		return n, nil
	}
	return 0, entityError("Character '%c' is reserved and must be escaped with the preceding '\\'", in[pos])
}

// closeLink reads "](address)" at pos and returns its length.
func closeLink(out *styled, in string, pos int, top openMark) (int, *apiError) {
	e := Entity{Type: "text_link", Offset: top.offset, Length: out.units - top.offset}
	rest := in[pos+1:]
	if !strings.HasPrefix(rest, "(") {
		return 1, nil // no address, no link
	}
	var link strings.Builder
	i := 1
	for ; i < len(rest) && rest[i] != ')'; i++ {
		if rest[i] == '\\' && i+1 < len(rest) {
			i++
		}
		link.WriteByte(rest[i])
	}
	if i == len(rest) {
		return 0, entityError("Can't find end of a URL at byte offset %d", pos+1)
	}
	if setLink(&e, link.String()) {
		out.entities[top.entity] = e
	}
	return 1 + i + 1, nil
}

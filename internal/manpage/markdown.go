package manpage

import (
	"regexp"
	"strings"
)

// Guide returns a page made of a Markdown guide. Its first heading is left out: name and short take its place.
func Guide(name string, section int, short string, edition Edition, markdown string) Page {
	var r roff
	r.head(name, section, edition, short)
	title, rest, _ := strings.Cut(strings.TrimLeft(markdown, "\n"), "\n")
	if !strings.HasPrefix(title, "# ") {
		rest = markdown
	}
	r.section("DESCRIPTION")
	r.markdown(rest)
	r.section("SEE ALSO")
	r.macro(".BR", strings.TrimSuffix(name, ".toml"), "(1)")
	return Page{File: name + "." + string(rune('0'+section)), Text: r.String()}
}

// markdown writes blocks: headings, fenced code, tables, lists and paragraphs.
func (r *roff) markdown(text string) {
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	for i := 0; i < len(lines); {
		line := lines[i]
		from := i
		switch {
		case strings.TrimSpace(line) == "":
			i++
		case strings.HasPrefix(line, "#"):
			r.heading(line)
			i++
		case strings.HasPrefix(line, "```"):
			for i++; i < len(lines) && !strings.HasPrefix(lines[i], "```"); i++ {
			}
			r.verbatim(lines[from+1 : i])
			i++
		case strings.HasPrefix(line, "|"):
			for ; i < len(lines) && strings.HasPrefix(lines[i], "|"); i++ {
			}
			r.table(lines[from:i])
		case strings.HasPrefix(line, "- "):
			for i++; i < len(lines) && strings.HasPrefix(lines[i], "  "); i++ {
			}
			r.request(`.IP \(bu 2`)
			r.text(strings.TrimPrefix(strings.Join(lines[from:i], "\n"), "- "))
		default:
			for i++; i < len(lines) && !beginsBlock(lines[i]); i++ {
			}
			r.paragraph()
			r.text(strings.Join(lines[from:i], "\n"))
		}
	}
}

func beginsBlock(line string) bool {
	if strings.TrimSpace(line) == "" {
		return true
	}
	for _, start := range []string{"#", "```", "|", "- "} {
		if strings.HasPrefix(line, start) {
			return true
		}
	}
	return false
}

func (r *roff) heading(line string) {
	title := strings.TrimLeft(line, "#")
	if level := len(line) - len(title); level > 2 {
		r.macro(".SS", strings.TrimSpace(title))
		r.opened = true
		return
	}
	r.section(strings.ToUpper(strings.TrimSpace(title)))
}

// table writes each row as a tagged paragraph: its first cell, then what the others say. A terminal has no room for columns. A column's
// heading is said where it is no plain meaning.
func (r *roff) table(rows []string) {
	var heads []string
	for i, row := range rows {
		cells := cells(row)
		switch {
		case i == 0:
			heads = cells
			continue
		case strings.Trim(row, "|-: ") == "":
			continue
		}
		r.request(".TP")
		r.line(inline(cells[0]))
		said := false
		for j, cell := range cells[1:] {
			if cell == "" {
				continue
			}
			if j+1 < len(heads) && heads[j+1] != "" && heads[j+1] != "meaning" && heads[j+1] != "why" {
				cell = heads[j+1] + ": " + cell + "."
			}
			r.line(inline(cell))
			said = true
		}
		if !said {
			r.line(`\&`)
		}
	}
}

func cells(row string) []string {
	const bar = "\x00" // stands for \|
	row = strings.ReplaceAll(strings.Trim(strings.TrimSpace(row), "|"), `\|`, bar)
	var list []string
	for cell := range strings.SplitSeq(row, "|") {
		list = append(list, strings.TrimSpace(strings.ReplaceAll(cell, bar, "|")))
	}
	return list
}

// spans are what stands inside a line: code, strong, emphasis, a link.
var spans = regexp.MustCompile("`([^`]+)`|\\*\\*([^*]+)\\*\\*|\\[([^\\]]+)\\]\\(([^)]+)\\)")

// inline makes roff of a line's text.
func inline(text string) string {
	var b strings.Builder
	at := 0
	for _, m := range spans.FindAllStringSubmatchIndex(text, -1) {
		b.WriteString(escape(text[at:m[0]]))
		at = m[1]
		switch {
		case m[2] >= 0:
			b.WriteString(bold(text[m[2]:m[3]]))
		case m[4] >= 0:
			b.WriteString(bold(text[m[4]:m[5]]))
		default:
			b.WriteString(escape(text[m[6]:m[7]])) // a guide's link leads nowhere from a terminal
		}
	}
	b.WriteString(escape(text[at:]))
	return b.String()
}

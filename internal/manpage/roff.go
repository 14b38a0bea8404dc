package manpage

import (
	"fmt"
	"strings"
)

// roff is a page in the making. What its methods are given is text, never roff, except for line and request.
type roff struct {
	strings.Builder
	opened bool // a section has just begun: its first paragraph needs no macro
}

// escape makes text mean itself: no escape sequence, no request at a line's start, and a hyphen that can be copied and searched.
func escape(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\t", "    ", "\n", " ").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

func bold(text string) string   { return `\fB` + escape(text) + `\fP` }
func italic(text string) string { return `\fI` + escape(text) + `\fP` }

// argument quotes text as one argument of a macro.
func argument(text string) string {
	return `"` + strings.ReplaceAll(escape(text), `"`, `\(dq`) + `"`
}

// line writes a line of roff that is no request.
func (r *roff) line(text string) {
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	r.request(text)
}

// request writes a request or macro as it is.
func (r *roff) request(text string) {
	r.WriteString(text + "\n")
	r.opened = false
}

func (r *roff) macro(name string, arguments ...string) {
	for _, a := range arguments {
		name += " " + argument(a)
	}
	r.request(name)
}

func (r *roff) head(name string, section int, edition Edition, short string) {
	r.request(fmt.Sprintf(`.TH %s %d "%s" %s`, argument(strings.ToUpper(name)), section, edition.Date, argument("approvald "+edition.Version)))
	r.section("NAME")
	r.line(escape(name) + ` \- ` + escape(strings.TrimSuffix(short, ".")))
}

func (r *roff) section(title string) {
	r.macro(".SH", title)
	r.opened = true
}

func (r *roff) paragraph() {
	if !r.opened {
		r.request(".PP")
	}
}

// text writes running text, a line of the source for each of its lines, so that differences stay readable.
func (r *roff) text(text string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			r.line(inline(line))
		}
	}
}

// paragraphs writes text in which an empty line separates paragraphs and an indented line stands for itself.
func (r *roff) paragraphs(text string) {
	for _, part := range strings.Split(strings.Trim(text, "\n"), "\n\n") {
		lines := strings.Split(part, "\n")
		if strings.HasPrefix(part, "  ") {
			r.verbatim(lines)
			continue
		}
		r.paragraph()
		r.text(part)
	}
}

// verbatim writes lines as they stand.
func (r *roff) verbatim(lines []string) {
	r.paragraph()
	r.request(".RS 4")
	r.request(".nf")
	for _, line := range lines {
		if line == "" {
			r.line(`\&`)
			continue
		}
		r.line(escape(line))
	}
	r.request(".fi")
	r.request(".RE")
}

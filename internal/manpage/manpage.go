// Package manpage writes manual pages, in the man(7) macros, from a tree of cobra commands and from the Markdown of the guides.
//
// It guarantees that text cannot become a request or an escape of roff, that equal input gives equal bytes, and that man-db and mandoc
// read the pages without a warning (a test has both look). Of Markdown it knows what the guides of this repository use: headings,
// paragraphs, lists, tables, code, emphasis and links. It is no general converter.
package manpage

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Page is one manual page.
type Page struct {
	// File is its name as man finds it: NAME.SECTION.
	File string
	// Text is its source.
	Text string
}

// Edition stands in the head and foot of every page.
type Edition struct {
	Version string
	// Date is YYYY-MM-DD.
	Date string
}

// Commands returns a page for root and one for each command below it that people may use, NAME-VERB-VERB.1, in the order of the tree.
// about is put into root's page behind its options.
func Commands(root *cobra.Command, edition Edition, about string) []Page {
	root.InitDefaultHelpFlag()
	pages := []Page{command(root, edition, about)}
	for _, c := range root.Commands() {
		if c.IsAvailableCommand() {
			pages = append(pages, Commands(c, edition, "")...)
		}
	}
	return pages
}

func command(c *cobra.Command, edition Edition, about string) Page {
	name := pageName(c)
	var r roff
	r.head(name, 1, edition, c.Short)
	r.section("SYNOPSIS")
	r.synopsis(c)
	r.section("DESCRIPTION")
	long := c.Long
	if long == "" {
		long = c.Short + "."
	}
	r.paragraphs(long)
	r.options("OPTIONS", c.NonInheritedFlags())
	if c.HasParent() {
		r.options("OPTIONS OF EVERY COMMAND", c.InheritedFlags())
	}
	if c.HasAvailableSubCommands() {
		r.section("COMMANDS")
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				r.request(".TP")
				r.macro(".BR", pageName(sub), "(1)")
				r.text(sub.Short)
			}
		}
	}
	if c.Example != "" {
		r.section("EXAMPLES")
		r.verbatim(strings.Split(outdent(c.Example), "\n"))
	}
	if about != "" {
		r.markdown(about)
	}
	r.section("SEE ALSO")
	r.seeAlso(c)
	return Page{File: name + ".1", Text: r.String()}
}

func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

func (r *roff) synopsis(c *cobra.Command) {
	use := strings.TrimPrefix(c.UseLine(), c.CommandPath())
	if c.HasAvailableSubCommands() {
		use = " [OPTIONS] COMMAND"
	}
	r.line(bold(c.CommandPath()) + escape(use))
}

func (r *roff) options(title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	r.section(title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		tag := bold("--" + f.Name)
		if f.Shorthand != "" {
			tag = bold("-"+f.Shorthand) + ", " + tag
		}
		if value != "" {
			tag += " " + italic(value)
		}
		r.request(".TP")
		r.line(tag)
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "0s" && f.DefValue != "[]" {
			usage += fmt.Sprintf(" (default %s)", f.DefValue)
		}
		r.text(usage)
	})
}

func (r *roff) seeAlso(c *cobra.Command) {
	var names []string
	if c.HasParent() {
		names = append(names, pageName(c.Parent())+"(1)")
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, pageName(sub)+"(1)")
		}
	}
	names = append(names, c.Root().Name()+".toml(5)")
	for i, full := range names {
		name, section, _ := strings.Cut(full, "(")
		section = "(" + section
		if i < len(names)-1 {
			section += ","
		}
		r.macro(".BR", name, section)
	}
}

// outdent takes the indentation of the first line off all of them.
func outdent(text string) string {
	text = strings.Trim(text, "\n")
	indent := text[:len(text)-len(strings.TrimLeft(text, " "))]
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, indent)
	}
	return strings.Join(lines, "\n")
}

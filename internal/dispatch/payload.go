package dispatch

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode/utf16"

	"github.com/approvald/approvald/internal/visible"
)

// Document is a file that goes before a card.
type Document struct {
	Name   string
	Data   []byte
	SHA256 string // hex, of Data
}

func newDocument(name string, data []byte) Document {
	sum := sha256.Sum256(data)
	return Document{Name: name, Data: data, SHA256: hex.EncodeToString(sum[:])}
}

// Body is a payload made readable: exactly what a person has to read before they decide.
type Body struct {
	// Text is the whole of it with hidden characters made visible; empty for a file, which only a document can show.
	Text string
	// File is set for a payload that is a file, whatever its bytes.
	File bool
	// Language colours the text: "diff", "json" or empty.
	Language string
	// Document is what to send when Text does not fit a card: the same text, or the file.
	Document Document
	// Note says what else was counted, such as the lines of a diff.
	Note string
	// Hidden counts the characters that only show because they were made visible.
	Hidden int
	// Size and Hash are those of the bytes that are bound.
	Size int
	Hash string
}

// ReadBody makes a payload readable. canonical are the bound bytes and must hash to want; file are the bytes that the
// payload names when it is a file. A payload of a kind that is not known, or with a member that the kind does not
// have, is shown as the JSON that it is, so that nothing in it can go unseen.
func ReadBody(canonical, file []byte, want string) (Body, error) {
	sum := sha256.Sum256(canonical)
	if got := hex.EncodeToString(sum[:]); got != want {
		return Body{}, fmt.Errorf("payload %s: the bytes kept for it have another hash (%s); restore the file from a backup or withdraw the request", want, got)
	}
	body, err := readKind(canonical, file)
	if err != nil {
		return Body{}, fmt.Errorf("payload %s: %w", want, err)
	}
	body.Size, body.Hash = len(canonical), want
	return body, nil
}

func readKind(canonical, file []byte) (Body, error) {
	var kind struct {
		Kind string `json:"kind"`
	}
	if json.Unmarshal(canonical, &kind) == nil {
		switch kind.Kind {
		case "command":
			if b, ok := commandBody(canonical); ok {
				return b, nil
			}
		case "text":
			if b, ok := textBody(canonical); ok {
				return b, nil
			}
		case "file":
			if b, ok, err := fileBody(canonical, file); ok || err != nil {
				return b, err
			}
		}
	}
	return jsonBody(canonical)
}

// strictly decodes an object that has exactly these members, spelt exactly so (encoding/json alone would take "ARGV"
// for "argv"). A member named with a question mark may be missing.
func strictly(data []byte, v any, names ...string) bool {
	var members map[string]json.RawMessage
	if json.Unmarshal(data, &members) != nil {
		return false
	}
	for _, name := range names {
		name, optional := strings.CutSuffix(name, "?")
		raw, ok := members[name]
		if !ok && !optional || string(raw) == "null" {
			return false
		}
		delete(members, name)
	}
	return len(members) == 0 && json.Unmarshal(data, v) == nil
}

func commandBody(canonical []byte) (Body, bool) {
	var c struct {
		Kind string   `json:"kind"`
		Argv []string `json:"argv"`
		Cwd  *string  `json:"cwd"`
	}
	if !strictly(canonical, &c, "kind", "argv", "cwd?") || len(c.Argv) == 0 {
		return Body{}, false
	}
	text, hidden := "argv  "+shellWords(c.Argv), 0
	for _, arg := range c.Argv {
		hidden += visible.Count(arg)
	}
	if c.Cwd != nil {
		text += "\ncwd   " + shellWord(*c.Cwd, false)
		hidden += visible.Count(*c.Cwd)
	}
	note := fmt.Sprintf("%d arguments", len(c.Argv))
	if len(c.Argv) == 1 {
		note = "1 argument"
	}
	return Body{Text: text, Document: newDocument("command.txt", []byte(text+"\n")), Note: note, Hidden: hidden}, true
}

func textBody(canonical []byte) (Body, bool) {
	var t struct {
		Kind string `json:"kind"`
		Text string `json:"text"`
	}
	if !strictly(canonical, &t, "kind", "text") {
		return Body{}, false
	}
	b := Body{Text: visible.Block(t.Text), Hidden: visible.Count(t.Text)}
	name := "payload.txt"
	if added, removed, ok := diffCounts(t.Text); ok {
		b.Language, b.Note = "diff", fmt.Sprintf("diff +%d −%d", added, removed)
		name = "payload.diff"
	}
	if t.Text == "" {
		b.Note = "empty text"
	}
	// A file keeps tabs, so only what hides is rewritten there.
	b.Document = newDocument(name, []byte(visible.Text(t.Text)))
	return b, true
}

func fileBody(canonical, file []byte) (Body, bool, error) {
	var f struct {
		Kind   string `json:"kind"`
		Name   string `json:"name"`
		SHA256 string `json:"sha256"`
		Size   int64  `json:"size"`
	}
	if !strictly(canonical, &f, "kind", "name", "sha256", "size") {
		return Body{}, false, nil
	}
	doc := newDocument(documentName(f.Name), file)
	if doc.SHA256 != f.SHA256 || int64(len(file)) != f.Size {
		return Body{}, false, errors.New("the file that it names is not kept with these bytes")
	}
	return Body{File: true, Document: doc, Note: "file", Hidden: visible.Count(f.Name)}, true, nil
}

// documentName is the file's own name where Telegram and a phone can take it.
func documentName(name string) string {
	name = head(visible.Line(path.Base(strings.ReplaceAll(name, `\`, "/"))), 100)
	if name == "" || name == "." || name == "/" {
		return "payload.bin"
	}
	return name
}

func jsonBody(canonical []byte) (Body, error) {
	var indented bytes.Buffer
	if err := json.Indent(&indented, canonical, "", "  "); err != nil {
		return Body{}, fmt.Errorf("not readable as JSON: %w", err)
	}
	hidden := 0
	// Control characters are escapes in JSON already; outside strings there are only line breaks.
	text := visible.Rewrite(indented.String(), func(r rune, raw string) string {
		if r == '\n' {
			return raw
		}
		hidden++
		if high, low := utf16.EncodeRune(r); r > 0xffff {
			return fmt.Sprintf(`\u%04x\u%04x`, high, low)
		}
		return fmt.Sprintf(`\u%04x`, r)
	})
	return Body{Text: text, Language: "json", Document: newDocument("payload.json", []byte(text+"\n")), Hidden: hidden}, nil
}

// diffCounts recognises a unified diff and counts its lines.
func diffCounts(text string) (added, removed int, ok bool) {
	lines := strings.Split(text, "\n")
	headers, inHunk := false, false
	for i, line := range lines {
		switch {
		case strings.HasPrefix(line, "--- ") && i+1 < len(lines) && strings.HasPrefix(lines[i+1], "+++ "):
			headers, inHunk = true, false
		case headers && strings.HasPrefix(line, "@@ "):
			inHunk, ok = true, true
		case inHunk && strings.HasPrefix(line, "+"):
			added++
		case inHunk && strings.HasPrefix(line, "-"):
			removed++
		}
	}
	return added, removed, ok
}

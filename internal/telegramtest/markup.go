package telegramtest

import (
	"bytes"
	"encoding/json"
	"slices"
	"unicode/utf8"
)

const (
	maxButtons      = 100
	maxCallbackData = 64 // bytes
)

// markup is a parsed reply_markup argument.
type markup struct {
	rows          [][]Button
	replyKeyboard bool // a keyboard other than an inline one
}

// parseMarkup checks a reply_markup argument as far as the Bot API server does
// itself; checkButtons has what Telegram's core refuses later.
func parseMarkup(arg string) (markup, *apiError) {
	if arg == "" {
		return markup{}, nil
	}
	raw := json.RawMessage(arg)
	if !json.Valid(raw) {
		return markup{}, badRequest("Can't parse reply keyboard markup JSON object")
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) != nil || object == nil {
		return markup{}, badRequest("Object expected as reply markup")
	}
	for _, other := range []string{"keyboard", "remove_keyboard", "hide_keyboard", "force_reply", "force_reply_keyboard"} {
		if hasKey(object, other) && !hasKey(object, "inline_keyboard") {
			return markup{replyKeyboard: true}, nil
		}
	}
	field, ok := object["inline_keyboard"]
	if !ok {
		return markup{}, nil
	}
	var rows []json.RawMessage
	if json.Unmarshal(field, &rows) != nil || isNull(field) {
		return markup{}, badRequest(`Field "inline_keyboard" must be of type Array`)
	}
	var m markup
	buttons := 0
	for _, row := range rows {
		var cells []json.RawMessage
		if json.Unmarshal(row, &cells) != nil || isNull(row) {
			return markup{}, badRequest(`Field "inline_keyboard" of the InlineKeyboardMarkup must be an Array of Arrays`)
		}
		var out []Button
		for _, cell := range cells {
			b, problem := parseButton(cell)
			if problem != "" {
				return markup{}, badRequest("Can't parse inline keyboard button: %s", problem)
			}
			out = append(out, b)
		}
		buttons += len(out)
		if len(out) > 0 {
			m.rows = append(m.rows, out)
		}
	}
	if buttons > maxButtons {
		return markup{}, badRequest("Reply markup is too long")
	}
	return m, nil
}

func parseButton(cell json.RawMessage) (Button, string) {
	var object map[string]json.RawMessage
	if json.Unmarshal(cell, &object) != nil || object == nil {
		return Button{}, "InlineKeyboardButton must be an Object"
	}
	if !hasKey(object, "text") {
		return Button{}, `Can't find field "text"`
	}
	for _, name := range []string{"text", "url", "callback_data", "style"} {
		if v, ok := object[name]; ok && (len(v) == 0 || v[0] != '"') {
			return Button{}, `Field "` + name + `" must be of type String`
		}
	}
	var b Button
	if json.Unmarshal(cell, &b) != nil {
		return Button{}, "InlineKeyboardButton has a field of a wrong type"
	}
	switch b.Style {
	case "", "danger", "success", "primary":
	default:
		return Button{}, "Invalid button style specified"
	}
	if b.URL == "" && b.Data == "" && b.CopyText == nil && b.WebApp == nil && b.LoginURL == nil && b.SwitchInline == nil &&
		b.SwitchHere == nil && !b.Pay {
		return Button{}, "Text buttons are unallowed in the inline keyboard"
	}
	return b, ""
}

func checkButtons(rows [][]Button) *apiError {
	for _, row := range rows {
		for _, b := range row {
			switch {
			case b.Text == "":
				return badRequest("Inline keyboard button text must be non-empty")
			case len(b.Data) > maxCallbackData:
				return badRequest("BUTTON_DATA_INVALID")
			case !utf8.ValidString(b.Text):
				return badRequest("strings must be encoded in UTF-8")
			}
		}
	}
	return nil
}

func isNull(raw json.RawMessage) bool { return bytes.Equal(bytes.TrimSpace(raw), []byte("null")) }

func sameKeyboard(a, b [][]Button) bool {
	return slices.EqualFunc(a, b, func(x, y []Button) bool {
		return slices.EqualFunc(x, y, func(p, q Button) bool { return bytes.Equal(encode(p), encode(q)) })
	})
}

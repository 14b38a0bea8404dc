package gateapi

import (
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// timeLayout is how every time stands in JSON: RFC 3339, UTC, milliseconds, all digits, as in the log's records. Texts of one
// length can be compared and cut by programs that know no times.
const timeLayout = "2006-01-02T15:04:05.000Z"

var encoding = json.JoinOptions(
	jsonv1.DefaultOptionsV1(), // member names and omissions as encoding/json has them
	jsontext.EscapeForHTML(false),
	json.FormatNilSliceAsNull(false),
	json.WithMarshalers(json.MarshalToFunc(func(e *jsontext.Encoder, t time.Time) error {
		return e.WriteToken(jsontext.String(t.UTC().Format(timeLayout)))
	})),
)

// Encode writes v as JSON for programs, on the socket and on stdout: as encoding/json does, but with times of one form, lists that
// are never null, and <, > and & as they are.
func Encode(v any) ([]byte, error) { return json.Marshal(v, encoding) }

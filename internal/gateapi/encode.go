package gateapi

import (
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"

	"github.com/approvald/approvald/internal/approvallog"
)

var encoding = json.JoinOptions(
	jsonv1.DefaultOptionsV1(), // member names and omissions as encoding/json has them
	jsontext.EscapeForHTML(false),
	json.FormatNilSliceAsNull(false),
	json.WithMarshalers(json.MarshalToFunc(func(e *jsontext.Encoder, t time.Time) error {
		return e.WriteToken(jsontext.String(t.UTC().Format(approvallog.TimeLayout)))
	})),
)

// Encode writes v as JSON for programs, on the socket and on stdout: as encoding/json does, but with times of one form, lists that
// are never null, and <, > and & as they are.
func Encode(v any) ([]byte, error) { return json.Marshal(v, encoding) }

package transport

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// minSecretPart is the length from which the part of a token behind its colon
// is scrubbed on its own as well; shorter ones (test tokens) would blank out
// ordinary words.
const minSecretPart = 16

// userinfo finds credentials in URLs, as in the address of a proxy.
var userinfo = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`://[^/@\s"']*@`) })

// Redactor takes secrets out of text: each secret as it is and percent-encoded
// in any mixture, the secret part of a token on its own, and the user
// information of any URL. A nil Redactor does the last only. It is safe for
// concurrent use.
type Redactor struct {
	plain   []string
	encoded []*regexp.Regexp
}

// NewRedactor returns a Redactor for the given secrets; empty ones are ignored.
func NewRedactor(secrets ...Secret) *Redactor {
	r := &Redactor{}
	for _, s := range secrets {
		value := s.Reveal()
		if value == "" {
			continue
		}
		r.add(value)
		if _, part, found := strings.Cut(value, ":"); found && len(part) >= minSecretPart {
			r.add(part)
		}
	}
	return r
}

func (r *Redactor) add(value string) {
	r.plain = append(r.plain, value)
	var b strings.Builder
	for i := range len(value) {
		// %25 repeated: text that was encoded more than once.
		fmt.Fprintf(&b, `(?:%s|%%(?:25)*(?i:%02x))`, regexp.QuoteMeta(value[i:i+1]), value[i])
	}
	r.encoded = append(r.encoded, regexp.MustCompile(b.String()))
}

// String returns text without the secrets.
func (r *Redactor) String(text string) string {
	if r != nil {
		for _, p := range r.plain {
			text = strings.ReplaceAll(text, p, Redacted)
		}
		if strings.Contains(text, "%") {
			for _, re := range r.encoded {
				text = re.ReplaceAllLiteralString(text, Redacted)
			}
		}
	}
	if strings.Contains(text, "://") {
		text = userinfo().ReplaceAllLiteralString(text, "://"+Redacted+"@")
	}
	return text
}

// Error returns err itself when its text holds no secret, else an error that
// has nothing but the scrubbed text: what err wraps could print the secret again.
func (r *Redactor) Error(err error) error {
	if err == nil {
		return nil
	}
	// %#v reaches what an Error method leaves out.
	if text := err.Error(); r.String(text) != text {
		return errors.New(r.String(text))
	}
	if deep := fmt.Sprintf("%#v", err); r.String(deep) != deep {
		return errors.New(err.Error())
	}
	return err
}

// RedactCore wraps a zap core so that no entry leaves it with a secret: message,
// logger name, stack and every field, nested ones included. Samplers belong
// outside of it, since it decides by level only.
func RedactCore(core zapcore.Core, r *Redactor) zapcore.Core {
	return &redactCore{core: core, redactor: r}
}

type redactCore struct {
	core     zapcore.Core
	redactor *Redactor
}

func (c *redactCore) Enabled(level zapcore.Level) bool { return c.core.Enabled(level) }

func (c *redactCore) With(fields []zapcore.Field) zapcore.Core {
	return &redactCore{core: c.core.With(c.fields(fields)), redactor: c.redactor}
}

func (c *redactCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c *redactCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	entry.Message = c.redactor.String(entry.Message)
	entry.LoggerName = c.redactor.String(entry.LoggerName)
	entry.Stack = c.redactor.String(entry.Stack)
	return c.core.Write(entry, c.fields(fields))
}

func (c *redactCore) Sync() error { return c.core.Sync() }

func (c *redactCore) fields(in []zapcore.Field) []zapcore.Field {
	out := make([]zapcore.Field, 0, len(in))
	for _, f := range in {
		switch f.Type {
		case zapcore.BoolType, zapcore.DurationType, zapcore.TimeType, zapcore.TimeFullType,
			zapcore.Float64Type, zapcore.Float32Type,
			zapcore.Int64Type, zapcore.Int32Type, zapcore.Int16Type, zapcore.Int8Type,
			zapcore.Uint64Type, zapcore.Uint32Type, zapcore.Uint16Type, zapcore.Uint8Type, zapcore.UintptrType,
			zapcore.NamespaceType, zapcore.SkipType:
			out = append(out, f)
		case zapcore.StringType:
			f.String = c.redactor.String(f.String)
			out = append(out, f)
		default:
			out = append(out, c.rendered(f)...)
		}
	}
	return out
}

// rendered turns a field of any other type into plain values and scrubs those.
func (c *redactCore) rendered(f zapcore.Field) []zapcore.Field {
	enc := zapcore.NewMapObjectEncoder()
	f.AddTo(enc)
	out := make([]zapcore.Field, 0, len(enc.Fields))
	for key, value := range enc.Fields {
		out = append(out, zap.Any(key, c.value(value)))
	}
	return out
}

func (c *redactCore) value(v any) any {
	switch v := v.(type) {
	case nil, bool, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, float32, float64, json.Number:
		return v
	case string:
		return c.redactor.String(v)
	case []byte:
		return c.redactor.String(string(v))
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = c.value(v[i])
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for key := range v {
			out[c.redactor.String(key)] = c.value(v[key])
		}
		return out
	default:
		return c.reflected(v)
	}
}

// reflected scrubs a value that zap would hand to encoding/json.
func (c *redactCore) reflected(v any) any {
	data, err := json.Marshal(v)
	if err != nil {
		return c.redactor.String(fmt.Sprintf("%+v", v))
	}
	var plain any
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&plain); err != nil {
		return c.redactor.String(string(data))
	}
	return c.value(plain)
}

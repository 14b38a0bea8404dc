package gateapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/approvald/approvald/internal/approvallog"
)

// decodeStrict decodes a body that came from outside. What encoding/json would
// quietly repair (invalid UTF-8, lone surrogates, a name given twice) is
// refused first: a key must be the one that was sent.
func decodeStrict(body []byte, into any) error {
	if _, err := approvallog.Canonicalize(body); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}

// notText finds a string member of a body, a struct, that is not UTF-8, also in a struct that it points to. encoding/json would put U+FFFD in place of its
// bytes, and two different keys would become one.
func notText(body any) (name string, found bool) {
	v := reflect.ValueOf(body)
	for i := range v.NumField() {
		f := v.Field(i)
		if f.Kind() == reflect.String && !utf8.ValidString(f.String()) {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			return name, true
		}
		if f.Kind() == reflect.Pointer && f.Type().Elem().Kind() == reflect.Struct && !f.IsNil() {
			if name, found := notText(f.Elem().Interface()); found {
				return name, true
			}
		}
	}
	return "", false
}

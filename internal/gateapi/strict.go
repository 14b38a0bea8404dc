package gateapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

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

package gate

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/approvald/approvald/internal/approvallog"
)

// MaxPayload is the most bytes that one request binds.
const MaxPayload = 8 << 20

// emptyPayload is what a request without a payload binds.
var emptyPayload = []byte("{}")

// textEnvelope and fileEnvelope are how bytes that are no JSON are bound.
type textEnvelope struct {
	Kind string `json:"kind"` // text
	Text string `json:"text"`
}

type fileEnvelope struct {
	Kind   string `json:"kind"` // file
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// BindPayload makes the canonical JSON that stands for the bytes of a payload, so that one hash
// binds them: JSON as it is, other UTF-8 text without NUL as {"kind":"text",…}, and anything else
// as {"kind":"file",…} with its SHA-256, in which case file is data. The name is that of the file
// the bytes came from, for people.
//
// JSON that two readers may understand differently (a name twice in one object, a lone surrogate, an
// integer beyond 2^53) is refused.
func BindPayload(name string, data []byte) (canonical, file []byte, err error) {
	if len(data) > MaxPayload {
		return nil, nil, refuse(CodeInvalidRequest, "bind a digest of it instead, and keep the bytes where approvers can read them",
			"the payload has %d bytes, and at most %d (8 MiB) can be bound", len(data), MaxPayload)
	}
	if utf8.Valid(data) && json.Valid(data) {
		canonical, err = approvallog.Canonicalize(data)
		switch {
		case err != nil:
			return nil, nil, &Error{Code: CodeInvalidRequest, Err: err,
				Message: "the payload is JSON that cannot be bound: " + strings.TrimPrefix(err.Error(), approvallog.ErrInvalid.Error()+": "),
				Hint:    "write large integers as strings and every name once"}
		case len(canonical) > MaxPayload:
			return nil, nil, refuse(CodeInvalidRequest, "bind a digest of it instead",
				"the payload has %d bytes in canonical form, and at most %d (8 MiB) can be bound", len(canonical), MaxPayload)
		}
		return canonical, nil, nil
	}
	if utf8.Valid(data) && bytes.IndexByte(data, 0) < 0 {
		canonical, err = canonicalOf(textEnvelope{Kind: "text", Text: string(data)})
		// Escapes can make the text outgrow the limit; as a file its bytes are bound all the same.
		if err != nil || len(canonical) <= MaxPayload {
			return canonical, nil, err
		}
	}
	canonical, err = canonicalOf(fileEnvelope{Kind: "file", Name: fileName(name), SHA256: hashHex(data), Size: int64(len(data))})
	return canonical, data, err
}

// fileName is the last element of a path, made fit for JSON; "stdin" when there is none.
func fileName(path string) string {
	base := strings.ToValidUTF8(filepath.Base(path), "\uFFFD")
	if path == "" || path == "-" || base == "." || base == "/" {
		return "stdin"
	}
	return base
}

func canonicalOf(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, internalError(err, "encode")
	}
	canonical, err := approvallog.Canonicalize(raw)
	if err != nil {
		return nil, internalError(err, "encode")
	}
	return canonical, nil
}

func hashHex(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// fileOf answers the envelope when the canonical payload is that of a file: exactly its four
// members and nothing else.
func fileOf(canonical []byte) (fileEnvelope, bool) {
	var e fileEnvelope
	if json.Unmarshal(canonical, &e) != nil || e.Kind != "file" || !isHash(e.SHA256) {
		return fileEnvelope{}, false
	}
	again, err := canonicalOf(e)
	return e, err == nil && bytes.Equal(again, canonical)
}

func isHash(s string) bool {
	if len(s) != 2*sha256.Size {
		return false
	}
	return strings.Trim(s, "0123456789abcdef") == ""
}

// checkPayload holds the payload of a request against the file that came with it.
func checkPayload(payload, file []byte) error {
	if len(payload) > MaxPayload || len(file) > MaxPayload {
		return refuse(CodeInvalidRequest, "bind a digest of it instead", "the payload is larger than 8 MiB")
	}
	canonical, err := approvallog.Canonicalize(payload)
	if err != nil {
		return &Error{Code: CodeInvalidRequest, Err: err, Message: "the payload is no JSON that can be bound: " + err.Error()}
	}
	if !bytes.Equal(canonical, payload) {
		return refuse(CodeInvalidRequest, "send its RFC 8785 text", "the payload is not in canonical form")
	}
	envelope, isFile := fileOf(payload)
	switch {
	case isFile && file == nil && envelope.Size > 0:
		return refuse(CodeInvalidRequest, "send the file's bytes", "the payload names the file %q, but its bytes did not come along", clip(envelope.Name))
	case isFile && (envelope.SHA256 != hashHex(file) || envelope.Size != int64(len(file))):
		return refuse(CodeInvalidRequest, "bind the file anew", "the payload names other bytes than those that came along for the file %q", clip(envelope.Name))
	case !isFile && file != nil:
		return refuse(CodeInvalidRequest, "bind the file's bytes by their hash", "bytes of a file came along, but the payload names no file")
	default:
		return nil
	}
}

func (g *Gate) payloadPath(hash, ext string) string {
	return filepath.Join(g.paths.Payloads, hash+ext)
}

// keepPayload puts what a request binds on disk, under the names of its hashes.
func (g *Gate) keepPayload(hash string, payload, file []byte) error {
	if err := g.fs.MkdirAll("payloads", g.paths.Payloads, 0o700); err != nil {
		return internalError(err, "make the payload directory")
	}
	if envelope, ok := fileOf(payload); ok {
		if err := g.keep(g.payloadPath(envelope.SHA256, ".bin"), envelope.SHA256, file); err != nil {
			return err
		}
	}
	return g.keep(g.payloadPath(hash, ".json"), hash, payload)
}

// keep writes data unless the path holds it already. Other bytes under that name are damage, and
// the right ones take their place: the name says which are right.
func (g *Gate) keep(path, hash string, data []byte) error {
	if have, err := os.ReadFile(path); err == nil && hashHex(have) == hash {
		// Whoever wrote it may have been interrupted before its name was durable.
		if err := g.fs.SyncDir("payload", filepath.Dir(path)); err != nil {
			return internalError(err, "keep the payload")
		}
		return nil
	}
	if err := g.fs.WriteFile("payload", path, data, 0o600); err != nil {
		return internalError(err, "keep the payload %s", path)
	}
	return nil
}

// Payload answers the canonical JSON bound under hash and, when that names a file, the file's
// bytes. Both are held against their hashes: bytes that are not those that were bound are
// [CodePayloadDamaged].
func (g *Gate) Payload(hash string) (canonical, file []byte, err error) {
	if !isHash(hash) {
		return nil, nil, refuse(CodeInvalidRequest, "give 64 lowercase hex digits", "%q is no payload hash", clip(hash))
	}
	canonical, err = readBound(g.payloadPath(hash, ".json"), hash)
	if err != nil {
		return nil, nil, err
	}
	if envelope, ok := fileOf(canonical); ok {
		file, err = readBound(g.payloadPath(envelope.SHA256, ".bin"), envelope.SHA256)
		if err != nil {
			return nil, nil, err
		}
	}
	return canonical, file, nil
}

func readBound(path, hash string) ([]byte, error) {
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &Error{Code: CodePayloadDamaged, Err: err, Message: fmt.Sprintf("payload %s: the file is missing", path),
			Hint: "restore it from a backup, or ask again under a new key"}
	case err != nil:
		return nil, internalError(err, "read the payload")
	case hashHex(data) != hash:
		return nil, refuse(CodePayloadDamaged, "restore it from a backup, or ask again under a new key",
			"payload %s: the bytes are not those that were bound", path)
	}
	return data, nil
}

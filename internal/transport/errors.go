package transport

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Class says what an error means for whoever made the call.
type Class string

// The classes of a failed call.
const (
	// ClassToken: Telegram does not know this token (401, 404 or 421 about the
	// token). Nothing works until the token is replaced.
	ClassToken Class = "token"
	// ClassForbidden: this chat is closed to the bot (403: blocked, kicked, deactivated).
	ClassForbidden Class = "forbidden"
	// ClassBadRequest: refused for good as it stands (400).
	ClassBadRequest Class = "bad-request"
	// ClassUnparsable: the markup of the text is not what Telegram takes (400).
	ClassUnparsable Class = "unparsable"
	// ClassTooLarge: the request is over a size limit (413, 431).
	ClassTooLarge Class = "too-large"
	// ClassNotModified: the message already looks like that. The edit methods
	// count it as success.
	ClassNotModified Class = "not-modified"
	// ClassGone: the message to edit or to reply to was deleted, or cannot be edited any more.
	ClassGone Class = "gone"
	// ClassTooOld: the tap can no longer be answered. The decision is not touched.
	ClassTooOld Class = "too-old"
	// ClassConflict: another process polls with the same token (409).
	ClassConflict Class = "conflict"
	// ClassWebhookActive: a webhook is registered, so getUpdates is refused (409).
	ClassWebhookActive Class = "webhook-active"
	// ClassLimited: too many requests (429); not executed, RetryAfter says when to try again.
	ClassLimited Class = "limited"
	// ClassMigrated: the group became a supergroup; MigrateTo is its new id.
	ClassMigrated Class = "migrated"
	// ClassThreadNotFound: the forum topic is gone or closed.
	ClassThreadNotFound Class = "thread-not-found"
	// ClassChatNotFound: the bot has never seen this chat.
	ClassChatNotFound Class = "chat-not-found"
	// ClassTransient: try again; the call was certainly not executed, or
	// repeating it does no harm.
	ClassTransient Class = "transient"
	// ClassUnknownOutcome: a message was handed over and no usable answer came
	// back, so it may or may not have been sent. Repeating may show it twice.
	ClassUnknownOutcome Class = "unknown-outcome"
)

// Error is a failed call. Its text holds neither the token nor a URL.
type Error struct {
	// Method is the Bot API method.
	Method string
	Class  Class
	// Code is the HTTP status or error_code, 0 when no answer came.
	Code int
	// Description is Telegram's text, or ours when no answer came.
	Description string
	// RetryAfter is the wait that Telegram asked for with [ClassLimited].
	RetryAfter time.Duration
	// MigrateTo is the chat's new id with [ClassMigrated].
	MigrateTo int64

	err error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Code == 0 {
		return fmt.Sprintf("telegram %s: %s", e.Method, e.Description)
	}
	return fmt.Sprintf("telegram %s: %d %s", e.Method, e.Code, e.Description)
}

// Unwrap gives the network's error, for errors.Is with context errors and the like.
func (e *Error) Unwrap() error { return e.err }

// ClassOf returns the class of a call's error: "" for nil, and ClassTransient for
// an error that is not of this package.
func ClassOf(err error) Class {
	if err == nil {
		return ""
	}
	if e, ok := asError(err); ok {
		return e.Class
	}
	return ClassTransient
}

// repeatable tells whether doing a method twice shows nothing twice.
func repeatable(method string) bool {
	return !strings.HasPrefix(method, "send")
}

// unsure is the class of a call that may have been executed.
func unsure(method string) Class {
	if repeatable(method) {
		return ClassTransient
	}
	return ClassUnknownOutcome
}

// classify reads a refusal by Telegram itself. The texts are those of the
// official server; they are matched by what has been stable for years.
func classify(method string, code int, description string, migrateTo int64) Class {
	text := strings.ToLower(description)
	has := func(part string) bool { return strings.Contains(text, part) }
	switch {
	case migrateTo != 0:
		return ClassMigrated
	case code == http.StatusUnauthorized, code == http.StatusMisdirectedRequest:
		return ClassToken
	case code == http.StatusNotFound:
		if has("method not found") {
			return ClassBadRequest
		}
		return ClassToken
	case code == http.StatusForbidden:
		return ClassForbidden
	case code == http.StatusConflict:
		if has("webhook") {
			return ClassWebhookActive
		}
		return ClassConflict
	case code == http.StatusTooManyRequests:
		return ClassLimited
	case code == http.StatusRequestEntityTooLarge, code == http.StatusRequestHeaderFieldsTooLarge:
		return ClassTooLarge
	case code >= 500 || code < 400:
		return unsure(method)
	case has("message is not modified"):
		return ClassNotModified
	case has("query is too old"), has("query id is invalid"):
		return ClassTooOld
	case has("message to edit not found"), has("message to be replied not found"), has("message_id_invalid"), has("message can't be edited"):
		return ClassGone
	case has("message thread not found"), has("topic_closed"), has("topic_deleted"):
		return ClassThreadNotFound
	case has("can't parse entities"):
		return ClassUnparsable
	case has("chat not found"):
		return ClassChatNotFound
	default:
		return ClassBadRequest
	}
}

func asError(err error) (*Error, bool) { return errors.AsType[*Error](err) }

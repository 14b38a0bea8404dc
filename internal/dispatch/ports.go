package dispatch

import (
	"context"
	"time"

	"github.com/approvald/approvald/internal/approvallog"
	"github.com/approvald/approvald/internal/gate"
	"github.com/approvald/approvald/internal/transport"
)

// Tx is one decision under the append lock of a [Log].
type Tx interface {
	Now() time.Time
	Append(approvallog.Draft) (approvallog.Record, error)
}

// Reader follows a [Log]: Next gives io.EOF at the end of what is there.
type Reader interface {
	Next() (approvallog.Record, error)
}

// Log is what dispatch needs of the approval log, and of the delivery journal too. Update, View and Refresh are those
// of [approvallog.Log].
type Log interface {
	Update(ctx context.Context, decide func(Tx) error) ([]approvallog.Record, error)
	View(read func()) error
	Refresh(ctx context.Context) error
	Changed() (changed <-chan struct{}, stop func())
	NewReader(afterSeq int64) Reader
	// Last is the number of the last record.
	Last() int64
}

// WrapLog makes an engine's log a Log.
func WrapLog(l *approvallog.Log) Log { return wrapped{l} }

type wrapped struct{ *approvallog.Log }

func (w wrapped) Update(ctx context.Context, decide func(Tx) error) ([]approvallog.Record, error) {
	return w.Log.Update(ctx, func(tx *approvallog.Tx) error { return decide(tx) })
}

func (w wrapped) NewReader(afterSeq int64) Reader { return w.Log.NewReader(afterSeq) }

// Requests is the fold of the approval log. It is read only inside View or Update of that log.
type Requests interface {
	Get(key string) (approvallog.Request, bool)
	Pending() []approvallog.Request
	// Due are the requests that have completed and whose follow-up is to be asked for.
	Due() []approvallog.Request
	// Bring gives what has to be appended before a record that changes an archived request.
	Bring(key string) ([]approvallog.Draft, error)
}

// Sender is what dispatch needs of Telegram.
type Sender interface {
	SendMessage(context.Context, transport.SendMessage) (transport.Message, error)
	SendDocument(context.Context, transport.SendDocument) (transport.Message, error)
	EditMessageText(context.Context, transport.EditMessageText) error
	EditMessageReplyMarkup(context.Context, transport.EditMessageReplyMarkup) error
	AnswerCallbackQuery(context.Context, transport.AnswerCallbackQuery) error
	SetMyCommands(context.Context, []transport.Command) error
}

// Payloads gives the bytes that a request binds: their canonical JSON, and the file that this names, if any.
type Payloads interface {
	Payload(hash string) (canonical, file []byte, err error)
}

// Pacer lets calls go at the rate that Telegram allows.
type Pacer interface {
	Wait(ctx context.Context, chatID int64, kind transport.Kind) error
	Limited(chatID int64, retryAfter time.Duration)
}

var (
	_ Requests           = (*approvallog.Requests)(nil)
	_ approvallog.Folder = (*Deliveries)(nil)
	_ Sender             = (*transport.Client)(nil)
	_ Payloads           = (*gate.Gate)(nil)
	_ FollowUps          = (*gate.Gate)(nil)
	_ Pacer              = (*transport.Pacer)(nil)
)

// RulesOf are the rules of a gate's configuration.
func RulesOf(c gate.Config) Rules { return configRules{c} }

type configRules struct{ config gate.Config }

func (r configRules) Rule(class string) Rule {
	from := r.config.Rule(class)
	rule := Rule{Quorum: from.Quorum, RejectReasons: from.RejectReasons, FourEyes: from.FourEyes}
	for _, a := range from.Approvers {
		rule.Approvers = append(rule.Approvers, Approver{ID: a.ID, TelegramID: a.TelegramUserID, UID: a.UID})
	}
	return rule
}

func (r configRules) Known(telegramID int64) bool {
	_, ok := r.config.ApproverByUserID(telegramID)
	return ok
}

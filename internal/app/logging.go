package app

import (
	"io"
	"os"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"
)

// NewLogger writes log lines to w: for people when w is a terminal, one JSON object a line otherwise. wrap gives the core
// that stands between the loggers and w, where secrets are taken out; nil is none.
func NewLogger(w io.Writer, wrap func(zapcore.Core) zapcore.Core) *zap.Logger {
	config := zap.NewProductionEncoderConfig()
	config.TimeKey = "ts"
	config.EncodeTime = zapcore.TimeEncoderOfLayout("2006-01-02T15:04:05.000Z07:00")
	config.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder(config)
	if file, ok := w.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		config.EncodeTime = zapcore.TimeEncoderOfLayout(time.TimeOnly)
		config.EncodeLevel = zapcore.CapitalLevelEncoder
		if os.Getenv("NO_COLOR") == "" {
			config.EncodeLevel = zapcore.CapitalColorLevelEncoder
		}
		encoder = zapcore.NewConsoleEncoder(config)
	}
	core := zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), zap.InfoLevel)
	if wrap != nil {
		core = wrap(core)
	}
	return zap.New(core)
}

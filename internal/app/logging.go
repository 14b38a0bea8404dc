package app

import (
	"fmt"
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

// tellf logs what lease and log have to say to people, once the start can no longer be refused: a refusal is one line on stderr,
// its own.
func (a *App) tellf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.announced {
		a.held = append(a.held, text)
		return
	}
	a.log.Warn(text)
}

func (a *App) announce() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, text := range a.held {
		a.log.Warn(text)
	}
	a.announced, a.held = true, nil
}

func (a *App) isAnnounced() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.announced
}

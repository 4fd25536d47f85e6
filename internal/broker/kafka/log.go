package kafka

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// logger hands kgo's messages to slog. What kgo calls info is detail to us.
type logger struct{ *slog.Logger }

func (l logger) Level() kgo.LogLevel {
	ctx := context.Background()
	switch {
	case l.Enabled(ctx, slog.LevelDebug):
		return kgo.LogLevelInfo
	case l.Enabled(ctx, slog.LevelWarn):
		return kgo.LogLevelWarn
	case l.Enabled(ctx, slog.LevelError):
		return kgo.LogLevelError
	}
	return kgo.LogLevelNone
}

func (l logger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	at := slog.LevelDebug
	switch level {
	case kgo.LogLevelError:
		at = slog.LevelError
	case kgo.LogLevelWarn:
		at = slog.LevelWarn
	}
	l.Logger.Log(context.Background(), at, msg, keyvals...)
}

// backoff is the wait before the try after n failed ones: exponential, capped, with jitter in its upper half so that
// it never falls to nothing.
func backoff(n int) time.Duration {
	d := minBackoff << min(max(n-1, 0), 10)
	d = min(d, maxBackoff)
	return d/2 + rand.N(d/2+1)
}

package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// LogFormat is how log lines are written.
type LogFormat string

const (
	LogText LogFormat = "text" // key=value; control characters in values are quoted
	LogJSON LogFormat = "json" // one JSON object a line
)

// NewLogger makes a logger that writes lines of at least level ("debug",
// "info", "warn" or "error"; "" is info) in a format ("text" or "json"; "" is
// text). Its level can be changed while it runs.
func NewLogger(w io.Writer, level, format string) (*slog.Logger, *slog.LevelVar, error) {
	v := new(slog.LevelVar)
	switch strings.ToLower(level) {
	case "debug":
		v.Set(slog.LevelDebug)
	case "", "info":
	case "warn":
		v.Set(slog.LevelWarn)
	case "error":
		v.Set(slog.LevelError)
	default:
		return nil, nil, fmt.Errorf("log level %q is unknown: write debug, info, warn or error", level)
	}
	opts := &slog.HandlerOptions{Level: v}
	switch LogFormat(strings.ToLower(format)) {
	case "", LogText:
		return slog.New(slog.NewTextHandler(w, opts)), v, nil
	case LogJSON:
		return slog.New(slog.NewJSONHandler(w, opts)), v, nil
	}
	return nil, nil, fmt.Errorf("log format %q is unknown: write text or json", format)
}

package kafka

import (
	"context"
	"net"

	"github.com/twmb/franz-go/pkg/kgo"
)

// WithHooks lets a test look on.
func (o Options) WithHooks(hooks ...kgo.Hook) Options {
	o.hooks = hooks
	return o
}

// WithDial lets a test come between.
func (o Options) WithDial(dial func(ctx context.Context, network, host string) (net.Conn, error)) Options {
	o.dial = dial
	return o
}

package killkit

import (
	"context"
	"fmt"
	"net"
	"time"
)

// Ready waits until a process is ready; ctx ends when that takes too long or the process ends.
type Ready func(ctx context.Context, p *Process) error

// Line is ready once the process has written a text since its start. The text must stand within what it wrote last,
// 4 KiB at least.
func Line(text string) Ready {
	return func(ctx context.Context, p *Process) error {
		for {
			found, more := p.out.find(text)
			if found {
				return nil
			}
			select {
			case <-more:
			case <-ctx.Done():
				return fmt.Errorf("wait for %q in its output: %w", text, ctx.Err())
			}
		}
	}
}

// Dial is ready once an address takes TCP connections.
func Dial(addr string) Ready {
	return Until(func(ctx context.Context) error {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// Until is ready once check returns nil. It is asked every 20 ms.
func Until(check func(ctx context.Context) error) Ready {
	return func(ctx context.Context, _ *Process) error {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			err := check(ctx)
			if err == nil {
				return nil
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("%w; at last: %w", ctx.Err(), err)
			}
		}
	}
}

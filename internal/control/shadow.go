package control

import (
	"context"
	"fmt"
	"time"

	"github.com/swarmlog/swarmlog/internal/engine"
)

// ShadowReport is how far a shadow and the agent that it runs beside agree.
type ShadowReport = engine.ShadowReport

// Shadow compares what a shadow would have emitted with what the agent emitted, with a few examples of each difference.
func (c Console) Shadow(ctx context.Context, agent, shadow string, examples int) (ShadowReport, error) {
	for _, name := range []string{agent, shadow} {
		if err := c.Known(ctx, name); err != nil {
			return ShadowReport{}, err
		}
	}
	r, err := engine.ReportShadow(ctx, c.Ledger, agent, shadow, examples, time.Now())
	if err != nil {
		return r, fmt.Errorf("compare shadow %s with agent %s: %w", shadow, agent, err)
	}
	if r.Examples == nil {
		r.Examples = []engine.ShadowExample{}
	}
	return r, nil
}

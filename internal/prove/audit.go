package prove

import (
	"context"
	"fmt"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
)

// holding is what a topic holds at the end, as a reader from outside finds it.
type holding struct {
	records  int64
	distinct map[string]map[int64]bool // by aggregate, the numbers of its events
}

// audit reads the proof's topics from their beginnings to their ends, once nothing moves any more.
func (p *proof) audit(ctx context.Context) (map[string]holding, error) {
	b, _, err := p.connect(ctx, p.Producers)
	if err != nil {
		return nil, fmt.Errorf("read what the topics hold: %w", err)
	}
	defer b.Close()
	held := map[string]holding{}
	for _, name := range []string{p.names.in, p.names.out} {
		if held[name], err = hold(ctx, b, name); err != nil {
			return nil, fmt.Errorf("read what topic %s holds: %w", name, err)
		}
	}
	return held, nil
}

func hold(ctx context.Context, b broker.Broker, name string) (holding, error) {
	h := holding{distinct: map[string]map[int64]bool{}}
	return h, broker.ReadAll(ctx, b, name, h.add)
}

func (h *holding) add(r broker.Record) error {
	e, err := event.Decode(r.Message, r.Position)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Position, err)
	}
	var n number
	if err := e.Decode(&n); err != nil {
		return fmt.Errorf("%s: %w", r.Position, err)
	}
	if h.distinct[e.Subject] == nil {
		h.distinct[e.Subject] = map[int64]bool{}
	}
	h.distinct[e.Subject][n.N] = true
	h.records++
	return nil
}

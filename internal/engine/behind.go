package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// KafkaGroup is the group in Kafka under which an agent's progress is reported.
func KafkaGroup(swarm, agent string) string { return swarm + "." + agent }

// ErrWentBack says that the ledger knows less than it once did: a fail-over lost commits, or a backup was restored.
var ErrWentBack = errors.New("the ledger went back")

// committedAge is how old what a group has committed may be: partitions that are taken at once ask once.
const committedAge = time.Second

// committed is what a group has committed to Kafka, as of a moment ago.
type committed struct {
	mu   sync.Mutex
	at   time.Time
	next map[string]map[int32]int64
	told bool // that it can't be had
}

// wentBack compares a lease that was just taken with what the group has committed to Kafka.
//
// Progress is reported there after its commit, by the lease's owner alone, and who takes the lease has its progress as
// of then. So what Kafka has is at most what the ledger has, and above it only where the ledger forgot commits: to go on
// would pay for calls again, and repeat what others have seen, without anybody having decided so. What is beyond the log's
// end is of an earlier topic of that name, or of a log that lost records, and says nothing of the ledger.
func (g *group) wentBack(ctx context.Context, lease ledger.Lease, end int64) error {
	next, err := g.committed.get(ctx, g)
	if err != nil {
		return fmt.Errorf("ask what was committed to Kafka: %w", err)
	}
	at, ok := next[lease.Topic][lease.Partition]
	if !ok || at <= lease.Next || at > end {
		return nil
	}
	return fault.As(fault.Fatal, fmt.Errorf("%w: its next offset of %s/%d is %d, and %d was reported to Kafka once it was committed. "+
		"Nothing is handled until somebody decides: see what was lost with swarmlog recover --swarm FILE, and go on from the ledger as it is with --yes besides",
		ErrWentBack, lease.Topic, lease.Partition, lease.Next, at))
}

// get asks the broker, unless it was asked just now. A cluster that doesn't let us look is told about once, and not
// compared with.
func (c *committed) get(ctx context.Context, g *group) (map[string]map[int32]int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) < committedAge {
		return c.next, nil
	}
	asked := time.Now()
	next, err := g.eng.opts.Broker.Committed(ctx, g.kafkaName())
	switch {
	case errors.Is(err, broker.ErrDenied), errors.Is(err, errors.ErrUnsupported):
		if !c.told {
			c.told = true
			g.log.WarnContext(ctx, "the group's offsets in Kafka may not be read, so nobody would notice a ledger that went back: allow it to describe and read the group",
				"group", g.kafkaName(), "error", err)
		}
		next = nil
	case err != nil:
		return nil, err
	}
	c.at, c.next = asked, next
	return next, nil
}

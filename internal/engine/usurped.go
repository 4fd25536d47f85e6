package engine

import (
	"errors"
	"fmt"

	"github.com/swarmlog/swarmlog/ledger"
)

// errUsurped says that another process works under this worker's id.
var errUsurped = errors.New("another process has this worker's id")

// usurped tells whether a partition that this worker has was taken under its own name since, by nobody here: leases are
// taken by the goroutine that renews them alone. Members of a Kafka group take theirs when they're told to, and there the
// group keeps two of one name apart. g.mu isn't held.
func (g *group) usurped(held map[ledger.Key]int64) bool {
	if g.inKafka() {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.parts {
		if epoch, ok := held[p.fence.Key]; ok && epoch > p.fence.Epoch && !p.leaving {
			return true
		}
	}
	return false
}

// giveWay ends this worker: the process that was started later goes on. Two of one id would take each other's
// partitions for ever; that loses nothing and gets nowhere.
func (e *Engine) giveWay() error {
	if e.usurped.CompareAndSwap(false, true) {
		err := fmt.Errorf("%w, %s, and has taken its partitions: this one ends; give each running worker an id of its own (worker.id, --worker)",
			errUsurped, e.opts.Worker)
		select {
		case e.stuck <- err:
		default:
		}
	}
	return errUsurped
}

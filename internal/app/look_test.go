package app

import (
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/engine"
)

// Lag is what isn't finished, not the distance between the watermark and the end: behind one slow record all others
// may be done.
func TestLagLeavesOutWhatIsFinished(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := lookPartition(engine.PartitionStatus{Topic: "pages", Next: 10, End: 1010, Lag: 1, Pending: now.Add(-time.Minute)}, now)
	if *p.Lag != 1 || *p.LagSeconds < 60 || p.Next != 10 || p.End != 1010 {
		t.Errorf("partition %+v with lag %d", p, *p.Lag)
	}
	p = lookPartition(engine.PartitionStatus{Topic: "pages", Next: 10, End: 10}, now)
	if *p.Lag != 0 || p.LagSeconds == nil || *p.LagSeconds != 0 {
		t.Errorf("a partition that's done: %+v", p)
	}
}

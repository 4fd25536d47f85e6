package kafka

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// throttle tells how long a broker holds this client back by quota.
type throttle struct{ tell func(time.Duration) }

var _ kgo.HookBrokerThrottle = throttle{}

// OnBrokerThrottle is called by kgo after an answer that names a time.
func (t throttle) OnBrokerThrottle(_ kgo.BrokerMetadata, d time.Duration, _ bool) { t.tell(d) }

package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
)

// Committed is what a group has committed.
func (b *Broker) Committed(context.Context, string) (map[string]map[int32]int64, error) {
	return nil, errors.ErrUnsupported
}

// OffsetsAt is the offset of the first record of each partition that was appended at or after a time.
func (b *Broker) OffsetsAt(context.Context, string, time.Time) ([]int64, error) {
	return nil, errors.ErrUnsupported
}

// Join becomes a member of a group.
func (b *Broker) Join(context.Context, string, []string, broker.Members) (broker.Member, error) {
	return nil, errors.ErrUnsupported
}

package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/swarmlog/swarmlog/internal/broker"
)

// purged is what kgo says of records that were handed over while publisher.forget made it drop their topic, since that
// was created anew. It has no name for the error.
const purged = "topic purged while buffered"

// explain adds to an error of the protocol what the callers of broker know it by. The original stays in the chain.
func explain(err error) error {
	var lost *kgo.ErrDataLoss
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kgo.ErrClientClosed):
		return fmt.Errorf("%w: %w", broker.ErrClosed, err)
	case errors.Is(err, kerr.GroupAuthorizationFailed), errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		return fmt.Errorf("%w: %w", broker.ErrDenied, err)
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		return fmt.Errorf("%w: %w", broker.ErrTooLarge, err)
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return fmt.Errorf("%w: %w", broker.ErrNoTopic, err)
	case errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.InconsistentTopicID), err.Error() == purged:
		return fmt.Errorf("%w: %w", broker.ErrTopicGone, err)
	case errors.Is(err, kerr.OffsetOutOfRange), errors.As(err, &lost):
		return fmt.Errorf("%w: %w", broker.ErrOutOfRange, err)
	}
	return err
}

// over tells whether err only says that the caller's context has ended.
func over(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

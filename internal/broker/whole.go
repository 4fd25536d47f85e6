package broker

import (
	"context"
	"fmt"
)

// ReadAll hands out what a topic holds from its beginning up to the ends that its partitions have when it's called, in
// order within each partition, as it comes: nothing is held. An error of yield ends it and is returned.
//
// A partition that can't be read, or whose beginning was removed while it was read, is an error. Bound it by ctx:
// where the log's last offsets hold no record (markers of foreign transactions), it waits for the next one.
func ReadAll(ctx context.Context, b Broker, topic string, yield func(Record) error) error {
	topics, err := b.Topics(ctx, topic)
	if err != nil {
		return err
	}
	ranges, err := b.Offsets(ctx, topic)
	if err != nil {
		return err
	}
	return ReadRanges(ctx, b, topics[0], ranges, yield)
}

// ReadRanges is ReadAll of given ranges, one a partition, in the order of partitions; empty ones are passed over.
func ReadRanges(ctx context.Context, b Broker, topic Topic, ranges []Range, yield func(Record) error) error {
	reader, err := b.Reader("whole-topic")
	if err != nil {
		return err
	}
	defer reader.Close()
	ends := map[int32]int64{}
	for n, r := range ranges {
		if r.Start < r.End {
			ends[int32(n)] = r.End
			reader.Add(topic, int32(n), r.Start)
		}
	}
	for len(ends) > 0 {
		fetches, err := reader.Poll(ctx)
		if err != nil {
			return err
		}
		for _, f := range fetches {
			if f.Err != nil {
				return fmt.Errorf("partition %d: %w", f.Partition, f.Err)
			}
			done, err := handOut(f.Records, ends[f.Partition], yield)
			if err != nil {
				return err
			}
			if done {
				delete(ends, f.Partition)
				reader.Remove(topic.Name, f.Partition)
			}
		}
	}
	return nil
}

// handOut yields the records below end; done tells that there are no more.
func handOut(records []Record, end int64, yield func(Record) error) (done bool, err error) {
	for _, r := range records {
		if r.Offset < end {
			if err := yield(r); err != nil {
				return true, err
			}
		}
		if r.Offset >= end-1 {
			return true, nil
		}
	}
	return false, nil
}

package doctor

import (
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/swarmlog/swarmlog/internal/route"
)

const (
	// fewKeys is how many sampled records are too few to judge keys as a whole.
	fewKeys = 30
	// near is how close to its record's time a key that is a time lies.
	near = 400 * 24 * time.Hour
)

// keyed is the sample's records that have a key.
func (t *Topic) keyed() []Key {
	var keys []Key
	for _, k := range t.Sample {
		if k.Bytes != nil {
			keys = append(keys, k)
		}
	}
	return keys
}

// home is where a key belongs.
func (t *Topic) home(key []byte) int32 {
	count := int32(len(t.Partitions))
	slots := t.Slots
	if slots <= 0 {
		slots = count
	}
	return route.Partition(key, slots)
}

// partitioners are those that clients have by default, or by mistake, other than the one that Swarmlog keeps to.
var partitioners = []struct {
	name, mend string
	partition  func(key []byte, count int32) int32
}{
	{"CRC32, which librdkafka's default is", "set partitioner=murmur2_random in the librdkafka client (confluent-kafka for Python, Go, .NET) that produces to it",
		func(key []byte, count int32) int32 { return int32(crc32.ChecksumIEEE(key) % uint32(count)) }},
	{"FNV-1a, which Sarama's default is", "give the Sarama client that produces to it a partitioner of murmur2",
		func(key []byte, count int32) int32 {
			h := fnv.New32a()
			_, _ = h.Write(key)
			p := int32(h.Sum32()) % count
			if p < 0 {
				p = -p
			}
			return p
		}},
	{"murmur2 over the partitions that there are now: the topic has grown", "leave it to the swarm, which forwards them; or give the producers the number of partitions that the topic began with",
		route.Partition},
}

// misrouted tells of keys that stand where their route doesn't lead.
func misrouted(_ *Cluster, _ *Snapshot, t *Topic) []fault {
	if t.DeadOf != "" || len(t.Partitions) == 0 {
		return nil
	}
	keys := t.keyed()
	var astray []Key
	for _, k := range keys {
		if t.home(k.Bytes) != k.Partition {
			astray = append(astray, k)
		}
	}
	if len(astray) == 0 {
		return nil
	}
	first := astray[0]
	found := fmt.Sprintf("%d of the last %d keyed records aren't where their key leads: %s is in partition %d, and belongs to %d",
		len(astray), len(keys), printable(first.Bytes), first.Partition, t.home(first.Bytes))
	mend := "let whoever produces to it take the default partitioner of Java clients (murmur2)"
	for _, p := range partitioners {
		if t.explained(p.partition, keys) {
			found += "; they were placed by " + p.name
			mend = p.mend
			break
		}
	}
	return one(found, "all records of an aggregate in the partition that murmur2 of its key leads to", mend)
}

// explained tells whether a partitioner puts all keys where they are.
func (t *Topic) explained(partition func([]byte, int32) int32, keys []Key) bool {
	for _, k := range keys {
		if partition(k.Bytes, int32(len(t.Partitions))) != k.Partition {
			return false
		}
	}
	return true
}

// printable is a key for people, cut.
func printable(key []byte) string {
	const most = 60
	if len(key) > most {
		return fmt.Sprintf("%q…", key[:most])
	}
	return fmt.Sprintf("%q", key)
}

// timestamps tells of keys that are times: each event would be an aggregate of its own.
func timestamps(_ *Cluster, _ *Snapshot, t *Topic) []fault {
	keys := t.keyed()
	if t.DeadOf != "" || len(keys) < fewKeys {
		return nil
	}
	times := 0
	for _, k := range keys {
		if at, ok := asTime(string(k.Bytes)); ok && at.Sub(k.Time).Abs() < near {
			times++
		}
	}
	if times*10 < len(keys)*9 {
		return nil
	}
	return one(fmt.Sprintf("%d of the last %d keys look like times, such as %s: events of one aggregate have no order then", times, len(keys), printable(keys[0].Bytes)),
		"the aggregate's id as the key", "let whoever produces to it key records by what they are about")
}

// asTime reads a key as a time: seconds, milliseconds, microseconds or nanoseconds since 1970, or a date with a time.
func asTime(key string) (time.Time, bool) {
	if n, err := strconv.ParseInt(key, 10, 64); err == nil {
		switch len(key) {
		case 10:
			return time.Unix(n, 0), true
		case 13:
			return time.UnixMilli(n), true
		case 16:
			return time.UnixMicro(n), true
		case 19:
			return time.Unix(0, n), true
		}
		return time.Time{}, false
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999", "2006-01-02T15:04:05.999999999", "20060102150405", time.RFC1123} {
		if at, err := time.Parse(layout, key); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}

// dominant tells of one aggregate that most records are about.
func dominant(_ *Cluster, _ *Snapshot, t *Topic) []fault {
	keys := t.keyed()
	if t.DeadOf != "" || len(keys) < 3*fewKeys || len(t.Partitions) < 2 {
		return nil
	}
	counts := map[string]int{}
	top := ""
	for _, k := range keys {
		counts[string(k.Bytes)]++
		if counts[string(k.Bytes)] > counts[top] {
			top = string(k.Bytes)
		}
	}
	if len(counts) < 2 || counts[top]*2 <= len(keys) {
		return nil
	}
	return one(fmt.Sprintf("%d of the last %d records are about %s: they are handled one after another, in one partition", counts[top], len(keys), printable([]byte(top))),
		"work that is spread over aggregates", "choose a finer aggregate, or declare the topic's events commutative so that it may be salted (commutative: true)")
}

// keyless tells of records without a key.
func keyless(_ *Cluster, _ *Snapshot, t *Topic) []fault {
	none := len(t.Sample) - len(t.keyed())
	if t.DeadOf != "" || none == 0 {
		return nil
	}
	return one(fmt.Sprintf("%d of the last %d records have no key: they have no order", none, len(t.Sample)), "a key, where order counts",
		"nothing, where it doesn't; else let producers key records by what they are about")
}

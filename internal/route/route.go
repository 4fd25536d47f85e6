// Package route owns which partition a key goes to. It is pure: no I/O, no
// state, nothing of ours imported.
//
// A key goes to partition (murmur2(key) & 0x7fffffff) mod count, as the default
// partitioner of Java, kafkajs and franz-go clients has it. That is a stored
// format: the place of an aggregate's records hangs on it.
//
// A key is an aggregate's subject as UTF-8 bytes, in Unicode form C (package
// event sees to that), since two spellings of one name would otherwise be two
// keys. A record without a key (nil) has no order to keep and goes anywhere;
// the empty key is a key like any other and has its one place.
package route

import (
	"encoding/binary"
	"fmt"
)

// Partition is where Java's default partitioner puts a key among count
// partitions: (murmur2(key) & 0x7fffffff) mod count. Count must be positive.
func Partition(key []byte, count int32) int32 { return hash(key) % count }

// Record is the partition of a record: Partition of its key, or, where that is
// nil, by turns, n being any number that rises from one record to the next
// and is the same each time that one is sent.
func Record(key []byte, n int64, count int32) int32 {
	if key == nil {
		return int32(uint64(n) % uint64(count))
	}
	return Partition(key, count)
}

// hash is murmur2 without its sign bit, as Java's Utils.toPositive makes it. Neither abs nor an unsigned
// remainder gives the same partitions.
func hash(key []byte) int32 { return int32(murmur2(key) & 0x7fffffff) }

// murmur2 is the 32-bit hash of org.apache.kafka.common.utils.Utils.murmur2.
func murmur2(key []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
	)
	h := seed ^ uint32(len(key))
	for ; len(key) >= 4; key = key[4:] {
		k := binary.LittleEndian.Uint32(key) * m
		k = (k ^ k>>24) * m
		h = h*m ^ k
	}
	switch len(key) {
	case 3:
		h ^= uint32(key[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(key[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(key[0])) * m
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}

// vectors are partitions that Java clients were seen to choose.
var vectors = []struct {
	key       string
	count     int32
	partition int32
}{
	{"TT0124", 15, 10},
	{"354afe16-939a-4ea8-8e17-8bb0840b6886", 10, 4},
	{"f562ac3b-2224-4e25-a0ab-56094e10c239", 10, 5},
	{"fd7af248-ce5c-46a5-93d7-1c0c9005b99d", 32, 26},
	{"1468509572224", 6, 3},
	{"order-1", 3, 1},
	{"order-1", 6, 4},
	{"order-1", 8, 6},
	{"order-1", 12, 10},
	{"order-2", 3, 0},
	{"order-2", 6, 3},
	{"order-2", 8, 3},
	{"order-2", 12, 3},
	{"order-3", 3, 0},
	{"order-3", 6, 3},
	{"order-3", 8, 7},
	{"order-3", 12, 3},
	{"order-42", 3, 0},
	{"order-42", 6, 0},
	{"order-42", 8, 0},
	{"order-42", 12, 0},
	{"tenant-a", 12, 3},
	{"", 6, 3},
	{"caf\u00e9", 6, 0},
	{"cafe\u0301", 6, 2},
}

// SelfTest checks, at start-up, that keys go where other clients' defaults put them.
func SelfTest() error {
	for _, v := range vectors {
		if got := Partition([]byte(v.key), v.count); got != v.partition {
			return fmt.Errorf("route self-test: key %q goes to partition %d of %d, but Java clients send it to %d: "+
				"this build would break the order of keys; don't run it, and report it", v.key, got, v.count, v.partition)
		}
	}
	return nil
}

package embedded

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// When the broker starts it cuts a segment off at the first batch that it can't
// read, and says so in a line of its log, just before it cuts. Two things can
// be the cause:
//
//   - A batch was being written when the process was killed. It was never
//     acknowledged, and its producer sends it again: nothing is lost.
//   - The file was damaged. Records that were acknowledged are gone, behind the
//     damage too, and the partition may give their offsets to new records.
//
// They're told apart here, and what a damaged segment loses is kept beside it,
// in the folder "damaged", which is also how the next start knows.

const (
	damagedName   = "damaged"
	segmentSuffix = ".dat"
	// Places in a record batch, version 2 (https://kafka.apache.org/documentation/#recordbatch).
	batchHead      = 61
	atLength       = 8
	atMagic        = 16
	atCRC          = 17
	afterCRC       = 21
	atLastDelta    = 23
	batchMagic     = 2
	maxBatchLength = maxRequest
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// cut is what the broker is about to cut off a segment.
type cut struct {
	topic     string
	partition int32
	base      int64 // first offset of the segment
	bytes     int64 // that go, at its end
}

func partitionDir(logDir, topic string, partition int32) string {
	return filepath.Join(logDir, "partitions", fmt.Sprintf("%s-%d", url.PathEscape(topic), partition))
}

func (c cut) path(logDir string) string {
	return filepath.Join(partitionDir(logDir, c.topic, c.partition), strconv.FormatInt(c.base, 10)+segmentSuffix)
}

// examine reads what is about to be cut off, and tells whether it's a batch that was being written. next is the offset
// that the cut begins at.
func (c cut) examine(logDir string) (torn bool, next int64, tail []byte, err error) {
	f, err := os.Open(c.path(logDir))
	if err != nil {
		return false, c.base, nil, fmt.Errorf("open a damaged segment: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false, c.base, nil, fmt.Errorf("read the size of a damaged segment: %w", err)
	}
	at := info.Size() - c.bytes
	if next, err = nextOffset(f, at, c.base); err != nil {
		return false, next, nil, err
	}
	tail = make([]byte, c.bytes)
	if _, err := f.ReadAt(tail, at); err != nil {
		return false, next, nil, fmt.Errorf("read the end of a damaged segment: %w", err)
	}
	last, err := lastSegment(filepath.Dir(c.path(logDir)))
	if err != nil {
		return false, next, tail, err
	}
	return last == c.base && tornBatch(tail, next), next, tail, nil
}

// nextOffset walks the batches before end and returns the offset that follows them.
func nextOffset(f io.ReaderAt, end, next int64) (int64, error) {
	var head [batchHead]byte
	for at := int64(0); at < end; {
		if _, err := f.ReadAt(head[:], at); err != nil {
			return next, fmt.Errorf("read the head of the batch at byte %d: %w", at, err)
		}
		first := int64(binary.BigEndian.Uint64(head[:]))
		next = first + int64(binary.BigEndian.Uint32(head[atLastDelta:])) + 1
		at += 12 + int64(binary.BigEndian.Uint32(head[atLength:]))
	}
	return next, nil
}

func lastSegment(dir string) (int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, fmt.Errorf("list segments: %w", err)
	}
	last := int64(-1)
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), segmentSuffix); ok {
			if base, err := strconv.ParseInt(name, 10, 64); err == nil {
				last = max(last, base)
			}
		}
	}
	return last, nil
}

// tornBatch tells whether b is the beginning of one batch at offset next, as a kill leaves it: not a batch whose bytes
// are all there but wrong, nor one with others behind it.
func tornBatch(b []byte, next int64) bool {
	if len(b) < 12 {
		return true
	}
	if int64(binary.BigEndian.Uint64(b)) != next {
		return false
	}
	length := int64(binary.BigEndian.Uint32(b[atLength:]))
	if length < batchHead-12 || length > maxBatchLength || 12+length <= int64(len(b)) {
		return false
	}
	if len(b) < batchHead {
		return len(b) <= atMagic || b[atMagic] == batchMagic
	}
	if b[atMagic] != batchMagic {
		return false
	}
	if crc32.Checksum(b[afterCRC:], castagnoli) == binary.BigEndian.Uint32(b[atCRC:]) {
		return false // it is all there: its length is what's wrong
	}
	var follower [8]byte
	binary.BigEndian.PutUint64(follower[:], uint64(next)+uint64(binary.BigEndian.Uint32(b[atLastDelta:]))+1)
	for rest := b[batchHead:]; ; {
		i := bytes.Index(rest, follower[:])
		if i < 0 {
			return true
		}
		if rest = rest[i:]; len(rest) > atMagic && rest[atMagic] == batchMagic {
			return false // the next batch stands behind it
		}
		rest = rest[1:]
	}
}

// keep saves what a damaged segment loses, and the words for it.
func keep(dir, name, words string, tail []byte) error {
	to := filepath.Join(dir, damagedName)
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("keep damaged records: %w", err)
	}
	if len(tail) > 0 {
		if err := os.WriteFile(filepath.Join(to, name+segmentSuffix), tail, 0o644); err != nil {
			return fmt.Errorf("keep damaged records: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(to, name+".txt"), []byte(words+"\n"), 0o644); err != nil {
		return fmt.Errorf("keep damaged records: %w", err)
	}
	return nil
}

// kept lists the damage that earlier starts found and nobody has cleared.
func kept(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, damagedName, "*.txt"))
	if err != nil {
		return nil, fmt.Errorf("list damaged records: %w", err)
	}
	var all []string
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("list damaged records: %w", err)
		}
		all = append(all, strings.TrimSpace(string(b)))
	}
	return all, nil
}

// damageName is the name of what is kept of a partition from an offset on.
func damageName(topic string, partition int32, offset int64, now time.Time) string {
	return fmt.Sprintf("%s-%d-from-%d-%s", url.PathEscape(topic), partition, offset, now.UTC().Format("20060102T150405.000"))
}

// snapshot is what the broker writes of a partition when it's stopped cleanly.
type snapshot struct {
	path      string
	topic     string
	partition int32
	High      int64 `json:"high_watermark"`
}

// snapshots reads what the last clean stop left: no log may have got shorter since.
func snapshots(logDir string) ([]snapshot, error) {
	files, err := filepath.Glob(filepath.Join(logDir, "partitions", "*", "snapshot.json"))
	if err != nil {
		return nil, fmt.Errorf("list partitions: %w", err)
	}
	var all []snapshot
	for _, file := range files {
		name := filepath.Base(filepath.Dir(file))
		i := strings.LastIndexByte(name, '-')
		if i < 0 {
			continue
		}
		topic, err1 := url.PathUnescape(name[:i])
		partition, err2 := strconv.ParseInt(name[i+1:], 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		s := snapshot{path: file, topic: topic, partition: int32(partition)}
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read the state of partition %s: %w", name, err)
		}
		if json.Unmarshal(b, &s) != nil {
			continue // the broker reads the log itself then
		}
		all = append(all, s)
	}
	return all, nil
}

// verify compares what was loaded with what the last clean stop left, which finds what no checksum does: a log that
// was cut at the end of a batch, and segments that are gone.
func (s *Server) verify(before []snapshot, cluster *kfake.Cluster) {
	for _, was := range before {
		is := cluster.PartitionInfo(was.topic, was.partition)
		if is == nil || is.HighWatermark >= was.High {
			continue
		}
		if !s.knows(was.topic, was.partition) {
			s.damage(was.topic, was.partition, is.HighWatermark, nil,
				fmt.Sprintf("partition %s/%d ends at offset %d, where it ended at %d when the broker was last stopped",
					was.topic, was.partition, is.HighWatermark, was.High))
		}
		if err := os.Remove(was.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			s.log.Error("can't remove an outdated partition state", "path", was.path, "error", err)
		}
	}
}

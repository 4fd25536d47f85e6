package embedded

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"testing"

	"pgregory.net/rapid"
)

// batch makes a record batch of n records at an offset, with a body that only has its length to say.
func batch(offset int64, n int, body []byte) []byte {
	b := make([]byte, batchHead, batchHead+len(body))
	binary.BigEndian.PutUint64(b, uint64(offset))
	binary.BigEndian.PutUint32(b[atLength:], uint32(batchHead-12+len(body)))
	b[atMagic] = batchMagic
	binary.BigEndian.PutUint32(b[atLastDelta:], uint32(n-1))
	b = append(b, body...)
	binary.BigEndian.PutUint32(b[atCRC:], crc32.Checksum(b[afterCRC:], castagnoli))
	return b
}

func drawBatch(t *rapid.T, offset int64) ([]byte, int64) {
	n := rapid.IntRange(1, 100).Draw(t, "records")
	body := rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "body")
	return batch(offset, n, body), offset + int64(n)
}

// TestTornBatch: every beginning of a batch is torn; a whole one with any bit of its length or of what its checksum
// covers flipped is not, alone or with others behind it, whole or torn.
func TestTornBatch(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		offset := rapid.Int64Range(0, 1<<40).Draw(t, "offset")
		b, next := drawBatch(t, offset)
		if n := rapid.IntRange(0, len(b)-1).Draw(t, "beginning"); !tornBatch(b[:n], offset) {
			t.Fatalf("the first %d of %d bytes aren't torn", n, len(b))
		}
		damaged := bytes.Clone(b)
		at := rapid.IntRange(atLength, len(b)-1).Filter(func(i int) bool { return i < atLength+4 || i >= atCRC }).Draw(t, "at")
		damaged[at] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if tornBatch(damaged, offset) {
			t.Fatalf("a damaged batch is called torn")
		}
		if at >= atLastDelta && at < atLastDelta+4 {
			return // two faults at once: what follows can't be known by its offset
		}
		follower, _ := drawBatch(t, next)
		cut := rapid.IntRange(atMagic+1, len(follower)).Draw(t, "follower")
		if tornBatch(append(damaged, follower[:cut]...), offset) {
			t.Fatalf("a damaged batch with others behind it is called torn")
		}
	})
}

func FuzzTornBatch(f *testing.F) {
	f.Add(batch(7, 3, []byte("body")), int64(7))
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x07\x7f\xff\xff\xff"), int64(7))
	f.Fuzz(func(t *testing.T, b []byte, next int64) {
		if tornBatch(b, next) && len(b) >= 12 && int64(binary.BigEndian.Uint64(b)) != next {
			t.Error("a batch of another offset is called torn")
		}
	})
}

// pieces reads like a slow connection: n bytes at a time.
type pieces struct {
	io.Reader
	n int
}

func (p pieces) Read(b []byte) (int, error) { return p.Reader.Read(b[:min(len(b), p.n)]) }

// FuzzFrames: what comes through is a beginning of what was sent, whole requests come through as they are, and
// nothing of a request that is none but its head.
func FuzzFrames(f *testing.F) {
	ok := "\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"
	f.Add([]byte(ok+ok), uint8(1), uint8(3))
	f.Add([]byte(ok+"GET / HTTP/1.1\r\n\r\n"), uint8(5), uint8(100))
	f.Add([]byte("\x00\x00\x00\x0a\x7f\xff"), uint8(2), uint8(4))
	f.Fuzz(func(t *testing.T, sent []byte, piece, want uint8) {
		fr := &frames{r: bufio.NewReader(pieces{bytes.NewReader(sent), int(piece) + 1})}
		var got []byte
		buf := make([]byte, int(want)+1)
		for {
			n, err := fr.Read(buf)
			got = append(got, buf[:n]...)
			if err == nil {
				continue
			}
			if !bytes.HasPrefix(sent, got) {
				t.Fatalf("got %q of %q", got, sent)
			}
			if errors.Is(err, io.EOF) {
				if len(got) != len(sent) {
					t.Fatalf("got %d of %d bytes and no error", len(got), len(sent))
				}
				return
			}
			if !errors.Is(err, errNotKafka) {
				t.Fatal(err)
			}
			return
		}
	})
}

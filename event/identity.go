package event

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"hash"
	"strconv"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/internal/canonical"
)

// What the digest covers of the data. The numbers are part of a stored format.
const (
	digestNone byte = iota // no data
	digestRaw              // the bytes
	digestJSON             // the canonical form
)

type digester struct {
	hash   hash.Hash
	buffer []byte
	sum    [sha256.Size]byte
}

var digesters = sync.Pool{New: func() any { return &digester{hash: sha256.New()} }}

// maxPooled is the largest buffer, in bytes, that is kept for the next digest.
const maxPooled = 1 << 20

// Digest is what tells copies of an event from another event with its id: the
// first 16 bytes of SHA-256 over type, source, id and subject, each behind its
// length (8 bytes, big-endian), then a byte for the kind of data (0 none, 1 raw,
// 2 JSON) and the data, which is canonical where its content type declares JSON.
// JSON without a canonical form counts raw. Time, content type, schema,
// extensions and headers are left out.
func (e Event) Digest() [16]byte {
	d := digesters.Get().(*digester)
	b := d.buffer[:0]
	for _, s := range [...]string{e.Type, e.Source, e.ID, e.Subject} {
		b = appendPart(b, s)
	}
	raw := e.Data
	switch {
	case e.Data == nil:
		b = append(b, digestNone)
	case e.IsJSON():
		form, err := canonical.Append(append(b, digestJSON), e.Data)
		if err != nil {
			b = append(b, digestRaw)
			break
		}
		b, raw = form, nil
	default:
		b = append(b, digestRaw)
	}
	d.hash.Reset()
	d.hash.Write(b)
	d.hash.Write(raw)
	d.hash.Sum(d.sum[:0])
	sum := [16]byte(d.sum[:])
	if d.buffer = b; cap(b) > maxPooled {
		d.buffer = nil
	}
	digesters.Put(d)
	return sum
}

func appendPart(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(len(s)))
	return append(b, s...)
}

// DeriveID is the id of the index-th event that a group's handling of an event
// emits: the same on every attempt, 26 characters a to z and 2 to 7.
func DeriveID(group, source, id string, index int) string {
	return digestID("emitted", group, source, id, strconv.Itoa(index))
}

var lower32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// digestID is 128 bits of SHA-256 over parts, each behind its length, in base32.
func digestID(parts ...string) string {
	b := make([]byte, 0, 256)
	for _, p := range parts {
		b = appendPart(b, p)
	}
	sum := sha256.Sum256(b)
	return lower32.EncodeToString(sum[:16])
}

// PositionID is the id of a record by its position: TOPIC/PARTITION@OFFSET.
func PositionID(p Position) string {
	b := make([]byte, 0, len(p.Topic)+32)
	b = append(b, p.Topic...)
	b = append(b, '/')
	b = strconv.AppendInt(b, int64(p.Partition), 10)
	b = append(b, '@')
	return string(strconv.AppendInt(b, p.Offset, 10))
}

// stampedID adds the record's time to the id of its position, which would else
// come again in a topic that is deleted and created anew.
func stampedID(id string, t time.Time) string { return id + "." + strconv.FormatInt(t.UnixMilli(), 10) }

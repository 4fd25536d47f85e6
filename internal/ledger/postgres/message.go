package postgres

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/swarmlog/swarmlog/event"
)

// messageVersion is the first byte of an encoded message.
const messageVersion = 1

// encodeMessage keeps a message byte for byte, with null and empty apart, in one column, in the form that the embedded
// ledger has too: version, time, key, value, number of headers, then name and value of each. Lengths are one more than
// they are, and 0 is null.
func encodeMessage(m event.Message) []byte {
	size := 32 + len(m.Key) + len(m.Value)
	for _, h := range m.Headers {
		size += len(h.Key) + len(h.Value) + 8
	}
	b := append(make([]byte, 0, size), messageVersion)
	b = binary.AppendVarint(b, stamp(m.Time))
	b = appendBytes(b, m.Key, m.Key == nil)
	b = appendBytes(b, m.Value, m.Value == nil)
	b = binary.AppendUvarint(b, uint64(len(m.Headers)))
	for _, h := range m.Headers {
		b = appendBytes(b, []byte(h.Key), false)
		b = appendBytes(b, h.Value, h.Value == nil)
	}
	return b
}

func appendBytes(b, v []byte, null bool) []byte {
	if null {
		return append(b, 0)
	}
	return append(binary.AppendUvarint(b, uint64(len(v))+1), v...)
}

var errMessage = errors.New("stored message is damaged")

// decodeMessage reads what encodeMessage wrote. What it returns shares b.
func decodeMessage(b []byte) (event.Message, error) {
	var m event.Message
	if len(b) == 0 || b[0] != messageVersion {
		return m, errMessage
	}
	b = b[1:]
	at, n := binary.Varint(b)
	if n <= 0 {
		return m, errMessage
	}
	m.Time = unstamp(at)
	b = b[n:]
	var ok bool
	if m.Key, b, ok = cutBytes(b); !ok {
		return m, errMessage
	}
	if m.Value, b, ok = cutBytes(b); !ok {
		return m, errMessage
	}
	count, n := binary.Uvarint(b)
	b = b[max(n, 0):]
	if n <= 0 || count > uint64(len(b))/2 { // a header takes two bytes at least
		return m, errMessage
	}
	if count > 0 {
		m.Headers = make([]event.Header, 0, count)
	}
	for range count {
		var h event.Header
		var key []byte
		if key, b, ok = cutBytes(b); !ok || key == nil {
			return m, errMessage
		}
		h.Key = string(key)
		if h.Value, b, ok = cutBytes(b); !ok {
			return m, errMessage
		}
		m.Headers = append(m.Headers, h)
	}
	if len(b) > 0 {
		return m, errMessage
	}
	return m, nil
}

func cutBytes(b []byte) (v, rest []byte, ok bool) {
	n, w := binary.Uvarint(b)
	if w <= 0 {
		return nil, nil, false
	}
	b = b[w:]
	if n == 0 {
		return nil, b, true
	}
	if n-1 > uint64(len(b)) {
		return nil, nil, false
	}
	return b[: n-1 : n-1], b[n-1:], true
}

// stamp is a time as the ledger's own tables have it: microseconds since 1970, 0 for none.
func stamp(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func unstamp(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}

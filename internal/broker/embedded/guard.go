package embedded

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// maxRequest is Kafka's default of socket.request.max.bytes.
const maxRequest = 100 << 20

var errNotKafka = errors.New("not a request of the Kafka protocol")

// guarded is a listener whose connections end at the first request that isn't one: the broker takes a request's size
// and kind as they come, and a stray HTTP request must neither make it take a gigabyte nor end the process.
type guarded struct{ net.Listener }

func (g guarded) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &frames{Conn: c, r: bufio.NewReaderSize(c, 16<<10)}, nil
}

// frames follows the requests on a connection: four bytes of size, then the request, which begins with two bytes of
// kind. It has one reader.
type frames struct {
	net.Conn
	r    *bufio.Reader
	head [6]byte // size and kind of the request under way
	n    int     // bytes of head that were read
	left int     // bytes of the request that follow head
}

func (f *frames) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if f.n == len(f.head) && f.left == 0 {
		f.n = 0
	}
	if f.n < len(f.head) {
		n, err := f.r.Read(p[:min(len(p), len(f.head)-f.n)])
		copy(f.head[f.n:], p[:n])
		f.n += n
		if bad := f.check(); bad != nil {
			return 0, bad
		}
		return n, err
	}
	n, err := f.r.Read(p[:min(len(p), f.left)])
	f.left -= n
	return n, err
}

func (f *frames) check() error {
	if f.n < 4 {
		return nil
	}
	size := binary.BigEndian.Uint32(f.head[:4])
	if size < 8 || size > maxRequest {
		return fmt.Errorf("%w: its size is %d", errNotKafka, size)
	}
	if f.n < len(f.head) {
		return nil
	}
	if kind := int16(binary.BigEndian.Uint16(f.head[4:])); kmsg.RequestForKey(kind) == nil {
		return fmt.Errorf("%w: its kind is %d", errNotKafka, kind)
	}
	f.left = int(size) - 2
	return nil
}

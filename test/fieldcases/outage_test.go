package fieldcases

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/inference"
	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/engine"
	models "github.com/swarmlog/swarmlog/internal/inference"
	"github.com/swarmlog/swarmlog/ledger"
)

// outage is how long servers stay away: a moment, or the two minutes of the long form.
func outage() time.Duration {
	if os.Getenv("SWARMLOG_LONG") != "" {
		return 2 * time.Minute
	}
	return 8 * time.Second
}

// link is a way to a server that can be cut.
type link struct {
	net.Listener
	to  string
	all sync.WaitGroup

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]bool
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	check(t, err)
	k := &link{Listener: l, to: to, conns: map[net.Conn]bool{}}
	k.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			k.all.Go(func() { k.carry(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		k.set(true)
		k.all.Wait()
	})
	return k
}

// set cuts the link, with all that is under way, or mends it.
func (k *link) set(cut bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut = cut
	if cut {
		for c := range k.conns {
			_ = c.Close()
		}
	}
}

func (k *link) carry(c net.Conn) {
	defer c.Close()
	s, err := net.Dial("tcp", k.to)
	if err != nil {
		return
	}
	defer s.Close()
	k.mu.Lock()
	cut := k.cut
	if !cut {
		k.conns[c], k.conns[s] = true, true
	}
	k.mu.Unlock()
	if cut {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(s, c); _ = s.Close() })
	both.Go(func() { _, _ = io.Copy(c, s); _ = c.Close() })
	both.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, c)
	delete(k.conns, s)
}

// through puts a link between a place and its database.
func through(t *testing.T, at *place) *link {
	t.Helper()
	u, err := url.Parse(at.DSN)
	check(t, err)
	k := newLink(t, u.Host)
	u.Host = k.Addr().String()
	at.DSN = u.String()
	return k
}

// load writes a thousand records of a hundred keys over about the time of an outage, and one that is malformed.
func (s *swarm) load(d time.Duration) {
	s.t.Helper()
	const rounds = 20
	for round := range rounds {
		var batch []*kgo.Record
		for n := range 50 {
			i := round*50 + n
			batch = append(batch, cloudEvent("in", fmt.Sprintf("key-%d", i%100), fmt.Sprintf("%04d", i), asJSON, []byte(`{}`)))
		}
		if round == rounds/2 {
			batch = append(batch, &kgo.Record{Topic: "in", Key: []byte("malformed"), Value: []byte("not an event")})
		}
		s.produce(batch...)
		time.Sleep(d / rounds)
	}
}

// D7: the database is away for a while. Nothing is dead for it, also not where handlers read the ledger; the one malformed
// record is dead once; all resumes by itself.
func TestD7DatabaseGone(t *testing.T) {
	t.Parallel()
	at := newPair(t)
	way := through(t, at)
	var s *swarm
	started := make(chan struct{})
	agent := noter("r", "in")
	handle := agent.Handle
	agent.Handle = func(ctx context.Context, e event.Event, step *engine.Step) error {
		<-started
		if err := s.Read(ctx, func(ctx context.Context, tx ledger.Tx) error {
			var n int64
			return tx.QueryRow(ctx, `SELECT count(*) FROM note WHERE id = $1`, e.ID).Scan(&n)
		}); err != nil {
			return err
		}
		return handle(ctx, e, step)
	}
	s = start(t, at, map[string]int32{"in": 4}, nil, agent)
	close(started)
	s.load(time.Second)
	way.set(true)
	s.load(outage())
	way.set(false)
	s.load(time.Second)
	s.settle()
	// Records of one load have the ids of another's, so two thirds are copies. Malformed records of one key wait behind
	// the first.
	if c := s.counters("r"); c != (ledger.Counters{Applied: 1000, Duplicate: 2000, Dead: 1, Waiting: 2}) {
		t.Errorf("counters: %+v", c)
	}
	if rows := s.rows(); len(rows) != 1000 {
		t.Errorf("%d effects", len(rows))
	}
}

// D7: the model's server answers 503 and 429 for a while. The same holds, and it isn't asked by every record meanwhile.
func TestD7ModelGone(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		var away atomic.Bool
		var refused, answered atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if away.Load() {
				if n := refused.Add(1); n%2 == 0 {
					w.Header().Set("Retry-After", "1")
					w.WriteHeader(http.StatusTooManyRequests)
				} else {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				return
			}
			answered.Add(1)
			w.Header().Set("Content-Type", asJSON)
			_, _ = io.WriteString(w, `{"id":"1","object":"chat.completion","created":1,"model":"m-1","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"fine"}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
		}))
		t.Cleanup(server.Close)
		agent := noter("r", "in")
		agent.Limits = engine.Limits{Backoff: 20 * time.Millisecond, MaxWait: time.Second, Attempts: 4}
		handle := agent.Handle
		agent.Handle = func(ctx context.Context, e event.Event, s *engine.Step) error {
			if _, err := s.Infer(ctx, "answer", inference.Request{Model: "m", Messages: []inference.Message{{Role: "user", Content: e.ID}}}); err != nil {
				return err
			}
			return handle(ctx, e, s)
		}
		s := start(t, at, map[string]int32{"in": 4}, func(c *app.Config) {
			c.Opened = func(_ context.Context, l ledger.Ledger) (engine.Inferrer, error) {
				return models.New(l, []config.Model{{Name: "m", Provider: config.OpenAI, BaseURL: server.URL + "/v1", Model: "m"}}, models.Options{Tenant: "case"})
			}
		}, agent)
		away.Store(true)
		s.load(outage())
		away.Store(false)
		s.settle()
		if c := s.counters("r"); c != (ledger.Counters{Applied: 1000, Dead: 1}) {
			t.Errorf("counters: %+v", c)
		}
		if n := refused.Load(); n > 500 {
			t.Errorf("a server that is away was asked %d times", n)
		}
		if n := answered.Load(); n != 1000 {
			t.Errorf("%d answers were paid", n)
		}
		t.Logf("asked %d times while it was away", refused.Load())
	})
}

package agents

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"go.uber.org/goleak"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/inference"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/devservices/given"
	"github.com/swarmlog/swarmlog/internal/engine"
	models "github.com/swarmlog/swarmlog/internal/inference"
	"github.com/swarmlog/swarmlog/internal/ledger/postgres"
	"github.com/swarmlog/swarmlog/internal/ledger/sqlite"
	"github.com/swarmlog/swarmlog/ledger"
)

func TestMain(m *testing.M) {
	folder, err := os.MkdirTemp("", "agents")
	if err != nil {
		panic(err)
	}
	pdfCache = folder
	flag.Parse()
	if f := flag.Lookup("rapid.checks"); f != nil && f.Value.String() == f.DefValue {
		// Each check of a property here commits to a disk some dozen times.
		if err := f.Value.Set("40"); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// pdfCache is shared by all tests, since compiling takes seconds.
var pdfCache string

// testPDFReader compiles the reader as the product does, but where that takes a minute since the race detector watches.
func testPDFReader() *pdfReader {
	p := newPDFReader(pdfCache, discard)
	if raced {
		p.base = wazero.NewRuntimeConfigInterpreter
	}
	return p
}

// swarm runs agents by hand, over a real ledger: what a step collects is committed in one transaction.
type swarm struct {
	t       testing.TB
	db      ledger.Ledger
	applied map[string]bool // source and id of offers
	offers  int
	idle    bool
	fail    error         // of the next offers
	queue   []event.Event // emitted, not yet handled
	models  *models.Service
}

// newSwarm has an embedded ledger.
func newSwarm(t testing.TB) *swarm {
	t.Helper()
	db, err := sqlite.Open(context.Background(), filepath.Join(t.TempDir(), "ledger.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return swarmOn(t, db)
}

// newServedSwarm has a ledger in PostgreSQL, in a database of its own.
func newServedSwarm(t testing.TB) *swarm {
	t.Helper()
	db, err := postgres.Open(context.Background(), postgres.Options{DSN: given.Database(t), MaxConns: 4})
	if err != nil {
		t.Fatal(err)
	}
	return swarmOn(t, db)
}

// onBoth runs a test over each kind of ledger.
func onBoth(t *testing.T, test func(t *testing.T, newSwarm func(testing.TB) *swarm)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { test(t, newSwarm) })
	t.Run("postgres", func(t *testing.T) { test(t, newServedSwarm) })
}

func swarmOn(t testing.TB, db ledger.Ledger) *swarm {
	t.Helper()
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	m, err := models.New(db, []config.Model{{Name: "default", Provider: config.Builtin}}, models.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &swarm{t: t, db: db, applied: make(map[string]bool), models: m}
	s.commit(setup)
	return s
}

func (s *swarm) commit(effects ...func(context.Context, ledger.Tx) error) {
	s.t.Helper()
	for _, f := range effects {
		if err := s.db.Setup(context.Background(), f); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *swarm) deps() Deps { return Deps{Read: s.db.Read, Cache: pdfCache} }

// step collects as an engine.Step does.
type step struct {
	swarm   *swarm
	emits   []event.Event
	effects []func(context.Context, ledger.Tx) error
	skipped string
}

func (s *step) Emit(e event.Event)                                 { s.emits = append(s.emits, e) }
func (s *step) Tx(f func(ctx context.Context, tx ledger.Tx) error) { s.effects = append(s.effects, f) }
func (s *step) Skip(reason string)                                 { s.skipped = reason }
func (s *step) Infer(ctx context.Context, name string, r inference.Request) (inference.Answer, error) {
	return s.swarm.models.Infer(ctx, engine.Call{Agent: "test"}, name, r)
}

// done commits what a step collected.
func (s *step) done(id string) {
	for i, e := range s.emits {
		if e.Err() != nil {
			s.swarm.t.Fatal(e.Err())
		}
		if e.ID == "" {
			e.ID = fmt.Sprint(id, "/", i)
		}
		s.swarm.queue = append(s.swarm.queue, e)
	}
	s.swarm.commit(s.effects...)
}

// handle runs one event through a handler, as one step.
func (s *swarm) handle(h handler, e event.Event) (*step, error) {
	st := &step{swarm: s}
	if err := h(context.Background(), e, st); err != nil {
		return st, err
	}
	if st.skipped == "" {
		st.done(e.ID)
	}
	return st, nil
}

// Offer and Idle make it a feed. Offers come one at a time here, but for the race detector's sake they are locked.
type lockedFeed struct {
	*swarm
	turn chan struct{}
}

func (s *swarm) feed() feed {
	f := lockedFeed{s, make(chan struct{}, 1)}
	f.turn <- struct{}{}
	return f
}

func (f lockedFeed) Offer(ctx context.Context, e event.Event, h handler) (ledger.Outcome, error) {
	<-f.turn
	defer func() { f.turn <- struct{}{} }()
	if f.fail != nil {
		return 0, f.fail
	}
	if e.ID == "" || e.Source == "" || e.Subject == "" {
		return 0, fmt.Errorf("an offer without id, source or subject: %+v", e)
	}
	f.offers++
	if f.applied[e.Source+e.ID] {
		return ledger.Duplicate, nil
	}
	if _, err := f.handle(h, e); err != nil {
		return 0, err
	}
	f.applied[e.Source+e.ID] = true
	return ledger.Applied, nil
}

func (f lockedFeed) Idle(idle bool) { f.idle = idle }

// finderOn is a finder of one folder.
func (s *swarm) finderOn(folders ...string) *finder {
	return newFinder(config.Agent{Name: "finder", Input: folders, MaxDocument: 1 << 20}, s.deps0())
}

func (s *swarm) deps0() Deps {
	d := s.deps()
	d.Logger = discard
	return d
}

// scanOnce lets a finder look once.
func (s *swarm) scanOnce(f *finder) Scan {
	s.t.Helper()
	if f.known == nil {
		if err := f.load(context.Background()); err != nil {
			s.t.Fatal(err)
		}
	}
	scan, err := f.scan(context.Background(), s.feed())
	if err != nil {
		s.t.Fatal(err)
	}
	return scan
}

// read runs a query.
func (s *swarm) read(f func(ctx context.Context, tx ledger.Tx) error) {
	s.t.Helper()
	if err := s.db.Read(context.Background(), f); err != nil {
		s.t.Fatal(err)
	}
}

func (s *swarm) search(words string) []Hit {
	s.t.Helper()
	var hits []Hit
	s.read(func(ctx context.Context, tx ledger.Tx) (err error) {
		hits, err = Search(ctx, tx, words, 10)
		return err
	})
	return hits
}

func (s *swarm) rows() []PageRow {
	s.t.Helper()
	var rows []PageRow
	s.read(func(ctx context.Context, tx ledger.Tx) error {
		return Pages(ctx, tx, func(r PageRow) error { rows = append(rows, r); return nil })
	})
	return rows
}

// drain hands every event that waits to the agents, and returns the errors by document name.
func (s *swarm) drain(sp *splitter) map[string]error {
	s.t.Helper()
	failed := make(map[string]error)
	for len(s.queue) > 0 {
		e := s.queue[0]
		s.queue = s.queue[1:]
		switch e.Type {
		case DocumentFound:
			if _, err := s.handle(sp.handle, e); err != nil {
				d, derr := decode[Document](e)
				if derr != nil {
					s.t.Fatal(derr)
				}
				failed[d.Name] = err
			}
		case PageSplit:
			if len(e.Data) > 64<<10 {
				s.t.Errorf("an event of %d bytes", len(e.Data))
			}
			for _, h := range []handler{(&reader{model: "default"}).handle, (&embedder{model: "default"}).handle, index} {
				if _, err := s.handle(h, e); err != nil {
					s.t.Fatal(err)
				}
			}
		default:
			if _, err := s.handle(index, e); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	return failed
}

func (s *swarm) splitter() *splitter {
	sp := newSplitter(config.Agent{Name: "splitter", MaxDocument: 64 << 20, PageChars: 3000}, s.deps0())
	sp.pdf = testPDFReader()
	s.t.Cleanup(sp.close)
	return sp
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func names(hits []Hit) string {
	var out []string
	for _, h := range hits {
		out = append(out, fmt.Sprint(h.Name, ":", h.Page))
	}
	return strings.Join(out, " ")
}

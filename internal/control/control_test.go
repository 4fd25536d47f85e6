package control

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/ledger"
)

// stage is a broker and a ledger with one agent on one partition, which note what is done in order.
type stage struct {
	paused    bool
	held      bool
	next      int64
	committed int64
	late      []int64 // reports of a worker that come after each of ours
	done      []string
}

// log and book are the stage's two sides.
type log struct {
	broker.Broker
	*stage
}

type book struct {
	ledger.Ledger
	*stage
}

var id = broker.TopicID{1}

func (s log) Topics(context.Context, ...string) ([]broker.Topic, error) {
	return []broker.Topic{{Name: "in", ID: id, Partitions: 1}}, nil
}

func (s log) Offsets(context.Context, string) ([]broker.Range, error) {
	return []broker.Range{{Start: 30, End: 100}}, nil
}

func (s log) OffsetsAt(context.Context, string, time.Time) ([]int64, error) { return []int64{40}, nil }

func (s log) Committed(context.Context, string) (map[string]map[int32]int64, error) {
	return map[string]map[int32]int64{"in": {0: s.committed}}, nil
}

func (s log) Report(_ context.Context, group string, next map[string]map[int32]int64) error {
	s.committed = next["in"][0]
	s.done = append(s.done, "report "+group)
	if len(s.late) > 0 {
		s.committed, s.late = s.late[0], s.late[1:]
	}
	return nil
}

func (s book) Leases(context.Context, string) ([]ledger.Lease, error) {
	return []ledger.Lease{{Fence: ledger.Fence{Key: ledger.Key{Group: "reader", TopicID: id}, Owner: "w"}, Topic: "in", Next: s.next, Held: s.held}}, nil
}

func (s book) Controls(context.Context) ([]ledger.Control, error) {
	return []ledger.Control{{Group: "reader", Paused: s.paused}}, nil
}

func (s book) Rewind(_ context.Context, _ string, to map[ledger.Key]int64, _ bool, _ time.Time) (int64, error) {
	for _, n := range to {
		s.next = n
	}
	s.done = append(s.done, "rewind")
	return 0, nil
}

func (s book) Totals(ctx context.Context) (ledger.Totals, error) {
	leases, err := s.Leases(ctx, "")
	leases[0].Counters.Applied = 10
	return ledger.Totals{Leases: leases, Inference: ledger.InferenceTotals{Calls: 20}}, err
}

func (s *stage) console() Console {
	return Console{Swarm: "test", Broker: log{stage: s}, Ledger: book{stage: s}}
}

// Whoever looks in between must never find Kafka above the ledger, so Kafka goes down first.
func TestRewindLowersKafkaFirst(t *testing.T) {
	t.Parallel()
	s := &stage{paused: true, next: 90, committed: 90}
	r, err := s.console().Rewind(t.Context(), Rewinding{Agent: "reader", To: time.Now().Add(-time.Hour)})
	if err != nil || !r.Done || r.Back != 50 || s.next != 40 || s.committed != 40 {
		t.Fatalf("%+v, %v; the ledger is at %d, Kafka at %d", r, err, s.next, s.committed)
	}
	if len(s.done) != 2 || s.done[0] != "report test.reader" || s.done[1] != "rewind" {
		t.Errorf("done was %v", s.done)
	}
}

func TestRewindUndoesAReportThatComesLate(t *testing.T) {
	t.Parallel()
	s := &stage{paused: true, next: 90, committed: 90, late: []int64{90}}
	if _, err := s.console().Rewind(t.Context(), Rewinding{Agent: "reader", To: time.Now().Add(-time.Hour)}); err != nil || s.committed != 40 {
		t.Errorf("%v; Kafka is at %d", err, s.committed)
	}
	s = &stage{paused: true, next: 90, committed: 90, late: []int64{90, 90, 90, 90, 90, 90, 90}}
	if _, err := s.console().Rewind(t.Context(), Rewinding{Agent: "reader", To: time.Now().Add(-time.Hour)}); err == nil {
		t.Error("something that commits again and again isn't told of")
	}
}

func TestRewindInsistsOnAPausedAgentThatNobodyHolds(t *testing.T) {
	t.Parallel()
	r := Rewinding{Agent: "reader", To: time.Now().Add(-time.Hour)}
	s := &stage{next: 90}
	if _, err := s.console().Rewind(t.Context(), r); !errors.Is(err, ErrRunning) {
		t.Errorf("one that runs: %v", err)
	}
	s = &stage{next: 90, paused: true, held: true}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := s.console().Rewind(ctx, r); !errors.Is(err, ErrAtWork) {
		t.Errorf("one that is held: %v", err)
	}
	if len(s.done) > 0 {
		t.Errorf("done was %v", s.done)
	}
}

func TestRecoverTellsWhatIsGoneAndWhatIsPaidAgain(t *testing.T) {
	t.Parallel()
	s := &stage{next: 10, committed: 90}
	c := s.console()
	c.Broker = gone{log{stage: s}}
	r, err := c.Recover(t.Context(), nil, false)
	if err != nil || r.Records != 80 || r.Gone != 20 || r.Calls != 160 || r.Reset || s.committed != 90 {
		t.Fatalf("%+v, %v", r, err)
	}
	if r, err = c.Recover(t.Context(), nil, true); err != nil || !r.Reset || s.committed != 10 {
		t.Errorf("%+v, %v; Kafka is at %d", r, err, s.committed)
	}
	if r, err = c.Recover(t.Context(), nil, true); err != nil || len(r.Partitions) != 0 || r.Reset {
		t.Errorf("once more: %+v, %v", r, err)
	}
	if _, err = (Console{Broker: log{stage: s}, Ledger: book{stage: s}}).Recover(t.Context(), nil, true); !errors.Is(err, ErrNoSwarm) {
		t.Errorf("without the swarm's name: %v", err)
	}
}

// gone is a broker whose records can't be read: the end of the log is its beginning.
type gone struct{ log }

func (gone) Offsets(context.Context, string) ([]broker.Range, error) {
	return []broker.Range{{Start: 30, End: 30}}, nil
}

package postgres

import (
	"errors"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

func TestPeek(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	o := Options{DSN: r.dsn, Schema: r.schema}
	if _, err := Peek(t.Context(), o, time.Minute); !errors.Is(err, ErrOtherSchema) {
		t.Errorf("no ledger is there: %v", err)
	}
	db := r.open(t)
	l := acquire(t, db, 5)
	if _, err := db.Route(t.Context(), l.TopicID, "t", 7); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Beat(t.Context(), ledger.Worker{ID: "w", Started: time.Now(), Oldest: time.Now()}, time.Minute); err != nil {
		t.Fatal(err)
	}
	s, err := Peek(t.Context(), o, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Leases) != 1 || s.Leases[0].Key != l.Key || s.Leases[0].Epoch != l.Epoch || !s.Leases[0].Held {
		t.Errorf("leases: %+v, want %+v", s.Leases, l)
	}
	if len(s.Workers) != 1 || s.Workers[0].ID != "w" || s.Workers[0].Oldest.IsZero() {
		t.Errorf("workers: %+v", s.Workers)
	}
	if s.Slots[l.TopicID] != 7 || len(s.Slots) != 1 {
		t.Errorf("slots: %v", s.Slots)
	}
}

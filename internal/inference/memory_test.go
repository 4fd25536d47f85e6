package inference

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/inference"
	"github.com/swarmlog/swarmlog/ledger"
)

// memory keeps calls as a ledger does, with switches to fail.
type memory struct {
	mu        sync.Mutex
	recorded  map[callKey]ledger.Answer
	reusable  map[[32]byte]ledger.Answer
	pending   map[callKey]bool
	inDoubt   int
	abandoned int
	settleErr error
}

var errDown = errors.New("ledger is down")

func newMemory() *memory {
	return &memory{recorded: map[callKey]ledger.Answer{}, reusable: map[[32]byte]ledger.Answer{}, pending: map[callKey]bool{}}
}

// key leaves the address out: what an event's step got is found by its name.
func (m *memory) key(c ledger.Call) callKey {
	k := keyOf(c)
	k.address = [32]byte{}
	return k
}

func (m *memory) Recall(_ context.Context, c ledger.Call) (ledger.Answer, ledger.CallState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a, ok := m.recorded[m.key(c)]; ok {
		return a, ledger.CallRecorded, nil
	}
	if a, ok := m.reusable[c.Address]; ok && c.Reuse {
		m.recorded[m.key(c)] = a
		return a, ledger.CallReused, nil
	}
	if m.pending[m.key(c)] {
		m.inDoubt++
		return ledger.Answer{}, ledger.CallInDoubt, nil
	}
	m.pending[m.key(c)] = true
	return ledger.Answer{}, ledger.CallNew, nil
}

func (m *memory) Settle(_ context.Context, c ledger.Call, a ledger.Answer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.settleErr != nil {
		return m.settleErr
	}
	delete(m.pending, m.key(c))
	if _, ok := m.recorded[m.key(c)]; ok {
		return nil // the first answer stays
	}
	m.recorded[m.key(c)] = a
	if c.Reuse {
		m.reusable[c.Address] = a
	}
	return nil
}

func (m *memory) Abandon(_ context.Context, c ledger.Call) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.abandoned++
	delete(m.pending, m.key(c))
	return nil
}

func (m *memory) failSettle(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settleErr = err
}

func (m *memory) stored() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.recorded) + len(m.reusable)
}

// settled records an answer as another owner of the lease would have.
func (m *memory) settled(t *testing.T, c ledger.Call, text string) {
	t.Helper()
	a, err := encodeAnswer(inference.Answer{Text: text, Model: "chat"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Settle(t.Context(), c, a); err != nil {
		t.Fatal(err)
	}
}

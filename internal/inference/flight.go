package inference

import (
	"context"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/inference"
	"github.com/swarmlog/swarmlog/ledger"
)

// flights lets one request be in the air at a time, in this process: of an address while its answer serves others too,
// else of a call, of which copies of an event may run at once. Those that wait don't share the result: each recalls it
// from the ledger, so that its own event gets its record.
type flights struct {
	mu  sync.Mutex
	air map[callKey]*flight
}

// callKey tells calls apart; with the address alone it stands for all calls to that address.
type callKey struct {
	group, source, event, name string
	address                    [32]byte
}

func keyOf(c ledger.Call) callKey {
	return callKey{c.Fence.Group, c.Source, c.EventID, c.Name, c.Address}
}

func flightOf(c ledger.Call) callKey {
	if c.Reuse {
		return callKey{address: c.Address}
	}
	return keyOf(c)
}

type flight struct {
	turn    chan struct{} // holds one token while nobody is in the air
	waiting int           // users, the one in the air included
}

// enter waits until no other flight of the key is in the air; land lets the next one in.
func (f *flights) enter(ctx context.Context, key callKey) (land func(), err error) {
	f.mu.Lock()
	if f.air == nil {
		f.air = make(map[callKey]*flight)
	}
	fl := f.air[key]
	if fl == nil {
		fl = &flight{turn: make(chan struct{}, 1)}
		fl.turn <- struct{}{}
		f.air[key] = fl
	}
	fl.waiting++
	f.mu.Unlock()

	leave := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if fl.waiting--; fl.waiting == 0 {
			delete(f.air, key)
		}
	}
	select {
	case <-fl.turn:
		return func() { fl.turn <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// maxUnsettled bounds the answers that are kept while the ledger can't take them.
const maxUnsettled = 256

// unsettled holds paid answers whose recording failed, until the step's next attempt. They belong to no fence: where a
// lease was lost and taken again, the attempt under the new one records them.
type unsettled struct {
	mu      sync.Mutex
	answers map[callKey]inference.Answer
}

func (u *unsettled) put(c ledger.Call, a inference.Answer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.answers == nil {
		u.answers = make(map[callKey]inference.Answer)
	}
	for k := range u.answers { // any goes where there are too many: what is lost is a short cut
		if len(u.answers) < maxUnsettled {
			break
		}
		delete(u.answers, k)
	}
	u.answers[keyOf(c)] = a
}

func (u *unsettled) take(c ledger.Call) (inference.Answer, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	a, ok := u.answers[keyOf(c)]
	delete(u.answers, keyOf(c))
	return a, ok
}

// maxAfter bounds what a server's Retry-After may ask for.
const maxAfter = 2 * time.Minute

// gate holds requests back until a server wants them again.
type gate struct {
	now   func() time.Time
	mu    sync.Mutex
	until time.Time
}

func (g *gate) close(d time.Duration) {
	if d <= 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if until := g.now().Add(min(d, maxAfter)); until.After(g.until) {
		g.until = until
	}
}

// left is how long the server wants to be left alone from now on.
func (g *gate) left() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.until.Sub(g.now())
}

func (g *gate) wait(ctx context.Context) error {
	for {
		d := g.left()
		if d <= 0 {
			return nil
		}
		t := time.NewTimer(d)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

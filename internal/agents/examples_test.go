package agents

import (
	"context"
	"strings"
	"testing"

	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/ledger"
)

// Each sample document is read, and found by the word that stands in it alone.
func TestSampleDocuments(t *testing.T) { onBoth(t, sampleDocuments) }

func sampleDocuments(t *testing.T, newSwarm func(testing.TB) *swarm) {
	c, err := config.Load("../../examples/papers")
	if err != nil {
		t.Fatal(err)
	}
	s := newSwarm(t)
	f := newFinder(*c.Agent("finder"), s.deps0())
	scan := s.scanOnce(f)
	if scan.Files != 12 || scan.Unsupported != 0 {
		t.Errorf("scan %+v", scan)
	}
	if failed := s.drain(s.splitter()); len(failed) != 0 {
		t.Fatal(failed)
	}
	for word, place := range map[string]string{
		"ultracrepidarian": "exactly-once.md:1", "syzygy": "leases-and-epochs.md:1", "apricity": "backpressure.txt:3",
		"tmesis": "transactional-outbox.html:1", "borborygmus": "idempotency-keys.html:1", "quincunx": "partition-keys.txt:1",
		"zugzwang": "poison-messages.md:1", "absquatulate": "quiet-agents.txt:1", "sesquipedalian": "glossary.html:1",
		"petrichor": "field notes/midnight incident 🌙.md:1", "limnology": "balancing-a-swarm.pdf:4", "mellifluous": "a-short-history-of-logs.pdf:3",
	} {
		hits := s.search(word)
		if len(hits) == 0 || !strings.HasPrefix(names(hits), place) || !strings.Contains(hits[0].Excerpt, word) {
			t.Errorf("%s is found as %q", word, names(hits))
		}
	}
	var counts Counts
	s.read(func(ctx context.Context, tx ledger.Tx) (err error) { counts, err = Count(ctx, tx); return err })
	if counts.Documents != 12 || counts.Split != 12 || counts.Complete != counts.Pages || counts.Pages < 17 {
		t.Errorf("counts %+v", counts)
	}
	for _, r := range s.rows() {
		if r.Steps != 1 || len(r.Summary) < 40 || len(r.Terms) < 3 {
			t.Errorf("row %+v", r)
		}
		t.Logf("%s %d: %s — %s", r.Name, r.Page, r.Summary, strings.Join(r.Terms, "; "))
	}
}

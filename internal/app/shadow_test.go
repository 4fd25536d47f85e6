package app

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/devservices/given"
	"github.com/swarmlog/swarmlog/internal/engine"
)

// shadowed is a swarm of documents with new versions beside two agents: one that does the same, one that cuts pages shorter.
const shadowed = `
name: NAME
topics: {NAME-documents: {partitions: 2}, NAME-pages: {partitions: 4}, NAME-notes: {partitions: 2}}
agents:
  finder: {kind: finder, emits: NAME-documents, input: documents}
  splitter-2: {kind: splitter, shadow_of: splitter, page_chars: 300}
  splitter: {kind: splitter, reads: NAME-documents, emits: NAME-pages, on_dead: skip}
  reader: {kind: reader, reads: NAME-pages, emits: NAME-notes}
  reader-2: {kind: reader, shadow_of: reader}
  indexer: {kind: indexer, reads: [NAME-pages, NAME-notes]}
`

// A swarm.yaml's shadows are compared, and change nothing, in one process and on servers.
func TestShadowsOfASwarm(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"embedded", "servers"} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			name, folder := "shadow"+strings.ToLower(rand.Text()[:8]), t.TempDir()
			const documents = 12
			if err := os.Mkdir(filepath.Join(folder, "documents"), 0o755); err != nil {
				t.Fatal(err)
			}
			for i := range documents { // longer than a page of splitter-2, shorter than one of splitter
				text := strings.Repeat(fmt.Sprintf("Document %d says that the quincunx has five points. ", i), 20)
				if err := os.WriteFile(filepath.Join(folder, "documents", fmt.Sprint(i, ".txt")), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s, err := config.Parse(filepath.Join(folder, "swarm.yaml"), []byte(strings.ReplaceAll(shadowed, "NAME", name)),
				func(string) (string, bool) { return "", false })
			if err != nil {
				t.Fatal(err)
			}
			c, err := FromSwarm(s, t.TempDir(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.LeaseTime = 3 * time.Second; place == "servers" {
				c.Kafka, c.Postgres = &KafkaOptions{Seeds: given.Kafka(t)}, &PostgresOptions{DSN: given.Database(t)}
			}
			checkShadows(t, c, documents)
		})
	}
}

func checkShadows(t *testing.T, c Config, documents int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a, err := Start(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	until := func(what string, ok func() (string, bool)) {
		t.Helper()
		for {
			seen, ok := ok()
			if ok {
				return
			}
			select {
			case <-ctx.Done():
				t.Fatalf("waited in vain until %s: %s", what, seen)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	count := func(agent, shadow string) map[engine.Verdict]int64 {
		t.Helper()
		r, err := a.hands().Shadow(ctx, agent, shadow, 2)
		if err != nil {
			return nil //nolint:nilerr // it has no progress yet
		}
		return r.Counts
	}
	until("all notes are equal", func() (string, bool) {
		n := count("reader", "reader-2")
		return fmt.Sprint(n), len(n) == 1 && n[engine.VerdictEqual] == documents
	})
	until("all first pages differ", func() (string, bool) { // the others wait for the primary to be past them for a while
		n := count("splitter", "splitter-2")
		return fmt.Sprint(n), n[engine.VerdictDiffers] == documents && n[engine.VerdictWaiting] >= documents && n[engine.VerdictEqual] == 0
	})
	if err := a.Settled(ctx); err != nil {
		t.Fatal(err)
	}
	look, err := a.Look(ctx)
	if err != nil {
		t.Fatal(err)
	}
	pages, err := a.Messages(ctx, c.Name+"-pages")
	if look.Documents != documents || len(pages) != int(documents) || look.Records.Dead != 0 || err != nil {
		t.Errorf("%d documents, %d pages, %+v, %v", look.Documents, len(pages), look.Records, err)
	}
	kinds := map[string]string{}
	for _, g := range look.Agents {
		kinds[g.Name] = g.Kind
	}
	if kinds["reader-2"] != "built-in reader, shadow of reader" || kinds["reader-2.compare"] != "internal" || kinds["reader"] != "built-in reader" {
		t.Errorf("kinds: %v", kinds)
	}
}

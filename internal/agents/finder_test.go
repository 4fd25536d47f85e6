package agents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/ledger"
)

var discard = slog.New(slog.DiscardHandler)

// documentsOf decodes the events that wait, by name.
func (s *swarm) documentsOf() map[string]Document {
	s.t.Helper()
	out := make(map[string]Document)
	for _, e := range s.queue {
		d, err := decode[Document](e)
		if err != nil {
			s.t.Fatal(err)
		}
		out[d.Name] = d
	}
	return out
}

func TestFinderAnnouncesEachContentOnce(t *testing.T) { onBoth(t, finderAnnouncesEachContentOnce) }

func finderAnnouncesEachContentOnce(t *testing.T, newSwarm func(testing.TB) *swarm) {
	s, dir := newSwarm(t), t.TempDir()
	write(t, filepath.Join(dir, "a.txt"), "one")
	write(t, filepath.Join(dir, "sub", "my file 😀.MD"), "two")
	write(t, filepath.Join(dir, "sub", "copy.txt"), "one")
	write(t, filepath.Join(dir, "program.bin"), "x")
	f := s.finderOn(dir)
	scan := s.scanOnce(f)
	if scan.Files != 3 || scan.Unsupported != 1 || scan.Changed != 3 || len(s.queue) != 2 {
		t.Fatalf("scan %+v, %d events", scan, len(s.queue))
	}
	for _, e := range s.queue {
		d, err := decode[Document](e)
		if err != nil || e.ID != "sha256:"+d.SHA256 || e.Subject != d.SHA256 || e.Type != DocumentFound {
			t.Errorf("event %+v, %v", e, err)
		}
	}
	if d := s.documentsOf()["sub/my file 😀.MD"]; d.MediaType != "text/markdown" || d.Size != 3 || d.Modified.IsZero() {
		t.Errorf("document %+v", d)
	}
	var c Counts
	s.read(func(ctx context.Context, tx ledger.Tx) (err error) { c, err = Count(ctx, tx); return err })
	if c.Files != 3 || c.Documents != 2 || c.Copies != 1 {
		t.Errorf("counts %+v", c)
	}
	// Another look, and another process: nothing is offered again.
	before := s.offers
	s.scanOnce(f)
	s.scanOnce(s.finderOn(dir))
	if s.offers != before {
		t.Errorf("%d offers again", s.offers-before)
	}
}

func TestUnchangedFilesAreNotHashedAgain(t *testing.T) { onBoth(t, unchangedFilesAreNotHashedAgain) }

func unchangedFilesAreNotHashedAgain(t *testing.T, newSwarm func(testing.TB) *swarm) {
	s, dir := newSwarm(t), t.TempDir()
	path := filepath.Join(dir, "a.txt")
	write(t, path, "one")
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	s.scanOnce(s.finderOn(dir))
	// Same size and time, other content: only hashing would show it, so it doesn't.
	write(t, path, "two")
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	f := s.finderOn(dir)
	if scan := s.scanOnce(f); scan.Changed != 0 {
		t.Errorf("hashed again: %+v", scan)
	}
	// Just after it was written a file is looked at once more.
	write(t, path, "two")
	s.scanOnce(f)
	now := f.known[path].Modified
	write(t, path, "six")
	if err := os.Chtimes(path, now, now); err != nil {
		t.Fatal(err)
	}
	if scan := s.scanOnce(f); scan.Changed != 1 {
		t.Errorf("a change within the clock's grain was missed: %+v", scan)
	}
}

func TestChangesRevertsAndRemovals(t *testing.T) { onBoth(t, changesRevertsAndRemovals) }

func changesRevertsAndRemovals(t *testing.T, newSwarm func(testing.TB) *swarm) {
	s, dir := newSwarm(t), t.TempDir()
	sp, path := s.splitter(), filepath.Join(dir, "a.txt")
	f := s.finderOn(dir)
	look := func(text string) {
		t.Helper()
		if text == "" {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		} else {
			write(t, path, text)
		}
		s.scanOnce(f)
		if failed := s.drain(sp); len(failed) != 0 {
			t.Fatal(failed)
		}
	}
	shows := func(want string) {
		t.Helper()
		for _, word := range []string{"aardvark", "buffalo"} {
			hits := s.search(word)
			if (len(hits) > 0) != (word == want) {
				t.Errorf("%s is found as %q, while the file holds %q", word, names(hits), want)
			}
		}
		for _, r := range s.rows() {
			if r.Steps != 1 {
				t.Errorf("row %+v", r)
			}
		}
	}
	look("The aardvark was here.")
	shows("aardvark")
	look("The buffalo was here instead.")
	shows("buffalo")
	look("The aardvark was here.")
	shows("aardvark")
	look("")
	shows("")
	look("The buffalo was here instead.")
	shows("buffalo")
}

// The file that announced a document changes before the splitter comes; a copy of it serves. Then the content comes
// back without ever having been split.
func TestDocumentLostAndFound(t *testing.T) { onBoth(t, documentLostAndFound) }

func documentLostAndFound(t *testing.T, newSwarm func(testing.TB) *swarm) {
	s, dir := newSwarm(t), t.TempDir()
	sp, f := s.splitter(), s.finderOn(dir)
	a, b := filepath.Join(dir, "a.txt"), filepath.Join(dir, "b.txt")
	write(t, a, "The aardvark was here.")
	write(t, b, "The aardvark was here.")
	s.scanOnce(f)
	if len(s.queue) != 1 {
		t.Fatalf("%d events", len(s.queue))
	}
	write(t, a, "Other.")
	write(t, b, "Others.")
	st, err := s.handle(sp.handle, s.queue[0])
	if err != nil || !strings.Contains(st.skipped, "changed") {
		t.Fatalf("skipped %q, %v", st.skipped, err)
	}
	s.queue = nil
	s.scanOnce(f)
	write(t, b, "The aardvark was here.")
	s.scanOnce(f)
	s.drain(sp)
	if got := names(s.search("aardvark")); got != "b.txt:1" {
		t.Errorf("found %q", got)
	}
	// Only one of two copies changed.
	write(t, a, "The buffalo was here.")
	write(t, filepath.Join(dir, "c.txt"), "The buffalo was here.")
	s.scanOnce(f)
	first, err := decode[Document](s.queue[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(first.Path); err != nil {
		t.Fatal(err)
	}
	if failed := s.drain(sp); len(failed) != 0 {
		t.Fatal(failed)
	}
	s.scanOnce(f)
	if hits := s.search("buffalo"); len(hits) != 1 || hits[0].Path == first.Path {
		t.Errorf("found %q", names(hits))
	}
}

func TestBadFilesAreNamed(t *testing.T) { onBoth(t, badFilesAreNamed) }

func badFilesAreNamed(t *testing.T, newSwarm func(testing.TB) *swarm) {
	s, dir := newSwarm(t), t.TempDir()
	outside := t.TempDir()
	write(t, filepath.Join(dir, "good.txt"), "good")
	write(t, filepath.Join(dir, "empty.txt"), "")
	write(t, filepath.Join(dir, "empty too.txt"), "")
	write(t, filepath.Join(dir, "large.txt"), strings.Repeat("x", 1<<20+1))
	write(t, filepath.Join(dir, "bad\xff.txt"), "x")
	write(t, filepath.Join(dir, "deep", "in.txt"), "deep")
	for link, to := range map[string]string{"loop": "..", "deep/self": ".", "dangling.txt": "nowhere", "sideways": "deep", "out": outside, "good-link.txt": "good.txt", "round.txt": "round.txt"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.txt"), 0o644); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(dir, "secret.txt")
	write(t, secret, "x")
	if err := os.Chmod(secret, 0); err != nil {
		t.Fatal(err)
	}
	f := s.finderOn(dir, filepath.Join(dir, "missing"))
	scan := s.scanOnce(f)
	wants := map[string]string{"empty.txt": "empty", "empty too.txt": "empty", "large.txt": "max_document is 1MiB", `"bad\xff.txt"`: "isn't valid UTF-8",
		"loop": "loop", "deep/self": "loop", "dangling.txt": "nowhere", "out": "add " + outside, "pipe.txt": "named pipe", "round.txt": "back to itself", "missing": "doesn't exist"}
	if os.Geteuid() != 0 { // root reads everything
		wants["secret.txt"] = "permission denied"
	}
	if scan.Links != 1 {
		t.Errorf("%d links to folders that are read anyway", scan.Links)
	}
	docs := s.documentsOf()
	for name, want := range wants {
		if d := docs[name]; !strings.Contains(d.Problem, want) || d.SHA256 != "" {
			t.Errorf("%s: %+v", name, d)
		}
		delete(docs, name)
	}
	for name, d := range docs {
		if d.Problem != "" {
			t.Errorf("%s has a problem: %s", name, d.Problem)
		}
	}
	failed := s.drain(s.splitter())
	if len(failed) != len(wants) {
		t.Errorf("dead: %q", slices.Sorted(maps.Keys(failed)))
	}
	if got := names(s.search("deep")); !strings.HasPrefix(got, "deep/in.txt:1") {
		t.Errorf("found %q", got)
	}
	offers := s.offers
	s.scanOnce(f)
	s.scanOnce(s.finderOn(dir, filepath.Join(dir, "missing")))
	if s.offers != offers || len(s.queue) != 0 {
		t.Errorf("named again: %d offers", s.offers-offers)
	}
	// What is made good is read.
	write(t, filepath.Join(dir, "empty.txt"), "a zebra")
	s.scanOnce(f)
	s.drain(s.splitter())
	if got := names(s.search("zebra")); got != "empty.txt:1" {
		t.Errorf("found %q", got)
	}
}

func TestInputsMayOverlapAndBeFiles(t *testing.T) { onBoth(t, inputsMayOverlapAndBeFiles) }

func inputsMayOverlapAndBeFiles(t *testing.T, newSwarm func(testing.TB) *swarm) {
	s, dir := newSwarm(t), t.TempDir()
	write(t, filepath.Join(dir, "sub", "a.txt"), "a")
	write(t, filepath.Join(dir, "data", "b.txt"), "b")
	f := s.finderOn(filepath.Join(dir, "sub"), dir, filepath.Join(dir, "sub", "a.txt"))
	f.deps.Exclude = []string{filepath.Join(dir, "data")}
	if scan := s.scanOnce(f); scan.Files != 1 {
		t.Errorf("scan %+v", scan)
	}
	// An input that's away for a while has lost nothing.
	if err := os.Rename(filepath.Join(dir, "sub"), filepath.Join(dir, "data", "sub")); err != nil {
		t.Fatal(err)
	}
	g := s.finderOn(filepath.Join(dir, "sub"))
	s.scanOnce(g)
	if k := g.known[filepath.Join(dir, "sub", "a.txt")]; k.Gone {
		t.Error("a file of an input that can't be read counts as gone")
	}
}

func TestFileThatIsWrittenWhileItIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.txt")
	write(t, path, strings.Repeat("x", 100000))
	for name, change := range map[string]func(){
		"longer":  func() { write(t, path, strings.Repeat("x", 100001)) },
		"shorter": func() { write(t, path, "x") },
		"touched": func() {
			at := time.Now().Add(time.Minute)
			if err := os.Chtimes(path, at, at); err != nil {
				t.Error(err)
			}
		},
	} {
		in, info, err := openRegular(path)
		if err != nil {
			t.Fatal(err)
		}
		once := writerFunc(func(p []byte) (int, error) {
			if change != nil {
				change()
			}
			change = nil
			return len(p), nil
		})
		if _, err := digest(t.Context(), in, info, once); !errors.Is(err, errChanged) {
			t.Errorf("%s: %v", name, err)
		}
		if err := in.Close(); err != nil {
			t.Error(err)
		}
		write(t, path, strings.Repeat("x", 100000))
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestRunIsIdleAfterCompleteScansOnly(t *testing.T) { onBoth(t, runIsIdleAfterCompleteScansOnly) }

func runIsIdleAfterCompleteScansOnly(t *testing.T, newSwarm func(testing.TB) *swarm) {
	s, dir := newSwarm(t), t.TempDir()
	write(t, filepath.Join(dir, "a.txt"), "a")
	f := s.finderOn(dir)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var scans []Scan
	f.deps.OnScan = func(_ string, sc Scan) { scans = append(scans, sc) }
	s.fail = errors.New("ledger is down")
	round := 0
	f.wait = func(ctx context.Context, d time.Duration) error {
		round++
		switch round {
		case 1:
			if s.idle || d != leastPause {
				t.Errorf("after a failed scan: idle %t, pause %s", s.idle, d)
			}
			s.fail = nil
		case 2:
			if !s.idle || len(s.queue) != 1 {
				t.Errorf("after a complete scan: idle %t, %d events", s.idle, len(s.queue))
			}
		case 3:
			cancel()
		}
		return ctx.Err()
	}
	if err := f.run(ctx, s.feed()); !errors.Is(err, context.Canceled) {
		t.Errorf("run: %v", err)
	}
	if len(scans) != 2 || scans[0].Changed != 1 || scans[1].Changed != 0 {
		t.Errorf("scans %+v", scans)
	}
	s.fail, f.known = ledger.ErrFenced, nil
	write(t, filepath.Join(dir, "b.txt"), "b")
	if err := f.run(t.Context(), s.feed()); !errors.Is(err, ledger.ErrFenced) {
		t.Errorf("fenced: %v", err)
	}
}

// The tables may be dropped and filled anew while the ledger remembers the offers.
func TestTablesMadeAnew(t *testing.T) { onBoth(t, tablesMadeAnew) }

func tablesMadeAnew(t *testing.T, newSwarm func(testing.TB) *swarm) {
	s, dir := newSwarm(t), t.TempDir()
	write(t, filepath.Join(dir, "a.txt"), "The aardvark was here.")
	s.scanOnce(s.finderOn(dir))
	s.queue = nil
	s.commit(func(ctx context.Context, tx ledger.Tx) error {
		_, err := tx.Exec(ctx, "DELETE FROM doc_file")
		if err == nil {
			_, err = tx.Exec(ctx, "DELETE FROM doc_document")
		}
		return err
	})
	f := s.finderOn(dir)
	s.scanOnce(f)
	s.drain(s.splitter())
	if got := names(s.search("aardvark")); got != "a.txt:1" {
		t.Errorf("found %q", got)
	}
	if before := s.offers; s.scanOnce(s.finderOn(dir)).Changed != 0 || s.offers != before {
		t.Error("offered again")
	}
}

// Whatever happens to the files, in the end the index shows what they hold, each page applied once.
func TestIndexFollowsFiles(t *testing.T) {
	contents := []string{"The aardvark sleeps all day.", "The buffalo wanders far.", "The cormorant dives deep."}
	words := []string{"aardvark", "buffalo", "cormorant"}
	rapid.Check(t, func(rt *rapid.T) {
		s, dir := newSwarm(t), t.TempDir()
		sp, f := s.splitter(), s.finderOn(dir)
		paths := []string{filepath.Join(dir, "a.txt"), filepath.Join(dir, "b.txt"), filepath.Join(dir, "c.txt")}
		holds := make(map[string]int)
		handle := func(n int) {
			for ; n > 0 && len(s.queue) > 0; n-- {
				e := s.queue[0]
				s.queue = s.queue[1:]
				h := index
				if e.Type == DocumentFound {
					h = sp.handle
				}
				if _, err := s.handle(h, e); err != nil && e.Type != DocumentFound {
					rt.Fatal(err)
				}
			}
		}
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			switch path := rapid.SampledFrom(paths).Draw(rt, "path"); rapid.SampledFrom([]string{"write", "write", "remove", "scan", "restart", "handle"}).Draw(rt, "do") {
			case "write":
				c := rapid.IntRange(0, 2).Draw(rt, "content")
				write(t, path, contents[c])
				holds[path] = c
			case "remove":
				_ = os.Remove(path) // it may not be there
				delete(holds, path)
			case "restart":
				f = s.finderOn(dir)
				s.scanUntilStable(f)
			case "scan":
				s.scanUntilStable(f)
			case "handle":
				handle(rapid.IntRange(1, 3).Draw(rt, "events"))
			}
		}
		s.scanUntilStable(f)
		handle(1000)
		for c, word := range words {
			held := slices.Contains(slices.Collect(maps.Values(holds)), c)
			if hits := s.search(word); (len(hits) == 1) != held {
				rt.Fatalf("%s is found as %q, held: %t", word, names(hits), held)
			}
		}
		for _, r := range s.rows() {
			if r.Steps != 1 {
				rt.Fatalf("row %+v", r)
			}
		}
	})
}

func (s *swarm) scanUntilStable(f *finder) {
	s.t.Helper()
	for range 20 {
		if s.scanOnce(f).Unstable == 0 {
			return
		}
	}
	s.t.Fatal("files don't come to rest")
}

func BenchmarkScanUnchanged(b *testing.B) {
	s, dir := newSwarm(b), b.TempDir()
	for i := range 2000 {
		write(b, filepath.Join(dir, fmt.Sprint(i%50), fmt.Sprint(i, ".txt")), fmt.Sprint(i))
	}
	f := s.finderOn(dir)
	s.scanOnce(f)
	clear(f.racy)
	b.ResetTimer()
	for b.Loop() {
		if s.scanOnce(f).Changed != 0 {
			b.Fatal("changed")
		}
	}
}

func randomText(r *rand.Rand, n int) string {
	var b bytes.Buffer
	for b.Len() < n {
		b.WriteString([]string{"log ", "lease ", "epoch. ", "\n", "\n\n", "worker ", "é", "<tag> "}[r.IntN(8)])
	}
	return b.String()
}

// fencedFeed commits an offer and says that its lease is gone, as where the answer to a commit came too late.
type fencedFeed struct{ feed }

func (f fencedFeed) Offer(ctx context.Context, e event.Event, h handler) (ledger.Outcome, error) {
	if _, err := f.feed.Offer(ctx, e, h); err != nil {
		return 0, err
	}
	return 0, ledger.ErrFenced
}

// A finder that gets its lease back in the same process goes on from what is committed, not from what it knew: else it
// would announce a file anew that it announced before, and one that can't be read would be dead-lettered twice.
func TestFinderGoesOnAfterLosingItsLease(t *testing.T) { onBoth(t, finderGoesOnAfterLosingItsLease) }

func finderGoesOnAfterLosingItsLease(t *testing.T, newSwarm func(testing.TB) *swarm) {
	s, dir := newSwarm(t), t.TempDir()
	write(t, filepath.Join(dir, "large.txt"), strings.Repeat("x", 2<<20)) // larger than what the finder takes
	f := s.finderOn(dir)
	if err := f.run(t.Context(), fencedFeed{s.feed()}); !errors.Is(err, ledger.ErrFenced) || len(s.queue) != 1 {
		t.Fatalf("a finder that lost its lease ends with %v after %d events", err, len(s.queue))
	}
	ended := errors.New("one scan is enough")
	f.wait = func(context.Context, time.Duration) error { return ended }
	if err := f.run(t.Context(), s.feed()); !errors.Is(err, ended) {
		t.Fatal(err)
	}
	if len(s.queue) != 1 || s.offers != 1 {
		t.Errorf("%d events and %d offers, want the ones of before", len(s.queue), s.offers)
	}
}

package agents

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// Scan is what one complete look at the input folders found.
type Scan struct {
	Files       int           // with a supported name, and those that can't be read
	Unsupported int           // files whose name no agent reads; they are counted, and that's all
	Links       int           // links to folders that are read where they are
	Changed     int           // files offered as new or changed
	Unstable    int           // files that were written while they were read; the next scan tries again
	Took        time.Duration // walking, without reading and offering
}

const (
	// source names what the finder's offers come from; with the id of an offer it tells whether it was made before.
	source = "swarmlog:files"
	// offers run at once, so that they share commits.
	offersAtOnce = 12
	// A scan costs a 750th of the time until the next one, so that waiting for files costs nothing.
	leastPause    = 2 * time.Second
	pausePerScan  = 750
	pauseAfterNew = 20 // while files are coming
	// A file that was written this shortly before it was hashed may be written again without a new time.
	racyTime = 2 * time.Second
	// After a restart it isn't known when a file was hashed: those written within this time are hashed once more.
	recently = time.Minute
	// A file that always changes doesn't keep the swarm from ever being done.
	patience = 5
)

// finder looks for documents and tells the splitter of each.
type finder struct {
	agent config.Agent
	deps  Deps
	now   func() time.Time
	wait  func(context.Context, time.Duration) error

	unstable int // scans in a row with files that changed meanwhile

	mu      sync.Mutex
	known   map[string]file   // by path, as committed; nil: to be read
	racy    map[string]bool   // paths to hash once more
	offered map[string]*offer // by document, in this scan
}

// offer is a document that this scan offers; copies wait for it.
type offer struct {
	done chan struct{}
	err  error
}

func newFinder(a config.Agent, d Deps) *finder {
	return &finder{agent: a, deps: d, now: time.Now, wait: sleep}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run scans until ctx ends. It begins by reading what was committed: an earlier run that lost its lease may have had
// offers under way that were committed and never answered, and others may have gone on meanwhile.
func (f *finder) run(ctx context.Context, feed feed) error {
	f.known, f.unstable = nil, 0
	for {
		if f.known == nil {
			if err := f.load(ctx); err != nil {
				return err
			}
		}
		scan, err := f.scan(ctx, feed)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && (fault.ClassOf(err) == fault.Fatal || errors.Is(err, ledger.ErrFenced)) {
			return err
		}
		pause := max(leastPause, pausePerScan*scan.Took)
		switch {
		case err != nil:
			f.deps.Logger.WarnContext(ctx, "scan failed, it's done again", "error", err)
			f.known = nil // some offers may have been committed all the same
			feed.Idle(false)
			pause = leastPause
		case scan.Unstable > 0 && f.unstable < patience:
			feed.Idle(false)
			pause = leastPause
		default:
			feed.Idle(true)
			if f.deps.OnScan != nil {
				f.deps.OnScan(f.agent.Name, scan)
			}
			if scan.Changed > 0 || len(f.racy) > 0 {
				pause = max(leastPause, pauseAfterNew*scan.Took)
			}
		}
		if err := f.wait(ctx, pause); err != nil {
			return err
		}
	}
}

// load reads what was committed.
func (f *finder) load(ctx context.Context) error {
	known := make(map[string]file)
	err := f.deps.Read(ctx, within(func(ctx context.Context, s store) error {
		return s.files(ctx, func(k file) { known[k.Path] = k })
	}))
	if err != nil {
		return fmt.Errorf("read which files were seen: %w", err)
	}
	f.known, f.racy = known, make(map[string]bool)
	for path, k := range known {
		if age := f.now().Sub(k.Modified); age >= 0 && age < recently {
			f.racy[path] = true // it may have been hashed just before it was written again
		}
	}
	return nil
}

// scan looks at everything once, and returns when all that is new or changed is committed.
func (f *finder) scan(ctx context.Context, feed feed) (Scan, error) {
	begun := time.Now()
	w := &walk{roots: f.agent.Input, exclude: f.deps.Exclude, patterns: f.agent.Patterns, maxDocument: f.agent.MaxDocument}
	if err := w.run(ctx); err != nil {
		return Scan{}, err
	}
	scan := Scan{Files: len(w.found), Unsupported: w.unsupported, Links: w.links}
	var work []found
	for _, c := range w.found {
		if k, ok := f.known[c.Path]; !ok || !f.unchanged(k, c) {
			work = append(work, c)
		}
	}
	work = append(work, f.gone(w)...)
	scan.Took = time.Since(begun)
	if len(work) == 0 {
		f.unstable = 0
		return scan, nil
	}
	feed.Idle(false)
	err := f.offerAll(ctx, feed, work, &scan)
	return scan, err
}

// offerAll settles files at once, so that their offers share commits.
func (f *finder) offerAll(ctx context.Context, feed feed, work []found, scan *Scan) error {
	f.offered = make(map[string]*offer)
	var changed, unstable atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(offersAtOnce)
	for _, c := range work {
		group.Go(func() error {
			did, err := f.settle(ctx, feed, c)
			switch {
			case errors.Is(err, errChanged):
				unstable.Add(1)
				return nil
			case did:
				changed.Add(1)
			}
			return err
		})
	}
	err := group.Wait()
	scan.Changed, scan.Unstable = int(changed.Load()), int(unstable.Load())
	if scan.Unstable > 0 {
		f.unstable++
	} else {
		f.unstable = 0
	}
	return err
}

// unchanged tells that a file is what it was, as far as that shows without opening it.
func (f *finder) unchanged(k file, c found) bool {
	if k.Gone || k.Size != c.Size || !k.Modified.Equal(c.Modified) || k.Name != c.Name || f.racy[c.Path] {
		return false
	}
	if c.problem != "" {
		return k.Problem == c.problem
	}
	return k.Document != "" && k.Problem == ""
}

// gone lists files that were there and aren't. Only those below an input that can be read now: a folder that isn't
// mounted has lost nothing.
func (f *finder) gone(w *walk) []found {
	var out []found
	for path, k := range f.known {
		if k.Gone || w.seen[path] {
			continue
		}
		if !f.below(path, w.roots) || f.below(path, w.broken) || f.below(path, w.exclude) {
			continue
		}
		k.Gone = true
		out = append(out, found{file: k})
	}
	return out
}

func (f *finder) below(path string, folders []string) bool {
	for _, folder := range folders {
		if lies(folder, path) {
			return true
		}
	}
	return false
}

// settle finds out what a file holds now and commits it. It tells whether there was anything to commit.
func (f *finder) settle(ctx context.Context, feed feed, c found) (bool, error) {
	k := c.file
	f.mu.Lock()
	old, seen := f.known[c.Path]
	f.mu.Unlock()
	k.Version = old.Version + 1
	if k.Gone {
		return true, f.offerChange(ctx, feed, "FileGoneEvent", k, nil)
	}
	k.Document, k.Problem = "", c.problem
	if k.Problem == "" {
		if err := f.hash(ctx, &k); err != nil {
			return false, err
		}
	}
	if seen && !old.Gone && old.Document == k.Document && old.Problem == k.Problem &&
		old.Size == k.Size && old.Modified.Equal(k.Modified) && old.Name == k.Name {
		return false, nil // looked at again, and it's the same
	}
	if k.Problem != "" {
		d := f.document(k)
		d.Problem = k.Problem
		e := event.New(DocumentFound, filePrefix+pathID(k.Path), d)
		return true, f.offerChange(ctx, feed, "FileUnreadableEvent", k, &e)
	}
	return true, f.offerDocument(ctx, feed, k)
}

// hash fills in the content's id, or a problem.
func (f *finder) hash(ctx context.Context, k *file) error {
	in, info, err := openRegular(k.Path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotRegular) {
		return errChanged // the next scan sees what is there then
	}
	if err != nil {
		k.Problem = "the file can't be read: " + reason(err)
		return nil
	}
	defer func() { _ = in.Close() }() // only read
	if info.Size() != k.Size || !modified(info).Equal(k.Modified) {
		return errChanged
	}
	k.Document, err = digest(ctx, in, info, nil)
	if err != nil {
		if errors.Is(err, errChanged) || ctx.Err() != nil {
			return err
		}
		k.Document, k.Problem = "", "the file can't be read: "+reason(errors.Unwrap(err))
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if age := f.now().Sub(k.Modified); age >= 0 && age < racyTime {
		f.racy[k.Path] = true
	} else {
		delete(f.racy, k.Path)
	}
	return nil
}

func (f *finder) document(k file) Document {
	return Document{Path: k.Path, Name: k.Name, SHA256: k.Document, Size: k.Size, MediaType: mediaTypeOf(k.Path), Modified: k.Modified.UTC()}
}

// offerDocument commits a file that holds a document. The first file of a document that was never seen announces it,
// under an id made from the content. Others only say that they hold it, unless its pages aren't out yet: the file
// that announced it may have changed before the splitter came, so it's announced again, and the splitter passes over
// what it has split already. Copies within one scan wait for the first, so that none relies on one that failed.
func (f *finder) offerDocument(ctx context.Context, feed feed, k file) error {
	f.mu.Lock()
	first, taken := f.offered[k.Document]
	if !taken {
		first = &offer{done: make(chan struct{})}
		f.offered[k.Document] = first
	}
	f.mu.Unlock()
	if taken {
		select {
		case <-first.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if first.err != nil {
			return first.err
		}
		return f.offerChange(ctx, feed, "FileChangedEvent", k, nil)
	}
	first.err = f.announce(ctx, feed, k)
	close(first.done)
	return first.err
}

func (f *finder) announce(ctx context.Context, feed feed, k file) error {
	state := unknown
	err := f.deps.Read(ctx, within(func(ctx context.Context, s store) (err error) {
		state, err = s.splitState(ctx, k.Document)
		return err
	}))
	if err != nil {
		return fmt.Errorf("look document %s up: %w", k.Document, err)
	}
	d := f.document(k)
	e := event.New(DocumentFound, k.Document, d)
	if state == unknown {
		e.ID, e.Source = "sha256:"+k.Document, source
		outcome, err := feed.Offer(ctx, e, func(_ context.Context, e event.Event, s stepper) error {
			s.Emit(e)
			s.Tx(f.remember(k, d))
			return nil
		})
		if err != nil || outcome != ledger.Duplicate {
			return f.committed(k, err)
		}
		// It was offered in a time that the tables don't remember: go on as for a document that isn't split.
	}
	if state == split {
		return f.offerChange(ctx, feed, "FileChangedEvent", k, nil)
	}
	again := event.New(DocumentFound, k.Document, d)
	return f.offerChange(ctx, feed, "FileChangedEvent", k, &again)
}

// offerChange commits a change of a file, under an id made from its path and the count of its changes, so that each
// is committed once and going back to an earlier content counts as well.
func (f *finder) offerChange(ctx context.Context, feed feed, typ string, k file, emit *event.Event) error {
	d := f.document(k)
	for {
		e := event.New(typ, filePrefix+pathID(k.Path), d)
		e.ID, e.Source = "file:"+pathID(k.Path)+"#"+strconv.FormatInt(k.Version, 10), source
		outcome, err := feed.Offer(ctx, e, func(_ context.Context, _ event.Event, s stepper) error {
			if emit != nil {
				s.Emit(*emit)
			}
			s.Tx(f.remember(k, d))
			return nil
		})
		if err == nil && outcome == ledger.Duplicate && k.Version < firstTimed {
			k.Version = f.now().UnixNano() // the tables were made anew, and count from 1 again
			continue
		}
		return f.committed(k, err)
	}
}

// firstTimed parts versions that count changes from those that are times.
const firstTimed = 1 << 40

func (f *finder) committed(k file, err error) error {
	if err != nil {
		return fmt.Errorf("offer %s: %w", k.Path, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known[k.Path] = k
	return nil
}

func (f *finder) remember(k file, d Document) func(context.Context, ledger.Tx) error {
	return within(func(ctx context.Context, s store) error {
		if k.Document != "" && !k.Gone {
			if err := s.addDocument(ctx, k.Document, d.MediaType, k.Size); err != nil {
				return err
			}
		}
		return s.putFile(ctx, k)
	})
}

func pathID(path string) string {
	h := sha256.Sum256([]byte(path))
	return hex.EncodeToString(h[:16])
}

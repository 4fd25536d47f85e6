package letters

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

const (
	batchLetters = 256     // letters whose states are asked for at once
	batchBytes   = 4 << 20 // and their size, about
	rowsAtOnce   = 32      // backlog rows read at once: each holds a record
)

// Tray is where a person looks at dead letters and decides about them.
type Tray struct {
	Broker broker.Broker
	Ledger ledger.Ledger
}

// Progress is how far a run got.
type Progress struct {
	Read    int64 `json:"read"`    // records of dead-letter topics, each counted twice: see the package's comment
	Of      int64 `json:"of"`      // of so many
	Matched int64 `json:"matched"` // letters so far that were chosen
}

// Options say how a run over the letters goes.
type Options struct {
	Settled  bool           // also letters about which nobody needs to act any more
	Content  bool           // with the records themselves
	Progress func(Progress) // called now and then; nil: not at all
}

// progressEvery is how often progress is told.
const progressEvery = time.Second

// List hands out the letters that a filter chooses, topic by topic in the order of their partitions, and then what is
// only in the backlog. An error of yield ends it and is returned.
func (t Tray) List(ctx context.Context, f Filter, o Options, yield func(*Letter) error) error {
	m, err := f.matcher()
	if err != nil {
		return err
	}
	w := &walk{tray: t, options: o, filter: m}
	return w.run(ctx, func(l *Letter) error {
		if !m.match(l) || (l.State == Settled && !o.Settled) {
			return nil
		}
		w.progress.Matched++
		if o.Content {
			record := l.message
			if l.Omitted {
				// What the topic still holds is shown whole; what it doesn't is marked as omitted.
				if whole, err := t.reread(ctx, l); err == nil {
					record, l.Omitted = whole, false
				} else if !errors.Is(err, errGone) {
					return err
				}
			}
			l.Content = content(record)
		}
		return yield(l)
	})
}

// walk is one run over all letters of the agents and topics that a filter names.
type walk struct {
	tray     Tray
	options  Options
	filter   *matcher
	heads    map[ledger.WaitPlace]head
	progress Progress
	told     time.Time
}

// head is a dead record in the backlog.
type head struct {
	subject  string
	behind   int64
	released bool
}

// run calls visit with every letter that is the last one of its record.
func (w *walk) run(ctx context.Context, visit func(*Letter) error) error {
	topics, err := w.topics(ctx)
	if err != nil {
		return err
	}
	if err := w.readHeads(ctx); err != nil {
		return err
	}
	indexes := map[string]*index{}
	for _, t := range topics {
		w.progress.Of += 2 * t.records
	}
	for _, t := range topics {
		x := newIndex()
		indexes[t.name] = x
		if err := w.scan(ctx, t, func(l *Letter, _ int64) error { x.add(l); return nil }); err != nil {
			return err
		}
		if err := w.visitTopic(ctx, t, x, visit); err != nil {
			return err
		}
		x.last = nil
	}
	if err := w.visitRows(ctx, indexes, visit); err != nil {
		return err
	}
	w.tell(true)
	return nil
}

// deadTopic is a dead-letter topic as it was when the run began.
type deadTopic struct {
	name    string         // of the topic that it belongs to
	id      broker.TopicID // of that topic at present
	topic   broker.Topic
	ranges  []broker.Range
	records int64
}

// topics are the dead-letter topics of all that the ledger's agents have read.
func (w *walk) topics(ctx context.Context) ([]deadTopic, error) {
	leases, err := w.tray.Ledger.Leases(ctx, w.filter.Agent)
	if err != nil {
		return nil, fmt.Errorf("list what agents read: %w", err)
	}
	names := map[string]bool{}
	for _, l := range leases {
		if l.Topic != "" && w.filter.place(l.Group, l.Topic) {
			names[l.Topic] = true
		}
	}
	var all []deadTopic
	for _, name := range slices.Sorted(maps.Keys(names)) {
		t := deadTopic{name: name}
		if now, err := w.tray.Broker.Topics(ctx, name); err == nil {
			t.id = now[0].ID
		} else if !errors.Is(err, broker.ErrNoTopic) {
			return nil, fmt.Errorf("look up topic %s: %w", name, err)
		}
		dead, err := w.tray.Broker.Topics(ctx, engine.DeadTopic(name))
		if errors.Is(err, broker.ErrNoTopic) {
			continue
		}
		if err == nil {
			t.topic = dead[0]
			t.ranges, err = w.tray.Broker.Offsets(ctx, t.topic.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("look up dead-letter topic %s: %w", engine.DeadTopic(name), err)
		}
		for _, r := range t.ranges {
			t.records += r.End - r.Start
		}
		all = append(all, t)
	}
	return all, nil
}

// scan reads a dead-letter topic; size is that of the letter in memory.
func (w *walk) scan(ctx context.Context, t deadTopic, yield func(l *Letter, size int64) error) error {
	if t.records == 0 {
		return nil
	}
	err := broker.ReadRanges(ctx, w.tray.Broker, t.topic, t.ranges, func(r broker.Record) error {
		w.progress.Read++
		w.tell(false)
		l := open(r, t.name, t.id)
		if l == nil || !w.filter.place(l.Agent, l.Topic) {
			return nil
		}
		return yield(l, int64(len(r.Key)+len(r.Value)))
	})
	if err != nil {
		return fmt.Errorf("read dead letters of %s: %w", t.name, err)
	}
	return nil
}

// visitTopic reads the letters again and visits each that is the last one of its record, batch by batch, since the
// ledger is asked about many at once.
func (w *walk) visitTopic(ctx context.Context, t deadTopic, x *index, visit func(*Letter) error) error {
	var batch []*Letter
	var size int64
	flush := func() error {
		if err := w.setStates(ctx, batch); err != nil {
			return err
		}
		for i, l := range batch {
			batch[i] = nil
			if err := visit(l); err != nil {
				return err
			}
		}
		batch, size = batch[:0], 0
		return nil
	}
	err := w.scan(ctx, t, func(l *Letter, n int64) error {
		if !x.isLast(l) {
			return nil
		}
		batch, size = append(batch, l), size+n
		if len(batch) >= batchLetters || size >= batchBytes {
			return flush()
		}
		return nil
	})
	if err != nil {
		return err
	}
	return flush()
}

// setStates asks the ledger what has become of letters.
func (w *walk) setStates(ctx context.Context, batch []*Letter) error {
	byKey := map[ledger.Key][]*Letter{}
	for _, l := range batch {
		byKey[l.Key()] = append(byKey[l.Key()], l)
	}
	for key, some := range byKey {
		offsets := make([]int64, len(some))
		for i, l := range some {
			offsets[i] = l.Offset
		}
		dead, err := w.tray.Ledger.Dead(ctx, key, offsets)
		if err != nil {
			return fmt.Errorf("ask what has become of dead letters of %s: %w", some[0].Topic, err)
		}
		for i, l := range some {
			h, held := w.heads[l.place()]
			switch {
			case held && h.released:
				l.State, l.Behind = Redriving, h.behind
			case held:
				l.State, l.Behind = Parked, h.behind
			case dead[i]:
				l.State = Dead
			default:
				l.State = Settled
			}
			if held && l.Subject == "" && h.subject != l.lane() {
				l.Subject = h.subject // of a letter whose value was omitted
			}
		}
	}
	return nil
}

// eachRow reads the dead rows of the backlog, a few at a time.
func (w *walk) eachRow(ctx context.Context, yield func(*ledger.WaitRow) error) error {
	q := ledger.WaitQuery{Group: w.filter.Agent, Topic: w.filter.Topic, DeadOnly: true, Limit: rowsAtOnce}
	for {
		rows, err := w.tray.Ledger.Waits(ctx, q)
		if err != nil {
			return fmt.Errorf("read the backlog: %w", err)
		}
		for i := range rows {
			if err := yield(&rows[i]); err != nil {
				return err
			}
		}
		if len(rows) < rowsAtOnce {
			return nil
		}
		last := rows[len(rows)-1]
		q.After = placeOf(&last)
	}
}

func placeOf(r *ledger.WaitRow) ledger.WaitPlace {
	return ledger.WaitPlace{Group: r.Key.Group, TopicID: r.Key.TopicID, Partition: r.Key.Partition, Offset: r.Offset}
}

// readHeads notes the backlog's dead rows, without their records.
func (w *walk) readHeads(ctx context.Context) error {
	w.heads = map[ledger.WaitPlace]head{}
	return w.eachRow(ctx, func(r *ledger.WaitRow) error {
		w.heads[placeOf(r)] = head{r.Subject, r.Behind, r.Released}
		return nil
	})
}

// visitRows visits dead rows of the backlog that no letter was found for.
func (w *walk) visitRows(ctx context.Context, indexes map[string]*index, visit func(*Letter) error) error {
	left := 0
	for place := range w.heads {
		if !found(indexes, place) {
			left++
		}
	}
	if left == 0 {
		return nil
	}
	return w.eachRow(ctx, func(r *ledger.WaitRow) error {
		// Rows that came since are left to the next run, as letters that came since are.
		if _, known := w.heads[placeOf(r)]; !known || found(indexes, placeOf(r)) {
			return nil
		}
		l := fromRow(r)
		l.State, l.Behind = Parked, r.Behind
		if r.Released {
			l.State = Redriving
		}
		return visit(l)
	})
}

func found(indexes map[string]*index, p ledger.WaitPlace) bool {
	for _, x := range indexes {
		if x.has(p) {
			return true
		}
	}
	return false
}

// tell tells progress, but not too often.
func (w *walk) tell(now bool) {
	if w.options.Progress == nil || (!now && w.progress.Read%64 != 0) || (!now && time.Since(w.told) < progressEvery) {
		return
	}
	w.told = time.Now()
	w.options.Progress(w.progress)
}

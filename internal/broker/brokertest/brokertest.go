// Package brokertest is the conformance suite of package broker: what every
// cluster that Swarmlog runs on must do, and how Broker, Reader and Publisher
// behave on it. The embedded broker passes it in memory and on disk, and so
// does a real Kafka. It knows the interfaces alone.
package brokertest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
)

// Patience bounds every wait: it's reached only where something is broken.
const Patience = 30 * time.Second

// Cluster is a cluster under test, with what a test needs and the product doesn't.
type Cluster struct {
	// Open connects anew; the test closes what it opened.
	Open func(t testing.TB) broker.Broker
	// Delete deletes a topic.
	Delete func(ctx context.Context, topic string) error
	// Committed reads a group's committed offsets, as Kafka's tools do.
	Committed func(ctx context.Context, group string) (map[string]map[int32]int64, error)
	// Trim removes what lies before an offset; nil where the cluster never removes anything.
	Trim func(ctx context.Context, topic string, partition int32, offset int64) error
	// Grow gives a topic more partitions.
	Grow func(ctx context.Context, topic string, partitions int) error
	// OpenCut connects by a network that can be severed and mended; nil where a member that isn't heard of is kept for
	// longer than a test lasts.
	OpenCut func(t testing.TB) (b broker.Broker, sever, mend func())
}

// test is one of the suite's.
type test struct {
	name string
	run  func(*testing.T, Cluster)
}

// Exercise runs the suite. Its tests run side by side, on topics of their own.
func Exercise(t *testing.T, c Cluster) {
	exercise(t, c, append([]test{
		{"Describe", describe},
		{"Order", order},
		{"Bytes", bytesAsTheyAre},
		{"Offsets", offsets},
		{"SeesNewRecords", seesNew},
		{"Remove", remove},
		{"AddElsewhere", addElsewhere},
		{"Pause", pause},
		{"Whole", whole},
		{"OutOfRange", outOfRange},
		{"Trimmed", trimmed},
		{"Recreated", recreated},
		{"PublishToRecreated", publishToRecreated},
		{"Oversize", oversize},
		{"UnknownTopic", unknownTopic},
		{"Report", report},
		{"Ends", ends},
	}, groupTestsOf(c)...))
}

func exercise(t *testing.T, c Cluster, tests []test) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, c)
		})
	}
}

// fixture is one test's connection and topic.
type fixture struct {
	*testing.T
	broker.Broker
	ctx   context.Context
	topic broker.Topic
}

func unique(name string) string {
	var b [6]byte
	_, _ = rand.Read(b[:])
	return "suite-" + name + "-" + hex.EncodeToString(b[:])
}

func open(t *testing.T, c Cluster, partitions int32, config map[string]string) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*Patience)
	b := c.Open(t)
	t.Cleanup(func() { b.Close(); cancel() })
	f := &fixture{T: t, Broker: b, ctx: ctx}
	f.topic = f.create(unique("t"), partitions, config)
	return f
}

func (f *fixture) create(name string, partitions int32, config map[string]string) broker.Topic {
	f.Helper()
	if err := f.Create(f.ctx, broker.TopicSpec{Name: name, Partitions: partitions, Config: config}); err != nil {
		f.Fatal(err)
	}
	topics, err := f.Topics(f.ctx, name)
	if err != nil {
		f.Fatal(err)
	}
	return topics[0]
}

func (f *fixture) reader() broker.Reader {
	f.Helper()
	r, err := f.Reader("suite")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(r.Close)
	return r
}

type result struct {
	offset int64
	err    error
}

// send hands records of the fixture's topic over at once and returns how each ended.
func (f *fixture) send(records ...broker.Record) []result {
	f.Helper()
	results := make([]result, len(records))
	var wg sync.WaitGroup
	for i, r := range records {
		if r.Topic == "" {
			r.Topic = f.topic.Name
		}
		wg.Add(1)
		f.Publisher().Publish(r, func(offset int64, err error) {
			results[i] = result{offset, err}
			wg.Done()
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(Patience):
		f.Fatalf("published records weren't settled within %s", Patience)
	}
	return results
}

// publish sends n records to a partition, valued from first on, and fails the test where one fails.
func (f *fixture) publish(partition int32, first, n int) {
	f.Helper()
	records := make([]broker.Record, n)
	for i := range records {
		records[i] = record(partition, fmt.Sprint(first+i))
	}
	for i, r := range f.send(records...) {
		if r.err != nil {
			f.Fatalf("record %d: %v", i, r.err)
		}
	}
}

func record(partition int32, value string) broker.Record {
	return broker.Record{
		Position: event.Position{Partition: partition},
		Message:  event.Message{Key: []byte("k"), Value: []byte(value)},
	}
}

// log is what polling brought, by partition.
type log struct {
	records map[int32][]broker.Record
	errs    map[int32]error
	end     map[int32]int64
}

func newLog() *log {
	return &log{map[int32][]broker.Record{}, map[int32]error{}, map[int32]int64{}}
}

// poll polls until enough says so.
func (f *fixture) poll(r broker.Reader, l *log, enough func() bool) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, Patience)
	defer cancel()
	for !enough() {
		fetches, err := r.Poll(ctx)
		if err != nil {
			f.Fatalf("poll: %v; so far %s", err, l)
		}
		for _, fetch := range fetches {
			l.add(f, fetch)
		}
	}
}

func (l *log) add(f *fixture, fetch broker.Fetch) {
	f.Helper()
	if fetch.Topic != f.topic.Name {
		f.Fatalf("a fetch of topic %q", fetch.Topic)
	}
	if fetch.Err != nil {
		l.errs[fetch.Partition] = fetch.Err
		return
	}
	for _, rec := range fetch.Records {
		if rec.Topic != fetch.Topic || rec.Partition != fetch.Partition || rec.TopicID != fetch.TopicID {
			f.Fatalf("record %v of topic id %s in a fetch of %s/%d, %s", rec.Position, rec.TopicID, fetch.Topic, fetch.Partition, fetch.TopicID)
		}
		if rec.Offset >= fetch.End {
			f.Fatalf("record at %v, but the fetch says that the log ends at %d", rec.Position, fetch.End)
		}
	}
	l.records[fetch.Partition] = append(l.records[fetch.Partition], fetch.Records...)
	l.end[fetch.Partition] = fetch.End
}

func (l *log) String() string {
	n := map[int32]int{}
	for p, records := range l.records {
		n[p] = len(records)
	}
	return fmt.Sprintf("records by partition %v, errors %v", n, l.errs)
}

func (l *log) has(partition int32, n int) func() bool {
	return func() bool { return len(l.records[partition]) >= n }
}

// endsWith tells whether the last record read of a partition has a value.
func (l *log) endsWith(partition int32, value int) func() bool {
	return func() bool {
		rs := l.records[partition]
		return len(rs) > 0 && string(rs[len(rs)-1].Value) == fmt.Sprint(value)
	}
}

// expectCopies checks that a partition's records have the values 0 to n-1 in order, of which each may be there more
// than once.
func (f *fixture) expectCopies(l *log, partition int32, n int) {
	f.Helper()
	next := 0
	for i, r := range l.records[partition] {
		switch string(r.Value) {
		case fmt.Sprint(next):
			next++
		case fmt.Sprint(next - 1):
		default:
			f.Fatalf("partition %d, record %d: value %q, want %d or a copy of the one before", partition, i, r.Value, next)
		}
	}
	if next != n {
		f.Fatalf("partition %d: %d different records, want %d", partition, next, n)
	}
}

// expect checks that a partition's records are those of offsets from..to-1, each once and in order, and that their
// values are their offsets.
func (f *fixture) expect(l *log, partition int32, from, to int) {
	f.Helper()
	if err := l.errs[partition]; err != nil {
		f.Fatalf("partition %d: %v", partition, err)
	}
	got := l.records[partition]
	if len(got) != to-from {
		f.Fatalf("partition %d: %d records, want %d", partition, len(got), to-from)
	}
	for i, r := range got {
		if want := from + i; r.Offset != int64(want) || string(r.Value) != fmt.Sprint(want) {
			f.Fatalf("partition %d, record %d: offset %d, value %q, want %d", partition, i, r.Offset, r.Value, want)
		}
	}
}

func wants(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want one that wraps %q", err, want)
	}
}

func describe(t *testing.T, c Cluster) {
	f := open(t, c, 3, map[string]string{"max.message.bytes": "123456"})
	other := f.create(unique("other"), 1, nil)
	if f.topic.Partitions != 3 || f.topic.MaxBytes != 123456 || f.topic.ID == (broker.TopicID{}) {
		t.Errorf("topic: %+v", f.topic)
	}
	if other.MaxBytes < 1_000_000 {
		t.Errorf("a topic without a limit of its own takes %d bytes", other.MaxBytes)
	}
	both, err := f.Topics(f.ctx, other.Name, f.topic.Name)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(both, []broker.Topic{other, f.topic}) {
		t.Errorf("topics: %+v", both)
	}
	if _, err := f.Topics(f.ctx, f.topic.Name, unique("none")); !errors.Is(err, broker.ErrNoTopic) {
		t.Errorf("a missing topic: %v", err)
	}
	if again := f.create(f.topic.Name, 5, nil); again != f.topic {
		t.Errorf("created again: %+v, was %+v", again, f.topic)
	}
	if err := f.Create(f.ctx, broker.TopicSpec{Name: unique("empty")}); err == nil {
		t.Error("a topic without partitions was created")
	}
}

func order(t *testing.T, c Cluster) {
	const partitions, n = 3, 3000
	f := open(t, c, partitions, nil)
	var records []broker.Record
	for i := range n {
		for p := range int32(partitions) {
			records = append(records, record(p, fmt.Sprint(i)))
		}
	}
	for i, r := range f.send(records...) {
		if r.err != nil || r.offset != int64(i/partitions) {
			t.Fatalf("record %d: offset %d, error %v", i, r.offset, r.err)
		}
	}
	r, l := f.reader(), newLog()
	for p := range int32(partitions) {
		r.Add(f.topic, p, int64(p)*100)
	}
	f.poll(r, l, func() bool { return len(l.records[0]) >= n && len(l.records[1]) >= n-100 && len(l.records[2]) >= n-200 })
	for p := range int32(partitions) {
		f.expect(l, p, int(p)*100, n)
		if l.end[p] != n {
			t.Errorf("partition %d: high watermark %d, want %d", p, l.end[p], n)
		}
	}
}

// bytesAsTheyAre: null, empty and "null" stay three things (field case P7), and so do headers and time.
func bytesAsTheyAre(t *testing.T, c Cluster) {
	f := open(t, c, 1, nil)
	at := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	sent := []event.Message{
		{Key: []byte("k"), Value: nil},
		{Key: []byte("k"), Value: []byte{}},
		{Key: []byte("k"), Value: []byte("null")},
		{Key: nil, Value: []byte("{}")},
		{Key: []byte{}, Value: nil},
		{Key: []byte("k"), Value: []byte{0, 255}, Time: at, Headers: []event.Header{
			{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte{}}, {Key: "", Value: nil},
		}},
	}
	var records []broker.Record
	for _, m := range sent {
		records = append(records, broker.Record{Message: m})
	}
	for i, res := range f.send(records...) {
		if res.err != nil {
			t.Fatalf("record %d: %v", i, res.err)
		}
	}
	r, l := f.reader(), newLog()
	r.Add(f.topic, 0, 0)
	f.poll(r, l, l.has(0, len(sent)))
	for i, want := range sent {
		got := l.records[0][i].Message
		if !same(got.Key, want.Key) || !same(got.Value, want.Value) {
			t.Errorf("record %d: key %#v value %#v, want %#v, %#v", i, got.Key, got.Value, want.Key, want.Value)
		}
		if len(got.Headers) != len(want.Headers) {
			t.Fatalf("record %d: headers %+v", i, got.Headers)
		}
		for j, h := range want.Headers {
			if got.Headers[j].Key != h.Key || !same(got.Headers[j].Value, h.Value) {
				t.Errorf("record %d, header %d: %+v, want %+v", i, j, got.Headers[j], h)
			}
		}
		if !want.Time.IsZero() && !got.Time.Equal(want.Time) {
			t.Errorf("record %d: time %s, want %s", i, got.Time, want.Time)
		}
		if age := time.Since(got.Time); want.Time.IsZero() && (age < -time.Minute || age > time.Minute) {
			t.Errorf("record %d: its time is %s off", i, age)
		}
	}
}

func same(a, b []byte) bool { return (a == nil) == (b == nil) && string(a) == string(b) }

func offsets(t *testing.T, c Cluster) {
	f := open(t, c, 3, nil)
	f.publish(1, 0, 7)
	got, err := f.Offsets(f.ctx, f.topic.Name)
	if err != nil {
		t.Fatal(err)
	}
	if want := []broker.Range{{}, {Start: 0, End: 7}, {}}; !slices.Equal(got, want) {
		t.Errorf("offsets %v, want %v", got, want)
	}
	_, err = f.Offsets(f.ctx, unique("none"))
	wants(t, err, broker.ErrNoTopic)
}

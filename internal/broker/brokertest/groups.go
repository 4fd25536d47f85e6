package brokertest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
)

// groupPatience is Patience for a group: where the brokers set the pace (KIP-848) each change takes some heartbeats.
const groupPatience = 2 * Patience

// ExerciseGroups runs what of the suite concerns membership of Kafka groups, for a cluster whose groups differ from
// what Exercise has run on.
func ExerciseGroups(t *testing.T, c Cluster) {
	exercise(t, c, groupTestsOf(c))
}

// groupTestsOf leaves out what can't be tested in a test's time: where the broker's shortest session is too long.
func groupTestsOf(c Cluster) []test {
	return slices.DeleteFunc(slices.Clone(groupTests), func(x test) bool { return x.name == "SessionExpires" && c.OpenCut == nil })
}

var groupTests = []test{
	{"Committed", committed},
	{"OffsetsAt", offsetsAt},
	{"JoinUnknownTopic", joinUnknown},
	{"JoinAndLeave", joinAndLeave},
	{"SlowRevoked", slowRevoked},
	{"MemberReports", memberReports},
	{"LeavesWithItsConnection", leavesWithConnection},
	{"SessionExpires", sessionExpires},
	{"GroupOfGrowingTopic", groupGrows},
}

// gang is the members of one group, and who has what.
type gang struct {
	*fixture
	group string

	mu      sync.Mutex
	owner   map[int32]string
	overlap bool // partitions may have a second owner for a while, whose session has expired
	changed chan struct{}
}

// one is a member of a gang.
type one struct {
	*gang
	broker.Member
	name        string
	generations []int64
	lost        int // how often something was lost
	slow        time.Duration
}

func newGang(f *fixture) *gang {
	return &gang{fixture: f, group: unique("group"), owner: map[int32]string{}, changed: make(chan struct{})}
}

// join adds a member, by a connection of its own, which it tells.
func (g *gang) join(b broker.Broker, name string, slow time.Duration) *one {
	g.Helper()
	o := &one{gang: g, name: name, slow: slow}
	member, err := b.Join(g.ctx, g.group, []string{g.topic.Name}, broker.Members{
		Assigned: o.assigned,
		Revoked:  o.revoked,
		Lost: func(_ context.Context, partitions map[string][]int32) {
			g.change(func() { o.lost++; o.drop(partitions) })
		},
	})
	if err != nil {
		g.Fatal(err)
	}
	g.Cleanup(member.Close)
	o.Member = member
	return o
}

// change changes what is known, and wakes who waits.
func (g *gang) change(do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	do()
	close(g.changed)
	g.changed = make(chan struct{})
}

func (o *one) assigned(_ context.Context, generation int64, partitions map[string][]int32) {
	o.change(func() {
		o.generations = append(o.generations, generation)
		for topic, ps := range partitions {
			if topic != o.topic.Name {
				o.Errorf("member %s got topic %s", o.name, topic)
			}
			for _, p := range ps {
				if had, ok := o.owner[p]; ok && !o.overlap {
					o.Errorf("member %s got partition %d while %s had it", o.name, p, had)
				}
				o.owner[p] = o.name
			}
		}
	})
}

func (o *one) revoked(_ context.Context, partitions map[string][]int32) {
	if o.slow > 0 {
		<-time.After(o.slow)
	}
	o.change(func() { o.drop(partitions) })
}

// drop is called under mu.
func (o *one) drop(partitions map[string][]int32) {
	for _, ps := range partitions {
		for _, p := range ps {
			if o.owner[p] == o.name {
				delete(o.owner, p)
			} else if !o.overlap {
				o.Errorf("member %s gave up partition %d, which %q has", o.name, p, o.owner[p])
			}
		}
	}
}

// shares waits until members have as many partitions as given.
func (g *gang) shares(want map[string]int) {
	g.Helper()
	g.until(fmt.Sprintf("shares of %v", want), func() bool {
		got := map[string]int{}
		for _, name := range g.owner {
			got[name]++
		}
		return maps.Equal(got, want)
	})
}

// until waits for a condition, which is asked under mu.
func (g *gang) until(what string, holds func() bool) {
	g.Helper()
	late := time.After(groupPatience)
	for {
		g.mu.Lock()
		ok, changed, now := holds(), g.changed, maps.Clone(g.owner)
		g.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-late:
			g.Fatalf("no %s after %s; owners: %v", what, groupPatience, now)
		}
	}
}

// rising checks that a member's generations never fell, and that one is its present one.
func (o *one) rising() {
	o.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.generations) == 0 || o.generations[0] < 1 || !slices.IsSorted(o.generations) {
		o.Errorf("member %s was assigned in generations %v: want them to rise from 1 or more", o.name, o.generations)
	}
	if last := o.generations[len(o.generations)-1]; o.Generation() < last {
		o.Errorf("member %s is in generation %d, but was assigned something in %d", o.name, o.Generation(), last)
	}
}

func joinUnknown(t *testing.T, c Cluster) {
	f := open(t, c, 1, nil)
	_, err := f.Join(f.ctx, unique("group"), []string{f.topic.Name, unique("none")}, broker.Members{})
	wants(t, err, broker.ErrNoTopic)
	if _, err := f.Join(f.ctx, unique("group"), nil, broker.Members{}); err == nil {
		t.Error("a group without topics was joined")
	}
}

// joinAndLeave: whoever comes and goes, each partition has one owner at a time, and one in the end.
func joinAndLeave(t *testing.T, c Cluster) {
	g := newGang(open(t, c, 12, nil))
	a := g.join(g.Broker, "a", 0)
	g.shares(map[string]int{"a": 12})
	first := a.Generation()
	b := g.join(g.another(c), "b", 0)
	g.shares(map[string]int{"a": 6, "b": 6})
	d := g.join(g.another(c), "c", 0)
	g.shares(map[string]int{"a": 4, "b": 4, "c": 4})
	b.Close()
	if b.Generation() != 0 {
		t.Errorf("a member that left is in generation %d", b.Generation())
	}
	g.shares(map[string]int{"a": 6, "c": 6})
	a.rising()
	d.rising()
	if a.Generation() <= first {
		t.Errorf("members came and went, and the generation is %d, as it was at first: %d", a.Generation(), first)
	}
	a.Close()
	g.shares(map[string]int{"c": 12})
	d.Close()
	d.Close() // as often as one likes
	g.shares(map[string]int{})
	if a.lost+b.lost+d.lost > 0 {
		t.Errorf("partitions were lost %d, %d and %d times: want none", a.lost, b.lost, d.lost)
	}
}

func (f *fixture) another(c Cluster) broker.Broker {
	f.Helper()
	b := c.Open(f)
	f.Cleanup(b.Close)
	return b
}

// slowRevoked: nobody gets a partition before the function that gives it up has returned, and its member stays one.
func slowRevoked(t *testing.T, c Cluster) {
	g := newGang(open(t, c, 6, nil))
	a := g.join(g.Broker, "a", 2*time.Second)
	g.shares(map[string]int{"a": 6})
	b := g.join(g.another(c), "b", 0)
	g.shares(map[string]int{"a": 3, "b": 3})
	if a.lost > 0 {
		t.Error("the member lost partitions while it gave some up")
	}
	a.Close() // slowly, too
	g.shares(map[string]int{"b": 6})
	b.rising()
}

func memberReports(t *testing.T, c Cluster) {
	g := newGang(open(t, c, 2, nil))
	a := g.join(g.Broker, "a", 0)
	g.shares(map[string]int{"a": 2})
	g.publish(0, 0, 9)
	next := map[string]map[int32]int64{g.topic.Name: {0: 7, 1: 0}}
	if err := a.Report(g.ctx, next); err != nil {
		t.Fatal(err)
	}
	got, err := c.Committed(g.ctx, g.group)
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got[g.topic.Name], next[g.topic.Name]) {
		t.Errorf("committed %v, want %v", got, next)
	}
	if err := g.Report(g.ctx, g.group, next); err == nil {
		t.Error("somebody who isn't a member committed for a group that has one")
	}
}

// leavesWithConnection: closing the connection leaves groups, after Revoked.
func leavesWithConnection(t *testing.T, c Cluster) {
	g := newGang(open(t, c, 2, nil))
	b := c.Open(t)
	g.join(b, "a", 0)
	g.shares(map[string]int{"a": 2})
	b.Close()
	g.shares(map[string]int{})
	if _, err := b.Join(g.ctx, g.group, []string{g.topic.Name}, broker.Members{}); err == nil {
		t.Error("a closed connection joined a group")
	}
	g.join(g.Broker, "b", 0)
	g.shares(map[string]int{"b": 2}) // at once: the group needn't wait for a session to expire
}

// groupGrows: partitions that are added to a topic are assigned, and nobody asks for that.
func groupGrows(t *testing.T, c Cluster) {
	g := newGang(open(t, c, 2, nil))
	g.join(g.Broker, "a", 0)
	g.shares(map[string]int{"a": 2})
	g.join(g.another(c), "b", 0)
	g.shares(map[string]int{"a": 1, "b": 1})
	if err := c.Grow(g.ctx, g.topic.Name, 6); err != nil {
		t.Fatal(err)
	}
	g.shares(map[string]int{"a": 3, "b": 3})
}

// sessionExpires: a member that isn't heard of loses all, hears so, and comes back.
func sessionExpires(t *testing.T, c Cluster) {
	g := newGang(open(t, c, 4, nil))
	cut, sever, mend := c.OpenCut(t)
	defer cut.Close()
	a := g.join(cut, "a", 0)
	g.shares(map[string]int{"a": 4})
	before := a.Generation()
	g.mu.Lock()
	g.overlap = true
	g.mu.Unlock()
	sever()
	b := g.join(g.Broker, "b", 0)
	g.shares(map[string]int{"b": 4})
	mend()
	g.until("news that a lost its partitions", func() bool { return a.lost > 0 })
	g.until("equal shares after a came back", func() bool {
		n := 0
		for _, name := range g.owner {
			if name == "a" {
				n++
			}
		}
		return n == 2 && len(g.owner) == 4
	})
	if a.Generation() <= before {
		t.Errorf("a came back in generation %d, and lost its partitions in %d", a.Generation(), before)
	}
	b.rising()
}

func committed(t *testing.T, c Cluster) {
	f := open(t, c, 3, nil)
	f.publish(0, 0, 5)
	group := unique("group")
	got, err := f.Committed(f.ctx, group)
	if err != nil || len(got) > 0 {
		t.Errorf("a group that nobody knows has committed %v, error %v", got, err)
	}
	next := map[string]map[int32]int64{f.topic.Name: {0: 5, 2: 0}}
	if err := f.Report(f.ctx, group, next); err != nil {
		t.Fatal(err)
	}
	if got, err = f.Committed(f.ctx, group); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || !maps.Equal(got[f.topic.Name], next[f.topic.Name]) {
		t.Errorf("committed %v, want %v", got, next)
	}
}

func offsetsAt(t *testing.T, c Cluster) {
	f := open(t, c, 3, nil)
	begin := time.Now().Add(-time.Hour).Truncate(time.Second)
	for i := range 10 {
		r := record(1, fmt.Sprint(i))
		r.Time = begin.Add(time.Duration(i) * time.Minute)
		if res := f.send(r); res[0].err != nil {
			t.Fatal(res[0].err)
		}
	}
	for _, test := range []struct {
		at   time.Time
		want []int64
	}{
		{begin.Add(-time.Hour), []int64{0, 0, 0}},
		{begin.Add(3 * time.Minute), []int64{0, 3, 0}},
		{begin.Add(3*time.Minute + time.Second), []int64{0, 4, 0}},
		{begin.Add(time.Hour), []int64{0, 10, 0}},
	} {
		got, err := f.OffsetsAt(f.ctx, f.topic.Name, test.at)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("offsets at %s after the first record: %v, want %v", test.at.Sub(begin), got, test.want)
		}
	}
	_, err := f.OffsetsAt(f.ctx, unique("none"), begin)
	wants(t, err, broker.ErrNoTopic)
}

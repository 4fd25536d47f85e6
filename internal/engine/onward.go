package engine

import "math"

// Rows in the backlog may be further on in the log than records of their aggregate that aren't finished: what a hot
// lane kept, what others carry, and what a new owner hasn't read yet. So whoever goes on with them, the present owner or
// the next, has to have those first. Own rows may follow rows of an owner before, so each page is looked at.

// inTurn are the rows of a page that are the next of their aggregate: the log has been read up to them, and what was
// found there before them isn't carried by others any more, nor on its way into the backlog. g.mu is held.
func (d *drive) inTurn(rows []*task) []*task {
	p := d.p
	if !d.hot && (p.lanes[d.key] != nil || p.blocked[d.key] > 0) { // a hot lane's own records are before any row
		return nil // wentOn and openLane read again
	}
	for i, t := range rows {
		at := t.record.Offset
		if at >= max(p.delivered, p.next) || at > d.added || p.flying.before(d.key, at) {
			return rows[:i] // readOnward and wentOn read again
		}
	}
	return rows
}

// noOffset is after every offset.
const noOffset = math.MaxInt64

// grow notes that a row was added, or may have been, that a page which is just being read lacks.
func (d *drive) grow(offset int64) { d.grown, d.added = true, min(d.added, offset) }

// readOnward looks again at aggregates whose rows may have come to be in turn. g.mu is held.
func (g *group) readOnward(p *partition) {
	for _, d := range p.drives {
		if d.early {
			g.readOn(d)
		}
	}
}

// flights are the offsets of records on their way into the backlog, by aggregate.
type flights map[string]map[int64]struct{}

func (f flights) add(key string, offset int64) {
	if f[key] == nil {
		f[key] = map[int64]struct{}{}
	}
	f[key][offset] = struct{}{}
}

func (f flights) remove(key string, offset int64) {
	delete(f[key], offset)
	if len(f[key]) == 0 {
		delete(f, key)
	}
}

// before tells whether one of an aggregate is before an offset.
func (f flights) before(key string, offset int64) bool {
	for at := range f[key] {
		if at < offset {
			return true
		}
	}
	return false
}

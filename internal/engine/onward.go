package engine

// Rows in the backlog may be further on in the log than records of their aggregate that aren't finished: what a hot
// lane kept, and what others carry. So whoever goes on with them, the present owner or the next, has to have those
// first.

// inTurn tells whether the rows of a first page are the next of their aggregate: the log has been read up to them, and
// what was found there before them isn't carried by others any more, and is in the backlog itself if it isn't finished.
// g.mu is held.
func (d *drive) inTurn(rows []*task) bool {
	p := d.p
	if d.underway || d.hot { // a hot lane's own records are queued in it, before any row
		return true
	}
	for _, t := range rows {
		if t.record.Offset >= max(p.delivered, p.next) {
			return false // queue reads again
		}
	}
	return len(rows) == 0 || p.flying[d.key] == 0 && p.blocked[d.key] == 0 // wentOn and unblock read again
}

// readOnward looks again at aggregates whose first page may have come to be in turn. g.mu is held.
func (g *group) readOnward(p *partition) {
	for _, d := range p.drives {
		if !d.underway {
			g.readOn(d)
		}
	}
}

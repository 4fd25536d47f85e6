package letters

import (
	"github.com/swarmlog/swarmlog/ledger"
)

// index knows which letter of each record is the last one. A record has several where it was redriven and died again,
// or where a crash made a copy.
type index struct {
	once map[ledger.Key]ledger.Ranges // offsets of records that have a letter
	last map[ledger.WaitPlace]LetterAt
}

func newIndex() *index {
	return &index{once: map[ledger.Key]ledger.Ranges{}, last: map[ledger.WaitPlace]LetterAt{}}
}

// add takes letters in the order of their topic.
func (x *index) add(l *Letter) {
	key := l.Key()
	seen := x.once[key]
	if seen.Contains(l.Offset) {
		x.last[l.place()] = *l.LetterAt
		return
	}
	x.once[key] = seen.Add(ledger.Span{From: l.Offset, To: l.Offset})
}

// isLast tells whether no letter of the same record comes later.
func (x *index) isLast(l *Letter) bool {
	last, several := x.last[l.place()]
	return !several || last == *l.LetterAt
}

// has tells whether a record has a letter.
func (x *index) has(p ledger.WaitPlace) bool {
	return x.once[ledger.Key{Group: p.Group, TopicID: p.TopicID, Partition: p.Partition}].Contains(p.Offset)
}

// Package canonical owns the canonical form of JSON, by which digests and
// addresses are made, and the strict reading of JSON that goes with it.
//
// Key order (by UTF-16 code units) and string escapes are those of RFC 8785.
// Numbers differ from it on purpose: their lexemes stay verbatim, so that
// 9007199254740993 isn't rounded, and 5.0 isn't 5. What has no single meaning
// is refused: invalid UTF-8, unpaired surrogates, a name twice in an object,
// anything behind the value, nesting deeper than MaxDepth.
//
// It is a leaf that imports nothing of ours and keeps no state but pooled
// buffers. Digests of it are stored: a change of the form is a change of a
// stored format.
package canonical

import (
	"slices"
	"sync"
)

// MaxDepth is how many arrays and objects may be open at once.
const MaxDepth = 512

// maxPooled is the largest buffer, in bytes, that is kept for the next call.
const maxPooled = 1 << 20

// Append appends the canonical form of the one value in json to dst. The form
// is never longer than json; dst must not overlap it. An error is an *Error; dst is then returned as it was.
func Append(dst, json []byte) ([]byte, error) {
	p := parsers.Get().(*parser)
	p.src, p.out, p.emit = json, dst, true
	err := p.document()
	out := p.out
	p.release()
	if err != nil {
		return dst, err
	}
	return out, nil
}

// JSON is the canonical form of json in a slice of its own.
func JSON(json []byte) ([]byte, error) {
	out, err := Append(make([]byte, 0, len(json)), json)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Check tells whether json has a canonical form, without making it: nil or an *Error.
func Check(json []byte) error {
	p := parsers.Get().(*parser)
	p.src = json
	err := p.document()
	p.release()
	return err
}

// Members checks json, which must be an object, and hands each of its members
// to each: the name decoded, the value as it stands in json. It stops at the
// first error of each and returns that. Members that were handed out before an
// error in json was reached belong to no valid object: don't use them.
func Members(json []byte, each func(name string, value []byte) error) error {
	p := parsers.Get().(*parser)
	defer p.release()
	p.src, p.each = json, each
	p.space()
	if p.peek() != '{' {
		return p.fail("expected an object")
	}
	return p.document()
}

// Text is the content of a string literal, decoded. It aliases literal where that has no escapes.
func Text(literal []byte) ([]byte, error) {
	p := parsers.Get().(*parser)
	defer p.release()
	p.src = literal
	if p.peek() != '"' {
		return nil, p.fail("expected a string")
	}
	s, err := p.text()
	if err != nil {
		return nil, err
	}
	if p.pos != len(literal) {
		return nil, p.fail("more behind the string")
	}
	if !s.escaped {
		return literal[s.from:s.to], nil
	}
	return unescape(make([]byte, 0, s.to-s.from), literal[s.from:s.to]), nil
}

// span is a piece of a buffer. A name that is escaped lies, decoded, in parser.names, any other in parser.src.
type span struct {
	from, to int
	escaped  bool
}

type member struct {
	name     span
	from, to int // of name, colon and value in parser.out
}

// parser reads one document, in one pass. Members of all open objects lie on
// one stack; an object's are sorted, in place, when it closes.
type parser struct {
	src     []byte
	pos     int
	emit    bool
	out     []byte
	each    func(name string, value []byte) error
	members []member
	names   []byte
	spare   []byte
}

var parsers = sync.Pool{New: func() any { return new(parser) }}

func (p *parser) release() {
	members, names, spare := p.members[:0], p.names[:0], p.spare[:0]
	if cap(names) > maxPooled {
		names = nil
	}
	if cap(spare) > maxPooled {
		spare = nil
	}
	if cap(members) > maxPooled/64 {
		members = nil
	}
	*p = parser{members: members, names: names, spare: spare}
	parsers.Put(p)
}

func (p *parser) document() error {
	p.space()
	if err := p.value(0); err != nil {
		return err
	}
	p.space()
	if p.pos != len(p.src) {
		return p.fail("more behind the value")
	}
	return nil
}

func (p *parser) value(depth int) error {
	switch c := p.peek(); c {
	case '{':
		return p.object(depth + 1)
	case '[':
		return p.array(depth + 1)
	case '"':
		_, err := p.text()
		return err
	case 't':
		return p.literal("true")
	case 'f':
		return p.literal("false")
	case 'n':
		return p.literal("null")
	default:
		if c == '-' || isDigit(c) {
			return p.number()
		}
		return p.fail("expected a value")
	}
}

func (p *parser) array(depth int) error {
	if depth > MaxDepth {
		return p.fail("nested too deep")
	}
	p.step('[')
	p.space()
	if p.peek() == ']' {
		p.step(']')
		return nil
	}
	for {
		if err := p.value(depth); err != nil {
			return err
		}
		p.space()
		switch p.peek() {
		case ',':
			p.step(',')
			p.space()
		case ']':
			p.step(']')
			return nil
		default:
			return p.fail("expected a comma or the end of the array")
		}
	}
}

func (p *parser) object(depth int) error {
	if depth > MaxDepth {
		return p.fail("nested too deep")
	}
	p.step('{')
	p.space()
	if p.peek() == '}' {
		p.step('}')
		return nil
	}
	first, names, sorted := len(p.members), len(p.names), true
	for {
		if err := p.member(depth); err != nil {
			return err
		}
		if n := len(p.members); n-first > 1 {
			sorted = sorted && compare(p.name(p.members[n-2].name), p.name(p.members[n-1].name)) < 0
		}
		p.space()
		if p.peek() == ',' {
			p.step(',')
			p.space()
			continue
		}
		if p.peek() != '}' {
			return p.fail("expected a comma or the end of the object")
		}
		if !sorted {
			if err := p.sort(p.members[first:]); err != nil {
				return err
			}
		}
		p.step('}')
		p.members, p.names = p.members[:first], p.names[:names]
		return nil
	}
}

func (p *parser) member(depth int) error {
	if p.peek() != '"' {
		return p.fail("expected a name in quotes")
	}
	m := member{from: len(p.out)}
	name, err := p.text()
	if err != nil {
		return err
	}
	m.name = name
	if name.escaped {
		m.name.from = len(p.names)
		p.names = unescape(p.names, p.src[name.from:name.to])
		m.name.to = len(p.names)
	}
	p.space()
	if p.peek() != ':' {
		return p.fail("expected a colon behind the name")
	}
	p.step(':')
	p.space()
	from := p.pos
	if err := p.value(depth); err != nil {
		return err
	}
	m.to = len(p.out)
	p.members = append(p.members, m)
	if p.each != nil && depth == 1 {
		return p.each(string(p.name(m.name)), p.src[from:p.pos:p.pos])
	}
	return nil
}

func (p *parser) name(s span) []byte {
	if s.escaped {
		return p.names[s.from:s.to]
	}
	return p.src[s.from:s.to]
}

// sort brings the members that end p.out into the order of their names.
func (p *parser) sort(members []member) error {
	base := members[0].from
	slices.SortFunc(members, func(a, b member) int { return compare(p.name(a.name), p.name(b.name)) })
	for i := 1; i < len(members); i++ {
		if compare(p.name(members[i-1].name), p.name(members[i].name)) == 0 {
			return p.fail("an object with a name twice ends here")
		}
	}
	if !p.emit {
		return nil
	}
	p.spare = append(p.spare[:0], p.out[base:]...)
	p.out = p.out[:base]
	for i, m := range members {
		if i > 0 {
			p.out = append(p.out, ',')
		}
		p.out = append(p.out, p.spare[m.from-base:m.to-base]...)
	}
	return nil
}

// compare orders names by UTF-16 code units (RFC 8785, section 3.2.3). On
// valid UTF-8 that is the order of bytes, except that U+E000 to U+FFFF (first
// byte EE or EF) come behind what needs two units (first byte F0 to F4).
func compare(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if x, y := a[i], b[i]; x != y {
			if x|1 == 0xef {
				x += 0x10
			}
			if y|1 == 0xef {
				y += 0x10
			}
			return int(x) - int(y)
		}
	}
	return len(a) - len(b)
}

func (p *parser) literal(want string) error {
	if end := p.pos + len(want); end <= len(p.src) && string(p.src[p.pos:end]) == want {
		p.take(end)
		return nil
	}
	return p.fail("expected a value")
}

func (p *parser) number() error {
	i := p.pos
	at := func() byte {
		if i < len(p.src) {
			return p.src[i]
		}
		return 0
	}
	digits := func() bool {
		from := i
		for isDigit(at()) {
			i++
		}
		return i > from
	}
	if at() == '-' {
		i++
	}
	if at() == '0' {
		i++
	} else if !digits() {
		return p.fail("malformed number")
	}
	if at() == '.' {
		if i++; !digits() {
			return p.fail("malformed number")
		}
	}
	if at()|0x20 == 'e' {
		if i++; at() == '+' || at() == '-' {
			i++
		}
		if !digits() {
			return p.fail("malformed number")
		}
	}
	p.take(i)
	return nil
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// peek is the next byte, or 0 at the end (no value or separator is a 0).
func (p *parser) peek() byte {
	if p.pos < len(p.src) {
		return p.src[p.pos]
	}
	return 0
}

func (p *parser) space() {
	for p.pos < len(p.src) {
		switch p.src[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

// step passes one byte of structure, which is known to be there.
func (p *parser) step(c byte) {
	p.pos++
	if p.emit {
		p.out = append(p.out, c)
	}
}

// take passes what lies before end, verbatim.
func (p *parser) take(end int) {
	if p.emit {
		p.out = append(p.out, p.src[p.pos:end]...)
	}
	p.pos = end
}

func (p *parser) fail(reason string) error {
	if p.pos >= len(p.src) {
		reason += ", found the end"
	}
	return &Error{Offset: p.pos, Reason: reason}
}

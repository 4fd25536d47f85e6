package canonical

import (
	"encoding/binary"
	"math/bits"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Error says what is wrong with a JSON text and where. It quotes nothing of the text.
type Error struct {
	Offset int // in bytes, from 0
	Reason string
}

func (e *Error) Error() string { return e.Reason + " at byte " + strconv.Itoa(e.Offset) }

// text passes a string; the span is its raw content in p.src.
func (p *parser) text() (span, error) {
	p.pos++ // the quote
	s := span{from: p.pos}
	from := p.pos - 1 // what isn't yet in p.out starts here, the quote included
	for {
		p.pos += plain(p.src[p.pos:])
		if p.pos == len(p.src) {
			return s, p.fail("expected the end of the string")
		}
		switch c := p.src[p.pos]; {
		case c == '"':
			s.to = p.pos
			p.pos++
			if p.emit {
				p.out = append(p.out, p.src[from:p.pos]...)
			}
			return s, nil
		case c == '\\':
			s.escaped = true
			r, n, reason := escape(p.src[p.pos:])
			if reason != "" {
				return s, &Error{Offset: p.pos, Reason: reason}
			}
			if p.emit {
				p.out = append(p.out, p.src[from:p.pos]...)
				p.out = appendRune(p.out, r)
			}
			p.pos += n
			from = p.pos
		case c < ' ':
			return s, &Error{Offset: p.pos, Reason: "control character in a string"}
		default:
			for p.pos < len(p.src) && p.src[p.pos] >= utf8.RuneSelf {
				r, n := utf8.DecodeRune(p.src[p.pos:])
				if r == utf8.RuneError && n == 1 {
					return s, &Error{Offset: p.pos, Reason: "invalid UTF-8"}
				}
				p.pos += n
			}
		}
	}
}

// plain counts the bytes at the start of s that stand for themselves: ASCII
// without quote, backslash and control characters. Eight are tested at once:
// in each of the four terms the lowest bit that is set is exact (a borrow
// spoils only bytes above it), and only the lowest is used.
func plain(s []byte) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(s); i += 8 {
		w := binary.LittleEndian.Uint64(s[i:])
		quote, slash := w^ones*'"', w^ones*'\\'
		special := w | (w-ones*' ')&^w | (quote-ones)&^quote | (slash-ones)&^slash
		if special &= tops; special != 0 {
			return i + bits.TrailingZeros64(special)/8
		}
	}
	for ; i < len(s); i++ {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			break
		}
	}
	return i
}

// escape decodes the escape that s starts with: the rune, the length, and what is wrong with it.
func escape(s []byte) (r rune, n int, reason string) {
	if len(s) < 2 {
		return 0, 0, "unfinished escape"
	}
	switch s[1] {
	case '"', '\\', '/':
		return rune(s[1]), 2, ""
	case 'b':
		return '\b', 2, ""
	case 'f':
		return '\f', 2, ""
	case 'n':
		return '\n', 2, ""
	case 'r':
		return '\r', 2, ""
	case 't':
		return '\t', 2, ""
	case 'u':
	default:
		return 0, 0, "unknown escape"
	}
	if r = hex4(s); r < 0 {
		return 0, 0, "malformed \\u escape"
	}
	if !utf16.IsSurrogate(r) {
		return r, 6, ""
	}
	if low := hex4(s[6:]); low >= 0 {
		if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
			return pair, 12, ""
		}
	}
	return 0, 0, "unpaired surrogate"
}

// hex4 is the code unit of the \uXXXX that s starts with, or -1.
func hex4(s []byte) rune {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return -1
	}
	var r rune
	for _, c := range s[2:6] {
		switch {
		case isDigit(c):
			r = r<<4 | rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return -1
		}
	}
	return r
}

// appendRune appends a rune as RFC 8785, section 3.2.2.2, writes it in a string.
func appendRune(dst []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	switch r {
	case '"', '\\':
		return append(dst, '\\', byte(r))
	case '\b':
		return append(dst, `\b`...)
	case '\f':
		return append(dst, `\f`...)
	case '\n':
		return append(dst, `\n`...)
	case '\r':
		return append(dst, `\r`...)
	case '\t':
		return append(dst, `\t`...)
	}
	if r < ' ' {
		return append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
	}
	return utf8.AppendRune(dst, r)
}

// unescape appends the decoded content of a string that was found valid.
func unescape(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			dst = append(dst, raw[i])
			i++
			continue
		}
		r, n, _ := escape(raw[i:])
		dst = utf8.AppendRune(dst, r)
		i += n
	}
	return dst
}

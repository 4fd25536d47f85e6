package route

import (
	"bytes"
	"strconv"
)

// On a topic whose events are declared commutative, a key on the wire is an aggregate's id in which % is written %25 and
// # is written %23, and behind it, while the id is salted, # and a number. That is a stored format.

// Escaped is an id as the wire has it on such a topic.
func Escaped(id []byte) []byte {
	if !bytes.ContainsAny(id, "%#") {
		return id
	}
	out := make([]byte, 0, len(id)+4)
	for _, c := range id {
		switch c {
		case '%', '#':
			out = append(out, '%')
			out = strconv.AppendInt(out, int64(c), 16)
		default:
			out = append(out, c)
		}
	}
	return out
}

// Salted is an id with its n-th salt, n being 0 or more.
func Salted(id []byte, n int) []byte {
	out := append(bytes.Clone(Escaped(id)), '#')
	return strconv.AppendInt(out, int64(n), 10)
}

// Unsalted is the id of a key on such a topic, and its salt, or -1. What no producer of ours writes stays as it is.
func Unsalted(key []byte) (id []byte, salt int) {
	id, salt = key, -1
	if i := bytes.LastIndexByte(key, '#'); i >= 0 {
		if n, err := strconv.Atoi(string(key[i+1:])); err == nil && n >= 0 && strconv.Itoa(n) == string(key[i+1:]) {
			id, salt = key[:i], n
		}
	}
	if !bytes.ContainsRune(id, '%') {
		return id, salt
	}
	id = bytes.ReplaceAll(id, []byte("%23"), []byte("#"))
	return bytes.ReplaceAll(id, []byte("%25"), []byte("%")), salt
}

// Salts are numbers that spread an id: with each of them it leads to another partition, of the slots that there are, and
// there are at most n of them.
func Salts(id []byte, slots int32, n int) []int {
	n = min(n, int(slots))
	taken := make(map[int32]bool, n)
	var salts []int
	// With s slots about s·ln(s) tries find them all; those that hide for long are done without.
	for try := 0; len(salts) < n && try < 32*int(slots); try++ {
		if p := Partition(Salted(id, try), slots); !taken[p] {
			taken[p] = true
			salts = append(salts, try)
		}
	}
	return salts
}

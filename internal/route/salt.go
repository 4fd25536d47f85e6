package route

import (
	"strconv"
	"strings"
)

// Salted is the wire form of one of the keys that a hot aggregate is spread
// over: key#n, with each # of the key doubled so that the form can be read
// back. Unsalted keys go on the wire as they are.
func Salted(key string, n uint32) string {
	return strings.ReplaceAll(key, "#", "##") + "#" + strconv.FormatUint(uint64(n), 10)
}

// Unsalted reads back what Salted wrote; ok is false for any other form.
func Unsalted(wire string) (key string, n uint32, ok bool) {
	// Read from the left, a # that isn't doubled ends the key.
	for i := 0; i < len(wire); i++ {
		if wire[i] != '#' {
			continue
		}
		if i+1 < len(wire) && wire[i+1] == '#' {
			i++
			continue
		}
		v, err := strconv.ParseUint(wire[i+1:], 10, 32)
		if err != nil || strconv.FormatUint(v, 10) != wire[i+1:] {
			return "", 0, false
		}
		return strings.ReplaceAll(wire[:i], "##", "#"), uint32(v), true
	}
	return "", 0, false
}

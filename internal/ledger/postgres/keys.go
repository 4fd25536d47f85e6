package postgres

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"
)

// What the ledger's rows are found by: SHA-256 over parts with their lengths.

func hash(parts ...string) [sha256.Size]byte {
	size := 0
	for _, p := range parts {
		size += len(p) + binary.MaxVarintLen32
	}
	b := make([]byte, 0, size)
	for i, p := range parts {
		if i < len(parts)-1 {
			b = binary.AppendUvarint(b, uint64(len(p)))
		}
		b = append(b, p...)
	}
	return sha256.Sum256(b)
}

// eventKey is what an event is found by in seen.
func eventKey(source, id string) (key [16]byte) {
	sum := hash(source, id)
	copy(key[:], sum[:])
	return key
}

func subjectKey(subject string) (key [16]byte) {
	sum := hash(subject)
	copy(key[:], sum[:])
	return key
}

func callKey(source, event, name string) []byte {
	sum := hash(source, event, name)
	return sum[:]
}

// text is a text as PostgreSQL takes it, for texts that are there for people alone.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

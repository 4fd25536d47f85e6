package inference

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/swarmlog/swarmlog/inference"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// storedAnswer is the form in which an answer lies in the ledger. A vector is its float32s, little-endian.
type storedAnswer struct {
	Form   int    `json:"form"`
	Text   string `json:"text,omitempty"`
	Vector []byte `json:"vector,omitempty"`
}

const storedForm = 1

func encodeAnswer(a inference.Answer, at time.Time) (ledger.Answer, error) {
	b, err := json.Marshal(storedAnswer{storedForm, a.Text, EncodeVector(a.Vector)})
	if err != nil {
		return ledger.Answer{}, err
	}
	return ledger.Answer{Model: a.Model, Response: b, TokensIn: a.TokensIn, TokensOut: a.TokensOut, At: at}, nil
}

func decodeAnswer(l ledger.Answer) (inference.Answer, error) {
	var s storedAnswer
	if err := json.Unmarshal(l.Response, &s); err != nil {
		return inference.Answer{}, fault.Fatalf("read a recorded answer: %w; the ledger is damaged: restore it, or move it away and start again", err)
	}
	if s.Form != storedForm {
		return inference.Answer{}, fault.Fatalf("read a recorded answer: its form is %d, this version knows %d; run a newer version", s.Form, storedForm)
	}
	v, err := DecodeVector(s.Vector)
	if err != nil {
		return inference.Answer{}, fault.Fatalf("read a recorded answer: %w; the ledger is damaged: restore it, or move it away and start again", err)
	}
	return inference.Answer{Text: s.Text, Vector: v, Model: l.Model, TokensIn: l.TokensIn, TokensOut: l.TokensOut, Reused: true}, nil
}

// EncodeVector writes float32s little-endian, as sqlite-vec and pgvector's binary form count them. Empty is nil.
func EncodeVector(v []float32) []byte {
	if len(v) == 0 {
		return nil
	}
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

// DecodeVector reads what EncodeVector wrote, and refuses what isn't a finite number.
func DecodeVector(b []byte) ([]float32, error) {
	if len(b)%4 != 0 {
		return nil, fmt.Errorf("decode a vector: %d bytes aren't whole float32s", len(b))
	}
	if len(b) == 0 {
		return nil, nil
	}
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		if math.IsNaN(float64(v[i])) || math.IsInf(float64(v[i]), 0) {
			return nil, fmt.Errorf("decode a vector: number %d isn't finite", i)
		}
	}
	return v, nil
}

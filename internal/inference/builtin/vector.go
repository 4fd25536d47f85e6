package builtin

import (
	"math"
	"slices"
)

// Vector is a text as 256 numbers of length one, by feature hashing (Weinberger et al., 2009): each telling word and
// each n-gram of three and four letters adds to one of them, with a sign from its hash. Texts that share words, or
// parts of words, point the same way. A text without words is all zero.
func Vector(text string) []float32 {
	counts := make(map[string]int)
	for _, w := range words(text) {
		if !telling(w.folded) {
			continue
		}
		counts["w"+w.folded]++
		padded := []rune("_" + w.folded + "_")
		for n := 3; n <= 4; n++ {
			for i := 0; i+n <= len(padded); i++ {
				counts["g"+string(padded[i:i+n])]++
			}
		}
	}
	// Sorted, since the sum of floats depends on its order.
	features := make([]string, 0, len(counts))
	for f := range counts {
		features = append(features, f)
	}
	slices.Sort(features)
	var sum [Dims]float64
	for _, f := range features {
		weight := 1 + math.Log(float64(counts[f]))
		if f[0] == 'g' {
			weight *= 0.35
		}
		h := hash(f)
		if h>>63 == 1 {
			weight = -weight
		}
		sum[h%Dims] += weight
	}
	return normalized(sum[:])
}

func normalized(v []float64) []float32 {
	length := 0.0
	for _, x := range v {
		length += x * x
	}
	length = math.Sqrt(length)
	out := make([]float32, len(v))
	if length == 0 {
		return out
	}
	for i, x := range v {
		out[i] = float32(x / length)
	}
	return out
}

// hash is FNV-1a, with the bits mixed, since its low bits alone are weak.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := 0; i < len(s); i++ {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}

// Package builtin owns the built-in model: an extractive summary, key terms and
// vectors of hashed words and n-grams, for swarms without a model of their own.
//
// It is pure: the same text gives the same answer on every machine, in no time
// that matters. So its answers aren't recorded: computing one again is the same
// as remembering it. It imports nothing of ours, does no I/O and keeps no state.
// The names of its models carry a version, which changes with its answers.
package builtin

// Names of the models, as answers report them.
const (
	SummaryModel = "builtin-extract-1"
	VectorModel  = "builtin-ngram256-1"
	Dims         = 256 // length of a vector
)

// Chat answers a page of text with what a chat model is asked for: two or three sentences, then a line of terms.
func Chat(text string) string {
	bare := plain(text)
	summary, terms := summary(text, bare, 3), terms(bare, 8)
	if len(terms) == 0 {
		return summary
	}
	out := summary + "\nTerms: "
	for i, t := range terms {
		if i > 0 {
			out += "; "
		}
		out += t
	}
	return out
}

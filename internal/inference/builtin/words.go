package builtin

import (
	"strings"
	"unicode"
)

// word is one word of a text: as it is compared, and as it stands.
type word struct {
	folded, raw string
	sentence    int // counts breaks, so that phrases don't reach over them
}

// words splits text at what is neither letter, digit nor an inner apostrophe or hyphen.
func words(text string) []word {
	var out []word
	start, breaks := -1, 0
	flush := func(end int) {
		if start < 0 {
			return
		}
		raw := strings.Trim(text[start:end], "'’-_")
		if raw != "" {
			out = append(out, word{fold(raw), raw, breaks})
		}
		start = -1
	}
	for i, c := range text {
		switch {
		case unicode.IsLetter(c) || unicode.IsDigit(c) || unicode.IsMark(c) || (start >= 0 && (c == '\'' || c == '’' || c == '-' || c == '_')):
			if start < 0 {
				start = i
			}
		default:
			flush(i)
			if c != ' ' && c != '\t' {
				breaks++
			}
		}
	}
	flush(len(text))
	return out
}

// fold lowers a word and takes the possessive off.
func fold(raw string) string {
	w := strings.ToLower(raw)
	w = strings.TrimSuffix(w, "'s")
	return strings.TrimSuffix(w, "’s")
}

// telling says that a word can tell texts apart: neither a stop word nor very short nor a number.
func telling(w string) bool {
	letters := 0
	for _, c := range w {
		if unicode.IsLetter(c) {
			letters++
		}
	}
	if letters == 0 || (letters < 3 && letters == len(w)) {
		return false
	}
	return !stop[w]
}

var stop = func() map[string]bool {
	m := make(map[string]bool)
	for w := range strings.FieldsSeq(`a about above across after again against all almost alone along already also although always am among
an and another any anyone anything are aren't around as at away back be became because become becomes been before behind being below
between both but by came can can't cannot come comes could couldn't did didn't do does doesn't doing don't done down during each either
else enough etc even ever every everyone everything few first for four from further gave get gets give given gives go goes going gone got
had hadn't has hasn't have haven't having he her here hers herself him himself his how however i if in indeed instead into is isn't it its
itself just keep keeps kept last later least less let let's like likely made make makes making many may maybe me might mine more most
mostly much must my myself near need needs neither never next no nobody none nor not nothing now nowhere of off often on once one only onto
or other others our ours ourselves out over own per perhaps please put quite rather really same say says see seem seems seen several shall
she should shouldn't since so some someone something sometimes still such take taken takes than that that's the their theirs them themselves
then there therefore these they thing things this those though three through thus to together too toward towards two under unless until up
upon us use used uses using usually very via was wasn't way we well went were weren't what whatever when where whether which while who whole
whom whose why will with within without won't would wouldn't yet you your yours yourself
der die das und ist nicht ein eine einer eines den dem des mit von auf für als auch wird werden sich bei oder aber nach aus
les des une est dans pour que qui sur par pas plus avec sont aux`) {
		m[w] = true
	}
	return m
}()

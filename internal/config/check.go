package config

import (
	"fmt"
	"slices"
	"strings"
)

// kindSpec says what a kind of agent has.
type kindSpec struct {
	reads, emits bool
	settings     []string
	model        []string // entries of models to take where the file names none; the first that exists
}

var kinds = map[Kind]kindSpec{
	Finder:   {emits: true, settings: []string{"input", "max_document", "patterns"}},
	Splitter: {reads: true, emits: true, settings: []string{"max_document", "page_chars"}},
	Reader:   {reads: true, emits: true, settings: []string{"model"}, model: []string{"default"}},
	Embedder: {reads: true, emits: true, settings: []string{"model"}, model: []string{"embedding", Builtin}},
	Indexer:  {reads: true},
}

func kindsByText() map[string]kindSpec {
	m := make(map[string]kindSpec, len(kinds))
	for k, s := range kinds {
		m[string(k)] = s
	}
	return m
}

// addModels adds what is there without being written.
func (r *reader) addModels(s *Swarm, env func(string) (string, bool)) {
	if len(s.Models) == 0 {
		s.Models = r.modelsOf(env)
	}
	s.Models = append(s.Models, Model{Name: Builtin, Provider: Builtin, Reuse: ReuseByAddress})
}

// modelsOf is default and embedding: OpenAI's where the environment names a server or a key, else built in.
func (r *reader) modelsOf(env func(string) (string, bool)) []Model {
	base, _ := env("OPENAI_BASE_URL")
	base = strings.TrimSpace(base)
	key, _ := env("OPENAI_API_KEY")
	if base == "" && strings.TrimSpace(key) == "" {
		return []Model{
			{Name: "default", Provider: Builtin, Reuse: ReuseByAddress},
			{Name: "embedding", Provider: Builtin, Reuse: ReuseByAddress},
		}
	}
	m := Model{Provider: OpenAI, BaseURL: DefaultBaseURL, Reuse: ReuseByAddress}
	if base != "" {
		if problem := urlProblem(base); problem != "" {
			r.problems = append(r.problems, Problem{Found: "environment variable OPENAI_BASE_URL " + problem,
				Instead: "set it to the server's address with its version, such as https://api.openai.com/v1, or unset it"})
		}
		m.BaseURL = strings.TrimRight(base, "/")
	}
	if strings.TrimSpace(key) != "" {
		m.Key = Key{Env: "OPENAI_API_KEY"}
	}
	chat, embedding := m, m
	chat.Name, chat.Model = "default", envOr(env, "OPENAI_MODEL", defaultChatModel)
	embedding.Name, embedding.Model = "embedding", envOr(env, "OPENAI_EMBEDDING_MODEL", defaultEmbeddingModel)
	return []Model{chat, embedding}
}

func envOr(env func(string) (string, bool), name, other string) string {
	if v, _ := env(name); strings.TrimSpace(v) != "" {
		return strings.TrimSpace(v)
	}
	return other
}

// check looks at what only the whole file tells, and fills in defaults. Cycles of events are allowed: real
// topologies have them, and the hop limit ends them.
func (r *reader) check(s *Swarm) {
	topics := names(s.Topics, func(t Topic) string { return t.Name })
	models := names(s.Models, func(m Model) string { return m.Name })
	pools := names(s.Pools, func(p Pool) string { return p.Name })
	r.checkShadows(s)
	for i := range s.Agents {
		a := &s.Agents[i]
		spec, ok := kinds[a.Kind]
		if !ok {
			continue
		}
		r.checkTopics(a, "reads", a.Reads, spec.reads, topics)
		r.checkTopics(a, "emits", a.Emits, spec.emits, topics)
		if !spec.reads && len(a.Types) > 0 {
			r.add(a.at["types"], fmt.Sprintf("agent %s is a %s, which handles no events, but has types", a.Name, a.Kind), "remove types")
		}
		r.fill(a, spec, models)
		if a.Model != "" && !slices.Contains(models, a.Model) {
			r.add(a.place("model"), fmt.Sprintf("agent %s uses model %q, which isn't among models", a.Name, a.Model), oneOf(a.Model, models))
		}
		if a.Pool != "" && !slices.Contains(pools, a.Pool) {
			r.add(a.place("pool"), fmt.Sprintf("agent %s runs in pool %q, which isn't among pools", a.Name, a.Pool), oneOf(a.Pool, pools))
		}
	}
	r.checkSettings(&s.Settings, pools)
	for i := range s.Pools {
		r.shareOut(s, &s.Pools[i])
	}
}

func (r *reader) checkTopics(a *Agent, key string, found []string, wanted bool, topics []string) {
	if !wanted && len(found) > 0 {
		r.add(a.place(key), fmt.Sprintf("agent %s is of kind %s, which has no %s", a.Name, a.Kind, key), "remove "+key)
		return
	}
	if wanted && len(found) == 0 && a.at[key] == nil {
		r.add(a.place(key), fmt.Sprintf("agent %s has no %s", a.Name, key), fmt.Sprintf("write %s: and a topic; %s", key, oneOf("", topics)))
	}
	for _, t := range found {
		if t != "" && !slices.Contains(topics, t) {
			r.add(a.placeOf(key, t), fmt.Sprintf("agent %s %s %q, which isn't among topics", a.Name, key, shorten(t)), oneOf(t, topics))
		}
	}
}

// place is where a key's value stands, else the agent.
func (a *Agent) place(key string) *node {
	if n := a.at[key]; n != nil {
		return n
	}
	return a.at[""]
}

// placeOf is where one entry of a list stands.
func (a *Agent) placeOf(key, text string) *node {
	n := a.place(key)
	for _, item := range n.items {
		if item.text == text {
			return item
		}
	}
	return n
}

// fill sets the defaults of a kind.
func (r *reader) fill(a *Agent, spec kindSpec, models []string) {
	if a.OnDead == "" {
		a.OnDead = "park"
	}
	if slices.Contains(spec.settings, "max_document") && a.MaxDocument == 0 {
		a.MaxDocument = defaultMaxDocument
	}
	if a.Kind == Finder && len(a.Input) == 0 {
		a.Input = []string{r.path("documents")}
	}
	if a.Kind == Splitter && a.PageChars == 0 {
		a.PageChars = defaultPageChars
	}
	if a.Model != "" || len(spec.model) == 0 {
		return
	}
	for _, name := range spec.model {
		if slices.Contains(models, name) {
			a.Model = name
			return
		}
	}
	a.Model = spec.model[0]
}

func names[T any](list []T, name func(T) string) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = name(v)
	}
	slices.Sort(out)
	return out
}

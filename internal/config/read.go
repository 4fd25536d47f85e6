package config

import (
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// reader turns the tree into a Swarm and collects what is wrong.
type reader struct {
	file     string
	problems Problems

	source  source           // of what is read now
	at      map[string]*node // where settings were set last, by key
	secrets map[*Key]source  // which source named a secret's place
}

func (r *reader) add(n *node, found, instead string) {
	if n == nil {
		r.addAt(1, 1, found, instead)
		return
	}
	if n.from != "" { // not of the file
		r.problems = append(r.problems, Problem{Found: n.from + ": " + found, Instead: instead})
		return
	}
	r.addAt(n.line, n.col, found, instead)
}

func (r *reader) addAt(line, col int, found, instead string) {
	r.problems = append(r.problems, Problem{r.file, max(line, 1), max(col, 1), found, instead})
}

// fields reads a mapping whose keys are known.
func (r *reader) fields(n *node, what string, known map[string]func(key, value *node)) {
	if n.kind == null {
		return
	}
	if n.kind != mapping {
		r.add(n, fmt.Sprintf("%s is %s", what, n), "write it as keys and values")
		return
	}
	for _, p := range n.pairs {
		read, ok := known[p.key.text]
		if !ok {
			names := sortedKeys(known)
			r.add(p.key, fmt.Sprintf("unknown key %q in %s", shorten(p.key.text), what), oneOf(p.key.text, names))
			continue
		}
		read(p.key, p.value)
	}
}

// named reads a mapping from names of our own to entries.
func (r *reader) named(n *node, what string, read func(name string, key, value *node)) {
	if n.kind == null {
		return
	}
	if n.kind != mapping {
		r.add(n, fmt.Sprintf("%s is %s", what, n), "write a name and a colon for each entry, and what it is below")
		return
	}
	for _, p := range n.pairs {
		read(p.key.text, p.key, p.value)
	}
}

func sortedKeys[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for k := range m {
		names = append(names, k)
	}
	slices.Sort(names)
	return names
}

var (
	nameRule  = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,99}$`)
	topicRule = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,200}$`)
)

func (r *reader) name(key *node, what string) {
	if !nameRule.MatchString(key.text) {
		r.add(key, fmt.Sprintf("%s is named %q", what, shorten(key.text)), "write at most 100 lower-case letters, digits, dots, hyphens and underscores, beginning with a letter or digit")
	}
}

func (r *reader) swarm(root *node) *Swarm {
	s := &Swarm{File: r.file}
	s.Name = defaultName(r.file)
	var agents *node
	known := map[string]func(k, v *node){
		"name": func(_, v *node) {
			r.text(v, "name", &s.Name)
			if v.kind == scalar && v.text != "" {
				r.name(v, "the swarm")
			}
		},
		"topics": func(k, v *node) {
			r.named(v, "topics", func(name string, k, v *node) { s.Topics = append(s.Topics, r.topic(name, k, v)) })
		},
		"agents": func(k, v *node) {
			agents = k
			r.named(v, "agents", func(name string, k, v *node) { s.Agents = append(s.Agents, r.agent(name, k, v)) })
		},
		"pools": func(k, v *node) {
			r.named(v, "pools", func(name string, k, v *node) { s.Pools = append(s.Pools, r.pool(name, k, v)) })
		},
		"models": func(k, v *node) {
			r.named(v, "models", func(name string, k, v *node) { s.Models = append(s.Models, r.model(name, k, v)) })
		},
	}
	r.settingsKeys(&s.Settings, known)
	r.fields(root, "the swarm", known)
	if len(s.Agents) == 0 && root.kind == mapping {
		r.add(agents, "the swarm has no agents", "write at least one below agents:, such as finder: {kind: finder, emits: documents}")
	}
	return s
}

// defaultName is the folder's name, as far as it is one.
func defaultName(file string) string {
	abs, err := filepath.Abs(file)
	if err != nil {
		return "swarm"
	}
	name := strings.ToLower(filepath.Base(filepath.Dir(abs)))
	if !nameRule.MatchString(name) {
		return "swarm"
	}
	return name
}

func (r *reader) topic(name string, k, v *node) Topic {
	t := Topic{Name: name, Partitions: defaultPartitions}
	if !topicRule.MatchString(name) || name == "." || name == ".." {
		r.add(k, fmt.Sprintf("a topic is named %q", shorten(name)), "write at most 200 letters, digits, dots, hyphens and underscores")
	}
	what := "topic " + shorten(name)
	r.fields(v, what, map[string]func(k, v *node){
		"partitions":  func(_, v *node) { t.Partitions = int32(r.number(v, "partitions", 1, 10000)) },
		"replicas":    func(_, v *node) { t.Replicas = int16(r.number(v, "replicas", 1, 100)) },
		"commutative": func(_, v *node) { r.onOff(v, "commutative", &t.Commutative) },
		"config": func(_, v *node) {
			t.Config = make(map[string]string)
			r.named(v, "config of "+what, func(name string, k, v *node) {
				var value string
				r.text(v, name, &value)
				t.Config[name] = value
			})
		},
	})
	return t
}

func (r *reader) agent(name string, k, v *node) Agent {
	a := Agent{Name: name, at: map[string]*node{"": k}}
	r.name(k, "an agent")
	what := "agent " + shorten(name)
	var settings []*node
	setting := func(read func(v *node)) func(k, v *node) {
		return func(k, v *node) {
			settings, a.at[k.text] = append(settings, k), v
			read(v)
		}
	}
	var kindAt *node
	r.fields(v, what, map[string]func(k, v *node){
		"kind": func(_, v *node) {
			kindAt = v
			r.choice(v, "kind", (*string)(&a.Kind), sortedKeys(kindsByText()))
		},
		"reads":        func(_, v *node) { a.Reads, a.at["reads"] = r.texts(v, "reads"), v },
		"emits":        func(_, v *node) { a.Emits, a.at["emits"] = r.texts(v, "emits"), v },
		"types":        func(_, v *node) { a.Types, a.at["types"] = r.texts(v, "types"), v },
		"shadow_of":    func(_, v *node) { a.at["shadow_of"] = v; r.text(v, "shadow_of", &a.ShadowOf) },
		"on_dead":      func(_, v *node) { a.at["on_dead"] = v; r.choice(v, "on_dead", &a.OnDead, []string{"park", "skip"}) },
		"pool":         func(_, v *node) { a.at["pool"] = v; r.text(v, "pool", &a.Pool) },
		"limits":       func(_, v *node) { a.Limits, a.at["limits"] = r.limits(v, "limits of "+what), v },
		"model":        setting(func(v *node) { r.text(v, "model", &a.Model) }),
		"input":        setting(func(v *node) { a.Input = r.folders(v) }),
		"max_document": setting(func(v *node) { a.MaxDocument = r.bytes(v, "max_document", 1, 1<<30) }),
		"patterns":     setting(func(v *node) { a.Patterns = r.patterns(v) }),
		"page_chars":   setting(func(v *node) { a.PageChars = int(r.number(v, "page_chars", 200, 8000)) }),
	})
	if kindAt == nil {
		r.add(k, what+" has no kind", "write kind: and one of "+strings.Join(sortedKeys(kindsByText()), ", "))
	}
	r.settings(a, settings)
	return a
}

// settings refuses what belongs to another kind, and fills in defaults.
func (r *reader) settings(a Agent, keys []*node) {
	spec, ok := kinds[a.Kind]
	if !ok {
		return
	}
	for _, k := range keys {
		if slices.Contains(spec.settings, k.text) {
			continue
		}
		var owners []string
		for kind, s := range kinds {
			if slices.Contains(s.settings, k.text) {
				owners = append(owners, string(kind))
			}
		}
		slices.Sort(owners)
		r.add(k, fmt.Sprintf("agent %s is of kind %s, which has no %s", a.Name, a.Kind, k.text),
			"remove it, or move it to an agent of kind "+strings.Join(owners, " or "))
	}
}

func (r *reader) limits(v *node, what string) Limits {
	var l Limits
	var maxWait *node
	r.fields(v, what, map[string]func(k, v *node){
		"steps":    func(_, v *node) { l.Steps = int(r.number(v, "steps", 1, 100000)) },
		"bytes":    func(_, v *node) { l.Bytes = r.bytes(v, "bytes", 1<<10, 1<<40) },
		"timeout":  func(_, v *node) { l.Timeout = r.duration(v, "timeout", time.Millisecond, 24*time.Hour) },
		"attempts": func(_, v *node) { l.Attempts = int(r.number(v, "attempts", 1, 1000000)) },
		"backoff":  func(_, v *node) { l.Backoff = r.duration(v, "backoff", time.Millisecond, time.Hour) },
		"max_wait": func(_, v *node) { maxWait = v; l.MaxWait = r.duration(v, "max_wait", time.Millisecond, 24*time.Hour) },
		"hops":     func(_, v *node) { l.Hops = int(r.number(v, "hops", 1, 10000)) },
		"waiting":  func(_, v *node) { l.Waiting = r.number(v, "waiting", 1, 1_000_000_000) },
		"gap_wait": func(_, v *node) { l.GapWait = r.duration(v, "gap_wait", time.Second, 365*24*time.Hour) },
	})
	if l.Backoff > 0 && l.MaxWait > 0 && l.Backoff > l.MaxWait {
		r.add(maxWait, fmt.Sprintf("max_wait is %s, but the first wait, backoff, is %s", l.MaxWait, l.Backoff),
			fmt.Sprintf("write max_wait: %s or more, or a shorter backoff", l.Backoff))
	}
	return l
}

func (r *reader) pool(name string, k, v *node) Pool {
	p := Pool{Name: name, at: k}
	r.name(k, "a pool")
	r.fields(v, "pool "+shorten(name), map[string]func(k, v *node){
		"steps":  func(_, v *node) { p.Steps = int(r.number(v, "steps", 1, 100000)) },
		"memory": func(_, v *node) { p.Memory = r.bytes(v, "memory", 1<<20, 1<<45) },
	})
	return p
}

func (r *reader) model(name string, k, v *node) Model {
	m := Model{Name: name, Reuse: ReuseByAddress}
	r.name(k, "a model")
	what := "model " + shorten(name)
	if name == Builtin {
		r.add(k, "a model is named builtin", "choose another name: this one is the built-in model, which is always there")
	}
	var provider, model *node
	r.fields(v, what, map[string]func(k, v *node){
		"provider": func(_, v *node) { provider = v; r.choice(v, "provider", &m.Provider, []string{Builtin, OpenAI}) },
		"base_url": func(_, v *node) { r.baseURL(v, &m.BaseURL) },
		"model":    func(_, v *node) { model = v; r.text(v, "model", &m.Model) },
		"version":  func(_, v *node) { r.text(v, "version", &m.Version) },
		"api_key":  func(_, v *node) { m.Key = r.key(v, what) },
		"reuse": func(_, v *node) {
			r.choice(v, "reuse", (*string)(&m.Reuse), []string{string(ReuseByAddress), string(ReuseOff)})
		},
		"params": func(_, v *node) {
			m.Params = make(map[string]json.RawMessage)
			r.named(v, "params of "+what, func(name string, k, v *node) {
				if slices.Contains([]string{"model", "messages", "input", "stream", "n"}, name) {
					r.add(k, fmt.Sprintf("params of %s hold %q", what, name), "remove it: it is set for each request")
					return
				}
				m.Params[name] = r.json(v)
			})
		},
	})
	if provider == nil {
		r.add(k, what+" has no provider", "write provider: openai (any OpenAI-compatible server) or provider: builtin")
	}
	if m.Provider == OpenAI {
		if model == nil {
			r.add(k, what+" doesn't say which model", "write model: and its name, as its server calls it")
		}
		if m.BaseURL == "" {
			m.BaseURL = DefaultBaseURL
			if m.Key.IsZero() {
				m.Key = Key{Env: "OPENAI_API_KEY"}
			}
		}
	}
	return m
}

// key reads where the secret is. A secret in the file itself is refused, and never repeated.
func (r *reader) key(v *node, what string) Key {
	var k Key
	if v.kind != mapping {
		r.add(v, "api_key of "+what+" isn't a reference (its text isn't shown)", "keep secrets out of this file: write api_key: {env: OPENAI_API_KEY} or api_key: {file: PATH}")
		return k
	}
	for _, p := range v.pairs {
		if p.key.text != "env" && p.key.text != "file" {
			r.add(p.key, "unknown key in api_key of "+what, "write env: NAME or file: PATH")
		}
		if p.value.kind != scalar || p.value.text == "" {
			r.add(p.value, "api_key of "+what+" names nothing", "write env: NAME or file: PATH")
			continue
		}
		switch p.key.text {
		case "env":
			if !envRule.MatchString(p.value.text) {
				r.add(p.value, "env of api_key isn't the name of a variable (its text isn't shown)", "write the variable's name, such as OPENAI_API_KEY, not the key")
				continue
			}
			k.Env = p.value.text
		case "file":
			k.File = r.path(p.value.text)
		}
	}
	if k.Env != "" && k.File != "" {
		r.add(v, "api_key of "+what+" names a variable and a file", "keep one of the two")
	}
	return k
}

var envRule = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)

func (r *reader) baseURL(v *node, to *string) {
	var text string
	r.text(v, "base_url", &text)
	if problem := urlProblem(text); text != "" && problem != "" {
		r.add(v, "base_url "+problem, "write the server's address with its version and without a key, such as http://127.0.0.1:11434/v1")
		return
	}
	*to = strings.TrimRight(text, "/")
}

// urlProblem doesn't repeat the address: a key may stand in it.
func urlProblem(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "":
		return "isn't an http or https address"
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "holds a user, a query or a fragment"
	}
	return ""
}

func (r *reader) text(v *node, what string, to *string) {
	if v.kind != scalar || v.text == "" {
		r.add(v, fmt.Sprintf("%s is %s", what, v), "write one word or text")
		return
	}
	*to = v.text
}

// texts reads a list of words, or one word.
func (r *reader) texts(v *node, what string) []string {
	if v.kind == scalar && v.text != "" {
		return []string{v.text}
	}
	if v.kind != sequence || len(v.items) == 0 {
		r.add(v, fmt.Sprintf("%s is %s", what, v), "write one name, or several as [a, b]")
		return nil
	}
	var out []string
	for _, item := range v.items {
		var text string
		r.text(item, "an entry of "+what, &text)
		if text != "" && slices.Contains(out, text) {
			r.add(item, fmt.Sprintf("%s names %q twice", what, shorten(text)), "remove one of the two")
			continue
		}
		out = append(out, text)
	}
	return out
}

func (r *reader) choice(v *node, what string, to *string, names []string) {
	if v.kind != scalar || !slices.Contains(names, v.text) {
		text := ""
		if v.kind == scalar {
			text = v.text
		}
		r.add(v, fmt.Sprintf("%s is %s", what, v), oneOf(text, names))
		return
	}
	*to = v.text
}

func (r *reader) number(v *node, what string, least, most int64) int64 {
	n, err := strconv.ParseInt(v.text, 10, 64)
	if v.kind != scalar || !v.plain || err != nil || n < least || n > most {
		r.add(v, fmt.Sprintf("%s is %s", what, v), fmt.Sprintf("write a whole number from %d to %d", least, most))
		return 0
	}
	return n
}

func (r *reader) bytes(v *node, what string, least, most int64) int64 {
	n, err := ParseSize(v.text)
	if v.kind != scalar || err != nil || n < least || n > most {
		r.add(v, fmt.Sprintf("%s is %s", what, v), fmt.Sprintf("write a size from %s to %s, such as 64MiB", FormatSize(least), FormatSize(most)))
		return 0
	}
	return n
}

// FormatSize is a number of bytes as ParseSize reads it, in the largest unit that leaves no fraction.
func FormatSize(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for ; i < len(units)-1 && n != 0 && n%1024 == 0; i++ {
		n /= 1024
	}
	return strconv.FormatInt(n, 10) + units[i]
}

func (r *reader) duration(v *node, what string, least, most time.Duration) time.Duration {
	d, err := ParseDuration(v.text)
	if v.kind != scalar || err != nil || d < least || d > most {
		instead := fmt.Sprintf("write a time with its unit from %s to %s, such as 250ms, 30s or 5m", least, most)
		if n, err := strconv.ParseFloat(v.text, 64); err == nil && n > 0 && n < math.MaxInt32 {
			instead = fmt.Sprintf("a time needs a unit: write %ss for seconds or %sms for milliseconds", v.text, v.text)
		}
		r.add(v, fmt.Sprintf("%s is %s", what, v), instead)
		return 0
	}
	return d
}

func (r *reader) folders(v *node) []string {
	out := r.texts(v, "input")
	for i := range out {
		out[i] = r.path(out[i])
	}
	return out
}

// path makes a path absolute; relative ones count from the file's folder.
func (r *reader) path(p string) string {
	if !filepath.IsAbs(p) {
		p = filepath.Join(filepath.Dir(r.file), p)
	}
	abs, err := filepath.Abs(p)
	if err != nil {
		return filepath.Clean(p)
	}
	return abs
}

func (r *reader) patterns(v *node) []string {
	out := r.texts(v, "patterns")
	for i, p := range out {
		if _, err := filepath.Match(p, "x"); err != nil || strings.ContainsRune(p, '/') {
			r.add(v, fmt.Sprintf("pattern %d is %q", i+1, shorten(p)), "write file names in which * stands for any letters, such as *.txt")
		}
	}
	return out
}

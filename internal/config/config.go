// Package config owns swarm.yaml: what may stand in it, what it means and what
// is said where it's wrong, and the settings that the environment and the command
// line may replace. All problems of a file are found in one go, each
// with its place, what was found and what to write instead.
//
// It knows no engine and no broker: package app turns a Swarm into those. It
// reads a file and the environment, and keeps nothing; a secret is read only
// when Key.Resolve is called, and never printed.
package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Swarm is a checked swarm.yaml, in the order of the file.
type Swarm struct {
	File   string // as it was given to Load
	Name   string // default: the name of the file's folder
	Topics []Topic
	Agents []Agent
	Pools  []Pool
	// Models always has the entry "builtin". Where the file names none, "default" and "embedding" are either
	// OpenAI's, switched on by OPENAI_BASE_URL or OPENAI_API_KEY, or the built-in model.
	Models []Model
	// Settings are the worker's: of the file, the environment and the command line.
	Settings
}

// Topic is a topic to create where it doesn't exist.
type Topic struct {
	Name       string
	Partitions int32             // default 8
	Replicas   int16             // default 0: what the brokers say
	Config     map[string]string // topic configuration, such as retention.ms
	// Commutative says that the events of one aggregate may be handled in any order, so that a hot one may be spread.
	Commutative bool
}

// Kind is what an agent is made of.
type Kind string

// The built-in kinds.
const (
	Finder   Kind = "finder"
	Splitter Kind = "splitter"
	Reader   Kind = "reader"
	Embedder Kind = "embedder"
	Indexer  Kind = "indexer"
)

// Agent is one agent. Settings that a kind doesn't have are zero.
type Agent struct {
	Name   string
	Kind   Kind
	Reads  []string
	Emits  []string
	Types  []string // event types; default: those of the kind
	OnDead string   // "park" (default) or "skip"
	Model  string   // an entry of Models; filled in for kinds that use a model
	Pool   string   // default "": none, only its own limits bound it
	Limits Limits
	// ShadowOf is the agent that this one is a new version of: it runs beside that one without effects, and what it would
	// emit is compared. It reads what that one reads, and emits to the same topics where it names none.
	ShadowOf string

	// Of a finder.
	Input       []string // folders, absolute; relative ones count from the file's folder
	MaxDocument int64    // bytes, default 64 MiB; also of a splitter
	Patterns    []string // file names, such as *.txt; default: the extensions that the splitter reads

	// Of a splitter.
	PageChars int // characters of a page where the document has none of its own; default 3000

	at map[string]*node // where its keys stand, "" for the agent itself
}

// Limits bound an agent; zero means the default that package engine states.
type Limits struct {
	Steps    int
	Bytes    int64
	Timeout  time.Duration
	Attempts int
	Backoff  time.Duration
	MaxWait  time.Duration
	Hops     int
	Waiting  int64
	GapWait  time.Duration
}

// Pool is what a worker has for some agents together. An agent's own limits are its share; agents of the pool without
// such a limit get equal shares of the rest, written into their Limits when the file is read.
type Pool struct {
	Name   string
	Steps  int   // handlers of its agents that run at once on one worker; default 0: no bound but the agents' own
	Memory int64 // bytes that one worker has for them; default 0: no bound but the agents' own

	at *node
}

// Providers of models.
const (
	OpenAI  = "openai"  // any server that speaks OpenAI's HTTP interface
	Builtin = "builtin" // in this process: deterministic, no network
)

// Reuse says when an answer serves another request for the same.
type Reuse string

const (
	ReuseByAddress Reuse = "address" // equal requests share one answer (default)
	ReuseOff       Reuse = "off"     // each event's step asks for itself
)

// Model is an entry of models.
type Model struct {
	Name     string
	Provider string
	BaseURL  string // of an OpenAI-compatible server, with its version: https://api.openai.com/v1
	Model    string // as the provider names it
	Version  string // where set, the version that must answer, as the provider reports it
	Key      Key
	Params   map[string]json.RawMessage // sent with each request, lexemes kept
	Reuse    Reuse
}

const (
	defaultPartitions  = 8
	defaultMaxDocument = 64 << 20
	defaultPageChars   = 3000
	maxFile            = 1 << 20

	// DefaultBaseURL is OpenAI's own.
	DefaultBaseURL = "https://api.openai.com/v1"
	// Models that OPENAI_BASE_URL and OPENAI_API_KEY switch on; OPENAI_MODEL and OPENAI_EMBEDDING_MODEL name others.
	defaultChatModel      = "gpt-4.1-mini"
	defaultEmbeddingModel = "text-embedding-3-small"
)

// Load reads and checks a swarm.yaml, or the swarm.yaml of a folder. The error
// is a Problems where the file could be read, and names every one of them.
// Flags are settings of the command line.
func Load(path string, flags ...Flag) (*Swarm, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "swarm.yaml")
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read the swarm: %w; name a swarm.yaml or the folder that holds one, such as examples/papers", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, fmt.Errorf("read the swarm: %s isn't a regular file of at most 1 MiB; name a swarm.yaml", path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the swarm: %w; give this user the right to read it", err)
	}
	return Parse(path, data, os.LookupEnv, flags...)
}

// Parse checks the bytes of a swarm.yaml. file names it in problems, and its
// folder is what relative paths count from; env is os.LookupEnv.
func Parse(file string, data []byte, env func(string) (string, bool), flags ...Flag) (*Swarm, error) {
	r := &reader{file: file}
	root := r.parse(data)
	if root == nil {
		return nil, r.problems
	}
	s := r.swarm(root)
	r.addModels(s, env)
	r.settingsBeside(&s.Settings, env, flags)
	r.check(s)
	if len(r.problems) > 0 {
		r.problems.sort()
		return nil, r.problems
	}
	return s, nil
}

// Agent is the agent of a name, or nil.
func (s *Swarm) Agent(name string) *Agent {
	return find(s.Agents, func(a *Agent) bool { return a.Name == name })
}

// Model is the model of a name, or nil.
func (s *Swarm) Model(name string) *Model {
	return find(s.Models, func(m *Model) bool { return m.Name == name })
}

func find[T any](list []T, is func(*T) bool) *T {
	for i := range list {
		if is(&list[i]) {
			return &list[i]
		}
	}
	return nil
}

// SetInput replaces the input folders of every finder, as --input does. Relative paths count from the working
// directory. It fails where the swarm has no finder.
func (s *Swarm) SetInput(folders ...string) error {
	abs := make([]string, len(folders))
	for i, f := range folders {
		a, err := filepath.Abs(f)
		if err != nil {
			return fmt.Errorf("make input folder %s absolute: %w", f, err)
		}
		abs[i] = a
	}
	found := false
	for i := range s.Agents {
		if s.Agents[i].Kind == Finder {
			s.Agents[i].Input, found = abs, true
		}
	}
	if !found {
		return fmt.Errorf("%s has no agent of kind finder to give input folders to; add one, or leave --input out", s.File)
	}
	return nil
}

// BuiltinAgents names the agents that use the built-in model, so that it can be said.
func (s *Swarm) BuiltinAgents() []string {
	var names []string
	for _, a := range s.Agents {
		if m := s.Model(a.Model); m != nil && m.Provider == Builtin {
			names = append(names, a.Name)
		}
	}
	return names
}

package inference

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/swarmlog/swarmlog/inference"
	"github.com/swarmlog/swarmlog/internal/config"
)

func params(text string) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		panic(err)
	}
	return m
}

func address(t interface {
	Fatal(...any)
	Helper()
}, m config.Model, tenant string, r inference.Request) [32]byte {
	t.Helper()
	p, err := newPrompt(m, tenant, r)
	if err != nil {
		t.Fatal(err)
	}
	return p.address
}

// Whatever changes the answer changes the address: a parameter that is set, omitted, null or not known yet.
func TestAddressesThatDiffer(t *testing.T) {
	model := config.Model{Provider: "openai", BaseURL: "http://a/v1", Model: "m"}
	msg := []inference.Message{{Role: "user", Content: "p"}}
	seen := make(map[[32]byte]string)
	check := func(name string, m config.Model, tenant string, r inference.Request) {
		a := address(t, m, tenant, r)
		if other, ok := seen[a]; ok {
			t.Errorf("%s and %s have one address", name, other)
		}
		seen[a] = name
	}
	for _, p := range []string{`{}`, `{"temperature":0}`, `{"temperature":0.0}`, `{"temperature":0.7}`, `{"temperature":null}`,
		`{"max_tokens":16}`, `{"max_tokens":4000}`, `{"tool_choice":"none"}`, `{"tool_choice":"auto"}`, `{"tools":[]}`, `{"tools":["search"]}`,
		`{"seed":1}`, `{"seed":"1"}`, `{"seed":9007199254740993}`, `{"seed":9007199254740992}`, `{"response_format":{"type":"json_object"}}`,
		`{"invented_next_year":true}`, `{"a":5}`, `{"a":5.0}`, `{"a":"5"}`, `{"e":["x","y"]}`, `{"e":["y","x"]}`} {
		check(p, model, "", inference.Request{Messages: msg, Params: params(p)})
	}
	check("system A", model, "", inference.Request{System: "A", Messages: msg})
	check("system B", model, "", inference.Request{System: "B", Messages: msg})
	check("two turns", model, "", inference.Request{Messages: []inference.Message{{Role: "user", Content: "p"}, {Role: "assistant", Content: "q"}}})
	check("two turns, turned", model, "", inference.Request{Messages: []inference.Message{{Role: "assistant", Content: "q"}, {Role: "user", Content: "p"}}})
	check("other role", model, "", inference.Request{Messages: []inference.Message{{Role: "assistant", Content: "p"}}})
	check("embedding", model, "", inference.Request{Input: "p"})
	check("tenant", model, "t", inference.Request{Messages: msg})
	for name, change := range map[string]func(*config.Model){
		"model": func(m *config.Model) { m.Model = "n" }, "provider": func(m *config.Model) { m.Provider = "x" },
		"server": func(m *config.Model) { m.BaseURL = "http://b/v1" }, "version": func(m *config.Model) { m.Version = "1" },
		"params of the model": func(m *config.Model) { m.Params = params(`{"top_p":1}`) },
	} {
		m := model
		change(&m)
		check(name, m, "", inference.Request{Messages: msg})
	}
}

func TestAddressesThatAreEqual(t *testing.T) {
	m := config.Model{Provider: "openai", Model: "m"}
	one := inference.Request{Input: "é", Params: params(`{"a":1,"b":{"x":[1,2],"y":null}}`)}
	two := inference.Request{Input: "é", Params: params(`{ "b" : {"y":null, "x":[1, 2]}, "a":1 }`)}
	if address(t, m, "", one) != address(t, m, "", two) {
		t.Error("the order of keys and blanks changes the address")
	}
	withModel := m
	withModel.Params = params(`{"a":2,"b":{"x":[1,2],"y":null}}`)
	if address(t, withModel, "", one) != address(t, m, "", one) {
		t.Error("the request's parameters don't win over the model's")
	}
	// Stable across processes and versions: stored answers are found by it.
	const want = "dc6a981844bfd77d8eb4316ba4ba731d45b62019f594a5f0c69ee53e2b3c9cf4"
	if got := hex.EncodeToString(address1(t, m, one)); got != want {
		t.Errorf("address %s, want %s: a new form needs a new addressVersion", got, want)
	}
}

func address1(t *testing.T, m config.Model, r inference.Request) []byte {
	a := address(t, m, "", r)
	return a[:]
}

func TestDifferentTextsHaveDifferentAddresses(t *testing.T) {
	m := config.Model{Provider: "openai", Model: "m"}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.Rune(), 1, 40, -1)
		a, b := text.Draw(t, "a"), text.Draw(t, "b")
		one, err1 := newPrompt(m, "", ask(a))
		two, err2 := newPrompt(m, "", ask(b))
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if (a == b) != (one.address == two.address) {
			t.Fatalf("%q and %q", a, b)
		}
	})
}

func TestVectorsSurviveEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.SliceOf(rapid.Float32Range(-1e30, 1e30)).Draw(t, "v")
		got, err := DecodeVector(EncodeVector(v))
		if err != nil || fmt.Sprint(got) != fmt.Sprint(v) {
			t.Fatalf("%v, %v", got, err)
		}
	})
	for _, b := range [][]byte{{1}, {0, 0, 0x80, 0x7f}, {0, 0, 0xc0, 0x7f}} {
		if _, err := DecodeVector(b); err == nil {
			t.Errorf("%v was decoded", b)
		}
	}
}

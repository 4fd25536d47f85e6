package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// This file is the only one that knows the YAML library. It turns a file into
// a tree of ours, in which every node has its place.
//
// goccy/go-yaml is used, and not go.yaml.in/yaml, since it tells line and
// column of syntax errors too (the other tells the line alone, at times the
// next one) and refuses keys that stand twice, naming both places.

type nodeKind int

const (
	scalar nodeKind = iota
	mapping
	sequence
	null
)

type node struct {
	kind      nodeKind
	line, col int
	text      string // of a scalar
	plain     bool   // a scalar without quotes
	pairs     []pair
	items     []*node
	from      string // where it comes from, if not from the file
}

type pair struct {
	key   *node
	value *node
}

func (n *node) String() string {
	switch n.kind {
	case mapping:
		return "a mapping"
	case sequence:
		return "a list"
	case null:
		return "nothing"
	default:
		return fmt.Sprintf("%q", shorten(n.text))
	}
}

// shorten keeps what was found readable, whatever it is.
func shorten(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// parse makes the tree, or nil with problems.
func (r *reader) parse(data []byte) (root *node) {
	// A panic of the parser is a file that can't be read, not the end of the process.
	defer func() {
		if v := recover(); v != nil {
			r.add(nil, "the file isn't YAML", "the parser gave up on it; check the quotes, brackets and indentation")
			root = nil
		}
	}()
	if len(data) > maxFile {
		r.add(nil, "the file is larger than 1 MiB", "a swarm.yaml is small; name the right file")
		return nil
	}
	if n := invalidUTF8(data); n >= 0 {
		before := data[:n]
		line := 1 + strings.Count(string(before), "\n")
		col := n - strings.LastIndexByte(string(before), '\n')
		r.addAt(line, col, fmt.Sprintf("byte 0x%02x isn't UTF-8", data[n]), "save the file as UTF-8")
		return nil
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		r.syntax(err)
		return nil
	}
	return r.document(file)
}

func (r *reader) syntax(err error) {
	var syntax *yaml.SyntaxError
	if !errors.As(err, &syntax) || syntax.Token == nil || syntax.Token.Position == nil {
		r.add(nil, "the file isn't YAML", "check the quotes, brackets and indentation")
		return
	}
	at := syntax.Token.Position
	instead := "check the quotes, brackets and indentation here and just before"
	if strings.Contains(syntax.Message, "already defined") {
		instead = "keep one of the two"
	}
	r.addAt(at.Line, at.Column, strings.TrimSpace(syntax.Message), instead)
}

func (r *reader) document(file *ast.File) *node {
	var root *node
	for _, doc := range file.Docs {
		if doc == nil || doc.Body == nil {
			continue
		}
		n := r.node(doc.Body)
		if root != nil {
			r.add(n, "a second document", "one file holds one swarm; remove what follows ---")
			continue
		}
		root = n
	}
	if root == nil {
		r.add(nil, "the file is empty", "write name, topics and agents; examples/papers/swarm.yaml shows how")
	}
	return root
}

func (r *reader) node(n ast.Node) *node {
	out := &node{kind: null, line: 1, col: 1}
	if t := n.GetToken(); t != nil {
		place(out, t)
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		out.kind = mapping
		for _, v := range n.Values {
			r.pair(out, v)
		}
		if len(out.pairs) > 0 && !n.IsFlowStyle {
			out.line, out.col = out.pairs[0].key.line, out.pairs[0].key.col
		}
	case *ast.MappingValueNode:
		out.kind = mapping
		r.pair(out, n)
		if len(out.pairs) > 0 {
			out.line, out.col = out.pairs[0].key.line, out.pairs[0].key.col
		}
	case *ast.SequenceNode:
		out.kind = sequence
		for _, v := range n.Values {
			out.items = append(out.items, r.node(v))
		}
	case *ast.NullNode:
	case *ast.StringNode:
		out.kind, out.text = scalar, n.Value
		out.plain = n.Token == nil || (n.Token.Type != token.SingleQuoteType && n.Token.Type != token.DoubleQuoteType)
	case *ast.LiteralNode:
		out.kind = scalar
		if n.Value != nil {
			out.text = n.Value.Value
		}
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		// The lexeme, not the value: 5.0 isn't 5.
		out.kind, out.plain, out.text = scalar, true, n.GetToken().Value
	case *ast.CommentGroupNode:
	default:
		r.add(out, "an anchor, alias, tag or merge key", "write the value out")
	}
	return out
}

func place(n *node, t *token.Token) {
	if t.Position != nil {
		n.line, n.col = t.Position.Line, t.Position.Column
	}
}

func (r *reader) pair(to *node, v *ast.MappingValueNode) {
	if v.Key == nil {
		return
	}
	key := &node{kind: scalar, line: 1, col: 1}
	t := v.Key.GetToken()
	if t != nil {
		place(key, t)
		key.text = t.Value
	}
	switch k := v.Key.(type) {
	case *ast.StringNode:
		key.text = k.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode:
	default:
		r.add(key, "a key that isn't a plain word", "write it as a word followed by a colon")
		return
	}
	value := &node{kind: null, line: key.line, col: key.col}
	if v.Value != nil {
		value = r.node(v.Value)
	}
	if value.kind == null {
		value.line, value.col = key.line, key.col
	}
	to.pairs = append(to.pairs, pair{key, value})
}

// jsonNumber is RFC 8259's number.
var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

// json turns a node into JSON with lexemes kept, for parameters that are sent as they stand.
func (r *reader) json(n *node) json.RawMessage {
	switch n.kind {
	case null:
		return json.RawMessage("null")
	case sequence:
		parts := make([]string, len(n.items))
		for i, item := range n.items {
			parts[i] = string(r.json(item))
		}
		return json.RawMessage("[" + strings.Join(parts, ",") + "]")
	case mapping:
		parts := make([]string, len(n.pairs))
		for i, p := range n.pairs {
			parts[i] = quote(p.key.text) + ":" + string(r.json(p.value))
		}
		return json.RawMessage("{" + strings.Join(parts, ",") + "}")
	}
	if n.plain && (n.text == "true" || n.text == "false" || jsonNumber.MatchString(n.text)) {
		return json.RawMessage(n.text)
	}
	return json.RawMessage(quote(n.text))
}

// quote cannot fail: the text is valid UTF-8, and a string always has a JSON form.
func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		return `""`
	}
	return string(b)
}

func invalidUTF8(b []byte) int {
	for i := 0; i < len(b); {
		c, size := utf8.DecodeRune(b[i:])
		if c == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

package canonical

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func mustJSON(t testing.TB, in string) string {
	t.Helper()
	out, err := JSON([]byte(in))
	if err != nil {
		t.Fatalf("JSON(%q): %v", in, err)
	}
	return string(out)
}

func TestForm(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"scalar", " \t\r\n true\n", `true`},
		{"null", `null`, `null`},
		{"false", `[false]`, `[false]`},
		{"empty object", `{ }`, `{}`},
		{"empty array", `[ ]`, `[]`},
		{"empty string", `""`, `""`},
		{"order", `{"b":1, "a":[{"d":null,"c":{"z":1,"y":2}}]}`, `{"a":[{"c":{"y":2,"z":1},"d":null}],"b":1}`},
		{"prefix first", `{"aa":1,"a":2,"":3}`, `{"":3,"a":2,"aa":1}`},
		{"arrays keep their order", `[3,1,2]`, `[3,1,2]`},
		{"escaped name sorts decoded", `{"b":1,"\u0061":2}`, `{"a":2,"b":1}`},
		{"quote in a name", `{"a\"b":1,"a!":2}`, `{"a!":2,"a\"b":1}`},
		// RFC 8785, section 3.2.2, but for the numbers.
		{"rfc strings", `{"string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/", "literals":[null,true,false]}`,
			`{"literals":[null,true,false],"string":"€$\u000f\nA'B\"\\\\\"/"}`},
		// RFC 8785, section 3.2.3.
		{"rfc order", `{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One",` +
			`"\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`,
			"{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",\"\ufb33\":\"Hebrew Letter Dalet With Dagesh\"}"},
		{"short escapes", `"\b\f\n\r\t\u0008\u000c\u000A\u000d\u0009"`, `"\b\f\n\r\t\b\f\n\r\t"`},
		{"other controls", `"\u0000\u001F\u007f"`, `"\u0000\u001f` + "\x7f" + `"`},
		{"raw unicode", `"\u2028<>&é"`, "\"\u2028<>&é\""},
		{"surrogate pair", `"\uD83D\uDE00"`, `"😀"`},
		{"backslash u stays", `"x\\u0000y"`, `"x\\u0000y"`},
		{"replacement character is a character", `"\ufffd"`, "\"\ufffd\""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := mustJSON(t, c.in); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// P4: integers above 2^53 keep their digits, and no number is normalised.
func TestP4NumbersVerbatim(t *testing.T) {
	for _, n := range []string{"0", "-0", "5", "5.0", "5.00", "1e2", "1E2", "1e+2", "100", "0.1", "-1.5e-10",
		"9007199254740992", "9007199254740993", "327267367867168100000", "1e400", "123456789012345678901234567890.5"} {
		if got := mustJSON(t, " "+n+" "); got != n {
			t.Errorf("%s became %s", n, got)
		}
	}
}

// C5: what differs stays different, what only looks different doesn't.
func TestC5Strength(t *testing.T) {
	same := func(a, b string, want bool) {
		t.Helper()
		if got := mustJSON(t, a) == mustJSON(t, b); got != want {
			t.Errorf("%s and %s: equal %v, want %v", a, b, got, want)
		}
	}
	same(`{"a":1,"b":2}`, `{"b":2,"a":1}`, true)
	same(`{"a":"\u00e9"}`, `{ "a" : "é" }`, true)
	same(`"1"`, `1`, false)
	same(`5`, `5.0`, false)
	same(`["a","b"]`, `["b","a"]`, false)
	same(`{"enum":["x","y"]}`, `{"enum":["y","x"]}`, false)
	same(`{"a":null}`, `{}`, false)
	same("\"é\"", "\"e\u0301\"", false)
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name, in string
		offset   int
	}{
		{"nothing", ``, 0},
		{"space", `  `, 2},
		{"P1 invalid UTF-8", "{\"a\":\"\xff\xfe\"}", 6},
		{"P1 Latin-1", "{\"a\":\"caf\xe9\"}", 9},
		{"invalid UTF-8 in a name", "{\"\xc3\":1}", 2},
		{"encoded surrogate", "\"\xed\xa0\xbd\"", 1},
		{"overlong", "\"\xc0\x80\"", 1},
		{"P2 lone high surrogate", `{"a":"\ud83d"}`, 6},
		{"P2 lone low surrogate", `{"a":"\udc59\ud835\udc5e2"}`, 6},
		{"high, then not low", `"\ud83d\u0041"`, 1},
		{"high, then high", `"\ud83d\ud83d\ude00"`, 1},
		{"high, then a literal", `"\ud83dx"`, 1},
		{"surrogate in a name", `{"\ud83d":1}`, 2},
		{"name twice", `{"a":1,"a":1}`, 12},
		{"name twice, escaped", `{"a":1,"b":2,"\u0061":1}`, 23},
		{"name twice, nested", `[{"x":{"k":1,"j":2,"k":3}}]`, 24},
		{"trailing garbage", `{} x`, 3},
		{"two values", `1 2`, 2},
		{"trailing comma", `[1,]`, 3},
		{"trailing comma in an object", `{"a":1,}`, 7},
		{"no comma", `[1 2]`, 3},
		{"no colon", `{"a" 1}`, 5},
		{"no quotes", `{a:1}`, 1},
		{"single quotes", `'a'`, 0},
		{"open array", `[1`, 2},
		{"open object", `{"a":1`, 6},
		{"open string", `"abc`, 4},
		{"open escape", `"abc\`, 4},
		{"unknown escape", `"\x41"`, 1},
		{"short unicode escape", `"\u12"`, 1},
		{"raw newline", "\"a\nb\"", 2},
		{"raw NUL", "\"a\x00b\"", 2},
		{"byte order mark", "\ufeff{}", 0},
		{"leading zero", `01`, 1},
		{"plus", `+1`, 0},
		{"bare minus", `-`, 0},
		{"bare point", `.5`, 0},
		{"point at the end", `5.`, 0},
		{"bare exponent", `5e`, 0},
		{"hexadecimal", `0x10`, 1},
		{"NaN", `NaN`, 0},
		{"Infinity", `-Infinity`, 0},
		{"capitals", `True`, 0},
		{"cut literal", `tru`, 0},
		{"long literal", `truex`, 4},
		{"comment", `/**/1`, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			dst := []byte("kept")
			got, err := Append(dst, []byte(c.in))
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %q, %v; want an *Error", got, err)
			}
			if e.Offset != c.offset {
				t.Errorf("%v; want offset %d", err, c.offset)
			}
			if string(got) != "kept" {
				t.Errorf("dst became %q", got)
			}
			if out, jsonErr := JSON([]byte(c.in)); out != nil || jsonErr == nil {
				t.Errorf("JSON: %q, %v", out, jsonErr)
			}
			if checkErr := Check([]byte(c.in)); checkErr == nil || checkErr.Error() != err.Error() {
				t.Errorf("Check says %v, Append %v", checkErr, err)
			}
		})
	}
}

func TestDepth(t *testing.T) {
	nested := func(n int) string { return strings.Repeat(`[`, n) + strings.Repeat(`]`, n) }
	if err := Check([]byte(nested(MaxDepth))); err != nil {
		t.Errorf("%d levels: %v", MaxDepth, err)
	}
	if err := Check([]byte(nested(MaxDepth + 1))); err == nil {
		t.Errorf("%d levels were accepted", MaxDepth+1)
	}
	objects := strings.Repeat(`{"a":`, MaxDepth+1) + "1" + strings.Repeat(`}`, MaxDepth+1)
	if err := Check([]byte(objects)); err == nil {
		t.Errorf("%d objects were accepted", MaxDepth+1)
	}
	if err := Check(bytes.Repeat([]byte(`[`), 10_000_000)); err == nil {
		t.Error("ten million brackets were accepted")
	}
}

// The eight-byte step must find every special byte at every place.
func TestPlain(t *testing.T) {
	for length := range 25 {
		for at := range length {
			for c := range 256 {
				s := bytes.Repeat([]byte{'a'}, length)
				s[at] = byte(c)
				want := length
				if c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
					want = at
				}
				if got := plain(s); got != want {
					t.Fatalf("plain(%q) = %d, want %d", s, got, want)
				}
			}
		}
	}
}

func TestMembers(t *testing.T) {
	in := []byte(` { "b" : [1, 2] ,"\u0061":{"a":"x"}, "c":5.0 } `)
	got := map[string]string{}
	if err := Members(in, func(name string, value []byte) error {
		got[name] = string(value)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"b": `[1, 2]`, "a": `{"a":"x"}`, "c": `5.0`}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}

	stop := errors.New("stop")
	if err := Members(in, func(string, []byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v, want the callback's error", err)
	}
	for _, bad := range []string{``, `[]`, `"a"`, `{"a":1}x`, `{"a":1,"a":2}`, `{"a":1`} {
		if err := Members([]byte(bad), func(string, []byte) error { return nil }); err == nil {
			t.Errorf("Members(%q) was accepted", bad)
		}
	}
}

func TestText(t *testing.T) {
	literal := []byte(`"plain é"`)
	got, err := Text(literal)
	if err != nil || string(got) != "plain é" {
		t.Errorf("got %q, %v", got, err)
	}
	if &got[0] != &literal[1] {
		t.Error("text without escapes was copied")
	}
	if got, err = Text([]byte(`"a\"\n\u00e9\ud83d\ude00"`)); err != nil || string(got) != "a\"\né😀" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, bad := range []string{``, `1`, `"a`, `"a"x`, `"\ud83d"`} {
		if got, err := Text([]byte(bad)); err == nil {
			t.Errorf("Text(%q) = %q", bad, got)
		}
	}
}

// value draws a JSON value as encoding/json would decode it with UseNumber.
func value(depth int) *rapid.Generator[any] {
	leaf := rapid.OneOf(
		rapid.Just[any](nil),
		rapid.Map(rapid.Bool(), func(b bool) any { return b }),
		rapid.Map(rapid.String(), func(s string) any { return s }),
		rapid.Map(rapid.StringMatching(`-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,5})?([eE][+-]?[0-9]{1,3})?`),
			func(s string) any { return json.Number(s) }),
	)
	if depth == 0 {
		return leaf
	}
	inner := value(depth - 1)
	return rapid.OneOf(leaf,
		rapid.Map(rapid.SliceOfN(inner, 0, 5), func(s []any) any { return s }),
		rapid.Map(rapid.MapOfN(rapid.String(), inner, 0, 20), func(m map[string]any) any { return m }))
}

// write writes v with drawn key order, whitespace and escapes.
func write(t *rapid.T, b *bytes.Buffer, v any) {
	blank := rapid.SampledFrom([]string{"", "", " ", "\n\t", "\r\n  "})
	space := func() { b.WriteString(blank.Draw(t, "space")) }
	space()
	defer space()
	switch v := v.(type) {
	case []any:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			write(t, b, e)
		}
		if len(v) == 0 {
			space()
		}
		b.WriteByte(']')
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		b.WriteByte('{')
		for i, k := range rapid.Permutation(keys).Draw(t, "order") {
			if i > 0 {
				b.WriteByte(',')
			}
			space()
			writeText(t, b, k)
			space()
			b.WriteByte(':')
			write(t, b, v[k])
		}
		b.WriteByte('}')
	case string:
		writeText(t, b, v)
	case json.Number:
		b.WriteString(string(v))
	default:
		out, _ := json.Marshal(v)
		b.Write(out)
	}
}

func writeText(t *rapid.T, b *bytes.Buffer, s string) {
	if rapid.Bool().Draw(t, "plain text") {
		out, _ := json.Marshal(s)
		b.Write(out)
		return
	}
	b.WriteByte('"')
	for _, unit := range utf16.Encode([]rune(s)) {
		b.WriteString(`\u` + string("0123456789abcdef"[unit>>12]) + string("0123456789ABCDEF"[unit>>8&15]) +
			string("0123456789abcdef"[unit>>4&15]) + string("0123456789ABCDEF"[unit&15]))
	}
	b.WriteByte('"')
}

func decode(t interface{ Fatalf(string, ...any) }, in []byte) any {
	d := json.NewDecoder(bytes.NewReader(in))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("encoding/json refuses %q: %v", in, err)
	}
	return v
}

func TestPropertyOneFormPerValue(t *testing.T) {
	gen := value(3)
	rapid.Check(t, func(t *rapid.T) {
		v := gen.Draw(t, "value")
		var a, b bytes.Buffer
		write(t, &a, v)
		write(t, &b, v)
		form, err := JSON(a.Bytes())
		if err != nil {
			t.Fatalf("JSON(%q): %v", a.Bytes(), err)
		}
		other, err := JSON(b.Bytes())
		if err != nil {
			t.Fatalf("JSON(%q): %v", b.Bytes(), err)
		}
		if !bytes.Equal(form, other) {
			t.Fatalf("two spellings, two forms:\n%q → %s\n%q → %s", a.Bytes(), form, b.Bytes(), other)
		}
		if again, err := JSON(form); err != nil || !bytes.Equal(again, form) {
			t.Fatalf("not idempotent: %s → %s, %v", form, again, err)
		}
		if got, want := decode(t, form), decode(t, a.Bytes()); !reflect.DeepEqual(got, want) {
			t.Fatalf("meaning changed: %q → %s", a.Bytes(), form)
		}
	})
}

func TestPropertyDifferentValuesDiffer(t *testing.T) {
	gen := value(2)
	rapid.Check(t, func(t *rapid.T) {
		var a, b bytes.Buffer
		v, w := gen.Draw(t, "one"), gen.Draw(t, "other")
		write(t, &a, v)
		write(t, &b, w)
		x, _ := JSON(a.Bytes())
		y, _ := JSON(b.Bytes())
		if same := reflect.DeepEqual(decode(t, a.Bytes()), decode(t, b.Bytes())); bytes.Equal(x, y) != same {
			t.Fatalf("values equal: %v, forms %s and %s", same, x, y)
		}
	})
}

func TestPropertyOrderIsUTF16(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		common := rapid.String().Draw(t, "common")
		a, b = common+a, common+b
		want := slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
		got := compare([]byte(a), []byte(b))
		if (got < 0) != (want < 0) || (got > 0) != (want > 0) {
			t.Fatalf("compare(%q, %q) = %d, want %d", a, b, got, want)
		}
	})
}

func FuzzJSON(f *testing.F) {
	for _, s := range []string{``, `{}`, `{"b":1,"a":[1e2,5.0,"\u00e9\ud83d\ude00"]}`, `{"a":1,"a":2}`, `"\ud83d"`,
		"{\"a\":\"\xff\xfe\"}", `[9007199254740993,-0]`, `{"\u0061":1,"b":{"z":1,"y":2}}`, "\"\u2028\"", `[[[[]]]]`, `{"":{"":{}}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		before := bytes.Clone(in)
		form, err := JSON(in)
		if !bytes.Equal(in, before) {
			t.Fatal("the input was changed")
		}
		if checkErr := Check(in); (checkErr == nil) != (err == nil) {
			t.Fatalf("Check says %v, JSON %v", checkErr, err)
		}
		if err != nil {
			return
		}
		if !json.Valid(in) || !utf8.Valid(in) {
			t.Fatalf("accepted what isn't JSON: %q", in)
		}
		if len(form) > len(in) {
			t.Fatalf("form %q is longer than %q", form, in)
		}
		if again, err := JSON(form); err != nil || !bytes.Equal(again, form) {
			t.Fatalf("not idempotent: %q → %q → %q, %v", in, form, again, err)
		}
		if got, want := decode(t, form), decode(t, in); !reflect.DeepEqual(got, want) {
			t.Fatalf("meaning changed: %q → %q", in, form)
		}
		members := 0
		if err := Members(in, func(string, []byte) error { members++; return nil }); err == nil {
			if m := decode(t, in).(map[string]any); len(m) != members {
				t.Fatalf("%d members of %d in %q", members, len(m), in)
			}
		}
	})
}

// What encoding/json takes and we refuse must have one of the reasons that we name.
func FuzzRefusals(f *testing.F) {
	f.Add([]byte(`{"a":1,"a":2}`))
	f.Add([]byte(`["\ud83d"]`))
	f.Fuzz(func(t *testing.T, in []byte) {
		err := Check(in)
		if err == nil || !json.Valid(in) {
			return
		}
		for _, reason := range []string{"surrogate", "invalid UTF-8", "twice", "too deep"} {
			if strings.Contains(err.Error(), reason) {
				return
			}
		}
		t.Fatalf("%q is refused: %v", in, err)
	})
}

func document(n int) []byte {
	type page struct {
		Document string   `json:"document"`
		Page     int      `json:"page"`
		ID       *big.Int `json:"id"`
		Text     string   `json:"text"`
		Terms    []string `json:"terms"`
		Author   any      `json:"author"`
	}
	text := strings.Repeat("The quick brown fox jumps over the lazy dog. ", n/45+1)[:n]
	b, _ := json.Marshal(page{"reports/2024/annual.pdf", 17, big.NewInt(9007199254740993), text,
		[]string{"fox", "dog"}, map[string]any{"name": "Zoë", "email": "zoe@example.com"}})
	return b
}

func BenchmarkAppend(b *testing.B) {
	for _, size := range []struct {
		name string
		n    int
	}{{"200B", 45}, {"1KB", 850}, {"64KB", 65000}} {
		doc := document(size.n)
		b.Run("append/"+size.name, func(b *testing.B) {
			dst := make([]byte, 0, len(doc))
			b.SetBytes(int64(len(doc)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Append(dst, doc); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("check/"+size.name, func(b *testing.B) {
			b.SetBytes(int64(len(doc)))
			b.ReportAllocs()
			for b.Loop() {
				if err := Check(doc); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("encoding-json-valid/"+size.name, func(b *testing.B) {
			b.SetBytes(int64(len(doc)))
			for b.Loop() {
				if !json.Valid(doc) {
					b.Fatal("invalid")
				}
			}
		})
	}
}

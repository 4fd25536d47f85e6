package event_test

import (
	"strings"
	"testing"

	"github.com/swarmlog/swarmlog/event"
)

var page = []byte(`{"document":"reports/annual.pdf","page":17,"sha256":"9f86d081884c7d659a2feaa0c55ad015","text":"` +
	strings.Repeat("The quick brown fox jumps over the lazy dog. ", 18) + `","author":{"name":"Zo\u00eb"}}`)

func benchmarkDecode(b *testing.B, m event.Message) {
	b.SetBytes(int64(len(m.Value)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := event.Decode(m, at); err != nil {
			b.Fatal(err)
		}
	}
}

var pageAttributes = []string{"ce_specversion", "1.0", "ce_id", "sjmrunn2i4o43aws2h3ndduukq", "ce_source", "swarm:papers/splitter", "ce_type", "PageReadEvent",
	"ce_subject", "reports/annual.pdf", "ce_time", "2024-05-17T08:30:00.123Z"}

func BenchmarkDecode(b *testing.B) {
	key := []byte("reports/annual.pdf")
	b.Run("binary-no-data", func(b *testing.B) { benchmarkDecode(b, message(key, nil, pageAttributes...)) })
	b.Run("binary-json-1KB", func(b *testing.B) {
		benchmarkDecode(b, message(key, page, append(pageAttributes, "content-type", "application/json")...))
	})
	b.Run("binary-extensions", func(b *testing.B) {
		benchmarkDecode(b, message(key, nil, append(pageAttributes, "ce_hops", "3", "ce_traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")...))
	})
	b.Run("structured-json-1KB", func(b *testing.B) {
		benchmarkDecode(b, structured(`{"specversion":"1.0","id":"1","source":"/s","type":"t","subject":"x","time":"2024-05-17T08:30:00.123Z","data":`+string(page)+`}`))
	})
	b.Run("foreign", func(b *testing.B) {
		benchmarkDecode(b, message(key, []byte(`{"type":"TaskCreatedEvent","payload":{"taskId":"t-1","description":"Read it","priority":"high"}}`)))
	})
}

func BenchmarkDigest(b *testing.B) {
	for _, size := range []struct {
		name string
		data []byte
	}{{"100B", []byte(`{"taskId":"t-1","description":"Read the annual report","priority":"high","agentId":"worker-agent-3"}`)}, {"1KB", page}} {
		e := mustDecode(b, message(nil, size.data, append(pageAttributes, "content-type", "application/json")...))
		b.Run(size.name, func(b *testing.B) {
			b.SetBytes(int64(len(e.Data)))
			b.ReportAllocs()
			for b.Loop() {
				e.Digest()
			}
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	e := mustDecode(b, message(nil, page, append(pageAttributes, "content-type", "application/json")...))
	e.SetHops(1)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Encode(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDeriveID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		event.DeriveID("reader", "swarm:papers/splitter", "sjmrunn2i4o43aws2h3ndduukq", 3)
	}
}

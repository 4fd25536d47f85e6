package swarmlog_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/swarmlog/swarmlog"
	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/ledger"
)

func revenue(ctx context.Context, tx ledger.Tx) error {
	_, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS revenue (customer TEXT PRIMARY KEY, cents INTEGER NOT NULL)`)
	return err
}

func Example() {
	if err := example(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// customer-7 spent 2000 cents
	// 2 applied, 1 duplicate, 1 dead
}

func example(ctx context.Context) error {
	counter := swarmlog.Handle("counter", func(ctx context.Context, e event.Event, s *swarmlog.Step) error {
		var order struct{ Cents int64 }
		if err := e.Decode(&order); err != nil {
			return swarmlog.Permanent(err) // no attempt can mend it: to the dead letters
		}
		s.Tx(func(ctx context.Context, tx ledger.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO revenue (customer, cents) VALUES ($1, $2)
				ON CONFLICT (customer) DO UPDATE SET cents = cents + excluded.cents`, e.Subject, order.Cents)
			return err
		})
		s.Emit(event.New("OrderCountedEvent", e.Subject, order))
		return nil
	}, swarmlog.Reads("orders"), swarmlog.Emits("counted"), swarmlog.Tables(revenue))

	swarm, err := swarmlog.Start(ctx, swarmlog.Agents(counter), swarmlog.InMemory())
	if err != nil {
		return err
	}
	err = swarm.Publish(ctx, "orders", event.New("OrderPlacedEvent", "customer-7", map[string]int{"Cents": 1250}))
	if err != nil {
		return err
	}
	defer swarm.Stop(ctx)
	again := event.New("OrderPlacedEvent", "customer-7", map[string]int{"Cents": 750})
	again.Source, again.ID = "//shop", "order-2"
	broken := event.New("OrderPlacedEvent", "customer-8", map[string]string{"Cents": "many"})
	if err := swarm.Publish(ctx, "orders", again, again, broken); err != nil {
		return err
	}
	if err := swarm.Settled(ctx); err != nil {
		return err
	}
	var cents int64
	err = swarm.Read(ctx, func(ctx context.Context, tx ledger.Tx) error {
		return tx.QueryRow(ctx, `SELECT cents FROM revenue WHERE customer = $1`, "customer-7").Scan(&cents)
	})
	if err != nil {
		return err
	}
	c, err := swarm.Counters(ctx, "counter")
	if err != nil {
		return err
	}
	fmt.Printf("customer-7 spent %d cents\n%d applied, %d duplicate, %d dead\n", cents, c.Applied, c.Duplicate, c.Dead)
	return nil
}

// The same agents on servers of one's own, in as many processes as one likes.
func Example_servers() {
	ctx := context.Background()
	counter := swarmlog.Handle("counter", func(context.Context, event.Event, *swarmlog.Step) error { return nil }, swarmlog.Reads("orders"))
	err := swarmlog.Run(ctx, swarmlog.Agents(counter),
		swarmlog.Kafka(swarmlog.KafkaCluster{Brokers: []string{"kafka-1:9092"}}),
		swarmlog.Postgres(os.Getenv("LEDGER"), "orders"))
	if err != nil {
		fmt.Println(err)
	}
}

// TestTutorial holds the code of the package's documentation against the example above, which is compiled and run.
func TestTutorial(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for line := range strings.Lines(string(code)) {
		have[strings.TrimSpace(line)] = true
	}
	blocks := 0
	for line := range strings.Lines(string(doc)) {
		text, ok := strings.CutPrefix(line, "//\t")
		text = strings.TrimSpace(text)
		if !ok || !strings.ContainsAny(text, "{}():=") || strings.Contains(text, "   ") {
			continue
		}
		blocks++
		if !have[text] && text != `err := swarmlog.Run(ctx, swarmlog.Agents(counter), swarmlog.Data("./orders"))` {
			t.Errorf("doc.go shows a line that the example doesn't run: %s", text)
		}
	}
	if blocks < 15 {
		t.Errorf("found %d lines of code in doc.go, expected the tutorial's", blocks)
	}
}

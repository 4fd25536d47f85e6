// Package swarmlog runs swarms of agents on a log, so that nothing accepted is
// lost, nothing happens twice, order holds within each aggregate, and one heavy
// event never stalls the rest.
//
// # A first agent
//
// An agent is a function with a name. It gets one event at a time of each
// aggregate (the event's Subject), and says what it wants done by way of the
// step; nothing of that happens before it has returned nil, and then all of it
// happens, once:
//
//	counter := swarmlog.Handle("counter", func(ctx context.Context, e event.Event, s *swarmlog.Step) error {
//		var order struct{ Cents int64 }
//		if err := e.Decode(&order); err != nil {
//			return swarmlog.Permanent(err) // no attempt can mend it: to the dead letters
//		}
//		s.Tx(func(ctx context.Context, tx ledger.Tx) error {
//			_, err := tx.Exec(ctx, `INSERT INTO revenue (customer, cents) VALUES ($1, $2)
//				ON CONFLICT (customer) DO UPDATE SET cents = cents + excluded.cents`, e.Subject, order.Cents)
//			return err
//		})
//		s.Emit(event.New("OrderCountedEvent", e.Subject, order))
//		return nil
//	}, swarmlog.Reads("orders"), swarmlog.Emits("counted"), swarmlog.Tables(revenue))
//
// The SQL runs in the transaction that also notes the agent's progress and the
// event to emit. Adding to a sum needs no care for repetition: should the
// process be killed at any moment, the event's effect is there once.
//
// # Running it
//
// Run starts an embedded broker and ledger in a folder, and the agents on them,
// until its context ends:
//
//	err := swarmlog.Run(ctx, swarmlog.Agents(counter), swarmlog.Data("./orders"))
//
// Start does the same and returns the running swarm, to publish events to and
// to look at:
//
//	swarm, err := swarmlog.Start(ctx, swarmlog.Agents(counter), swarmlog.InMemory())
//	if err != nil {
//		return err
//	}
//	err = swarm.Publish(ctx, "orders", event.New("OrderPlacedEvent", "customer-7", map[string]int{"Cents": 1250}))
//
// # Several processes
//
// With Kafka and Postgres the same agents run on servers of one's own, in as
// many processes as one likes, which share the work. One that is killed is
// replaced within LeaseTime, and each event still has one effect:
//
//	err := swarmlog.Run(ctx, swarmlog.Agents(counter),
//		swarmlog.Kafka(swarmlog.KafkaCluster{Brokers: []string{"kafka-1:9092"}}),
//		swarmlog.Postgres(os.Getenv("LEDGER"), "orders"))
//
// # What a handler may do
//
// It runs outside any transaction, so it may take minutes. It may run again for
// the same event: after a crash, after losing its partition, or because it
// failed. Therefore it changes nothing itself. What leaves this machine can't
// join the transaction: for model calls there is Step.Infer, whose answers are
// recorded before they are used and never paid for twice.
//
// # Errors
//
//	an error without a mark   runs again with back-off and full jitter; after Limits.Attempts runs it's dead-lettered
//	Permanent(err)            dead-lettered at once
//	Unavailable(err)          runs again without a limit: something that all events need is down
//	Fatal(err)                the agent stops; the others go on
//	Step.Refuse, Step.Skip    no error: the event is counted as refused or skipped, and nothing else is done
//
// A dead-lettered event goes to the topic DeadTopic(topic), byte for byte, with
// the reason in its headers. Later events of its aggregate wait behind it, so
// that order is kept, unless the agent was made with SkipDead. Events of other
// aggregates go on either way.
//
// # Testing
//
// Package swarmtest runs agents in memory, on the same broker, ledger and
// engine.
package swarmlog

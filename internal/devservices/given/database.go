package given

import (
	"context"
	"crypto/rand"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Database makes a database of the test's own on PostgreSQL, and drops it at the end, whoever is connected still. It
// returns its connection URL.
func Database(t testing.TB) string {
	t.Helper()
	server := Postgres(t)
	name := "test_" + strings.ToLower(rand.Text()[:16])
	statement(t, server, "CREATE DATABASE "+name)
	t.Cleanup(func() { statement(t, server, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal("the URL of PostgreSQL can't be read") // it holds a password
	}
	u.Path = "/" + name
	return u.String()
}

func statement(t testing.TB, server, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, server)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = c.Exec(ctx, text); err != nil {
		t.Errorf("%s: %v", text, err)
	}
	if err := c.Close(ctx); err != nil {
		t.Error(err)
	}
}

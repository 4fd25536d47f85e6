package postgres

import (
	"net"
	"strconv"
)

// Place is where the ledger is, for people: host, database and schema, and no credentials.
func (db *DB) Place() string {
	c := db.pool.Config().ConnConfig
	host := c.Host
	if c.Port != 0 {
		host = net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	}
	return "PostgreSQL at " + host + ", database " + c.Database + ", schema " + db.opts.Schema
}

// Command swarmlog runs swarms of agents on a log: see swarmlog --help.
package main

import (
	"os"

	"github.com/swarmlog/swarmlog/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

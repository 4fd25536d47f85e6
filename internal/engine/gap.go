package engine

import (
	"strings"

	"github.com/swarmlog/swarmlog/ledger"
)

func isGap(reason string) bool { return strings.HasPrefix(reason, ledger.GapReason) }

package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/progress"
)

type pagesCommand struct {
	location
	JSON bool `name:"json" help:"Print one JSON object a page."`
}

// Run prints every page.
func (c *pagesCommand) Run(ctx context.Context, s *streams) (err error) {
	data, err := c.index(ctx)
	if err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	out := bufio.NewWriter(s.out)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	err = data.Pages(ctx, func(p httpapi.Page) error {
		if c.JSON {
			return lines.Encode(p)
		}
		_, err := fmt.Fprintf(out, "%s, %s: %s\n", progress.Printable(p.Document), place(httpapi.Hit{Page: p.Page, Part: p.Part}),
			progress.Printable(strings.Join(strings.Fields(p.Summary), " ")))
		return err
	})
	if err != nil {
		return fmt.Errorf("pages: %w", err)
	}
	return out.Flush()
}

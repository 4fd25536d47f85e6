package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/progress"
)

// longestQuery is what the API of a running swarm takes.
const longestQuery = 1000

type searchCommand struct {
	Words []string `arg:"" help:"What to look for."`
	location
	Limit int  `default:"10" help:"Pages to print at most, from 1 to 100."`
	JSON  bool `name:"json" help:"Print one JSON object a page."`
}

// Run searches and prints pages, best first.
func (c *searchCommand) Run(ctx context.Context, s *streams) (err error) {
	words := strings.TrimSpace(strings.Join(c.Words, " "))
	if words == "" {
		return usage(errors.New(`search for nothing: give words to look for, such as swarmlog search "exactly once"`))
	}
	if n := utf8.RuneCountInString(words); n > longestQuery {
		return usage(fmt.Errorf("search: the query has %d characters; give at most %d", n, longestQuery))
	}
	if c.Limit < 1 || c.Limit > 100 {
		return usage(fmt.Errorf("--limit %d: give a number from 1 to 100", c.Limit))
	}
	data, err := c.index(ctx)
	if err != nil {
		return fmt.Errorf("search: %w", err)
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	hits, err := data.Search(ctx, words, c.Limit)
	if err != nil {
		return fmt.Errorf("search: %w", err)
	}
	if c.JSON {
		lines := json.NewEncoder(s.out)
		lines.SetEscapeHTML(false)
		for _, h := range hits {
			if err := lines.Encode(h); err != nil {
				return err
			}
		}
		return nil
	}
	if len(hits) == 0 {
		_, err := fmt.Fprintln(s.out, "No page has these words.")
		return err
	}
	for i, h := range hits {
		if _, err := fmt.Fprintf(s.out, "%2d. %s, %s  (%.3f)\n    %s\n", i+1, progress.Printable(h.Document), place(h), h.Score,
			progress.Printable(strings.Join(strings.Fields(h.Excerpt), " "))); err != nil {
			return err
		}
	}
	return nil
}

func place(h httpapi.Hit) string {
	if h.Part > 0 {
		return fmt.Sprintf("page %d, part %d", h.Page, h.Part)
	}
	return fmt.Sprintf("page %d", h.Page)
}

package agents

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/swarmlog/swarmlog/ledger"
)

// Letter is what a dead letter of the built-in agents says.
type Letter struct {
	Subject string
	Reason  string
}

// About is a file that a dead letter is about.
type About struct {
	Name string // within its input folder
	Path string
	Page int // 0: the whole document
}

// filePrefix begins the subject of a file that can't be read; the rest is made from its path.
const filePrefix = "file-"

// Letters tells what each dead letter is about: the files that hold its document now. None where nobody needs to
// know any more: the file is gone, holds something else, or was read after all. It's nil where the subject is no
// document's.
func Letters(ctx context.Context, tx ledger.Tx, letters []Letter) ([][]About, error) {
	s, err := storeOf(tx)
	if err != nil {
		return nil, err
	}
	var problems map[string]file // by subject
	all := make([][]About, len(letters))
	for i, l := range letters {
		if !strings.HasPrefix(l.Subject, filePrefix) {
			if all[i], err = holders(ctx, s, l.Subject); err != nil {
				return nil, fmt.Errorf("look up what dead letter %s is about: %w", l.Subject, err)
			}
			continue
		}
		if problems == nil {
			problems = map[string]file{}
			if err := s.problems(ctx, func(f file) { problems[filePrefix+pathID(f.Path)] = f }); err != nil {
				return nil, fmt.Errorf("list files that can't be read: %w", err)
			}
		}
		all[i] = []About{}
		if f, ok := problems[l.Subject]; ok && strings.HasSuffix(l.Reason, f.Problem) {
			all[i] = append(all[i], About{Name: f.Name, Path: f.Path})
		}
	}
	return all, nil
}

// holders are the files of a document or of the page of one.
func holders(ctx context.Context, s store, subject string) (files []About, err error) {
	document, page, isPage := strings.Cut(subject, "/")
	if len(document) != 64 || (isPage && pageNumber(page) == 0) {
		return nil, nil // somebody else's subject
	}
	number := 0
	if isPage {
		number = pageNumber(page)
	} else if state, err := s.splitState(ctx, document); err != nil || state == split {
		return []About{}, err
	}
	files = []About{}
	err = s.holders(ctx, document, func(f file) { files = append(files, About{Name: f.Name, Path: f.Path, Page: number}) })
	return files, err
}

// pageNumber reads the part of a page's subject behind the document; 0: it's no page.
func pageNumber(s string) int {
	s, _, _ = strings.Cut(s, ".")
	if n, err := strconv.Atoi(s); err == nil {
		return n
	}
	return 0
}

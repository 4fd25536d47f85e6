package app

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	"github.com/swarmlog/swarmlog/internal/agents"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/ledger/sqlite"
	"github.com/swarmlog/swarmlog/ledger"
)

// Data answers questions about what a swarm has read: from PostgreSQL, where the swarm's ledger is there; else from the
// process that runs on the data folder, where one does, or from the folder itself, read-only.
type Data struct {
	address string // of the running process
	db      interface {
		Readable
		Close() error
	}
	client *http.Client
}

// OpenWhere opens what a swarm has read for questions. Where nothing has been read yet it's an error that wraps
// fs.ErrNotExist.
func OpenWhere(ctx context.Context, w Where) (*Data, error) {
	if w.Settings.Postgres.DSN.IsZero() {
		return OpenData(w.Data)
	}
	w.Settings.Kafka = config.Kafka{} // what was read is in the ledger alone
	desk, err := Connect(ctx, w)
	if err != nil {
		return nil, err
	}
	var there bool
	err = desk.Ledger.Read(ctx, func(ctx context.Context, tx ledger.Tx) (err error) {
		there, err = agents.Present(ctx, tx)
		return err
	})
	if err == nil && !there {
		err = fmt.Errorf("open the index of documents: %w: no swarm has read any into this database yet; start one with swarmlog run", fs.ErrNotExist)
	}
	if err != nil {
		return nil, errors.Join(err, desk.Close())
	}
	return &Data{db: readDesk{desk}}, nil
}

// readDesk is a desk of which the ledger alone is read.
type readDesk struct{ *Desk }

func (d readDesk) Read(ctx context.Context, f func(context.Context, ledger.Tx) error) error {
	return d.Ledger.Read(ctx, f)
}

// OpenData opens a data folder for questions.
func OpenData(folder string) (*Data, error) {
	running, err := Running(folder)
	if err != nil {
		return nil, err
	}
	if running {
		a, err := ReadAddress(folder)
		if err == nil && a.HTTP != "" {
			return &Data{address: a.HTTP, client: &http.Client{Transport: &http.Transport{Proxy: nil}}}, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	db, err := sqlite.OpenReadOnly(filepath.Join(folder, LedgerFile))
	if err != nil {
		return nil, err
	}
	return &Data{db: db}, nil
}

// Close ends it.
func (d *Data) Close() error {
	if d.db != nil {
		return d.db.Close()
	}
	d.client.CloseIdleConnections()
	return nil
}

// Search finds pages by words, best first.
func (d *Data) Search(ctx context.Context, words string, limit int) ([]httpapi.Hit, error) {
	if d.db != nil {
		return search(ctx, d.db, words, limit)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	body, err := d.get(ctx, "/api/v1/search?"+url.Values{"q": {words}, "limit": {strconv.Itoa(limit)}}.Encode())
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var answer struct{ Hits []httpapi.Hit }
	if err := json.NewDecoder(body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("search through %s: read the answer: %w", d.address, err)
	}
	return answer.Hits, nil
}

// Pages hands out every page, by document and page.
func (d *Data) Pages(ctx context.Context, yield func(httpapi.Page) error) error {
	if d.db != nil {
		return d.db.Read(ctx, func(ctx context.Context, tx ledger.Tx) error { return pages(ctx, tx, yield) })
	}
	body, err := d.get(ctx, "/api/v1/pages")
	if err != nil {
		return err
	}
	defer body.Close()
	lines := json.NewDecoder(bufio.NewReaderSize(body, 64<<10))
	for {
		var p httpapi.Page
		err := lines.Decode(&p)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list pages through %s: the answer broke off: %w", d.address, err)
		}
		if err := yield(p); err != nil {
			return err
		}
	}
}

// get asks the running process; what it refuses comes back in its own words.
func (d *Data) get(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.address+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the running swarm: %w; it may have just ended: try again", err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	var problem httpapi.Problem
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&problem); err != nil || problem.Detail == "" {
		return nil, fmt.Errorf("ask the running swarm at %s: it answers %s", d.address, resp.Status)
	}
	return nil, fmt.Errorf("ask the running swarm: %s: %s", problem.Detail, problem.Next)
}

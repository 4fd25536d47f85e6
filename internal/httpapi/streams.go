package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/swarmlog/swarmlog/internal/telemetry/recent"
)

const (
	maxStreams  = 32                     // streams of events open at once
	streamPace  = 250 * time.Millisecond // between two batches of events, so that a flood can't drown a browser
	streamPing  = 20 * time.Second       // a comment when nothing happened, so that dead clients are noticed
	streamWrite = 10 * time.Second       // for one write: a client that takes longer is dropped
)

// stream writes to a client for as long as the client keeps up.
type stream struct {
	buf  *bufio.Writer
	ctrl *http.ResponseController
}

func newStream(ctx huma.Context, contentType string) stream {
	_, w := humachi.Unwrap(ctx)
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(http.StatusOK)
	s := stream{bufio.NewWriterSize(w, 32<<10), http.NewResponseController(w)}
	s.extend()
	return s
}

// extend gives the next writes their time. Where the connection knows no deadlines, as in tests, there are none.
func (s stream) extend() { _ = s.ctrl.SetWriteDeadline(time.Now().Add(streamWrite)) }

func (s stream) flush() error {
	s.extend()
	if err := s.buf.Flush(); err != nil {
		return err
	}
	return s.ctrl.Flush()
}

type eventsRequest struct {
	LastEventID string `header:"Last-Event-ID" doc:"Number of the last event that was seen; browsers send it when they connect again"`
}

// missed is told to a reader that was too slow for the ring.
type missed struct {
	Missed uint64 `json:"missed" doc:"Events that are gone since the last one that was sent"`
}

func (a *api) registerEvents(api huma.API) {
	op := operation("events", "/api/v1/events", "Follow what happens",
		"Server-sent events. Event `happening` carries one happening, the recent ones first; event `missed` says how many "+
			"are gone where the reader was too slow or came late. A reader that takes no data for ten seconds is dropped.")
	schemas := api.OpenAPI().Components.Schemas
	op.Responses = map[string]*huma.Response{"200": {
		Description: "A stream of events that ends when either side leaves",
		Content: map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{
			Description: "The data of each event",
			OneOf: []*huma.Schema{
				huma.SchemaFromType(schemas, reflect.TypeFor[recent.Happening]()),
				huma.SchemaFromType(schemas, reflect.TypeFor[missed]()),
			},
		}}},
	}}
	huma.Register(api, op, func(_ context.Context, in *eventsRequest) (*huma.StreamResponse, error) {
		after, _ := strconv.ParseUint(in.LastEventID, 10, 64) // what isn't a number of ours is a reader without one
		select {
		case a.streams <- struct{}{}:
		default:
			return nil, newProblem(CodeTooMany, fmt.Sprintf("%d readers follow the events already", maxStreams))
		}
		return &huma.StreamResponse{Body: func(ctx huma.Context) {
			defer func() { <-a.streams }()
			// An error here is a client that left or was too slow; it connects again or it doesn't.
			_ = a.follow(ctx, after)
		}}, nil
	})
}

// follow sends happenings with numbers above after until the client leaves, is too slow, or the server closes.
func (a *api) follow(hctx huma.Context, after uint64) error {
	ctx, cancel := untilClosing(hctx.Context())
	defer cancel()
	s := newStream(hctx, "text/event-stream")
	fmt.Fprint(s.buf, "retry: 2000\n\n")
	if err := s.flush(); err != nil {
		return err
	}
	for ctx.Err() == nil {
		items, gone := a.Events.After(after)
		if err := s.happenings(items, gone); err != nil {
			return err
		}
		if len(items) > 0 {
			after = items[len(items)-1].ID
			if !pause(ctx, streamPace) {
				return nil
			}
		}
		wait, stop := context.WithTimeout(ctx, streamPing)
		err := a.Events.Wait(wait, min(after, a.Events.Last()))
		stop()
		if err != nil && ctx.Err() == nil {
			fmt.Fprint(s.buf, ": still here\n\n")
			if err := s.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s stream) happenings(items []recent.Happening, gone uint64) error {
	s.extend()
	if gone > 0 {
		if err := s.event("", "missed", missed{gone}); err != nil {
			return err
		}
	}
	for _, h := range items {
		if err := s.event(strconv.FormatUint(h.ID, 10), "happening", h); err != nil {
			return err
		}
	}
	return s.flush()
}

// event writes one event in the form of the HTML standard; JSON has no line breaks of its own.
func (s stream) event(id, name string, data any) error {
	b, err := json.Marshal(data)
	if err != nil {
		return err
	}
	if id != "" {
		fmt.Fprintf(s.buf, "id: %s\n", id)
	}
	_, err = fmt.Fprintf(s.buf, "event: %s\ndata: %s\n\n", name, b)
	return err
}

// pause waits and tells whether ctx is still going on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (a *api) registerPages(api huma.API) {
	op := operation("pages", "/api/v1/pages", "List every page",
		"One JSON object a line, by document and page number. An answer that is cut off without its last chunk is incomplete.")
	op.Responses = map[string]*huma.Response{"200": {
		Description: "Pages as JSON lines",
		Content: map[string]*huma.MediaType{"application/x-ndjson": {
			Schema: huma.SchemaFromType(api.OpenAPI().Components.Schemas, reflect.TypeFor[Page]()),
		}},
	}}
	huma.Register(api, op, func(ctx context.Context, _ *struct{}) (*huma.StreamResponse, error) {
		if a.Pages == nil {
			return nil, newProblem(CodeNoIndex, "this swarm keeps no pages")
		}
		return &huma.StreamResponse{Body: a.listPages}, nil
	})
}

// listPages streams the pages. An error before the first page is a problem document; one behind it cuts the
// connection, so that nobody takes a part for the whole.
func (a *api) listPages(hctx huma.Context) {
	ctx, cancel := untilClosing(hctx.Context())
	defer cancel()
	var s stream
	var enc *json.Encoder
	begin := func() {
		s = newStream(hctx, "application/x-ndjson")
		enc = json.NewEncoder(s.buf)
	}
	n := 0
	for page, err := range a.Pages(ctx) {
		if err != nil && enc == nil {
			_, w := humachi.Unwrap(hctx)
			writeProblem(w, a.failure(ctx, "listing the pages", err))
			return
		}
		if err != nil {
			a.Logger.Warn("list of pages was cut off", "error", err)
			panic(http.ErrAbortHandler)
		}
		if enc == nil {
			begin()
		}
		if n%256 == 0 {
			s.extend()
		}
		n++
		if enc.Encode(page) != nil {
			return // the client left
		}
	}
	if enc == nil {
		begin()
	}
	_ = s.flush() // as above
}

package dashboard_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/swarmlog/swarmlog/internal/devservices/given"
)

const patience = 30 * time.Second

// browser starts one for the whole test; it reaches nothing but this machine.
func browser(t *testing.T) context.Context {
	t.Helper()
	opts := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(given.Chromium(t)), chromedp.UserDataDir(t.TempDir()),
		chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("proxy-server", "http://127.0.0.1:1"), chromedp.Flag("proxy-bypass-list", "127.0.0.1"))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start the browser: %v", err)
	}
	return ctx
}

// complaints is what the browser's console holds against the page.
type complaints struct {
	mu  sync.Mutex
	all []string
}

func (c *complaints) listen(ctx context.Context) {
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return // the tab is closed
			}
			switch m.Type {
			case chromedp.ConsoleWarning, chromedp.ConsoleError, chromedp.ConsoleException:
				c.mu.Lock()
				c.all = append(c.all, m.String()+" "+m.URL)
				c.mu.Unlock()
			}
		}
	}()
}

func (c *complaints) list() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.all...)
}

// tab opens a page in a scheme and a width.
func tab(t *testing.T, ctx context.Context, url, scheme string, width int64) (context.Context, *complaints) {
	t.Helper()
	ctx, cancel := chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("open a tab: %v", err)
	}
	ctx, cancel = context.WithTimeout(ctx, patience)
	t.Cleanup(cancel)
	c := new(complaints)
	c.listen(ctx)
	media := chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	})
	if err := chromedp.Do(ctx, media, chromedp.EmulateViewport(width, 900), chromedp.Navigate(url)); err != nil {
		t.Fatalf("open %s: %v", url, err)
	}
	return ctx, c
}

// until waits for an expression of the page to be true.
func until(t *testing.T, ctx context.Context, expr string) {
	t.Helper()
	_, err := chromedp.Run(ctx, chromedp.Poll[chromedp.Void](expr, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(15*time.Second)))
	if err != nil {
		text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText`))
		t.Fatalf("never true: %s: %v\npage:\n%.3000s", expr, err, text)
	}
}

func eval[T any](t *testing.T, ctx context.Context, expr string) T {
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expr))
	if err != nil {
		t.Fatalf("evaluate %s: %v", expr, err)
	}
	return v
}

// everyTextContrast lists texts whose contrast is below WCAG 2.2 AA: 4.5 to 1, or 3 to 1 where large.
const everyTextContrast = `(() => {
  const rgba = (c) => c.match(/[\d.]+/g).map(Number);
  const lum = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] === 1) return c; } return [255, 255, 255]; };
  const bad = new Set();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) || e.closest("noscript")) continue;
    const style = getComputedStyle(e), size = parseFloat(style.fontSize);
    const [a, b] = [lum(rgba(style.color)), lum(ground(e))].sort((x, y) => y - x);
    const need = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < need) bad.add(ratio.toFixed(2) + " for " + texts.currentNode.textContent.trim().slice(0, 40));
  }
  return [...bad];
})()`

func TestPageShowsTheRunInBothSchemes(t *testing.T) {
	b := browser(t)
	for _, scheme := range []string{"light", "dark"} {
		t.Run(scheme, func(t *testing.T) {
			site := serve(t, busy)
			happenings(site.ring)
			ctx, complaints := tab(t, b, site.URL, scheme, 1280)
			until(t, ctx, `document.querySelectorAll("#events li").length === 7 && document.getElementById("link").textContent === "live"`)

			if dark := eval[bool](t, ctx, `matchMedia("(prefers-color-scheme: dark)").matches`); dark != (scheme == "dark") {
				t.Fatalf("the browser doesn't show the scheme %s", scheme)
			}
			light := eval[bool](t, ctx, `parseInt(getComputedStyle(document.documentElement).backgroundColor.slice(4)) > 127`)
			if light != (scheme == "light") {
				t.Errorf("the ground is light: %v, in the scheme %s", light, scheme)
			}
			for _, want := range []string{
				"papers", "running", "1,904", "34 s", "8,021", "117 reused, 1 in doubt", "built-in model: ",
				"the model at http://127.0.0.1:8080/v1 answers 503", "documents/3", "3,636", "223", emoji, arabic,
				script, image, "annual-report-2024.pdf#88", "1 min 14 s", "waits to retry", "partition taken with epoch 3",
				"4 documents could not be read", "the PDF is encrypted", "393 MiB of log", "./.swarmlog/ledger.db",
				"invoice_⟨U+202E⟩fdp.exe",
			} {
				if !eval[bool](t, ctx, fmt.Sprintf(`document.body.innerText.includes(%q)`, want)) {
					t.Errorf("the page doesn't show %q", want)
				}
			}
			if n := eval[int](t, ctx, `document.querySelectorAll("#partitions tr").length`); n != 16 {
				t.Errorf("%d partitions, want 16", n)
			}
			if title := eval[string](t, ctx, `document.title`); title != "papers: running" {
				t.Errorf("title is %q", title)
			}
			if n := eval[int](t, ctx, `document.scripts.length + document.images.length`); n != 1 {
				t.Errorf("%d scripts and images, want the page's own script alone: a name was taken for HTML", n)
			}
			if eval[bool](t, ctx, `/[\u202a-\u202e]/.test(document.body.textContent)`) {
				t.Error("a mark that turns the direction of text reached the page")
			}
			for _, bad := range eval[[]string](t, ctx, everyTextContrast) {
				t.Errorf("contrast is too low: %s", bad)
			}
			for _, c := range complaints.list() {
				t.Errorf("the browser complains: %s", c)
			}
		})
	}
}

func TestPageIsReachableForEverybody(t *testing.T) {
	site := serve(t, broken)
	happenings(site.ring)
	ctx, complaints := tab(t, browser(t), site.URL, "dark", 400)
	until(t, ctx, `document.querySelectorAll("#dead li").length === 100 && document.getElementById("link").textContent === "live"`)
	for what, expr := range map[string]string{
		"one h1":                                 `document.querySelectorAll("h1").length === 1`,
		"a header, a main and a footer":          `["header", "main", "footer"].every((e) => document.querySelectorAll("body > " + e).length === 1)`,
		"a scope for each table header":          `[...document.querySelectorAll("th")].every((th) => th.scope)`,
		"a header for each row":                  `[...document.querySelectorAll("tbody tr")].every((tr) => tr.querySelector("th"))`,
		"a name for each section":                `[...document.querySelectorAll("section, [role=region]")].every((s) => document.getElementById(s.getAttribute("aria-labelledby")).textContent)`,
		"a label for the search":                 `document.querySelector("label[for=q]").textContent !== ""`,
		"keyboard access to what scrolls":        `[...document.querySelectorAll(".scroll, .list")].every((e) => e.tabIndex === 0)`,
		"no value where progress is unknown":     `!document.getElementById("track").hasAttribute("aria-valuenow")`,
		"no sideways scrolling at 400 pixels":    `document.documentElement.scrollWidth <= innerWidth`,
		"the number of dead letters":             `document.getElementById("dead-note").textContent === "newest 100 of 2,311"`,
		"why the agent stopped":                  `document.body.innerText.includes("COMMIT inside a step")`,
		"what is wrong with the broker":          `document.querySelector("footer").innerText.includes("310 MiB free")`,
		"an unknown lag, which isn't taken as 0": `document.getElementById("agents").lastElementChild.children[6].textContent === "unknown"`,
	} {
		if !eval[bool](t, ctx, expr) {
			t.Errorf("the page lacks %s", what)
		}
	}
	for _, bad := range eval[[]string](t, ctx, everyTextContrast) {
		t.Errorf("contrast is too low: %s", bad)
	}
	for _, c := range complaints.list() {
		t.Errorf("the browser complains: %s", c)
	}
}

func TestSearchShowsExcerptsAsTextAndErrorsWithWhatToDo(t *testing.T) {
	site := serve(t, idle)
	ctx, _ := tab(t, browser(t), site.URL+"/?q=exactly+once", "light", 1280)
	until(t, ctx, `document.querySelectorAll("#hits li").length === 4`)
	if got := eval[[]string](t, ctx, `[...document.querySelectorAll("#hits li:first-child mark")].map((m) => m.textContent)`); !slices.Equal(got, []string{"once", "exactly", "once"}) {
		t.Errorf("marked words are %q", got)
	}
	if n := eval[int](t, ctx, `document.querySelectorAll("#hits b, #hits img, #hits script").length`); n != 0 {
		t.Errorf("%d elements came out of excerpts", n)
	}
	for q, want := range map[string]string{"nothing": "No page matches", "broken": "searching failed. Look at the log"} {
		eval[any](t, ctx, fmt.Sprintf(`(document.getElementById("q").value = %q, document.getElementById("search").requestSubmit(), null)`, q))
		until(t, ctx, fmt.Sprintf(`document.getElementById("search-note").textContent.includes(%q)`, want))
		until(t, ctx, fmt.Sprintf(`location.search === "?q=" + %q`, q))
	}
}

func TestPageAsksNothingWhileItIsHidden(t *testing.T) {
	site := serve(t, busy)
	ctx, _ := tab(t, browser(t), site.URL, "light", 1280)
	until(t, ctx, `document.getElementById("link").textContent === "live"`)
	hide := func(hidden bool) {
		eval[any](t, ctx, fmt.Sprintf(`(Object.defineProperty(document, "hidden", { value: %v, configurable: true }),
			document.dispatchEvent(new Event("visibilitychange")), null)`, hidden))
	}
	hide(true)
	deadline := time.Now().Add(patience)
	for site.streams.Load() > 0 {
		if time.Now().After(deadline) {
			t.Fatal("a hidden page goes on following the events")
		}
		time.Sleep(10 * time.Millisecond)
	}
	// An answer may still be under way when the page is hidden; after one period nothing may come any more.
	var before int64
	for before = -1; before != site.looks.Load(); {
		before = site.looks.Load()
		until(t, ctx, `(globalThis.hiddenSince ??= performance.now(), performance.now() - hiddenSince > 2500 && delete globalThis.hiddenSince)`)
	}
	hide(false)
	until(t, ctx, `document.getElementById("link").textContent === "live"`)
	for site.looks.Load() == before || site.streams.Load() == 0 {
		if time.Now().After(deadline) {
			t.Fatalf("shown again, the page doesn't go on: %d looks, %d streams", site.looks.Load()-before, site.streams.Load())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestPageSaysWhenNobodyAnswersAndGoesOnAfterwards(t *testing.T) {
	site := serve(t, busy)
	ctx, _ := tab(t, browser(t), site.URL, "light", 1280)
	until(t, ctx, `document.getElementById("link").textContent === "live"`)
	site.failed.Store(true)
	until(t, ctx, `document.getElementById("gone").innerText.includes("reading the status failed") && document.getElementById("gone").innerText.includes("What you see is from")`)
	site.failed.Store(false)
	until(t, ctx, `document.getElementById("gone").hidden && document.getElementById("link").textContent === "live"`)
	site.CloseClientConnections()
	_ = site.Listener.Close()
	until(t, ctx, `document.getElementById("gone").innerText.includes("doesn't answer") && document.getElementById("link").textContent === "not connected"`)
}

var pictures = flag.String("pictures", "", "folder to write pictures of the page to, for people to look at")

// TestPictures takes them: go test ./internal/dashboard -run Pictures -pictures DIR.
func TestPictures(t *testing.T) {
	if *pictures == "" {
		return // nothing is tested here
	}
	b := browser(t)
	for _, c := range []struct {
		name  string
		scene scene
		query string
	}{{"empty", empty, ""}, {"busy", busy, ""}, {"idle", idle, "?q=exactly+once+applied"}, {"broken", broken, ""}} {
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int64{1280, 400} {
				site := serve(t, c.scene)
				if c.name != "empty" {
					happenings(site.ring)
				}
				ctx, _ := tab(t, b, site.URL+"/"+c.query, scheme, width)
				until(t, ctx, `document.getElementById("link").textContent === "live"`)
				until(t, ctx, `(globalThis.first ??= performance.now(), performance.now() - first > 4000)`) // a line to see
				png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
				if err != nil {
					t.Fatal(err)
				}
				name := filepath.Join(*pictures, fmt.Sprintf("%s-%s-%d.png", c.name, scheme, width))
				if err := os.WriteFile(name, png, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

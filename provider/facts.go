package provider

import (
	_ "embed"
	"strconv"
	"strings"
)

// limits is what the sources of the price list say of context windows and answers: the kind of provider, a model's name or a prefix ending in *,
// tokens of prompt and answer together, tokens of an answer.
//
//go:embed limits.tsv
var limits string

// Facts is what is known of models by their names, where the configuration does not say. It is immutable; the zero value knows nothing.
type Facts struct {
	exact  map[string]Info            // by kind and name, with a tab between
	prefix map[string]map[string]Info // by kind, then prefix
	family []family
}

// NewFacts reads the embedded table.
func NewFacts() *Facts {
	f := &Facts{exact: map[string]Info{}, prefix: map[string]map[string]Info{}, family: families()}
	for line := range strings.Lines(limits) {
		col := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if strings.HasPrefix(line, "#") || len(col) != 4 {
			continue
		}
		window, err1 := strconv.Atoi(col[2])
		answer, err2 := strconv.Atoi(col[3])
		if err1 != nil || err2 != nil {
			continue
		}
		info := Info{ContextWindow: window, MaxOutput: answer}
		if name, ok := strings.CutSuffix(col[1], "*"); ok {
			if f.prefix[col[0]] == nil {
				f.prefix[col[0]] = map[string]Info{}
			}
			f.prefix[col[0]][name] = info
			continue
		}
		f.exact[col[0]+"\t"+col[1]] = info
	}
	return f
}

// Find is what is known of a model at a kind of provider, such as anthropic or groq. A zero field is not known.
func (f *Facts) Find(kind, model string) Info {
	name := strings.ToLower(model)
	info, ok := f.exact[kind+"\t"+name]
	for i := len(name); i > 0 && !ok; i-- {
		info, ok = f.prefix[kind][name[:i]]
	}
	t := f.traits(name)
	if len(t.Output) == 1 && t.Output[0] == embedding {
		info.MaxOutput = 0 // the table then has the length of a vector
	}
	info.Input, info.Output, info.NoSampling, info.CacheMinimum = t.Input, t.Output, t.NoSampling, t.CacheMinimum
	return info
}

// Over is i where it says something and base where it does not.
func (i Info) Over(base Info) Info {
	pick := func(mine, other int) int {
		if mine != 0 {
			return mine
		}
		return other
	}
	list := func(mine, other []string) []string {
		if len(mine) > 0 {
			return mine
		}
		return other
	}
	title := i.Title
	if title == "" {
		title = base.Title
	}
	return Info{Title: title, ContextWindow: pick(i.ContextWindow, base.ContextWindow), MaxOutput: pick(i.MaxOutput, base.MaxOutput),
		CacheMinimum: pick(i.CacheMinimum, base.CacheMinimum), Input: list(i.Input, base.Input), Output: list(i.Output, base.Output), NoSampling: i.NoSampling || base.NoSampling}
}

// Modalities, as Info lists them.
const (
	text      = "text"
	image     = "image"
	pdf       = "pdf"
	audio     = "audio"
	video     = "video"
	embedding = "embedding"
)

// family is what the models of one family have in common, wherever they are served.
type family struct {
	name string // the beginning of the model's name, after any publisher or region
	Info
}

// families is kept by hand from the vendors' documents, the most special first. Where they disagree on the shortest prompt that is cached, the
// longer is given: a shorter prompt is then not promised to be cached.
func families() []family {
	reads := []string{text, image, pdf}
	says := []string{text}
	claude := func(name string, cacheMinimum int, noSampling bool) family {
		return family{name, Info{Input: reads, Output: says, CacheMinimum: cacheMinimum, NoSampling: noSampling}}
	}
	gemini := func(name string, cacheMinimum int) family {
		return family{name, Info{Input: []string{text, image, pdf, audio, video}, Output: says, CacheMinimum: cacheMinimum}}
	}
	vector := func(name string) family {
		return family{name, Info{Input: []string{text}, Output: []string{embedding}, NoSampling: true}}
	}
	gpt := func(name string, noSampling bool, input ...string) family {
		return family{name, Info{Input: input, Output: says, CacheMinimum: 1024, NoSampling: noSampling}}
	}
	return []family{
		claude("claude-opus-4-8", 4096, true), claude("claude-opus-4-7", 4096, true), claude("claude-opus-4-6", 4096, false), claude("claude-opus-4-5", 4096, false),
		claude("claude-opus-4", 1024, false), claude("claude-opus-5", 512, false), claude("claude-fable-5", 2048, true), claude("claude-mythos-5", 512, false),
		claude("claude-sonnet-4-6", 2048, false), claude("claude-sonnet-4", 1024, false), claude("claude-sonnet-5", 1024, true), claude("claude-3-7-sonnet", 1024, false),
		claude("claude-haiku-4-5", 4096, false), claude("claude-3-5-haiku", 2048, false), claude("claude-3-haiku", 2048, false), claude("claude-", 0, false),
		{"gemini-embedding", Info{Input: []string{text}, Output: []string{embedding}, NoSampling: true}},
		gemini("gemini-3", 4096), gemini("gemini-2.5-pro", 4096), gemini("gemini-2.5-flash", 1024), gemini("gemini-2.0", 4096), gemini("gemini-", 0),
		vector("text-embedding-"),
		{"gpt-4o-audio", Info{Input: []string{text, audio}, Output: []string{text, audio}}}, {"gpt-image", Info{Input: []string{text, image}, Output: []string{image}, NoSampling: true}},
		gpt("gpt-4o", false, reads...), gpt("gpt-4.1", false, reads...), gpt("gpt-5", true, reads...), gpt("o1", true, reads...), gpt("o3", true, reads...), gpt("o4", true, reads...),
		{"gpt-4", Info{Input: says, Output: says}}, {"gpt-3.5", Info{Input: says, Output: says}}, {"gpt-oss", Info{Input: says, Output: says}},
		{"deepseek-", Info{Input: says, Output: says}},
	}
}

// traits are those of a model's family: its name begins with the family's, or does so after a publisher, a region or a path.
func (f *Facts) traits(name string) Info {
	for _, f := range f.family {
		for at := 0; ; {
			i := strings.Index(name[at:], f.name)
			if i < 0 {
				break
			}
			if at += i; at == 0 || name[at-1] == '.' || name[at-1] == '/' {
				return f.Info
			}
			at++
		}
	}
	return Info{}
}

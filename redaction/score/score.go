// Package score measures how well redaction finds what people have labelled: recall by exact span, precision, and what is found where
// nothing is.
//
// It refuses to know where rows come from and how a detector works. Invariants: a row of one entity is judged with that entity
// enabled alone, a negative row counts only for its own entity, and no labelled value is ever part of a report.
package score

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/lossless-group/gateway/fault"
	"github.com/lossless-group/gateway/redaction"
)

// other maps names of data sets to ours where they differ.
var other = map[string]string{"DOMAIN_NAME": "URL", "STREET_ADDRESS": "ADDRESS", "ZIP_CODE": "POSTCODE"}

// notScored are names we have no detector for, with the reason.
var notScored = map[string]string{"DENY_LIST": "a test of word lists, which each organisation writes itself"}

// secrets are the entities a sample of a secrets scanner is judged with.
var secrets = func() (names []string) {
	for _, e := range redaction.Entities() {
		if e.Secret {
			names = append(names, e.Name)
		}
	}
	return names
}()

// Count is what was counted for one entity or rule.
type Count struct {
	Name  string `json:"name"`
	Alone bool   `json:"alone"` // judged with the entity enabled alone

	Labelled int `json:"labelled"` // spans
	Exact    int `json:"exact"`    // found with the same bounds
	Covered  int `json:"covered"`  // every byte found
	Extra    int `json:"extra"`    // found without overlapping a labelled span

	Cut        int `json:"cut"`        // labels that begin or end inside a word; they are no spans, so labelled leaves them out
	CutCovered int `json:"cutCovered"` // of which every byte was found

	Negatives int `json:"negatives"` // texts without a value, but for those that count as other
	Flagged   int `json:"flagged"`   // in which one was found
	Other     int `json:"other"`     // texts that are negative for this name and hold a real value of another

	Weak    int `json:"weak"`    // values that prove nothing alone
	Ignored int `json:"ignored"` // left alone without a word about them
	Caught  int `json:"caught"`  // found with one

	Present int `json:"present"` // texts that hold a value somewhere
	Seen    int `json:"seen"`    // in which something was found
}

// Table is the counts of one format.
type Table struct {
	Format string  `json:"format"`          // values, sentences or secrets
	Rows   []Count `json:"rows"`            // by name
	Kinds  []Count `json:"kinds,omitempty"` // of secrets: by what tells them
	All    Count   `json:"all"`
}

// Report is the result of one run.
type Report struct {
	Profile   string            `json:"profile"`
	Tables    []Table           `json:"tables"`
	NotScored map[string]string `json:"notScored,omitempty"` // names of the data and why they were left out
	Missed    []Miss            `json:"missed,omitempty"`
}

// Miss points at a row that went wrong, by its number among all rows read, without its text.
type Miss struct {
	Row  int    `json:"row"`
	Name string `json:"name"`
	What string `json:"what"`
}

// scorer holds what one run needs.
type scorer struct {
	e        *redaction.Engine
	profile  *redaction.Profile
	only     map[string]*redaction.Profile
	words    map[string]string // a context word of each entity
	profiled map[string]bool   // entities the profile looks for
	secret   *redaction.Profile
	counts   map[string]map[string]*Count
	apart    map[string]bool // what sentences label and the profile does not look for
	rules    map[string]*rule
	labelled map[string]bool // values labelled as secrets in some row
	shapes   map[shape]bool  // of those
	report   Report
}

// Run scores the rows. Sentences are judged with the named profile (off, balanced or strict; "" means balanced); entities that it does
// not look for are judged alone. Fault: Invalid for an unknown profile.
func Run(e *redaction.Engine, profile string, rows []Row) (Report, error) {
	p, err := redaction.ParseProfile(profile)
	if err != nil {
		return Report{}, err
	}
	s := &scorer{e: e, profile: p, only: map[string]*redaction.Profile{}, words: map[string]string{}, profiled: map[string]bool{}, counts: map[string]map[string]*Count{},
		apart: map[string]bool{}, rules: map[string]*rule{}, labelled: map[string]bool{}, shapes: map[shape]bool{}}
	s.report.Profile = p.Name()
	for _, ent := range redaction.Entities() {
		s.words[ent.Name] = ent.Context
		s.profiled[ent.Name] = ent.Profile == "balanced" && p.Name() != "off" || ent.Profile == "strict" && p.Name() == "strict"
	}
	if s.secret, err = redaction.Only(secrets...); err != nil {
		return Report{}, err
	}
	for _, r := range rows {
		s.learn(r)
		if err := s.meet(r); err != nil {
			return Report{}, err
		}
	}
	for i, r := range rows {
		switch {
		case r.Rule != "":
			s.sample(i, r)
		case r.Entity != "":
			err = s.value(i, r)
		default:
			err = s.sentence(i, r)
		}
		if err != nil {
			return Report{}, err
		}
	}
	s.tables()
	return s.report, nil
}

func (s *scorer) count(format, name string) *Count {
	if s.counts[format] == nil {
		s.counts[format] = map[string]*Count{}
	}
	c := s.counts[format][name]
	if c == nil {
		c = &Count{Name: name}
		s.counts[format][name] = c
	}
	return c
}

func (s *scorer) miss(row int, name, what string) {
	s.report.Missed = append(s.report.Missed, Miss{row, name, what})
}

// known returns our name for a name of the data, and the profile of it alone; nil when it is not scored.
func (s *scorer) known(name string) (string, *redaction.Profile, error) {
	if n := other[name]; n != "" {
		name = n
	}
	why, left := notScored[name]
	if !left && s.words[name] == "" {
		if _, ok := s.words[name]; !ok {
			why, left = "no detector", true
		}
	}
	if left {
		if s.report.NotScored == nil {
			s.report.NotScored = map[string]string{}
		}
		s.report.NotScored[name] = why
		return name, nil, nil
	}
	if s.only[name] == nil {
		p, err := redaction.Only(name)
		if err != nil {
			return name, nil, fault.From(err)
		}
		s.only[name] = p
	}
	return name, s.only[name], nil
}

// compare counts the labelled spans against the found ones.
func (s *scorer) compare(c *Count, row int, labelled []Span, found []redaction.Span) {
	for _, l := range labelled {
		c.Labelled++
		exact, covered := false, false
		for _, f := range found {
			exact = exact || f.Start == l.Start && f.End == l.End
			covered = covered || f.Start <= l.Start && f.End >= l.End
		}
		if exact {
			c.Exact++
		} else {
			s.miss(row, c.Name, "not found with these bounds")
		}
		if covered {
			c.Covered++
		}
	}
	for _, f := range found {
		if !slices.ContainsFunc(labelled, func(l Span) bool { return f.Start < l.End && l.Start < f.End }) {
			c.Extra++
			s.miss(row, c.Name, "found where nothing is labelled")
		}
	}
}

// value scores a row of one entity.
func (s *scorer) value(i int, r Row) error {
	name, p, err := s.known(r.Entity)
	if err != nil || p == nil {
		return err
	}
	c := s.count("values", name)
	c.Alone = true
	switch {
	case r.Kind == "negative":
		c.Negatives++
		if len(s.e.Scan(p, r.Text)) > 0 {
			c.Flagged++
			s.miss(i, name, "negative flagged")
		}
	case r.Kind == "positive" && r.Tier == "weak":
		word := r.Context
		if word == "" {
			word = s.words[name]
		}
		for _, l := range r.Spans {
			v := r.Text[l.Start:l.End]
			c.Weak++
			if len(s.e.Scan(p, v)) == 0 {
				c.Ignored++
			} else {
				s.miss(i, name, "weak value flagged alone")
			}
			before := "The " + word + " is "
			found := s.e.Scan(p, before+v+", as agreed.")
			if len(found) == 1 && found[0].Start == len(before) && found[0].End == len(before)+len(v) {
				c.Caught++
			} else {
				s.miss(i, name, "weak value missed with a word about it")
			}
		}
	case r.Kind == "positive":
		s.compare(c, i, r.Spans, s.e.Scan(p, r.Text))
	case r.Kind == "context", r.Kind == "count_only":
		c.Present++
		if len(s.e.Scan(p, r.Text)) > 0 {
			c.Seen++
		} else {
			s.miss(i, name, "nothing found")
		}
	}
	return nil
}

// meet notes which entities sentences name that have to be looked for alone.
func (s *scorer) meet(r Row) error {
	if r.Rule != "" || r.Entity != "" {
		return nil
	}
	for _, l := range r.Spans {
		name, p, err := s.known(l.Entity)
		if err != nil {
			return err
		}
		if p != nil && !s.profiled[name] {
			s.apart[name] = true
		}
	}
	return nil
}

// sentence scores a text whose spans name their entities.
func (s *scorer) sentence(i int, r Row) error {
	byName := map[string][]Span{}
	for _, l := range r.Spans {
		name, p, err := s.known(l.Entity)
		if err != nil {
			return err
		}
		if p == nil {
			continue
		}
		// Labels of generated text may take in a line break.
		v := strings.TrimRight(r.Text[l.Start:l.End], "\n")
		byName[name] = append(byName[name], Span{l.Start, l.Start + len(v), name})
	}
	found := map[string][]redaction.Span{}
	for _, f := range s.e.Scan(s.profile, r.Text) {
		found[f.Entity] = append(found[f.Entity], f)
	}
	for name := range s.apart {
		found[name] = s.e.Scan(s.only[name], r.Text)
		s.count("sentences", name).Alone = true
	}
	for name, fs := range found {
		if byName[name] == nil && len(fs) > 0 {
			s.compare(s.count("sentences", name), i, nil, fs)
		}
	}
	for name, ls := range byName {
		s.compare(s.count("sentences", name), i, ls, found[name])
	}
	return nil
}

func (s *scorer) tables() {
	for _, format := range [...]string{"values", "sentences", "secrets"} {
		if len(s.counts[format]) == 0 {
			continue
		}
		t := Table{Format: format, All: Count{Name: "ALL"}}
		for _, c := range s.counts[format] {
			t.Rows = append(t.Rows, *c)
			if format != "sentences" || !c.Alone {
				t.All.plus(c)
			}
		}
		if format == "secrets" {
			t.Kinds = s.kinds(t.Rows)
		}
		slices.SortFunc(t.Rows, func(a, b Count) int { return cmp.Compare(a.Name, b.Name) })
		s.report.Tables = append(s.report.Tables, t)
	}
}

func (c *Count) plus(o *Count) {
	c.Labelled += o.Labelled
	c.Exact += o.Exact
	c.Covered += o.Covered
	c.Extra += o.Extra
	c.Cut += o.Cut
	c.CutCovered += o.CutCovered
	c.Negatives += o.Negatives
	c.Flagged += o.Flagged
	c.Other += o.Other
	c.Weak += o.Weak
	c.Ignored += o.Ignored
	c.Caught += o.Caught
	c.Present += o.Present
	c.Seen += o.Seen
}

// share is n of all in per cent, or a dash where there is nothing to count.
func share(n, all int) string {
	if all == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", 100*float64(n)/float64(all))
}

// Write prints the report as tables, and with misses the numbers of the rows that went wrong.
func (r Report) Write(w io.Writer, misses bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, table := range r.Tables {
		switch table.Format {
		case "values":
			fmt.Fprintln(t, "Values of one entity, that entity enabled alone. Weak values are tried without and with a word about them.")
		case "sentences":
			fmt.Fprintf(t, "Sentences, profile %s; entities marked * are not in it, were enabled alone, and are not in the last line.\n", r.Profile)
		case "secrets":
			fmt.Fprintln(t, "Secrets, all secret classes enabled; a span of any class counts. Labels cut out of a word are counted apart, and so are negatives that hold another rule's secret.")
		}
		fmt.Fprintln(t, "name\tspans\texact %\tcovered %\textra\tprecision %\tcut\tcovered %\tnegatives\tleft alone %\tother\tweak\tignored %\tcaught %\tpresent\tseen %")
		for _, c := range slices.Concat(table.Rows, table.Kinds, []Count{table.All}) {
			name := c.Name
			if c.Alone && table.Format == "sentences" {
				name += "*"
			}
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%d\t%s\t%d\t%s\t%d\t%s\t%d\t%d\t%s\t%s\t%d\t%s\n", name, c.Labelled, share(c.Exact, c.Labelled), share(c.Covered, c.Labelled), c.Extra,
				share(c.Covered, c.Covered+c.Extra), c.Cut, share(c.CutCovered, c.Cut), c.Negatives, share(c.Negatives-c.Flagged, c.Negatives), c.Other, c.Weak, share(c.Ignored, c.Weak), share(c.Caught, c.Weak), c.Present, share(c.Seen, c.Present))
		}
		fmt.Fprintln(t)
	}
	names := make([]string, 0, len(r.NotScored))
	for n := range r.NotScored {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		fmt.Fprintf(t, "not scored: %s\t(%s)\n", n, r.NotScored[n])
	}
	if misses {
		for _, m := range r.Missed {
			fmt.Fprintf(t, "row %d\t%s\t%s\n", m.Row+1, m.Name, m.What)
		}
	}
	return t.Flush()
}

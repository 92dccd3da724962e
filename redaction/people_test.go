package redaction

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What words tell: each text, the entity that is looked for, and what is found of it.
func TestCues(t *testing.T) {
	for _, c := range []struct {
		entity, text string
		want         []string
	}{
		{"AGE", "She is a 38-year-old patient, her son turned 7.", []string{"38", "7"}},
		{"AGE", "retired at the age of 61; aged 72; Age: 40; er ist 33 Jahre alt", []string{"61", "72", "40", "33"}},
		{"AGE", "see page 61, stage 4, version 12 years, 450 years old, message 12, image=30", nil},
		{"USERNAME", "username: jdoe_77, login = \"anna.b\", my user name is k-ruiz.", []string{"jdoe_77", "anna.b", "k-ruiz"}},
		{"USERNAME", "username is required; login: true; the handle is null; user id 5; loginName: x", nil},
		{"USERNAME", "username: jane@example.com", nil},
		{"POSTCODE", "ZIP: 75534-030, my zip code is 94105-1234, PLZ 10115, postcode SW1A 1AA", []string{"75534-030", "94105-1234", "10115", "SW1A 1AA"}},
		{"POSTCODE", "unzip 12345; zip file; the zip is broken; room 10115", nil},
		{"ADDRESS", "I live at 221B Baker Street, Apt. 4 and work at 1600 Amphitheatre Pkwy.", []string{"221B Baker Street, Apt. 4", "1600 Amphitheatre Pkwy"}},
		{"ADDRESS", "12 Rue de la Paix 5, Hauptstra\u00dfe 12a, via Roma 3, Via delle Coste 41, ul. Biskupa Bogedaina 11, P.O. Box 287", []string{"Rue de la Paix 5", "Hauptstra\u00dfe 12a", "Via delle Coste 41", "ul. Biskupa Bogedaina 11", "P.O. Box 287"}},
		{"ADDRESS", "In 2024, Wall Street rose; 5 good ways; Ring 3.5; the Lord of the Ring 2; delegate 5; 3 Big Data sets", nil},
		{"ADDRESS", "CARD_FLMLDFNSTR 967, EMAIL_FLMLDFNWEG 5", nil},
		{"ORGANIZATION", "He left Streetcred Software Inc. for Fernandez & Sons Ltd, then Muster GmbH and Acme, Inc.", []string{"Streetcred Software Inc.", "Fernandez & Sons Ltd", "Muster GmbH", "Acme, Inc."}},
		{"ORGANIZATION", "The inc file, an AG meeting; In Corp. we trust; limited time", nil},
		{"PERSON", "Name:   Vilma J. Holm\nMy friend calls me Aantje, directed by Valentine S. Yermakov and others", []string{"Vilma J. Holm", "Aantje", "Valentine S. Yermakov"}},
		{"PERSON", "name is required, Dear all, was called twice, regards,\nthe team", nil},
	} {
		t.Run(c.entity, func(t *testing.T) {
			p, err := Only(c.entity)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, x := range testEngine(t).Scan(p, c.text) {
				got = append(got, c.text[x.Start:x.End])
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%q: -want +got:\n%s", c.text, diff)
			}
		})
	}
}

// A value that a key owns needs no words around it.
func TestKeysOwnValues(t *testing.T) {
	for _, c := range []struct{ key, text, want string }{
		{"age", "41", "AGE"}, {"age", "410", ""}, {"page", "41", ""}, {"user_name", "jdoe", "USERNAME"}, {"login", "two words", ""}, {"zip", "94105", "POSTCODE"},
		{"streetAddress", "12 Long Lane", "ADDRESS"}, {"address", "somewhere", ""}, {"company", "Acme", "ORGANIZATION"}, {"company", "ORG_BCDFGHJKLM", ""}, {"count", "41", ""},
	} {
		t.Run(c.key+" "+c.text, func(t *testing.T) {
			sc := scanner{key: c.key}
			sc.scan(c.text, cued)
			got := ""
			if len(sc.spans) > 0 {
				got = catalogue[sc.spans[0].ent].name
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// No profile looks for what is best effort unless a policy names it.
func TestCuesAreOptIn(t *testing.T) {
	for _, e := range Entities() {
		if slices.Contains([]string{"AGE", "USERNAME", "POSTCODE", "ADDRESS", "ORGANIZATION", "PERSON"}, e.Name) && e.Profile != "" {
			t.Errorf("%s is in %s", e.Name, e.Profile)
		}
	}
}

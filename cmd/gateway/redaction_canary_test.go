package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"math/rand/v2"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf16"

	"github.com/lossless-group/gateway/internal/testkit/upstream"
	"github.com/lossless-group/gateway/redaction"
)

// A canary is a value of an entity that is drawn anew in each run, in a line that says what it is.
type canary struct{ entity, line, value string }

// canaryForms say how a value of each entity looks: between « and », with # a digit, ^ a capital, ~ a small letter, & a hex digit, $ a capital
// or a digit and % a letter or digit. What an entity checks is not calculated here: values are drawn until the engine takes one.
var canaryForms = map[string]string{
	"EMAIL_ADDRESS": "mail «~~~~~~~~.~~~~~@canary-~~~~.com»", "CREDIT_CARD": "card «4### #### #### ####»", "IBAN_CODE": "account «DE## #### #### #### #### ##»",
	"PHONE_NUMBER": "phone «+49 30 #######»", "SECRET": "sent «sk-" + "ant-api03-%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%»", "URL_CREDENTIALS": "at https://deploy:«%%%%%%%%%%%%%%%%»@git.canary-host.com/x",
	"DB_DSN": "at postgres://app:«%%%%%%%%%%%%%%%%»@db.canary-host.com/prod", "AUTH_HEADER": "Authorization: Bearer «%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%%»", "GENERIC_SECRET": "password = \"«%%%%%%%%%%%%%%%%%%%%%%%%»\"",
	"CUSTOM_REGEX": "pass «STF-########»", "CUSTOM_DICTIONARY": "project «~~~~~~~~~~~~»",
	"US_SSN": "SSN «###-##-####»", "US_ITIN": "ITIN «9##-7#-####»", "US_BANK_NUMBER": "bank account «9###########»", "ABA_ROUTING_NUMBER": "routing number «02#######»", "US_PASSPORT": "passport «C########»",
	"US_DRIVER_LICENSE": "driver license «D#######»", "US_NPI": "NPI «1#########»", "US_MBI": "MBI «1^4#-^^#-^^##»", "MEDICAL_LICENSE": "DEA «B^#######»",
	"UK_NINO": "NI number «AB ## ## ## C»", "UK_NHS": "NHS «4## ### ####»", "UK_DRIVING_LICENCE": "driving licence «^^^^^#0#1##S99^^»", "UK_PASSPORT": "passport «AB#######»",
	"UK_POSTCODE": "postcode «EC#A #^^»", "UK_VEHICLE_REGISTRATION": "number plate «LN14 ^^^»", "CA_SIN": "SIN «4##-###-###»",
	"AU_TFN": "TFN «1########»", "AU_ABN": "ABN «5# ### ### ###»", "AU_ACN": "ACN «### ### ###»", "AU_MEDICARE": "Medicare «2########1»",
	"DE_TAX_ID": "Steuer-ID «8##########»", "DE_SOCIAL_SECURITY": "Rentenversicherung «##07080#^###»", "DE_HEALTH_INSURANCE": "Krankenkasse «^#########»", "DE_ID_CARD": "Personalausweis «T########»",
	"DE_PASSPORT": "Reisepass «C########»", "DE_VAT_ID": "USt «DE1########»", "DE_BSNR": "BSNR «0########»", "DE_LANR": "LANR «#######01»", "DE_HANDELSREGISTER": "Amtsgericht «HRB ######»", "DE_PLZ": "PLZ «1####»",
	"DE_TAX_NUMBER": "Steuernummer «1#/###/#####»", "DE_FUEHRERSCHEIN": "Führerschein «AB########1»", "DE_KFZ": "Kennzeichen «B-XY ####»",
	"FR_NIR": "NIR «15#0#75########»", "NL_BSN": "BSN «1########»", "BE_NRN": "Rijksregister «7#.0#.1#-###.##»", "PT_NIF": "contribuinte «2########»", "CH_AHV": "AHV «756.####.####.##»",
	"ES_NIF": "DNI «########^»", "ES_NIE": "NIE «Y#######^»", "ES_PASSPORT": "pasaporte «AAA######»", "IT_FISCAL_CODE": "codice fiscale «RSSMRA8#A1#H###^»", "IT_VAT_CODE": "partita iva «0##########»",
	"IT_DRIVER_LICENSE": "patente «AB#######C»", "IT_IDENTITY_CARD": "carta «CA#####AA»", "IT_PASSPORT": "passaporto «YA#######»", "FI_PERSONAL_IDENTITY_CODE": "hetu «0#018#-####»",
	"SE_PERSONNUMMER": "personnummer «8#0#1#-####»", "SE_ORGANISATIONSNUMMER": "orgnr «55#0##-####»", "NO_FODSELSNUMMER": "fodselsnummer «1#018######»", "DK_CPR": "CPR «1#018#-####»", "PL_PESEL": "PESEL «8#0#1######»",
	"TR_NATIONAL_ID": "TC kimlik «1##########»", "TR_LICENSE_PLATE": "plaka «34 ^^^ ###»", "TR_PHONE_NUMBER": "telefon «+90 532 ### ## ##»", "ZA_ID_NUMBER": "South African ID «8#0#1#####08#»",
	"TH_TNIN": "Thai national «5############»", "KR_RRN": "RRN «8#0#1#-1######»", "KR_FRN": "FRN «8#0#1#-5######»", "KR_BRN": "BRN «###-82-#####»", "KR_DRIVER_LICENSE": "driver license «11-##-######-##»",
	"KR_PASSPORT": "passport «M###^####»", "CN_RESIDENT_ID": "身份证 «11010119800#1#####»", "SG_NRIC_FIN": "NRIC «S#######^»", "SG_UEN": "UEN «T16RF####^»", "JP_MY_NUMBER": "My Number «#### #### ####»",
	"BR_CPF": "CPF «###.###.###-##»", "BR_CNPJ": "CNPJ «##.###.###/0001-##»", "MX_CURP": "CURP «GARC8#0#1#HDFRRN##»", "CL_RUT": "RUT «1#.###.###-#»", "AR_CUIT": "CUIT «20-########-#»",
	"PH_MOBILE_NUMBER": "mobile «0917 ### ####»", "PH_TIN": "TIN «###-###-###-000»", "NG_NIN": "NIN «5##########»", "NG_VEHICLE_REGISTRATION": "plate «ABJ-###^^»",
	"IN_AADHAAR": "Aadhaar «4### #### ####»", "IN_PAN": "PAN «^^^P^####^»", "IN_GSTIN": "GSTIN «07^^^P^####^1Z$»", "IN_VOTER": "voter «^^^#######»", "IN_PASSPORT": "passport «T#######»", "IN_VEHICLE_REGISTRATION": "registration «KA53ME####»",
	"IP_ADDRESS": "IP «8.1##.1##.1##»", "MAC_ADDRESS": "MAC «0a:&&:&&:&&:12:9c»", "IMEI": "IMEI «35#############»", "VIN": "VIN «1HGBH41JXMN1#####»", "CRYPTO": "ethereum wallet «0x&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&&»",
	"URL": "see «https://www.canary-~~~~~~.com/~~~~~~»", "DATE_OF_BIRTH": "born on «1#.0#.19##»", "DATE_TIME": "on «2#.0#.20##»", "AGE": "at the age of «6#»", "USERNAME": "username: «~~~~~~_7#»", "POSTCODE": "ZIP: «9####-####»", "ADDRESS": "at home in «16## ^~~~~~~ Street»", "ORGANIZATION": "works for «^~~~~~ Software Inc.»", "PERSON": "my name is «Johanna ^~~~~~~»",
}

// fill draws the letters of a form.
func fill(r *rand.Rand, form string) string {
	const digits, small, capital = "0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	from := map[rune]string{'#': digits, '^': capital, '~': small, '&': digits + "abcdef", '$': digits + capital, '%': digits + small + capital}
	return strings.Map(func(c rune) rune {
		if set, ok := from[c]; ok {
			return rune(set[r.IntN(len(set))])
		}
		return c
	}, form)
}

// drawForm is a line and its value.
func drawForm(r *rand.Rand, form string) (line, value string) {
	before, rest, _ := strings.Cut(form, "«")
	inside, after, _ := strings.Cut(rest, "»")
	value = fill(r, inside)
	return before + value + after, value
}

// drawJWT and drawPEM are the two whose form is no row of letters.
func drawJWT(r *rand.Rand) string {
	enc := base64.RawURLEncoding.EncodeToString
	return enc([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + enc([]byte(fill(r, `{"sub":"##########","iat":15162#####}`))) + "." + fill(r, strings.Repeat("%", 43))
}

func drawPEM(r *rand.Rand) string {
	kind := "RSA PRIVATE" + " KEY-----"
	return "-----BEGIN " + kind + "\n" + strings.Repeat(fill(r, strings.Repeat("%", 64))+"\n", 4) + "-----END " + kind
}

// aviary are canaries of every entity of the catalogue: those of the person, and those that only the app's own text holds.
type aviary struct {
	person, operator []canary
	staff            string // what the custom dictionary lists
}

// canaryEntity is what the organisation's document calls an entity of the catalogue that has no name until somebody gives it one.
var canaryEntity = map[string]string{"CUSTOM_REGEX": "STAFFPASS", "CUSTOM_DICTIONARY": "CODENAME"}

// aviaryDocument is a redaction document that does one thing to everything that can be found; words are the dictionary's.
func aviaryDocument(action string, words ...string) string {
	entities := map[string]any{}
	for _, e := range redaction.Entities() {
		if canaryEntity[e.Name] == "" {
			entities[e.Name] = map[string]string{"request": action}
		}
	}
	return quoted(map[string]any{
		"profile": "strict", "entities": entities, "tokens": map[string]any{"secrets": action == "tokenize"},
		"custom":            []any{map[string]any{"name": canaryEntity["CUSTOM_REGEX"], "pattern": `STF-\d{8}`, "action": action}},
		"deny_dictionaries": []any{map[string]any{"name": canaryEntity["CUSTOM_DICTIONARY"], "words": words, "action": action}},
	})
}

// newAviary draws a canary of each entity. An entity that nobody made a canary for fails the test.
func newAviary(t testing.TB, seed uint64) aviary {
	t.Helper()
	e, err := redaction.New(bytes.Repeat([]byte{9}, 32))
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(seed, 77))
	var a aviary
	words := []string{fill(r, strings.Repeat("~", 12)), fill(r, strings.Repeat("~", 12))}
	all, err := e.ParsePolicy([]byte(aviaryDocument("mask", words...)), "")
	if err != nil {
		t.Fatal(err)
	}
	draw := func(name string, k int) canary {
		for range 60_000 {
			line, v := "", ""
			switch name {
			case "JWT":
				v = drawJWT(r)
				line = "token " + v
			case "PRIVATE_KEY":
				v = drawPEM(r)
				line = "key\n" + v
			case "CUSTOM_DICTIONARY":
				v = words[k]
				line = "project " + v
			default:
				line, v = drawForm(r, canaryForms[name])
			}
			at := strings.Index(line, v)
			if canaryEntity[name] == "" { // it is that entity's value, exactly
				only, err := redaction.Only(name)
				if err != nil {
					t.Fatal(err)
				}
				if spans := e.Scan(only, line); len(spans) != 1 || spans[0].Start > at || spans[0].End < at+len(v) {
					continue
				}
			}
			covered := at
			for _, s := range e.Scan(all, line) {
				if s.Start <= covered && s.End > covered {
					covered = s.End
				}
			}
			if covered >= at+len(v) {
				return canary{name, line, v}
			}
		}
		t.Errorf("no canary of %s could be drawn of the form %q", name, canaryForms[name])
		return canary{}
	}
	for _, entity := range redaction.Entities() {
		if canaryForms[entity.Name] == "" && entity.Name != "JWT" && entity.Name != "PRIVATE_KEY" {
			t.Fatalf("redaction can find %s; say in canaryForms what its values look like", entity.Name)
		}
		a.person = append(a.person, draw(entity.Name, 0))
		a.operator = append(a.operator, draw(entity.Name, 1))
	}
	a.staff = strings.Join(words, " ")
	return a
}

func (a aviary) document(action string) string {
	return aviaryDocument(action, strings.Fields(a.staff)...)
}

// block is all canaries in one text.
func block(list []canary) string {
	lines := make([]string, len(list))
	for i, c := range list {
		lines[i] = c.line
	}
	return strings.Join(lines, "\n")
}

// spelling is one way a value may be written.
type spelling struct{ entity, form, text string }

// spellings are the ways in which a value could get past who looks for it as it is.
func spellings(c canary) (out []spelling) {
	v := c.value
	add := func(form, text string) {
		if len(text) >= minSpelled {
			out = append(out, spelling{c.entity, form, text})
		}
	}
	add("plain", v)
	for k := range 3 { // what of the base64 of a text around it is the value's own
		padded := append(make([]byte, k), v...)
		from, to := (k*8+5)/6, len(padded)*8/6
		add(fmt.Sprint("base64+", k), base64.RawStdEncoding.EncodeToString(padded)[from:to])
		add(fmt.Sprint("base64url+", k), base64.RawURLEncoding.EncodeToString(padded)[from:to])
	}
	each := func(form string, units []rune) string {
		var b strings.Builder
		for _, c := range units {
			fmt.Fprintf(&b, form, c)
		}
		return b.String()
	}
	octets := make([]rune, len(v))
	for i := range len(v) {
		octets[i] = rune(v[i])
	}
	add("query", url.QueryEscape(v))
	add("path", url.PathEscape(v))
	add("percent", each("%%%02X", octets))
	add("percent, small", each("%%%02x", octets))
	add("JSON", strings.Trim(quoted(v), `"`))
	add("JSON escapes", each(`\u%04x`, []rune(v)))
	add("JSON escapes, capital", each(`\u%04X`, []rune(v)))
	add("HTML", html.EscapeString(v))
	add("HTML decimal", each("&#%d;", []rune(v)))
	add("HTML hex", each("&#x%x;", []rune(v)))
	add("hex", hex.EncodeToString([]byte(v)))
	add("quoted", each(`\x%02x`, octets))
	var le, be []byte
	for _, u := range utf16.Encode([]rune(v)) {
		le, be = binary.LittleEndian.AppendUint16(le, u), binary.BigEndian.AppendUint16(be, u)
	}
	add("UTF-16LE", string(le))
	add("UTF-16BE", string(be))
	return out
}

// minSpelled is the length from which a text is told from chance.
const minSpelled = 5

// nest looks for all spellings of many canaries at once.
type nest struct {
	spelled  map[string][]spelling // by their first bytes
	squeezed map[string][]spelling // without separators and in small letters
	size     int
}

func newNest(list ...canary) *nest {
	n := &nest{map[string][]spelling{}, map[string][]spelling{}, 0}
	for _, c := range list {
		for _, s := range spellings(c) {
			n.spelled[s.text[:minSpelled]] = append(n.spelled[s.text[:minSpelled]], s)
			n.size++
		}
		if s := squeeze(c.value); len(s) >= 8 { // shorter ones are found in what stands side by side by chance
			n.squeezed[s[:minSpelled]] = append(n.squeezed[s[:minSpelled]], spelling{c.entity, "without separators", s})
			n.size++
		}
	}
	return n
}

func squeeze(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) || strings.ContainsRune("-._/:", r) {
			return -1
		}
		return unicode.ToLower(r)
	}, s)
}

// find says which canaries are in a text, and how they are spelled there.
func (n *nest) find(text string) (out []string) {
	search := func(text string, by map[string][]spelling) {
		for i := 0; i+minSpelled <= len(text); i++ {
			for _, s := range by[text[i:i+minSpelled]] {
				if strings.HasPrefix(text[i:], s.text) {
					out = append(out, fmt.Sprintf("%s (%s) at %d: %q", s.entity, s.form, i, text[max(0, i-60):min(len(text), i+len(s.text)+20)]))
				}
			}
		}
	}
	search(text, n.spelled)
	search(squeeze(text), n.squeezed)
	return out
}

// findJSON is find for a body: as it is, and each of its strings and keys as what they decode to. It names the places.
func (n *nest) findJSON(body []byte) []string {
	out := n.find(string(body))
	for _, s := range stringsOf(body) {
		for _, f := range n.find(s.text) {
			out = append(out, s.at+": "+f)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// leafString is a string of a document and its place.
type leafString struct{ at, text string }

// stringsOf are the strings and keys of a document, those of documents in strings and of base64 included.
func stringsOf(body []byte) (out []leafString) {
	var walk func(at string, v any)
	open := func(at, s string) {
		out = append(out, leafString{at, s})
		if inner, err := base64.StdEncoding.DecodeString(s[strings.LastIndex(s, ",")+1:]); err == nil && len(inner) > 12 {
			out = append(out, leafString{at + " decoded", string(inner)})
		}
		if t := strings.TrimSpace(s); strings.HasPrefix(t, "{") || strings.HasPrefix(t, "[") {
			var doc any
			if json.Unmarshal([]byte(t), &doc) == nil {
				walk(at+" as JSON", doc)
			}
		}
	}
	walk = func(at string, v any) {
		switch v := v.(type) {
		case string:
			open(at, v)
		case []any:
			for i, x := range v {
				walk(fmt.Sprint(at, "/", i), x)
			}
		case map[string]any:
			for k, x := range v {
				out = append(out, leafString{at + "/" + k + " (key)", k})
				walk(at+"/"+k, x)
			}
		}
	}
	var doc any
	if json.Unmarshal(body, &doc) == nil {
		walk("", doc)
	}
	return out
}

// pemToken is what stands for a private key; one in a quoted document has the document's spelling, and so is another value.
var pemToken = regexp.MustCompile(`PRIVATE_KEY_[A-Z_]+`)

var sownBlock = regexp.MustCompile(`(?s)begin (own )?\d+\n(.*?)\nend (own )?\d+`)

// reapedBlocks are the blocks of a request as the provider got them, without their numbers.
func reapedBlocks(body []byte) (person, operator []string) {
	for _, s := range stringsOf(body) {
		for _, m := range sownBlock.FindAllStringSubmatch(s.text, -1) {
			if strings.Contains(m[2], `\n`) { // the string that holds a document, not the document's own
				continue
			}
			if m[1] == "" {
				person = append(person, m[2])
			} else {
				operator = append(operator, m[2])
			}
		}
	}
	return person, operator
}

// TestCanariesAreFound proves the search itself: each spelling of each canary is found in a text that holds nothing else of it.
func TestCanariesAreFound(t *testing.T) {
	a := newAviary(t, 1)
	n := newNest(a.person...)
	for _, c := range a.person {
		for _, s := range spellings(c) {
			if got := n.find("before " + s.text + " behind"); len(got) == 0 {
				t.Errorf("%s spelled %s is not found", s.entity, s.form)
			}
		}
	}
	if got := n.find("before and behind, 123 456"); len(got) != 0 {
		t.Errorf("found %v", got)
	}
	if got := newNest(canary{"X", "", "top secret words"}).findJSON([]byte(`{"a":["{\"b\":\"dG9wIHNlY3JldCB3b3Jkcw==\"}"]}`)); len(got) == 0 {
		t.Error("base64 in a document in a string is not looked into")
	}
	t.Logf("%d entities, %d spellings", len(a.person), n.size)
}

var personToken = regexp.MustCompile(`(?:PERSON|PLACE)_[A-Z]{10,14}`)

// repeatNames is a provider that repeats what stands for a person and a place, or their names.
func repeatNames(r upstream.Request) upstream.Script {
	found := personToken.FindAllString(string(r.Body), -1)
	if len(found) < 2 {
		return upstream.Answer(r, "Nobody.")
	}
	return upstream.Answer(r, "Ask "+found[0]+" at "+found[1]+" now.")
}

// firstDifference shows the lines in which texts differ.
func firstDifference(list []string) string {
	want := strings.Split(list[0], "\n")
	var out []string
	for _, x := range list[1:] {
		got := strings.Split(x, "\n")
		for i := range max(len(want), len(got)) {
			w, g := "", ""
			if i < len(want) {
				w = want[i]
			}
			if i < len(got) {
				g = got[i]
			}
			if w != g {
				if out = append(out, fmt.Sprintf("-%.120q\n+%.120q", w, g)); len(out) >= 12 {
					return strings.Join(out, "\n")
				}
			}
		}
	}
	return strings.Join(out, "\n")
}
